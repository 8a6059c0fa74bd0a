// The MLP's matrix products, with their backward twins. GELU between them is in gelu.cu.
//
//   forward   h = x W_1     a = gelu(h)     y = a W_2
//   backward  da = dy W_2'  dh = da gelu'(h)   dx = dh W_1'          dW_2 += a' dy    dW_1 += x' dh
//
// Shapes   out in: (N, O), (N, I) act_t with (I, O) = (C, F) for W_1 and (F, C) for W_2    w: (I, O) act_t
//          dw: (I, O) float32
// Writes   fwd assigns y; bwd assigns dx; bwd_weight adds into dw; each is launched once for W_1 and once for W_2
// Launch   block (256,); grid fwd (ceil(O / 64), ceil(N / 64)), bwd (ceil(I / 64), ceil(N / 64)), bwd_weight
//          (ceil(O / 64), ceil(I / 64))
// Repeats  bit for bit
#include "matmul.cuh"

extern "C" __global__ void k_mlp_fwd(act_t* y /* N O */, const act_t* x /* N I */, const act_t* w /* I O */, int N,
                                     int I, int O) {
    Tile t;
    multiply(t, {x, I, 1}, {w, O, 1}, N, O, I);
    assign(t, y, O, N, O);
}

extern "C" __global__ void k_mlp_bwd(act_t* dx /* N I */, const act_t* dy /* N O */, const act_t* w /* I O */, int N,
                                     int I, int O) {
    Tile t;
    multiply(t, {dy, O, 1}, {w, 1, O}, N, I, O);
    assign(t, dx, I, N, I);
}

extern "C" __global__ void k_mlp_bwd_weight(float* dw /* I O */, const act_t* x /* N I */, const act_t* dy /* N O */,
                                            int N, int I, int O) {
    Tile t;
    multiply(t, {x, 1, I}, {dy, O, 1}, I, O, N);
    add(t, dw, O, I, O);
}
