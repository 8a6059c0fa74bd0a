// The head's matrix product, with its backward twins. The head is wte itself when it is tied. Cross-entropy is in loss.cu.
//
//   forward   logits = x head'        backward  dx = dlogits head      dhead += dlogits' x
//
// Shapes   logits dlogits: (N, P) act_t, of which V columns count    x dx: (N, C) act_t    head: (V, C) act_t
//          dhead: (V, C) float32
// Writes   fwd assigns the first V columns of logits; bwd assigns dx; bwd_weight adds into dhead
// Launch   block (256,); grid fwd (ceil(V / 64), ceil(N / 64)), bwd (ceil(C / 64), ceil(N / 64)), bwd_weight
//          (ceil(C / 64), ceil(V / 64))
// Repeats  bit for bit
#include "matmul.cuh"

extern "C" __global__ void k_loss_head_fwd(act_t* logits /* N P */, const act_t* x /* N C */, const act_t* head, int N,
                                           int C, int V, int P) {
    Tile t;
    multiply(t, {x, C, 1}, {head, 1, C}, N, V, C);
    assign(t, logits, P, N, V);
}

extern "C" __global__ void k_loss_head_bwd(act_t* dx /* N C */, const act_t* dlogits /* N P */, const act_t* head,
                                           int N, int C, int V, int P) {
    Tile t;
    multiply(t, {dlogits, P, 1}, {head, C, 1}, N, C, V);
    assign(t, dx, C, N, C);
}

extern "C" __global__ void k_loss_head_bwd_weight(float* dhead /* V C */, const act_t* dlogits /* N P */,
                                                  const act_t* x /* N C */, int N, int C, int V, int P) {
    Tile t;
    multiply(t, {dlogits, 1, P}, {x, C, 1}, V, C, N);
    add(t, dhead, C, V, C);
}
