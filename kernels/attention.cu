// Causal scaled dot-product attention in 16 bits on tensor cores, with its backward twin. No (T, T) matrix in memory.
//
//   forward    s[i,j] = q_i . k_j / sqrt(D) for j <= i     p = softmax over j     out_i = sum_j p[i,j] v_j
//              lse_i  = log sum_j exp(s[i,j])
//   backward   p[i,j] = exp(s[i,j] - lse_i)    delta_i = dout_i . out_i    ds[i,j] = p[i,j] (dout_i . v_j - delta_i)
//              dv_j = sum_i p[i,j] dout_i    dq_i = sum_j ds[i,j] k_j / sqrt(D)    dk_j = sum_i ds[i,j] q_i / sqrt(D)
//
// Shapes   qkv dqkv: (B, T, 3, H, D)    out dout: (B, T, H, D), which is (N, C)                              act_t, 16 bits
//          lse: (B, H, T)               rows: (B, H, R, 2) with R = T rounded up to a multiple of 128        float32
//          rows is scratch between the two backward launches: (lse * log2(e), delta), (inf, 0) beyond T.
// Writes   everything is assigned; each backward kernel fills its own part of dqkv (dq; dk and dv): nothing is added
// Launch   block (128,), no dynamic shared memory, any B, H, T >= 1
//              k_attn_fwd       grid (B * H, ceil(T / ATTN_FWD_ROWS))
//              k_attn_bwd_dq    grid (B * H, ceil(T / ATTN_DQ_ROWS))       first: it also writes rows
//              k_attn_bwd_dkdv  grid (B * H, ceil(T / ATTN_DKDV_ROWS))     second: it reads rows
// Options  -DACT=1|2, -DD=32|64|128; -DATTN_WGMMA=1 for products by wgmma (target sm_90a, D = 32 or 64), 0 for mma.sync;
//          for each of FWD, DQ, DKDV: -DATTN_<>_ROWS=64|128, rows (queries; keys in DKDV) of a block, and -DATTN_<>_BLOCKS,
//          how many blocks must fit a multiprocessor: it bounds the registers of a thread
// Repeats  bit for bit: no atomics; each sum is made by one warp in the order of positions
// Needs    sm_80 or newer; arrays on 16-byte addresses
//
// A warp owns 16 or 32 rows and keeps their operands and sums in registers. The other side streams through shared memory, two
// tiles deep, in cp.async copies. Backward makes s and p twice (7 products instead of 5): once by query for dq, once by key for
// dk and dv. That is what makes it deterministic without atomics, and it needs no float32 buffer for dq.

#include "attention_tiles.cuh"
#if ATTN_WGMMA
#include "attention_wgmma.cuh"
#else
#include "attention_mma.cuh"
#endif

static_assert(ACT != ACT_FP32, "float32 attention is attention_fp32.cu");
static_assert(D == 32 || D == 64 || D == 128, "head width 32, 64 or 128");

// Positions of a streamed tile; two tiles, twice buffered, fit 48 KB. Longer tiles mean fewer barriers.
constexpr bool LONG = ATTN_WGMMA && D == 32;
constexpr int TILE = D == 128 ? 32 : 64;                   // keys, forward
constexpr int DQ_TILE = LONG ? 128 : TILE;                 // keys, k_attn_bwd_dq
constexpr int QUERIES = D == 128 ? 16 : LONG ? 128 : 64;   // queries, k_attn_bwd_dkdv
constexpr float SLACK = 8.0f / SCALE2;  // a row's maximum may lag by this: p stays below 2^8, rescaling becomes rare

// ---- Forward --------------------------------------------------------------------------------------------------------

// A warp's 16 M rows of queries: scores against one tile of keys, softmax so far, weighted sum of values.
template <int M>
struct Softmax {
    C o[M][COLS];      // sum of p * v, p relative to exp(top)
    float top[M][2];   // a maximum of the row (score units, unscaled) that lags by at most SLACK
    float sum[M][2];   // this lane's part of the sum of p

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < COLS; ++n) o[m][n] = {};
            top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;
        }
    }

    // Raises `top` where this tile's scores exceed it by more than SLACK, and rescales what is summed so far.
    __device__ __forceinline__ void raise(const C (&s)[TILE / 8][M]) {
        float next[M][2];
        bool grows = false;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float v = fmaxf(s[0][m].r[2 * r], s[0][m].r[2 * r + 1]);
#pragma unroll
                for (int n = 1; n < TILE / 8; ++n) v = fmaxf(v, fmaxf(s[n][m].r[2 * r], s[n][m].r[2 * r + 1]));
                v = quad_max(v);
                const bool up = v > top[m][r] + SLACK;
                next[m][r] = up ? v : top[m][r];
                grows |= up;
            }
        if (!__any_sync(FULL, grows)) return;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float f = exp2_fast((top[m][r] - next[m][r]) * SCALE2);
                top[m][r] = next[m][r], sum[m][r] *= f;
