// What float32 attention is made of: tiles in shared memory, and products of them by the threads of a block.

#include "attention.cuh"

constexpr int R = ATTN_ROWS;                 // queries and keys of a tile
constexpr int TX = 8, TY = BLOCK / TX;       // threads: TY groups of rows, TX groups of columns; a group's lanes are neighbours
constexpr int TM = R / TY;                   // rows of a thread: ty * TM + m
constexpr int SN = R / TX;                   // its columns of a (R, R) tile: tx + 8 n (rows read at once differ in banks)
constexpr int DN = D / TX;                   // its columns of a (R, D) tile: 4 tx + 32 (n / 4) + n % 4
constexpr int WIDE = D + 4, SQUARE = R + 4;  // row strides in shared memory; the padding is for banks too
static_assert(R % 32 == 0, "a tile is whole quads of rows and columns");

__device__ __forceinline__ int tx() { return threadIdx.x % TX; }
__device__ __forceinline__ int ty() { return threadIdx.x / TX; }
__device__ __forceinline__ int square_column(int n) { return tx() + TX * n; }
__device__ __forceinline__ int wide_column(int c) { return 4 * tx() + 4 * TX * c; }  // of the c-th group of four

__device__ __forceinline__ float group_sum(float v) {
    for (int d = 1; d < TX; d *= 2) v += __shfl_xor_sync(FULL, v, d);
    return v;
}
__device__ __forceinline__ float group_max(float v) {
    for (int d = 1; d < TX; d *= 2) v = fmaxf(v, __shfl_xor_sync(FULL, v, d));
    return v;
}
__device__ __forceinline__ float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// tile (R, D) = R rows of D from src; rows from `left` on are zero.
__device__ __forceinline__ void load_tile(float* tile, const float* src, int stride, int left) {
    for (int i = threadIdx.x; i < R * D / 4; i += BLOCK) {
        const int row = i / (D / 4), column = i % (D / 4) * 4;
        const float4 v = row < left ? load4(src + (size_t)row * stride + column) : make_float4(0, 0, 0, 0);
        *reinterpret_cast<float4*>(tile + row * WIDE + column) = v;
    }
}

// c = a . b' over D, for tiles a, b (R, D)
__device__ __forceinline__ void mul_rows(float (&c)[TM][SN], const float* a, const float* b) {
#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < SN; ++n) c[m][n] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        float4 x[TM];
#pragma unroll
        for (int m = 0; m < TM; ++m) x[m] = load4(a + (ty() * TM + m) * WIDE + d);
#pragma unroll
        for (int n = 0; n < SN; ++n) {
            const float4 y = load4(b + square_column(n) * WIDE + d);
#pragma unroll
            for (int m = 0; m < TM; ++m) c[m][n] += x[m].x * y.x + x[m].y * y.y + x[m].z * y.z + x[m].w * y.w;
        }
    }
}

// c += x[m] * (row of a wide tile), this thread's columns
__device__ __forceinline__ void add_row(float (&c)[TM][DN], const float (&x)[TM], const float* row) {
#pragma unroll
    for (int n = 0; n < DN; n += 4) {
        const float4 y = load4(row + wide_column(n / 4));
#pragma unroll
        for (int m = 0; m < TM; ++m) {
            c[m][n] += x[m] * y.x, c[m][n + 1] += x[m] * y.y;
            c[m][n + 2] += x[m] * y.z, c[m][n + 3] += x[m] * y.w;
        }
    }
}

// c += p . b (rows of p are rows of c), for p (R, R) and b (R, D)
__device__ __forceinline__ void mul_cols(float (&c)[TM][DN], const float* p, const float* b) {
#pragma unroll 1
    for (int k = 0; k < R; k += 4) {
        float4 x[TM];
#pragma unroll
        for (int m = 0; m < TM; ++m) x[m] = load4(p + (ty() * TM + m) * SQUARE + k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float xi[TM];
#pragma unroll
            for (int m = 0; m < TM; ++m) xi[m] = i == 0 ? x[m].x : i == 1 ? x[m].y : i == 2 ? x[m].z : x[m].w;
            add_row(c, xi, b + (k + i) * WIDE);
        }
    }
}

// c += p' . b (columns of p are rows of c)
__device__ __forceinline__ void mul_cols_transposed(float (&c)[TM][DN], const float* p, const float* b) {
#pragma unroll 4
    for (int k = 0; k < R; ++k) {
        float x[TM];
#pragma unroll
        for (int m = 0; m < TM; ++m) x[m] = p[k * SQUARE + ty() * TM + m];
        add_row(c, x, b + k * WIDE);
    }
}

__device__ __forceinline__ void store_square(float* p, const float (&c)[TM][SN]) {
#pragma unroll
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < SN; ++n) p[(ty() * TM + m) * SQUARE + square_column(n)] = c[m][n];
}

// dst rows = c[m] * f[m]; rows from `left` on are not written
__device__ __forceinline__ void store_wide(float* dst, int stride, const float (&c)[TM][DN], const float (&f)[TM], int left) {
#pragma unroll
    for (int m = 0; m < TM; ++m) {
        const int row = ty() * TM + m;
        if (row >= left) return;
#pragma unroll
        for (int n = 0; n < DN; n += 4)
            *reinterpret_cast<float4*>(dst + (size_t)row * stride + wide_column(n / 4)) =
                make_float4(c[m][n] * f[m], c[m][n + 1] * f[m], c[m][n + 2] * f[m], c[m][n + 3] * f[m]);
    }
}

// The same with one factor for all rows
__device__ __forceinline__ void store_wide(float* dst, int stride, const float (&c)[TM][DN], float factor, int left) {
    float f[TM];
    for (int m = 0; m < TM; ++m) f[m] = factor;
    store_wide(dst, stride, c, f, left);
}

// Offsets of one (batch, head): q, k, v rows are `wide` apart, out rows `narrow`; blockIdx.x = batch * H + head.
struct Head {
    size_t qkv, out, lse, rows;
    int narrow, wide;
    __device__ __forceinline__ Head(int T, int H) : narrow(H * D), wide(3 * H * D) {
        const unsigned b = blockIdx.x / H, h = blockIdx.x % H;
        qkv = (size_t)b * T * wide + h * D, out = (size_t)b * T * narrow + h * D;
        lse = (size_t)blockIdx.x * T, rows = 2 * ((size_t)blockIdx.x * ((T + 127) / 128 * 128));
    }
};

// Tiles of keys and values from position `key` on; nobody reads the last ones any more when they are overwritten.
__device__ __forceinline__ void load_keys(float* k, float* v, const float* qkv, const Head& at, int key, int T) {
    __syncthreads();
    const float* src = qkv + at.qkv + at.narrow + (size_t)key * at.wide;
    load_tile(k, src, at.wide, T - key);
    load_tile(v, src + at.narrow, at.wide, T - key);
    __syncthreads();
}
