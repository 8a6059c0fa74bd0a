// Backward of 16-bit attention as a warp sees it: the gradient of its queries, or those of its keys and values.

#include "attention_stages.cuh"

// Positions of the rows scratch before this block's head
__device__ __forceinline__ size_t rows_offset(int T) { return (size_t)block_again() * ((T + 127) / 128 * 128); }

// Per row of a warp's queries: lse in base 2 and delta. Written to `rows` for the second launch.
template <int M>
struct RowStatistics {
    float lse2[M][2], delta[M][2];

    __device__ __forceinline__ void load(int m, const A (&dout)[STEPS], const A (&out)[STEPS], const float* lse, float* rows,
                                         int left) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) sum += dot2(dout[s].r[r], out[s].r[r]) + dot2(dout[s].r[r + 2], out[s].r[r + 2]);
            const int row = lane_id() / 4 + 8 * r;
            delta[m][r] = quad_sum(sum);
            lse2[m][r] = row < left ? lse[row] * LOG2E : INFINITY;  // beyond T: p = exp2(finite - inf) = 0
            if (threadIdx.x % 4 == 0) *reinterpret_cast<float2*>(rows + 2 * row) = make_float2(lse2[m][r], delta[m][r]);
        }
    }
};

// A warp's 16 M rows of queries and of upstream gradients, and what they sum: dq, without the factor 1 / sqrt(D).
template <int M>
struct QueryGradient {
    A q[M][STEPS], g[M][STEPS];
    C dq[M][COLS];
    RowStatistics<M> statistics;

    // This warp's rows of q and dout, and their statistics, which go into `rows` too
    __device__ __forceinline__ void load(const act_t* qkv, const act_t* dout, const act_t* out, const float* lse, float* rows,
                                         const Head& at, int row, int T) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const int r = row + 16 * m;
            A o[STEPS];
            load_a(q[m], qkv + at.qkv + (size_t)r * at.wide, at.wide, T - r);
            load_a(g[m], dout + at.out + (size_t)r * at.narrow, at.narrow, T - r);
            load_a(o, out + at.out + (size_t)r * at.narrow, at.narrow, T - r);
            statistics.load(m, g[m], o, lse + (size_t)blockIdx.x * T + r, rows + 2 * (rows_offset(T) + r), T - r);
        }
    }

    // Tile j of keys and values
    template <int KEYS>
    __device__ __forceinline__ void add(const Stages<KEYS>& stages, int j, const Rows<M>& rows) {
        const int key = j * KEYS;
        const Tile keys(stages.first(j)), values(stages.second(j));
        if (key + KEYS <= rows.first) {
#pragma unroll 1
            for (int c = 0; c < KEYS; c += CHUNK) add_keys<false>(keys, values, c, 0);
        } else {
#pragma unroll 1
            for (int c = 0; c < KEYS && key + c < rows.end; c += CHUNK)
                add_keys<true>(keys, values, c, lane_ahead(rows.first, key + c));
        }
    }

    // CHUNK keys from position c of the tiles on
    template <bool MASKED>
    __device__ __forceinline__ void add_keys(const Tile& keys, const Tile& values, int c, int ahead) {
        C x[CHUNK / 8][M], y[CHUNK / 8][M];
        mul_rows(x, q, keys, c);
        mul_rows(y, g, values, c);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& p = x[n][m].r[i];
                    p = exp2_fast(p * SCALE2 - statistics.lse2[m][i / 2]);
                    if (MASKED && later(n, i) > ahead + below(m, i)) p = 0.0f;
                }
        A ds[CHUNK / 16][M];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) y[n][m].r[i] = x[n][m].r[i] * (y[n][m].r[i] - statistics.delta[m][i / 2]);
                set_half(ds[n / 2][m], n % 2, y[n][m]);
            }
        add_cols(dq, ds, keys, c);
    }
};

