// Products with a streamed tile by mma.sync (sm_80 and newer): the operand comes from shared memory by ldmatrix.

#include "attention_tiles.cuh"

__device__ __forceinline__ void mma(C& c, const A& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PAIR "." PAIR ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Where this lane reads fragments of a tile. Steps along a row only flip bits of the permuted piece, hence the xor below.
struct Tile {
    unsigned rows, cols;
    __device__ __forceinline__ explicit Tile(unsigned tile) {
        const int lane = lane_id();
        rows = tile + place(lane % 8, lane / 8), cols = tile + place(lane % 16, lane / 16);
    }
};

// B fragments of a product over D: rows n .. n + 7 of the tile are columns of B. b[0..1] is step s, b[2..3] step s + 1.
__device__ __forceinline__ void load_b_rows(unsigned (&b)[4], const Tile& tile, int n, int s) {
    asm volatile("{ .reg .u32 a; xor.b32 a, %4, %5; add.u32 a, a, %6;\n"
                 "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [a]; }"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(tile.rows), "r"(s << 5), "r"(n * (D * 2)) : "memory");
}

// B fragments of a product over positions k .. k + 15: b[0..1] are columns 8n .. 8n + 7 of the tile, b[2..3] the next eight.
__device__ __forceinline__ void load_b_cols(unsigned (&b)[4], const Tile& tile, int k, int n) {
    asm volatile("{ .reg .u32 a; xor.b32 a, %4, %5; add.u32 a, a, %6;\n"
                 "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [a]; }"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(tile.cols), "r"(n << 4), "r"(k * (D * 2)) : "memory");
}

// c[n][m] = a[m] . (rows of the tile from `first` on, eight for each n)
template <int N, int M>
__device__ __forceinline__ void mul_rows(C (&c)[N][M], const A (&a)[M][STEPS], const Tile& tile, int first) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int m = 0; m < M; ++m) c[n][m] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s += 2) {
            unsigned b[4];
            load_b_rows(b, tile, first + 8 * n, s);
#pragma unroll
            for (int m = 0; m < M; ++m) mma(c[n][m], a[m][s], b[0], b[1]);
#pragma unroll
            for (int m = 0; m < M; ++m) mma(c[n][m], a[m][s + 1], b[2], b[3]);
        }
    }
}

// a = 16 rows of a tile that stays, columns 16 s .. 16 s + 15
__device__ __forceinline__ void load_a_rows(A& a, const Tile& tile, int row, int s) {
    asm volatile("{ .reg .u32 a; xor.b32 a, %4, %5; add.u32 a, a, %6;\n"
                 "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [a]; }"
                 : "=r"(a.r[0]), "=r"(a.r[1]), "=r"(a.r[2]), "=r"(a.r[3])
                 : "r"(tile.cols), "r"(s << 5), "r"(row * (D * 2)) : "memory");
}

// The same with the left side from 16 rows of a tile that stays, for want of registers
template <int N>
__device__ __forceinline__ void mul_rows(C (&c)[N][1], const Tile& left, int row, const Tile& tile, int first) {
#pragma unroll
    for (int n = 0; n < N; ++n) c[n][0] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        A a[2];
        load_a_rows(a[0], left, row, s), load_a_rows(a[1], left, row, s + 1);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            unsigned b[4];
            load_b_rows(b, tile, first + 8 * n, s);
            mma(c[n][0], a[0], b[0], b[1]), mma(c[n][0], a[1], b[2], b[3]);
        }
    }
}

// c[m] += a[k][m] . (positions of the tile from `first` on, sixteen for each k)
template <int K, int M>
__device__ __forceinline__ void add_cols(C (&c)[M][COLS], const A (&a)[K][M], const Tile& tile, int first) {
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int n = 0; n < COLS; n += 2) {
            unsigned b[4];
            load_b_cols(b, tile, first + 16 * k, n);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma(c[m][n], a[k][m], b[0], b[1]);
                mma(c[m][n + 1], a[k][m], b[2], b[3]);
            }
        }
}

constexpr int CHUNK = 16;  // columns of a step of backward
