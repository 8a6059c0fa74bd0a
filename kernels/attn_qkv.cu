// The projections that make Q, K and V, with their backward twins.
//
//   forward   q = x W_Q   k = x W_K   v = x W_V
//   backward  dx = dq W_Q' + dk W_K' + dv W_V'          dW_Q += x' dq   dW_K += x' dk   dW_V += x' dv
//
// Shapes   qkv dqkv: (N, 3C) act_t, q k v side by side    x dx: (N, C) act_t    dw: (3, C, C) float32
//          w: element (i, j) of matrix z is w[z * matrix + i * row + j]: (C * C, C) for three (C, C) one after the other,
//          (C, 3C) for the packed working copy
// Writes   fwd assigns qkv; bwd assigns dx; bwd_weight adds into dw
// Launch   block (256,); grid fwd (ceil(C / 64), ceil(N / 64), 3), bwd (ceil(C / 64), ceil(N / 64)), bwd_weight
//          (ceil(C / 64), ceil(C / 64), 3)
// Repeats  bit for bit
#include "matmul.cuh"

extern "C" __global__ void k_attn_qkv_fwd(act_t* qkv /* N E */, const act_t* x /* N C */, const act_t* w, int N, int C,
                                          int matrix, int row) {
    Tile t;
    multiply(t, {x, C, 1}, {w + (size_t)blockIdx.z * matrix, row, 1}, N, C, C);
    assign(t, qkv + (size_t)blockIdx.z * C, 3 * (size_t)C, N, C);
}

extern "C" __global__ void k_attn_qkv_bwd(act_t* dx /* N C */, const act_t* dqkv /* N E */, const act_t* w, int N,
                                          int C, int matrix, int row) {
    Tile t;
    for (int z = 0; z < 3; ++z)
        multiply(t, {dqkv + (size_t)z * C, 3 * C, 1}, {w + (size_t)z * matrix, 1, row}, N, C, C);
    assign(t, dx, C, N, C);
}

extern "C" __global__ void k_attn_qkv_bwd_weight(float* dw, const act_t* x /* N C */, const act_t* dqkv /* N E */,
                                                 int N, int C) {
    Tile t;
    multiply(t, {x, 1, C}, {dqkv + (size_t)blockIdx.z * C, 3 * C, 1}, C, C, N);
    add(t, dw + (size_t)blockIdx.z * C * C, C, C, C);
}
