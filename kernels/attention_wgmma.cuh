// Products with tiles in shared memory by wgmma (sm_90a, D = 32 or 64): the four warps of a block together.
//
// Measured on an H200: a scheduler takes 8 cycles for an exponential, during which other warps issue. A wgmma of 64 columns takes
// 32, of 32 columns 16 (24 with both sides in shared memory), and loses about one for each instruction issued meanwhile: its
// sums lie in the register file too. So a turn costs its products plus its instructions, and few instructions are worth more
// than cheap ones. Fragments are those of mma.m16n8k16, warp by warp; `place` permutes a row as the hardware's 64- and
// 128-byte swizzles do.

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

// c = a . b', or added to it: rows of both tiles are 16 wide from a step on, c has their 64 x 64 sums.
__device__ __forceinline__ void wgmma_tiles(C (&c)[8], unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." PAIR "." PAIR
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
                 : F4(c[0]), F4(c[1]), F4(c[2]), F4(c[3]), F4(c[4]), F4(c[5]), F4(c[6]), F4(c[7])
                 : "l"(a), "l"(b), "r"(add));
}

// c += a . (16 positions of a tile)
__device__ __forceinline__ void wgmma_positions(C (&c)[COLS], const A& a, unsigned long long b) {
#if D == 32
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." PAIR "." PAIR
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 1;"
                 : F4(c[0]), F4(c[1]), F4(c[2]), F4(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
#else
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." PAIR "." PAIR
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
                 "%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : F4(c[0]), F4(c[1]), F4(c[2]), F4(c[3]), F4(c[4]), F4(c[5]), F4(c[6]), F4(c[7])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
#endif
}

// Products run beside the program: what they read is written before the start, what they write is read after a wait that leaves
// at most PENDING committed groups under way. A branch that touches sums of products under way makes ptxas run them one by one
// (its warning C7514).
__device__ __forceinline__ void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING, int N>
__device__ __forceinline__ void wait_products(C (&c)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
    for (int n = 0; n < N; ++n) asm volatile("" : F4(c[n])::"memory");  // no use of c moves up across the wait
}

// c = rows of a . rows of b, as one group
__device__ __forceinline__ void multiply(C (&c)[8], const Tile& a, const Tile& b) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) wgmma_tiles(c, a.at(0, 32 * s), b.at(0, 32 * s), s > 0);
    commit_products();
}
// c += a . the tile's 64 positions, as one group
__device__ __forceinline__ void add_positions(C (&c)[COLS], const A (&a)[4], const Tile& tile) {
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_positions(c, a[k], tile.at(16 * k, 0));
    commit_products();
}

// 64 columns, rounded, as left sides of the next product
__device__ __forceinline__ void pack(A (&a)[4], const C (&c)[8]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) set_half(a[n / 2], n % 2, c[n]);
}
