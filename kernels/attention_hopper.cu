// Causal scaled dot-product attention in 16 bits by wgmma, for sm_90, with its backward twin. attention.cu, the plain form that
// runs anywhere, has the formulas; tests hold both against float64. Against wgmma without turns that overlap, on an H200: 8 to
// 13 % forward and 1 to 4 % backward at 8 x 1024, 6 to 24 % at 32 x 1024.
//
// Shapes   qkv dqkv: (B, T, 3, H, D)    out dout: (B, T, H, D), which is (N, C)                              act_t, 16 bits
//          lse: (B, H, T)               rows: (B, H, 2, R) with R = T rounded up to a multiple of 128        float32
//          rows is scratch between the two backward launches: lse * log2(e), then delta; inf and 0 beyond T.
// Writes   everything is assigned; each backward kernel fills its own part of dqkv (dq; dk and dv): nothing is added
// Launch   block (128,), grid (H, ceil(T / 64) * ROUND, ceil(B / ROUND)), any B, H, T >= 1; k_attn_bwd_dq before k_attn_bwd_dkdv
//          dynamic shared memory: 2 * STAGES + n tiles of 64 * D elements, n = 1 (fwd) or 2; dkdv: 512 * STAGES bytes more
// Options  -DACT=1|2, -DD=32|64; for each of FWD, DQ, DKDV: -DATTN_<>_BLOCKS, how many blocks must fit a multiprocessor (it
//          bounds the registers of a thread); -DATTN_<>_STAGES=3|4, pairs of tiles in shared memory; -DATTN_<>_ROUND, rows of
//          the batch that run together, a power of two
// Repeats  bit for bit: no atomics; each sum is made by one warp in the order of positions; no option but ACT and D changes a bit
// Needs    target sm_90a; arrays on 16-byte addresses
//
// A block has 64 rows, a warp 16 of them. A turn starts the scores of a tile and, beside it, the sum of the tile before; the
// exponentials run under both. Backward makes s and p twice, as in attention.cu.

#include "attention_hopper_forward.cuh"
#include "attention_hopper_gradients.cuh"

static_assert(ACT != ACT_FP32, "float32 attention is attention_fp32.cu");

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_FWD_BLOCKS)
k_attn_fwd(act_t* out /* N H D */, float* lse /* B H T */, const act_t* qkv /* N 3 H D */, int B, int T, int H) {
    using Work = Forward<ATTN_FWD_STAGES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    Work::Memory& mem = *reinterpret_cast<Work::Memory*>(shared);
    const Spot<ATTN_FWD_ROUND> at(T, H);
    if (at.batch >= (unsigned)B) return;
    const int tile = (T + TILE - 1) / TILE - 1 - at.tile;  // longest rows first: the short ones fill the gaps
    Pieces keys(qkv + at.qkv + at.narrow, at.wide, 0);
    keys.copy(mem.kv.first(0), 0, T), keys.copy(mem.kv.second(0), at.narrow, T), keys.next();
    Pieces(qkv + at.qkv + (size_t)tile * TILE * at.wide, at.wide, tile * TILE).copy(shared_address(mem.q), 0, T);
    commit();
#pragma unroll
    for (int j = 1; j < ATTN_FWD_STAGES - 1; ++j) {
        if (j <= tile) copy_keys(mem.kv, j, keys, at.narrow, T);
        commit();
    }
    await_copies<ATTN_FWD_STAGES - 2>();
    __syncthreads();
    Work warp(mem);
    const int row = tile * TILE + 16 * warp_id(), ahead = lane_ahead(row, tile * TILE);  // on the diagonal
    warp.begin(0, tile == 0, ahead);
    int left = tile, slot;
    while (round<ATTN_DQ_STAGES>(warp, left, slot, keys, at.narrow, T)) {}
    if (left == 1) warp.turn<true>(slot, false, keys, at.narrow, T, ahead), slot = mem.kv.next(slot);
    warp.settle(slot, true, ahead);
    warp.add_values(slot);
    wait_products<0>(warp.o);
    const Spot<ATTN_FWD_ROUND> end(T, H);
    warp.store(out + end.out, end.narrow, lse + (size_t)end.head * T, row, T);
}

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DQ_BLOCKS)
k_attn_bwd_dq(act_t* dqkv /* N 3 H D */, float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
              const act_t* out /* N H D */, const float* lse /* B H T */, int B, int T, int H) {
    using Work = Queries<ATTN_DQ_STAGES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    Work::Memory& mem = *reinterpret_cast<Work::Memory*>(shared);
    const Spot<ATTN_DQ_ROUND> at(T, H);
    if (at.batch >= (unsigned)B) return;
    const int tile = (T + TILE - 1) / TILE - 1 - at.tile, top = tile * TILE;
    Pieces keys(qkv + at.qkv + at.narrow, at.wide, 0);
    keys.copy(mem.kv.first(0), 0, T), keys.copy(mem.kv.second(0), at.narrow, T), keys.next();
    Pieces(qkv + at.qkv + (size_t)top * at.wide, at.wide, top).copy(shared_address(mem.q), 0, T);
    Pieces(dout + at.out + (size_t)top * at.narrow, at.narrow, top).copy(shared_address(mem.g), 0, T);
    commit();
#pragma unroll
    for (int j = 1; j < ATTN_DQ_STAGES - 1; ++j) {
        if (j <= tile) copy_keys(mem.kv, j, keys, at.narrow, T);
        commit();
    }
    Work warp(mem);
    const int row = top + 16 * warp_id(), ahead = lane_ahead(row, top);
    warp.statistics(dout + at.out, out + at.out, at.narrow, lse + (size_t)at.head * T, rows + at.rows(T), row, T);
    await_copies<ATTN_DQ_STAGES - 2>();
    __syncthreads();
    warp.begin(tile == 0, ahead);
    int left = tile, slot;
    while (round<ATTN_DQ_STAGES>(warp, left, slot, keys, at.narrow, T)) {}
    if (left == 1) warp.turn<true>(slot, false, keys, at.narrow, T, ahead), slot = mem.kv.next(slot);
    warp.add_keys(slot);
    wait_products<0>(warp.dq);
    const Spot<ATTN_DQ_ROUND> end(T, H);
    store_c(dqkv + end.qkv + (size_t)row * end.wide, end.wide, warp.dq, SCALE, SCALE, T - row);
}

