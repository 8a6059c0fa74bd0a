// The projection of attention's output, with its backward twins.
//
//   forward   y = x W_O               backward  dx = dy W_O'      dW_O += x' dy
//
// Shapes   x y dx dy: (N, C) act_t    w: (C, C) act_t    dw: (C, C) float32
// Writes   fwd assigns y; bwd assigns dx; bwd_weight adds into dw
// Launch   block (256,); grid fwd, bwd (ceil(C / 64), ceil(N / 64)), bwd_weight (ceil(C / 64), ceil(C / 64))
// Repeats  bit for bit
#include "matmul.cuh"

extern "C" __global__ void k_attn_out_fwd(act_t* y /* N C */, const act_t* x /* N C */, const act_t* w /* C C */, int N,
                                          int C) {
    Tile t;
    multiply(t, {x, C, 1}, {w, C, 1}, N, C, C);
    assign(t, y, C, N, C);
}

extern "C" __global__ void k_attn_out_bwd(act_t* dx /* N C */, const act_t* dy /* N C */, const act_t* w /* C C */,
                                          int N, int C) {
    Tile t;
    multiply(t, {dy, C, 1}, {w, 1, C}, N, C, C);
    assign(t, dx, C, N, C);
}

extern "C" __global__ void k_attn_out_bwd_weight(float* dw /* C C */, const act_t* x /* N C */,
                                                 const act_t* dy /* N C */, int N, int C) {
    Tile t;
    multiply(t, {x, 1, C}, {dy, C, 1}, C, C, N);
    add(t, dw, C, C, C);
}
