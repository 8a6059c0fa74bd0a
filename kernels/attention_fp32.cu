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

#include "attention_fp32_tiles.cuh"

static_assert(ACT == ACT_FP32, "16-bit attention is attention.cu");

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
        load_keys(k, v, qkv, at, key, T);
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

// Per row: lse in base 2 and delta = g . out. Written to `rows` for the second launch.
__device__ __forceinline__ void row_statistics(float (&lse2)[TM], float (&delta)[TM], const float* g, const float* out,
                                               const float* lse, float* rows, const Head& at, int row, int T) {
    for (int m = 0; m < TM; ++m) {
        const int r = ty() * TM + m;
        float part = 0.0f;
        for (int c = tx(); c < D; c += TX) part += g[r * WIDE + c] * out[r * WIDE + c];
        delta[m] = group_sum(part);
        lse2[m] = row + r < T ? lse[at.lse + row + r] * LOG2E : INFINITY;  // beyond T: p = exp2(finite - inf) = 0
        if (tx() == 0) rows[at.rows + 2 * (row + r)] = lse2[m], rows[at.rows + 2 * (row + r) + 1] = delta[m];
    }
}

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
    load_tile(k, out + first, at.narrow, T - row);  // keys come later
    __syncthreads();

    float lse2[TM], delta[TM], dq[TM][DN] = {};
    row_statistics(lse2, delta, g, k, lse, rows, at, row, T);
    for (int key = 0; key <= row; key += R) {
        load_keys(k, v, qkv, at, key, T);
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
    store_wide(dqkv + at.qkv + (size_t)row * at.wide, at.wide, dq, SCALE, T - row);
}

// s becomes p, and dp becomes ds, for a tile of queries from `row` and one of keys from `key` on.
__device__ __forceinline__ void scores_to_gradients(float (&s)[TM][SN], float (&dp)[TM][SN], const float* stats, int row, int key) {
    for (int m = 0; m < TM; ++m)
#pragma unroll
        for (int n = 0; n < SN; ++n) {
            const int r = ty() * TM + m;
            const bool later = key + square_column(n) > row + r;
            s[m][n] = later ? 0.0f : exp2_fast(s[m][n] * SCALE2 - stats[2 * r]);
            dp[m][n] = s[m][n] * (dp[m][n] - stats[2 * r + 1]);
        }
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
        scores_to_gradients(s, dp, stats, row, key);
        store_square(p, s);
        __syncthreads();
        mul_cols_transposed(dv, p, g);
        __syncthreads();
        store_square(p, dp);
        __syncthreads();
        mul_cols_transposed(dk, p, q);
    }
    store_wide(dqkv + mine, at.wide, dk, SCALE, T - key);
    store_wide(dqkv + mine + at.narrow, at.wide, dv, 1.0f, T - key);
}
