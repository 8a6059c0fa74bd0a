// GELU in its tanh form (Hendrycks and Gimpel 2016, section 2), with its backward twin. Elementwise.
//
//   forward   u = 2 sqrt(2 / pi) (h + 0.044715 h^3)     s = 1 / (1 + exp(-u))     a = h s
//   backward  dh = da (s + h s (1 - s) u')              a = h s again, which W_2's gradient needs
//
// 0.5 (1 + tanh(u / 2)) is written as the sigmoid s, which does not cancel where tanh is near -1.
// Shapes   h a da dh: (n,) act_t, n a multiple of PACK; dh may be da
//          q: (n,) E4M3, largest, scale: as in fp8.cu
// Writes   fwd assigns a; bwd assigns dh and a (the forward's a is not kept: 4C a row is the largest activation).
//          fp8 is the same for precision fp8: fwd assigns q, what the cast of a would be, instead of a; bwd assigns q, dh's
// Launch   grid (ceil(n / (256 PACK)),), block (256,)     fp8: the same, but at most K blocks
// Repeats  bit for bit
#include "gelu.cuh"
#include "fp8.cuh"

extern "C" __global__ void k_gelu_fwd(act_t* a /* n */, const act_t* h /* n */, long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    store_pack(a + at, gelu_pack(load_pack(h + at)));
}

extern "C" __global__ void k_gelu_bwd(act_t* dh /* n */, act_t* a /* n */, const act_t* da /* n */,
                                      const act_t* h /* n */, long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    Pack value, slope;
    gelu_slopes(load_pack(h + at), load_pack(da + at), value, slope);
    store_pack(a + at, value);
    store_pack(dh + at, slope);
}

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_gelu_fwd(e4m3_t* q /* n */, float* largest /* K */, const Scale* scale, const act_t* h /* n */, long long n) {
    const long long step = (long long)gridDim.x * blockDim.x * PACK;
    float top = 0.0f;
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK; at < n; at += step)
        store_codes(q + at, gelu_pack(load_pack(h + at)), scale->to, top);
    raise_largest(largest, top);
}

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_gelu_bwd(act_t* dh /* n */, act_t* a /* n */, const act_t* da /* n */, const act_t* h /* n */,
                   e4m3_t* q /* n */, float* largest /* K */, const Scale* scale, long long n) {
    const long long step = (long long)gridDim.x * blockDim.x * PACK;
    float top = 0.0f;
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK; at < n; at += step) {
        Pack value, slope;
        gelu_slopes(load_pack(h + at), load_pack(da + at), value, slope);
        store_pack(a + at, value);
        store_pack(dh + at, slope);
        store_codes(q + at, slope, scale->to, top);
    }
    raise_largest(largest, top);
}
