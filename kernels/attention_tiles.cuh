// What 16-bit attention is made of: tensor-core fragments, their way to and from memory, tiles that stream through shared
// memory. A row of a tile is D elements.

#include "attention.cuh"

constexpr int WARPS = BLOCK / WARP;
constexpr int PIECES = D / 8;               // 16-byte pieces of a row
constexpr int STEPS = D / 16;               // 16-wide steps of a product over D
constexpr int COLS = D / 8;                 // 8-wide column tiles of a (16, D) result

// Fragments of mma.m16n8k16, t = lane % 4, g = lane / 4. A register holds two neighbouring columns of 16 bits.
//   A (16, 16)  a0: (g, 2t)   a1: (g + 8, 2t)   a2: (g, 2t + 8)   a3: (g + 8, 2t + 8)
//   B (16, 8)   b0: rows 2t, 2t + 1 of column g   b1: rows 2t + 8, 2t + 9
//   C (16, 8)   c0 c1: (g, 2t), (g, 2t + 1)       c2 c3: the same columns of row g + 8        float32
// Two C tiles side by side, rounded and paired, are therefore the A of the next product: p and ds never leave registers.
struct A { unsigned r[4]; };
struct C { float r[4]; };

// The left (0) or right (1) half of a, rounded from c
__device__ __forceinline__ void set_half(A& a, int half, const C& c) {
    a.r[2 * half] = pack2(c.r[0], c.r[1]), a.r[2 * half + 1] = pack2(c.r[2], c.r[3]);
}

__device__ __forceinline__ float dot2(unsigned x, unsigned y) {
    const act_t* a = reinterpret_cast<const act_t*>(&x);
    const act_t* b = reinterpret_cast<const act_t*>(&y);
    return to_float(a[0]) * to_float(b[0]) + to_float(a[1]) * to_float(b[1]);
}

__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(FULL, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(FULL, v, 1);
    return v + __shfl_xor_sync(FULL, v, 2);
}

// ---- Global memory <-> fragments ------------------------------------------------------------------------------------

// Transposes a 4 x 4 matrix whose rows are the lanes of a quad: afterwards u[j] is what lane j held in u[t].
// It turns 16-byte accesses (lane t has the 8 columns of tile t) into fragments (lane t has columns 2t, 2t + 1 of each tile).
__device__ __forceinline__ void quad_transpose(unsigned (&u)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    unsigned a = __shfl_xor_sync(FULL, odd ? u[0] : u[1], 1), b = __shfl_xor_sync(FULL, odd ? u[2] : u[3], 1);
    if (odd) { u[0] = a; u[2] = b; } else { u[1] = a; u[3] = b; }
    a = __shfl_xor_sync(FULL, high ? u[0] : u[2], 2), b = __shfl_xor_sync(FULL, high ? u[1] : u[3], 2);
    if (high) { u[0] = a; u[1] = b; } else { u[2] = a; u[3] = b; }
}

// a = 16 rows of D columns, row r at src + r * stride; rows from `rows` on are zero.
__device__ __forceinline__ void load_a(A (&a)[STEPS], const act_t* src, int stride, int rows) {
    const int t = threadIdx.x % 4, g = lane_id() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (row < rows) v = *reinterpret_cast<const uint4*>(src + (size_t)row * stride + (2 * s + t) * 8);
            unsigned u[4] = {v.x, v.y, v.z, v.w};
            quad_transpose(u);
            a[s].r[half] = u[0], a[s].r[half + 2] = u[1], a[s + 1].r[half] = u[2], a[s + 1].r[half + 2] = u[3];
        }
    }
}

// dst = c with rows g scaled by `low` and rows g + 8 by `high`; rows from `rows` on are not written.
__device__ __forceinline__ void store_c(act_t* dst, int stride, const C (&c)[COLS], float low, float high, int rows) {
    const int t = threadIdx.x % 4, g = lane_id() / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float f = half ? high : low;
        const int row = g + 8 * half, i = 2 * half;
#pragma unroll
        for (int n = 0; n < COLS; n += 4) {
            unsigned u[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) u[k] = pack2(c[n + k].r[i] * f, c[n + k].r[i + 1] * f);
            quad_transpose(u);
            uint4* to = reinterpret_cast<uint4*>(dst + (size_t)row * stride + (n + t) * 8);
            if (row < rows) *to = make_uint4(u[0], u[1], u[2], u[3]);
        }
    }
}

// ---- Tiles in shared memory -----------------------------------------------------------------------------------------

// Byte offset of a 16-byte piece. Pieces of a row are permuted by the row, so that eight rows of one column of pieces, which
// ldmatrix reads at once, lie in different banks.
__device__ __forceinline__ unsigned place(int row, int piece) {
    const int flip = D == 32 ? (row >> 1) & 3 : row & 7;
    return row * (D * 2) + ((piece ^ flip) << 4);
}

__device__ __forceinline__ void copy_async(unsigned dst, const void* src, int bytes) {  // the rest of 16 is zero-filled
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Element i of C tile (m, n) is `below(m, i)` rows under this lane's first row, `later(n, i)` columns after its first column.
__device__ __forceinline__ constexpr int below(int m, int i) { return 16 * m + 8 * (i / 2); }
__device__ __forceinline__ constexpr int later(int n, int i) { return 8 * n + i % 2; }

// Position of this lane's first row minus that of its first column, for a C tile at (row, column).
__device__ __forceinline__ int lane_ahead(int row, int column) { return row + lane_id() / 4 - column - 2 * (threadIdx.x % 4); }