extern "C" __global__ void __launch_bounds__(BLOCK, ATTN_DKDV_BLOCKS)
k_attn_bwd_dkdv(act_t* dqkv /* N 3 H D */, const float* rows, const act_t* dout /* N H D */, const act_t* qkv /* N 3 H D */,
                int B, int T, int H) {
    using Work = Keys<ATTN_DKDV_STAGES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    Work::Memory& mem = *reinterpret_cast<Work::Memory*>(shared);
    const Spot<ATTN_DKDV_ROUND> at(T, H);
    if (at.batch >= (unsigned)B) return;
    const int top = at.tile * TILE;
    int left = (T + TILE - 1) / TILE - 1 - at.tile, slot;  // early keys have the most queries: longest first
    QueryPieces from(Pieces(qkv + at.qkv + (size_t)top * at.wide, at.wide, top),
                     Pieces(dout + at.out + (size_t)top * at.narrow, at.narrow, top), rows + at.rows(T) + top, T);
    from.q.copy(shared_address(mem.k), at.narrow, T), from.q.copy(shared_address(mem.v), 2 * at.narrow, T);
    from.copy(mem, 0, T);
    commit();
#pragma unroll
    for (int j = 1; j < ATTN_DKDV_STAGES - 1; ++j) {
        if (j <= left) from.copy(mem, j, T);
        commit();
    }
    await_copies<ATTN_DKDV_STAGES - 2>();
    __syncthreads();
    Work warp(mem);
    const int row = top + 16 * warp_id();
    warp.step<true>(0, 0, lane_ahead(row, top));
    while (warp.round(left, slot, from, T)) {}
    start_products();
    add_positions(warp.dk, warp.ds, Tile(mem.qg.first(slot)));
    wait_products<0>(warp.dk);
    const Spot<ATTN_DKDV_ROUND> end(T, H);
    act_t* dst = dqkv + end.qkv + end.narrow + (size_t)row * end.wide;
    store_c(dst, end.wide, warp.dk, SCALE, SCALE, T - row);
    store_c(dst + end.narrow, end.wide, warp.dv, 1.0f, 1.0f, T - row);
}