#pragma unroll
                for (int n = 0; n < COLS; ++n) o[m][n].r[2 * r] *= f, o[m][n].r[2 * r + 1] *= f;
            }
    }

    // s becomes p; its row sums are added to this lane's part.
    __device__ __forceinline__ void exponentials(C (&s)[TILE / 8][M]) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float shift = top[m][i / 2] * SCALE2;
#pragma unroll
                for (int n = 0; n < TILE / 8; ++n) {
                    s[n][m].r[i] = exp2_fast(s[n][m].r[i] * SCALE2 - shift);
                    sum[m][i / 2] += s[n][m].r[i];
                }
            }
    }

    // One tile of keys and values. `ahead`: how far this lane's first row is ahead of its first key.
    template <bool MASKED>
    __device__ __forceinline__ void add_tile(const A (&q)[M][STEPS], const Tile& keys, const Tile& values, int ahead) {
        C s[TILE / 8][M];
        start_products();
        mul_rows(s, q, keys, 0);
        commit_products();
        wait_products<0>(s);
        if (MASKED) {
#pragma unroll
            for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (later(n, i) > ahead + below(m, i)) s[n][m].r[i] = -INFINITY;
        }
        raise(s);
        exponentials(s);
        A p[TILE / 16][M];
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m) set_half(p[n / 2][m], n % 2, s[n][m]);
        start_products();
        add_cols(o, p, values, 0);
        commit_products();
        wait_products<0>(o);
    }
};

constexpr int FWD_M = ATTN_FWD_ROWS / (16 * WARPS);

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_FWD_BLOCKS)
k_attn_fwd(act_t* out /* N H D */, float* lse /* B H T */, const act_t* qkv /* N 3 H D */, int T, int H) {
    __shared__ __align__(1024) act_t tiles[2][2][TILE * D];  // stage, k or v
    const Head at(blockIdx.x, T, H);
    const int block_row = (gridDim.y - 1 - blockIdx.y) * ATTN_FWD_ROWS;  // longest rows first: the short ones fill the gaps
    const int row = block_row + warp_id() * 16 * FWD_M;
    const int n_tiles = (min(block_row + ATTN_FWD_ROWS, T) + TILE - 1) / TILE;
    const auto stream_kv = [&](int j) {
        const act_t* src = qkv + at.qkv + at.narrow + (size_t)j * TILE * at.wide;
        stream<TILE>(shared_address(tiles[j & 1][0]), src, at.wide, T - j * TILE);
        stream<TILE>(shared_address(tiles[j & 1][1]), src + at.narrow, at.wide, T - j * TILE);
        commit();
    };
    stream_kv(0);
    A q[FWD_M][STEPS];
#pragma unroll
    for (int m = 0; m < FWD_M; ++m) load_a(q[m], qkv + at.qkv + (size_t)(row + 16 * m) * at.wide, at.wide, T - row - 16 * m);

    Softmax<FWD_M> softmax;
    for (int j = 0; j < n_tiles; ++j) {
        wait_all();
        show_tiles();
        __syncthreads();  // tile j is there, and nobody reads tile j - 1 any more
        if (j + 1 < n_tiles) stream_kv(j + 1);
        const int key = j * TILE;
        const Tile keys(shared_address(tiles[j & 1][0])), values(shared_address(tiles[j & 1][1]));
        if (key + TILE <= (TOGETHER ? block_row : row)) softmax.add_tile<false>(q, keys, values, 0);
        else if (TOGETHER || key < row + 16 * FWD_M) softmax.add_tile<true>(q, keys, values, lane_ahead(row, key));
    }

    const Head end(block_again(), T, H);
#pragma unroll
    for (int m = 0; m < FWD_M; ++m) {
        const int r = row + 16 * m;
        const float low = quad_sum(softmax.sum[m][0]), high = quad_sum(softmax.sum[m][1]);
        store_c(out + end.out + (size_t)r * end.narrow, end.narrow, softmax.o[m], 1.0f / low, 1.0f / high, T - r);
        const int mine = r + lane_id() / 4 + 8 * (threadIdx.x % 4);  // lanes 0 and 1 of a quad write rows g and g + 8
        if (threadIdx.x % 4 < 2 && mine < T)
            lse[(size_t)blockIdx.x * T + mine] =
                threadIdx.x % 4 ? softmax.top[m][1] * SCALE + logf(high) : softmax.top[m][0] * SCALE + logf(low);
    }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

// Positions of the rows scratch of one (batch, head)
__device__ __forceinline__ size_t rows_offset(int T) { return (size_t)block_again() * ((T + 127) / 128 * 128); }

constexpr int DQ_M = ATTN_DQ_ROWS / (16 * WARPS);

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
    RowStatistics<M> row;

    // CHUNK keys from position c of the tiles on
    template <bool MASKED>
    __device__ __forceinline__ void add_keys(const Tile& keys, const Tile& values, int c, int ahead) {
        C x[CHUNK / 8][M], y[CHUNK / 8][M];
        start_products();
        mul_rows(x, q, keys, c);
        commit_products();
        mul_rows(y, g, values, c);
        commit_products();
        wait_products<1>(x);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& p = x[n][m].r[i];
                    p = exp2_fast(p * SCALE2 - row.lse2[m][i / 2]);
                    if (MASKED && later(n, i) > ahead + below(m, i)) p = 0.0f;
                }
        wait_products<0>(y);
        A ds[CHUNK / 16][M];
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) y[n][m].r[i] = x[n][m].r[i] * (y[n][m].r[i] - row.delta[m][i / 2]);
                set_half(ds[n / 2][m], n % 2, y[n][m]);
            }
        start_products();
        add_cols(dq, ds, keys, c);
        commit_products();
        wait_products<0>(dq);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DQ_BLOCKS)
