// Causal scaled dot-product attention in strict float32, with its backward twin. No (T, T) matrix in memory.
//
// Formulas as in attention.cu. Plain fused multiply-adds, no TF32; exp2 is the hardware's, 2 ulp.
//
// Shapes   qkv dqkv: (B, T, 3, H, D)    out dout: (B, T, H, D)    lse: (B, H, T)    rows: as in attention.cu        float32
// Writes   everything is assigned; k_attn_bwd_dq, the first of backward, fills dq and rows, k_attn_bwd_dkdv fills dk and dv
// Launch   block (128,), grid (B * H, ceil(T / ATTN_ROWS)) for each of k_attn_fwd, k_attn_bwd_dq, k_attn_bwd_dkdv;
//          dynamic shared memory: 4 bytes * (n * R * (D + 4) + R * (R + 4) + 2 * R), R = ATTN_ROWS, n = 3 (fwd) or 4 (bwd)
// Options  -DACT=0, -DD=32|64|128, -DATTN_ROWS=64 (32 for D = 128, where 64 rows would not fit)
// Repeats  bit for bit: no atomics; each sum is made by one thread in the order of positions
// Needs    16-byte addresses

#include "prelude.cuh"

static_assert(ACT == ACT_FP32, "16-bit attention is attention.cu");
static_assert(D == 32 || D == 64 || D == 128, "head width 32, 64 or 128");

constexpr int R = ATTN_ROWS;                 // queries and keys of a tile
constexpr int BLOCK = 128, TX = 8, TY = 16;  // threads: TY groups of rows, TX groups of columns; a group's lanes are neighbours
constexpr int TM = R / TY;                   // rows of a thread: ty * TM + m
constexpr int SN = R / TX;                   // its columns of a (R, R) tile: tx + 8 n (rows read at once differ in banks)
constexpr int DN = D / TX;                   // its columns of a (R, D) tile: 4 tx + 32 (n / 4) + n % 4
constexpr int WIDE = D + 4, SQUARE = R + 4;  // row strides in shared memory; the padding is for banks too
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SCALE = D == 32 ? 0.17677669529663687f : D == 64 ? 0.125f : 0.08838834764831845f;  // 1 / sqrt(D)
constexpr float SCALE2 = SCALE * LOG2E;
static_assert(R % 32 == 0, "a tile is whole quads of rows and columns");

__device__ __forceinline__ int tx() { return threadIdx.x % TX; }
__device__ __forceinline__ int ty() { return threadIdx.x / TX; }
__device__ __forceinline__ int square_column(int n) { return tx() + TX * n; }
__device__ __forceinline__ int wide_column(int c) { return 4 * tx() + 4 * TX * c; }  // of the c-th group of four

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
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

// ---- Forward --------------------------------------------------------------------------------------------------------

