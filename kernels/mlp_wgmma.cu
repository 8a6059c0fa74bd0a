// The MLP's two products around GELU with GELU in their epilogues, for sm_90a in 16 bits. Elsewhere: mlp.cu and gelu.cu.
//
//   forward   h = x W_1                a = gelu(h)
//   backward  dh = (dy W_2') gelu'(h)  a = gelu(h) again, which W_2's gradient needs
//
// h and dy W_2' are rounded before GELU, as they are where GELU is a kernel of its own. Won on an H200, 8 x 1024 tokens: 4.3 % of a
// step of the 12M, 3 % of the 120M's, over cuBLASLt's product and GELU's kernel one after the other.
//
// Shapes   x dy: (N, I) act_t    w: (I, O) for W_1, (O, I) for W_2, act_t    h a dh: (N, O) act_t
//          I a multiple of 64, O of 128    maps: of x or dy, and of w; see andrea/engine/cuda/mlp_fused.py
// Writes   fwd assigns h and a; bwd assigns dh and a
// Launch   block (640,), grid (multiprocessors,), SHARED bytes of shared memory
// Repeats  bit for bit, whatever the grid
#include "product_wgmma.cuh"
#include "gelu.cuh"

// Without a branch, across which the compiler would not mix the instructions of several rows.
__device__ __forceinline__ void load_if(bool inside, Pack& to, const act_t* from) {
    uint4& u = reinterpret_cast<uint4&>(to);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%5]; }"
                 : "+r"(u.x), "+r"(u.y), "+r"(u.z), "+r"(u.w)
                 : "r"((int)inside), "l"(from));
}
__device__ __forceinline__ void store_if(bool inside, act_t* to, const Pack& from) {
    const uint4& u = reinterpret_cast<const uint4&>(from);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.u32 [%4], {%0, %1, %2, %3}; }" ::"r"(u.x), "r"(u.y),
                 "r"(u.z), "r"(u.w), "l"(to), "r"((int)inside));
}

struct Forward {
    act_t *h, *a;
    __device__ __forceinline__ void begin(const Rows&) {}
    template <class Await>
    __device__ __forceinline__ void operator()(const Rows& rows, const Rows&, const Await& await) {
        await();
#pragma unroll
        for (int r = 0; r < Rows::COUNT; ++r) {
            const Pack x = rows.get(r);
            store_if(rows.inside(r), h + rows.place(r), x);
            store_if(rows.inside(r), a + rows.place(r), gelu_pack(x));
        }
    }
};

struct Backward {
    act_t *dh, *a;
    const act_t* h;
    Pack next[Rows::COUNT];  // of h, a whole turn ahead
    __device__ __forceinline__ void load(const Rows& rows, int r) { load_if(rows.inside(r), next[r], h + rows.place(r)); }
    __device__ __forceinline__ void begin(const Rows& rows) {
#pragma unroll
        for (int r = 0; r < Rows::COUNT; ++r) load(rows, r);
    }
    template <class Await>
    __device__ __forceinline__ void operator()(const Rows& rows, const Rows& following, const Await& await) {
        await();
#pragma unroll
        for (int r = 0; r < Rows::COUNT; ++r) {
            Pack value, slope;
            gelu_slopes(next[r], rows.get(r), value, slope);
            load(following, r);
            store_if(rows.inside(r), a + rows.place(r), value);
            store_if(rows.inside(r), dh + rows.place(r), slope);
        }
    }
};

extern "C" __global__ void __launch_bounds__(640, 1)
    k_mlp_gelu_fwd(act_t* h /* N O */, act_t* a /* N O */, const act_t* x /* N I */, const act_t* w /* I O */,
                   const Map* maps, int N, int I, int O) {
    product<false>(maps, N, I, O, Forward{h, a});
}

extern "C" __global__ void __launch_bounds__(640, 1)
    k_mlp_gelu_bwd(act_t* dh /* N O */, act_t* a /* N O */, const act_t* dy /* N I */, const act_t* w /* O I */,
                   const act_t* h /* N O */, const Map* maps, int N, int I, int O) {
    product<true>(maps, N, I, O, Backward{dh, a, h, {}});
}