// Starts the copy of queries and upstream gradients number j, and of (lse2, delta) of each query.
template <int QUERIES>
__device__ __forceinline__ void start_queries(Stages<QUERIES>& stages, float (&stats)[2][2 * QUERIES], int j, const act_t* qkv,
                                              const act_t* dout, const float* rows, const Head& at, int T) {
    const int left = T - j * QUERIES;
    stream<QUERIES>(stages.first(j), qkv + at.qkv + (size_t)j * QUERIES * at.wide, at.wide, left);
    stream<QUERIES>(stages.second(j), dout + at.out + (size_t)j * QUERIES * at.narrow, at.narrow, left);
    if (const unsigned thread = thread_again(); thread < QUERIES / 2)
        copy_async(shared_address(stats[j & 1]) + 16 * thread, rows + 2 * (rows_offset(T) + j * QUERIES) + 4 * thread, 16);
    commit();
}

// A warp's 16 M rows of keys and values, and what they sum: dk (without the factor 1 / sqrt(D)) and dv. Scores are transposed
// here: rows are keys, columns are queries, so that p and ds are again the A of the next product.
template <int M>
struct KeyGradients {
#if D == 128  // no registers are left for keys
    Tile keys = Tile(0);
    int row;  // of this warp, in `keys`
#else
    A k[M][STEPS];
#endif
    A v[M][STEPS];
    C dk[M][COLS], dv[M][COLS];

    // This warp's rows of keys and values. With D = 128 the caller has started to copy the block's keys.
    __device__ __forceinline__ void load(const act_t* qkv, const Head& at, int first, int T) {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const act_t* src = qkv + at.qkv + at.narrow + (size_t)(first + 16 * m) * at.wide;
#if D != 128
            load_a(k[m], src, at.wide, T - first - 16 * m);
#endif
            load_a(v[m], src + at.narrow, at.wide, T - first - 16 * m);
        }
    }

    // dk and dv of this warp's rows
    __device__ __forceinline__ void store(act_t* dqkv, const Head& at, int first, int T) const {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            act_t* dst = dqkv + at.qkv + at.narrow + (size_t)(first + 16 * m) * at.wide;
            store_c(dst, at.wide, dk[m], SCALE, SCALE, T - first - 16 * m);
            store_c(dst + at.narrow, at.wide, dv[m], 1.0f, 1.0f, T - first - 16 * m);
        }
    }

    // Tile j of queries and upstream gradients, with their statistics
    template <int QUERIES>
    __device__ __forceinline__ void add(const Stages<QUERIES>& stages, const float (&statistics)[2][2 * QUERIES], int j,
                                        const Rows<M>& rows) {
        const int query = j * QUERIES;
        const Tile queries(stages.first(j)), gradients(stages.second(j));
        const float* stats = statistics[j & 1];
        if (query + 1 >= rows.end) {
#pragma unroll 1
            for (int c = 0; c < QUERIES; c += CHUNK) add_queries<false>(queries, gradients, stats, c, 0);
        } else {
#pragma unroll 1
            for (int c = max(0, rows.first - query); c < QUERIES; c += CHUNK)
                add_queries<true>(queries, gradients, stats, c, lane_ahead(rows.first, query + c));
        }
    }

    // CHUNK queries from position c of the tiles on; `stats` are (lse2, delta) of the tile's queries
    template <bool MASKED>
    __device__ __forceinline__ void add_queries(const Tile& queries, const Tile& gradients, const float* stats, int c,
                                                int ahead) {
        C x[CHUNK / 8][M], y[CHUNK / 8][M];
#if D == 128
        mul_rows(x, keys, row, queries, c);
#else
        mul_rows(x, k, queries, c);
#endif
        mul_rows(y, v, gradients, c);
        stats += 2 * c + 4 * (threadIdx.x % 4);  // of this lane's columns 2t, 2t + 1
        A p[CHUNK / 16][M], ds[CHUNK / 16][M];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            const float4 stat = *reinterpret_cast<const float4*>(stats + 16 * n);
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& s = x[n][m].r[i];
                    s = exp2_fast(s * SCALE2 - (i % 2 ? stat.z : stat.x));
                    if (MASKED && later(n, i) < ahead + below(m, i)) s = 0.0f;
                }
                set_half(p[n / 2][m], n % 2, x[n][m]);
            }
        }
        add_cols(dv, p, gradients, c);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            const float4 stat = *reinterpret_cast<const float4*>(stats + 16 * n);
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) y[n][m].r[i] = x[n][m].r[i] * (y[n][m].r[i] - (i % 2 ? stat.w : stat.y));
                set_half(ds[n / 2][m], n % 2, y[n][m]);
            }
        }
        add_cols(dk, ds, queries, c);
    }
};