k_attn_bwd_dq(act_t* dqkv /* N 3 H D */, float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
              const act_t* out /* N H D */, const float* lse /* B H T */, int T, int H) {
    __shared__ __align__(1024) act_t tiles[2][2][DQ_TILE * D];  // stage, k or v
    const Head at(blockIdx.x, T, H);
    const int block_row = (gridDim.y - 1 - blockIdx.y) * ATTN_DQ_ROWS;
    const int row = block_row + warp_id() * 16 * DQ_M;
    const int low = TOGETHER ? block_row : row, high = TOGETHER ? block_row + ATTN_DQ_ROWS : row + 16 * DQ_M;
    const int n_tiles = (min(block_row + ATTN_DQ_ROWS, T) + DQ_TILE - 1) / DQ_TILE;
    const auto stream_kv = [&](int j) {
        const act_t* src = qkv + at.qkv + at.narrow + (size_t)j * DQ_TILE * at.wide;
        stream<DQ_TILE>(shared_address(tiles[j & 1][0]), src, at.wide, T - j * DQ_TILE);
        stream<DQ_TILE>(shared_address(tiles[j & 1][1]), src + at.narrow, at.wide, T - j * DQ_TILE);
        commit();
    };
    stream_kv(0);
    QueryGradient<DQ_M> warp = {};
#pragma unroll
    for (int m = 0; m < DQ_M; ++m) {
        const int r = row + 16 * m;
        A o[STEPS];
        load_a(warp.q[m], qkv + at.qkv + (size_t)r * at.wide, at.wide, T - r);
        load_a(warp.g[m], dout + at.out + (size_t)r * at.narrow, at.narrow, T - r);
        load_a(o, out + at.out + (size_t)r * at.narrow, at.narrow, T - r);
        warp.row.load(m, warp.g[m], o, lse + (size_t)blockIdx.x * T + r, rows + 2 * (rows_offset(T) + r), T - r);
    }

    for (int j = 0; j < n_tiles; ++j) {
        wait_all();
        show_tiles();
        __syncthreads();
        if (j + 1 < n_tiles) stream_kv(j + 1);
        const int key = j * DQ_TILE;
        const Tile keys(shared_address(tiles[j & 1][0])), values(shared_address(tiles[j & 1][1]));
        if (key + DQ_TILE <= low) {
#pragma unroll 1
            for (int c = 0; c < DQ_TILE; c += CHUNK) warp.add_keys<false>(keys, values, c, 0);
        } else {
#pragma unroll 1
            for (int c = 0; c < DQ_TILE && key + c < high; c += CHUNK)
                warp.add_keys<true>(keys, values, c, lane_ahead(row, key + c));
        }
    }
    const Head end(block_again(), T, H);
#pragma unroll
    for (int m = 0; m < DQ_M; ++m)
        store_c(dqkv + end.qkv + (size_t)(row + 16 * m) * end.wide, end.wide, warp.dq[m], SCALE, SCALE, T - row - 16 * m);
}

