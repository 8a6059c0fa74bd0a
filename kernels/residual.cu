// The residual sum, with its backward twin. In the fast path the sum is done by the matrix product that makes b.
//
//   forward   out = a + b             backward  da = dout, db = dout
//
// Shapes   all (n,) act_t, n a multiple of PACK; out may be a, da or db may be dout
// Writes   assigns
// Launch   grid (ceil(n / (256 PACK)),), block (256,)
// Repeats  bit for bit
#include "prelude.cuh"

extern "C" __global__ void k_residual_add(act_t* out /* n */, const act_t* a /* n */, const act_t* b /* n */,
                                          long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    const Pack x = load_pack(a + at), y = load_pack(b + at);
    Pack sum;
#pragma unroll
    for (int i = 0; i < PACK; ++i) sum.set(i, x.get(i) + y.get(i));
    store_pack(out + at, sum);
}

extern "C" __global__ void k_residual_add_bwd(act_t* da /* n */, act_t* db /* n */, const act_t* dout /* n */,
                                              long long n) {
    const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= n) return;
    const Pack up = load_pack(dout + at);
    store_pack(da + at, up);
    store_pack(db + at, up);
}
