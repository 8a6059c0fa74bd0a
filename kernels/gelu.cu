// GELU in its tanh form (Hendrycks and Gimpel 2016, section 2), with its backward twin. Elementwise.
//
//   forward   u = 2 sqrt(2 / pi) (h + 0.044715 h^3)     s = 1 / (1 + exp(-u))     a = h s
//   backward  dh = da (s + h s (1 - s) u')              a = h s again, which W_2's gradient needs
//
// 0.5 (1 + tanh(u / 2)) is written as the sigmoid s, which does not cancel where tanh is near -1.
// Shapes   h a da dh: (n,) act_t, n a multiple of PACK; dh may be da
// Writes   fwd assigns a; bwd assigns dh and a (the forward's a is not kept: 4C a row is the largest activation)
// Launch   grid (ceil(n / (256 PACK)),), block (256,)
// Repeats  bit for bit
#include "gelu.cuh"

extern "C" __global__ void k_gelu_fwd(act_t* a /* n */, const act_t* h /* n */, long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    const Pack in = load_pack(h + at);
    Pack out;
#pragma unroll
    for (int i = 0; i < PACK; ++i) out.set(i, gelu(in.get(i)));
    store_pack(a + at, out);
}

extern "C" __global__ void k_gelu_bwd(act_t* dh /* n */, act_t* a /* n */, const act_t* da /* n */,
                                      const act_t* h /* n */, long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    const Pack in = load_pack(h + at), up = load_pack(da + at);
    Pack value, slope;
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        const float x = in.get(i), s = sigmoid(SLOPE * (x + CUBE * x * x * x));
        value.set(i, x * s);
        slope.set(i, up.get(i) * (s + x * s * (1.0f - s) * SLOPE * (1.0f + 3.0f * CUBE * x * x)));
    }
    store_pack(a + at, value);
    store_pack(dh + at, slope);
}