// s becomes p for one tile of keys; what is summed so far is rescaled to the row's new maximum.
__device__ __forceinline__ void softmax(float (&s)[TM][SN], float (&o)[TM][DN], float (&top)[TM], float (&sum)[TM], int row,
                                        int key) {
#pragma unroll
    for (int m = 0; m < TM; ++m) {
        float next = top[m];
#pragma unroll
        for (int n = 0; n < SN; ++n) {
            if (key + square_column(n) > row + ty() * TM + m) s[m][n] = -INFINITY;
            next = fmaxf(next, s[m][n]);
        }
        next = group_max(next);
        const float f = exp2_fast((top[m] - next) * SCALE2);
        top[m] = next, sum[m] *= f;
#pragma unroll
        for (int n = 0; n < DN; ++n) o[m][n] *= f;
#pragma unroll
        for (int n = 0; n < SN; ++n) s[m][n] = exp2_fast((s[m][n] - next) * SCALE2), sum[m] += s[m][n];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
k_attn_fwd(act_t* out /* N H D */, float* lse /* B H T */, const act_t* qkv /* N 3 H D */, int T, int H) {
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *k = q + R * WIDE, *v = k + R * WIDE, *p = v + R * WIDE;
    const Head at(T, H);
    const int row = (gridDim.y - 1 - blockIdx.y) * R;  // longest rows first: the short ones fill the gaps
    load_tile(q, qkv + at.qkv + (size_t)row * at.wide, at.wide, T - row);

    float o[TM][DN] = {}, top[TM], sum[TM] = {};
    for (int m = 0; m < TM; ++m) top[m] = -INFINITY;
    for (int key = 0; key <= row; key += R) {
        __syncthreads();  // nobody reads the last tiles any more
        const act_t* src = qkv + at.qkv + at.narrow + (size_t)key * at.wide;
        load_tile(k, src, at.wide, T - key);
        load_tile(v, src + at.narrow, at.wide, T - key);
        __syncthreads();
        float s[TM][SN];
        mul_rows(s, q, k);
        softmax(s, o, top, sum, row, key);
        store_square(p, s);
        __syncwarp();  // a row of p is written and read by the same eight lanes
        mul_cols(o, p, v);
    }

    float inverse[TM];
    for (int m = 0; m < TM; ++m) {
        const float total = group_sum(sum[m]);
        const int mine = row + ty() * TM + m;
        inverse[m] = 1.0f / total;
        if (tx() == 0 && mine < T) lse[at.lse + mine] = top[m] * SCALE + logf(total);
    }
    store_wide(out + at.out + (size_t)row * at.narrow, at.narrow, o, inverse, T - row);
}

// ---- Backward -------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
k_attn_bwd_dq(act_t* dqkv /* N 3 H D */, float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
              const act_t* out /* N H D */, const float* lse /* B H T */, int T, int H) {
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *g = q + R * WIDE, *k = g + R * WIDE, *v = k + R * WIDE, *ds = v + R * WIDE;
    const Head at(T, H);
    const int row = (gridDim.y - 1 - blockIdx.y) * R;
    const size_t first = at.out + (size_t)row * at.narrow;
    load_tile(q, qkv + at.qkv + (size_t)row * at.wide, at.wide, T - row);
    load_tile(g, dout + first, at.narrow, T - row);
    load_tile(k, out + first, at.narrow, T - row);
    __syncthreads();

    float lse2[TM], delta[TM];
    for (int m = 0; m < TM; ++m) {
        const int r = ty() * TM + m;
        float part = 0.0f;
        for (int c = tx(); c < D; c += TX) part += g[r * WIDE + c] * k[r * WIDE + c];
        delta[m] = group_sum(part);
        lse2[m] = row + r < T ? lse[at.lse + row + r] * LOG2E : INFINITY;  // beyond T: p = exp2(finite - inf) = 0
        if (tx() == 0) rows[at.rows + 2 * (row + r)] = lse2[m], rows[at.rows + 2 * (row + r) + 1] = delta[m];
    }

    float dq[TM][DN] = {};
    for (int key = 0; key <= row; key += R) {
        __syncthreads();
        const act_t* src = qkv + at.qkv + at.narrow + (size_t)key * at.wide;
        load_tile(k, src, at.wide, T - key);
        load_tile(v, src + at.narrow, at.wide, T - key);
        __syncthreads();
        float s[TM][SN], dp[TM][SN];
        mul_rows(s, q, k);
        mul_rows(dp, g, v);
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int n = 0; n < SN; ++n) {
                const bool later = key + square_column(n) > row + ty() * TM + m;
                s[m][n] = later ? 0.0f : exp2_fast(s[m][n] * SCALE2 - lse2[m]) * (dp[m][n] - delta[m]);
            }
        store_square(ds, s);
        __syncwarp();
        mul_cols(dq, ds, k);
    }
    float scale[TM];
    for (int m = 0; m < TM; ++m) scale[m] = SCALE;
    store_wide(dqkv + at.qkv + (size_t)row * at.wide, at.wide, dq, scale, T - row);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2)
k_attn_bwd_dkdv(act_t* dqkv /* N 3 H D */, const float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
                int T, int H) {
    extern __shared__ __align__(16) float shared[];
    float *q = shared, *g = q + R * WIDE, *k = g + R * WIDE, *v = k + R * WIDE, *p = v + R * WIDE, *stats = p + R * SQUARE;
    const Head at(T, H);
    const int key = blockIdx.y * R;
    const size_t mine = at.qkv + at.narrow + (size_t)key * at.wide;
    load_tile(k, qkv + mine, at.wide, T - key);
    load_tile(v, qkv + mine + at.narrow, at.wide, T - key);

    float dk[TM][DN] = {}, dv[TM][DN] = {};
    for (int row = key; row < T; row += R) {
        __syncthreads();
        load_tile(q, qkv + at.qkv + (size_t)row * at.wide, at.wide, T - row);
        load_tile(g, dout + at.out + (size_t)row * at.narrow, at.narrow, T - row);
        for (int i = threadIdx.x; i < 2 * R; i += BLOCK) stats[i] = rows[at.rows + 2 * row + i];
        __syncthreads();
        float s[TM][SN], dp[TM][SN];
        mul_rows(s, q, k);
        mul_rows(dp, g, v);
        for (int m = 0; m < TM; ++m)
#pragma unroll
            for (int n = 0; n < SN; ++n) {
                const int r = ty() * TM + m;
                const bool later = key + square_column(n) > row + r;
                s[m][n] = later ? 0.0f : exp2_fast(s[m][n] * SCALE2 - stats[2 * r]);
                dp[m][n] = s[m][n] * (dp[m][n] - stats[2 * r + 1]);
            }
        store_square(p, s);
        __syncthreads();
        mul_cols_transposed(dv, p, g);
        __syncthreads();
        store_square(p, dp);
        __syncthreads();
        mul_cols_transposed(dk, p, q);
    }
    float scale[TM], one[TM];
    for (int m = 0; m < TM; ++m) scale[m] = SCALE, one[m] = 1.0f;
    store_wide(dqkv + mine, at.wide, dk, scale, T - key);
    store_wide(dqkv + mine + at.narrow, at.wide, dv, one, T - key);
}
