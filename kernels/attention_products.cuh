// Products of 16-bit attention: by wgmma where that is asked for, else by mma.sync; and what both forms ask of a kernel.

#include "attention_tiles.cuh"
#if ATTN_WGMMA
#include "attention_wgmma.cuh"
#else
#include "attention_mma.cuh"
#endif

// A warp's 16 M rows, from `first` on. Whether a tile is masked or left out is decided for rows [low, high): the warp's own, or
// the block's where its warps make their products together.
template <int M>
struct Rows {
    int first, low, high;
    __device__ __forceinline__ explicit Rows(int block_row) : first(block_row + warp_id() * 16 * M) {
        low = TOGETHER ? block_row : first, high = TOGETHER ? block_row + 16 * M * WARPS : first + 16 * M;
    }
};

// Waits for the pair of tiles that is under way. Afterwards nobody reads the pair before it any more.
__device__ __forceinline__ void await_tiles() {
    wait_all();
    show_tiles();
    __syncthreads();
}

// Starts the copy of keys and values number j.
template <int KEYS>
__device__ __forceinline__ void start_keys(Stages<KEYS>& stages, int j, const act_t* qkv, const Head& at, int T) {
    const act_t* keys = qkv + at.qkv + at.narrow + (size_t)j * KEYS * at.wide;
    stream<KEYS>(stages.first(j), keys, at.wide, T - j * KEYS);
    stream<KEYS>(stages.second(j), keys + at.narrow, at.wide, T - j * KEYS);
    commit();
}
