// Causal scaled dot-product attention in 16 bits on tensor cores, with its backward twin. No (T, T) matrix in memory.
// By mma.sync, for every card; attention_hopper.cu does the same with wgmma.
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
// Options  -DACT=1|2, -DD=32|64|128; for each of FWD, DQ, DKDV: -DATTN_<>_ROWS=64|128, rows (queries; keys in DKDV) of a block,
//          and -DATTN_<>_BLOCKS, how many blocks must fit a multiprocessor: it bounds the registers of a thread
// Repeats  bit for bit: no atomics; each sum is made by one warp in the order of positions
// Needs    sm_80 or newer; arrays on 16-byte addresses
//
// A warp owns 16 or 32 rows and keeps their operands and sums in registers. The other side streams through shared memory, two
// tiles deep, in cp.async copies. Backward makes s and p twice (7 products instead of 5): once by query for dq, once by key for
// dk and dv. That is what makes it deterministic without atomics, and it needs no float32 buffer for dq.

#include "attention_gradients.cuh"
#include "attention_softmax.cuh"

static_assert(ACT != ACT_FP32, "float32 attention is attention_fp32.cu");

// Positions of a streamed tile; two tiles, twice buffered, fit 48 KB. Longer tiles mean fewer barriers.
constexpr int TILE = D == 128 ? 32 : 64;     // keys, k_attn_fwd and k_attn_bwd_dq
constexpr int QUERIES = D == 128 ? 16 : 64;  // queries, k_attn_bwd_dkdv
constexpr int FWD_M = ATTN_FWD_ROWS / (16 * WARPS), DQ_M = ATTN_DQ_ROWS / (16 * WARPS), DKDV_M = ATTN_DKDV_ROWS / (16 * WARPS);

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_FWD_BLOCKS)
k_attn_fwd(act_t* out /* N H D */, float* lse /* B H T */, const act_t* qkv /* N 3 H D */, int T, int H) {
    __shared__ __align__(1024) Stages<TILE> kv;
    const Head at(blockIdx.x, T, H);
    const int block_row = (gridDim.y - 1 - blockIdx.y) * ATTN_FWD_ROWS;  // longest rows first: the short ones fill the gaps
    const Rows<FWD_M> queries(block_row);
    const int n_tiles = (min(block_row + ATTN_FWD_ROWS, T) + TILE - 1) / TILE;
    start_keys(kv, 0, qkv, at, T);
    A q[FWD_M][STEPS];
    load_rows(q, qkv + at.qkv, at.wide, queries.first, T);
    Softmax<FWD_M, TILE> warp;
    for (int j = 0; j < n_tiles; ++j) {
        await_tiles();
        if (j + 1 < n_tiles) start_keys(kv, j + 1, qkv, at, T);
        warp.add(q, kv, j, queries);
    }
    const Head end(block_again(), T, H);
    warp.store(out + end.out, end.narrow, lse, queries.first, T);
}

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DQ_BLOCKS)
k_attn_bwd_dq(act_t* dqkv /* N 3 H D */, float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
              const act_t* out /* N H D */, const float* lse /* B H T */, int T, int H) {
    __shared__ __align__(1024) Stages<TILE> kv;
    const Head at(blockIdx.x, T, H);
    const int block_row = (gridDim.y - 1 - blockIdx.y) * ATTN_DQ_ROWS;
    const Rows<DQ_M> queries(block_row);
    const int n_tiles = (min(block_row + ATTN_DQ_ROWS, T) + TILE - 1) / TILE;
    start_keys(kv, 0, qkv, at, T);
    QueryGradient<DQ_M> warp = {};
    warp.load(qkv, dout, out, lse, rows, at, queries.first, T);
    for (int j = 0; j < n_tiles; ++j) {
        await_tiles();
        if (j + 1 < n_tiles) start_keys(kv, j + 1, qkv, at, T);
        warp.add(kv, j, queries);
    }
    const Head end(block_again(), T, H);
    store_rows(dqkv + end.qkv, end.wide, warp.dq, SCALE, queries.first, T);
}

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DKDV_BLOCKS)
k_attn_bwd_dkdv(act_t* dqkv /* N 3 H D */, const float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
                int T, int H) {
    __shared__ __align__(1024) Stages<QUERIES> qg;          // q and dout
    __shared__ __align__(128) float stats[2][2 * QUERIES];  // stage, (lse2, delta) of the queries
    const Head at(blockIdx.x, T, H);
    const int block_key = blockIdx.y * ATTN_DKDV_ROWS;  // early keys have the most queries: longest first again
    const Rows<DKDV_M> keys(block_key);                 // rows of this kernel's products are keys, columns are queries
    const int n_tiles = (T + QUERIES - 1) / QUERIES, j0 = block_key / QUERIES;
    KeyGradients<DKDV_M> warp = {};
#if D == 128
    __shared__ __align__(1024) act_t key_tile[ATTN_DKDV_ROWS * D];
    const act_t* first_key = qkv + at.qkv + at.narrow + (size_t)block_key * at.wide;
    stream<ATTN_DKDV_ROWS>(shared_address(key_tile), first_key, at.wide, T - block_key);
    warp.keys = Tile(shared_address(key_tile)), warp.row = keys.first - block_key;
#endif
    start_queries(qg, stats, j0, qkv, dout, rows, at, T);
    warp.load(qkv, at, keys.first, T);
    for (int j = j0; j < n_tiles; ++j) {
        await_tiles();
        if (j + 1 < n_tiles) start_queries(qg, stats, j + 1, qkv, dout, rows, at, T);
        warp.add(qg, stats, j, keys);
    }
    const Head end(block_again(), T, H);
    warp.store(dqkv, end, keys.first, T);
}
