// The plain matrix product that every matrix op's readable form is made of: any shape, any strides.
//
// A block of 256 threads makes a 64 x 64 tile of A (M, K) times B (K, N), 16 of K at a time through shared memory; each
// thread holds 4 x 4 sums. Element (i, k) of A is a[i * a_row + k * a_col], so a transposed operand is a change of strides.
// The order of summation is that of K. cuBLASLt is the fast path of the same ops.

#pragma once
#include "prelude.cuh"

constexpr int TILE = 64, DEPTH = 16, CELL = 4, ACROSS = TILE / CELL;

struct Strided {
    const act_t* p;
    long long row, col;
    __device__ __forceinline__ float at(long long i, long long j) const { return to_float(p[i * row + j * col]); }
};

struct Tile {
    float sum[CELL][CELL] = {};
    __device__ __forceinline__ int row(int i) const { return blockIdx.y * TILE + threadIdx.x / ACROSS * CELL + i; }
    __device__ __forceinline__ int col(int j) const { return blockIdx.x * TILE + threadIdx.x % ACROSS * CELL + j; }
};

// Add A B to the tile's sums.
__device__ __forceinline__ void multiply(Tile& t, Strided a, Strided b, int M, int N, int K) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    for (int k0 = 0; k0 < K; k0 += DEPTH) {
        for (int e = threadIdx.x; e < DEPTH * TILE; e += blockDim.x) {
            const int k = k0 + e % DEPTH, m = m0 + e / DEPTH, kb = k0 + e / TILE, n = n0 + e % TILE;
            as[e % DEPTH][e / DEPTH] = k < K && m < M ? a.at(m, k) : 0.0f;
            bs[e / TILE][e % TILE] = kb < K && n < N ? b.at(kb, n) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k)
#pragma unroll
            for (int i = 0; i < CELL; ++i)
#pragma unroll
                for (int j = 0; j < CELL; ++j)
                    t.sum[i][j] += as[k][threadIdx.x / ACROSS * CELL + i] * bs[k][threadIdx.x % ACROSS * CELL + j];
        __syncthreads();
    }
}

// Assign the tile to out (M, N), rows `stride` apart.
__device__ __forceinline__ void assign(const Tile& t, act_t* out, size_t stride, int M, int N) {
#pragma unroll
    for (int i = 0; i < CELL; ++i)
#pragma unroll
        for (int j = 0; j < CELL; ++j)
            if (t.row(i) < M && t.col(j) < N) out[t.row(i) * stride + t.col(j)] = to_act(t.sum[i][j]);
}

// Add the tile to a weight's gradient (M, N).
__device__ __forceinline__ void add(const Tile& t, float* out, size_t stride, int M, int N) {
#pragma unroll
    for (int i = 0; i < CELL; ++i)
#pragma unroll
        for (int j = 0; j < CELL; ++j)
            if (t.row(i) < M && t.col(j) < N) out[t.row(i) * stride + t.col(j)] += t.sum[i][j];
}
