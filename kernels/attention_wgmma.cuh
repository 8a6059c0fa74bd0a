// Products with a streamed tile by wgmma (sm_90a, D = 32 or 64): four warps together, the operand straight from shared memory.
//
// Measured on an H200: an mma.sync holds its scheduler for 6 cycles, an exponential takes 8, the two together 9 and not 8, each
// further instruction 0.8 more: softmax does not hide behind mma.sync. wgmma runs beside everything else. Its fragments are those
// of mma.m16n8k16, warp by warp, and `place` permutes a row as the hardware's 64- and 128-byte swizzles do, so that only the
// products differ from attention_mma.cuh.

#include "attention_tiles.cuh"

static_assert(D == 32 || D == 64, "a row of a tile is one swizzled line of 64 or 128 bytes");

// The matrix descriptor of a tile: address, distance of groups of eight rows, swizzle; everything in units of 16 bytes.
struct Tile {
    unsigned long long descriptor;
    __device__ __forceinline__ explicit Tile(unsigned tile) {
        constexpr unsigned long long GROUP = 8 * D * 2 / 16, SWIZZLE = D == 32 ? 2 : 1;
        descriptor = (tile & 0x3ffff) >> 4 | 1ull << 16 | GROUP << 32 | SWIZZLE << 62;
    }
    __device__ __forceinline__ unsigned long long at(int row, int bytes) const {
        return descriptor + (row * (D * 2) + bytes) / 16;
    }
};

#define F4(c) "+f"((c).r[0]), "+f"((c).r[1]), "+f"((c).r[2]), "+f"((c).r[3])

// (c0 .. c7) = a . b, or added to it. TRANSPOSED: b's rows are the summed positions, else its columns are.
template <int TRANSPOSED>
__device__ __forceinline__ void wgmma(C& c0, C& c1, C& c2, C& c3, C& c4, C& c5, C& c6, C& c7, const A& a,
                                      unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." PAIR "." PAIR
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, %38; }"
                 : F4(c0), F4(c1), F4(c2), F4(c3), F4(c4), F4(c5), F4(c6), F4(c7)
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}
template <int TRANSPOSED>
__device__ __forceinline__ void wgmma(C& c0, C& c1, C& c2, C& c3, const A& a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." PAIR "." PAIR
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
                 " {%16,%17,%18,%19}, %20, p, 1, 1, %22; }"
                 : F4(c0), F4(c1), F4(c2), F4(c3)
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "r"(add), "n"(TRANSPOSED));
}

// c[n][m] = a[m] . (rows of the tile from `first` on, eight for each n)
template <int N, int M>
__device__ __forceinline__ void mul_rows(C (&c)[N][M], const A (&a)[M][STEPS], const Tile& tile, int first) {
    static_assert(N % 4 == 0, "64 or 32 columns at a time");
    constexpr int STEP = N % 8 ? 4 : 8;
#pragma unroll
    for (int n = 0; n < N; n += STEP)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const unsigned long long b = tile.at(first + 8 * n, 32 * s);
                C(*const o)[M] = c + n;
                if constexpr (STEP == 4) wgmma<0>(o[0][m], o[1][m], o[2][m], o[3][m], a[m][s], b, s > 0);
                else wgmma<0>(o[0][m], o[1][m], o[2][m], o[3][m], o[4][m], o[5][m], o[6][m], o[7][m], a[m][s], b, s > 0);
            }
}

// c[m] += a[k][m] . (positions of the tile from `first` on, sixteen for each k)
template <int K, int M>
__device__ __forceinline__ void add_cols(C (&c)[M][COLS], const A (&a)[K][M], const Tile& tile, int first) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int m = 0; m < M; ++m) {
            C(&o)[COLS] = c[m];
#if D == 32
            wgmma<1>(o[0], o[1], o[2], o[3], a[k][m], tile.at(first + 16 * k, 0), 1);
#else
            wgmma<1>(o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7], a[k][m], tile.at(first + 16 * k, 0), 1);
#endif
        }
}

// Products run beside the program: what they read is written before the start, what they write is read after a wait that leaves
// at most PENDING committed groups under way.
__device__ __forceinline__ void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING, int N, int M>
__device__ __forceinline__ void wait_products(C (&c)[N][M]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int m = 0; m < M; ++m) asm volatile("" : F4(c[n][m])::"memory");  // no use of c moves up across the wait
}
// Ordinary copies into shared memory become visible to wgmma; between their arrival and the barrier.
__device__ __forceinline__ void show_tiles() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
constexpr bool TOGETHER = true;           // control flow around products is the block's, not the warp's
constexpr int CHUNK = D == 32 ? 64 : 32;  // columns of a step of backward; with 64, D = 64 would fit two blocks only