constexpr int DKDV_M = ATTN_DKDV_ROWS / (16 * WARPS);

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

    // CHUNK queries from position c of the tiles on; `stats` are (lse2, delta) of the tile's queries
    template <bool MASKED>
    __device__ __forceinline__ void add_queries(const Tile& queries, const Tile& gradients, const float* stats, int c,
                                                int ahead) {
        C x[CHUNK / 8][M], y[CHUNK / 8][M];
        start_products();
#if D == 128
        mul_rows(x, keys, row, queries, c);
#else
        mul_rows(x, k, queries, c);
#endif
        commit_products();
        mul_rows(y, v, gradients, c);
        commit_products();
        stats += 2 * c + 4 * (threadIdx.x % 4);  // of this lane's columns 2t, 2t + 1
        wait_products<1>(x);
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
        start_products();
        add_cols(dv, p, gradients, c);
        commit_products();
        wait_products<1>(y);
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
        start_products();
        add_cols(dk, ds, queries, c);
        commit_products();
        wait_products<0>(dv), wait_products<0>(dk);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DKDV_BLOCKS)
k_attn_bwd_dkdv(act_t* dqkv /* N 3 H D */, const float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
                int T, int H) {
    __shared__ __align__(1024) act_t tiles[2][2][QUERIES * D];  // stage, q or dout
    __shared__ __align__(128) float stats[2][2 * QUERIES];     // stage, (lse2, delta) of the queries
    const Head at(blockIdx.x, T, H);
    const int block_key = blockIdx.y * ATTN_DKDV_ROWS;      // early keys have the most queries: longest first again
    const int row = block_key + warp_id() * 16 * DKDV_M;    // rows of this kernel's products are keys, columns are queries
    const int low = TOGETHER ? block_key : row, high = TOGETHER ? block_key + ATTN_DKDV_ROWS : row + 16 * DKDV_M;
    const int n_tiles = (T + QUERIES - 1) / QUERIES, j0 = block_key / QUERIES;
    const auto stream_q = [&](int j) {
        const int left = T - j * QUERIES;
        stream<QUERIES>(shared_address(tiles[j & 1][0]), qkv + at.qkv + (size_t)j * QUERIES * at.wide, at.wide, left);
        stream<QUERIES>(shared_address(tiles[j & 1][1]), dout + at.out + (size_t)j * QUERIES * at.narrow, at.narrow, left);
        if (const unsigned thread = thread_again(); thread < QUERIES / 2)
            copy_async(shared_address(stats[j & 1]) + 16 * thread, rows + 2 * (rows_offset(T) + j * QUERIES) + 4 * thread, 16);
        commit();
    };
    KeyGradients<DKDV_M> warp = {};
#if D == 128
    __shared__ __align__(1024) act_t keys[ATTN_DKDV_ROWS * D];
    const act_t* first_key = qkv + at.qkv + at.narrow + (size_t)block_key * at.wide;
    stream<ATTN_DKDV_ROWS>(shared_address(keys), first_key, at.wide, T - block_key);
    warp.keys = Tile(shared_address(keys)), warp.row = row - block_key;
#endif
    stream_q(j0);
#pragma unroll
    for (int m = 0; m < DKDV_M; ++m) {
        const act_t* src = qkv + at.qkv + at.narrow + (size_t)(row + 16 * m) * at.wide;
#if D != 128
        load_a(warp.k[m], src, at.wide, T - row - 16 * m);
#endif
        load_a(warp.v[m], src + at.narrow, at.wide, T - row - 16 * m);
    }

    for (int j = j0; j < n_tiles; ++j) {
        wait_all();
        show_tiles();
        __syncthreads();
        if (j + 1 < n_tiles) stream_q(j + 1);
        const int query = j * QUERIES;
        const Tile q_tile(shared_address(tiles[j & 1][0])), g_tile(shared_address(tiles[j & 1][1]));
        const int end = QUERIES > 64 ? min(QUERIES, T - query) : QUERIES;  // rows is written in whole blocks of 64 at least
        if (query + 1 >= high) {
#pragma unroll 1
            for (int c = 0; c < end; c += CHUNK) warp.add_queries<false>(q_tile, g_tile, stats[j & 1], c, 0);
        } else {
#pragma unroll 1
            for (int c = max(0, low - query); c < end; c += CHUNK)
                warp.add_queries<true>(q_tile, g_tile, stats[j & 1], c, lane_ahead(row, query + c));
        }
    }
    const Head end(block_again(), T, H);
#pragma unroll
    for (int m = 0; m < DKDV_M; ++m) {
        act_t* dst = dqkv + end.qkv + end.narrow + (size_t)(row + 16 * m) * end.wide;
        store_c(dst, end.wide, warp.dk[m], SCALE, SCALE, T - row - 16 * m);
        store_c(dst + end.narrow, end.wide, warp.dv[m], 1.0f, 1.0f, T - row - 16 * m);
    }
}
