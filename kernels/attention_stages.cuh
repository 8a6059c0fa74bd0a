// How the mma.sync kernels stream: tiles in two stages that a block copies, a warp's rows, a head's place in memory.

#include "attention_mma.cuh"

// blockIdx.x and threadIdx.x, read anew: what is computed from them is not kept in registers through a kernel's loop.
__device__ __forceinline__ unsigned block_again() {
    unsigned x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}
__device__ __forceinline__ unsigned thread_again() {
    unsigned x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

// Starts the copy of ROWS rows of D columns from `src`; rows from `left` on become zero: copies of no bytes, which do not touch
// their source.
template <int ROWS>
__device__ __forceinline__ void stream(unsigned tile, const act_t* src, int stride, int left) {
    constexpr int STEP = BLOCK / PIECES;  // rows that the block copies at once, a multiple of 8
    const unsigned thread = thread_again();
    const int first = thread / PIECES, piece = thread % PIECES;
    tile += place(first, piece), src += (size_t)first * stride + piece * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP, src += (size_t)STEP * stride)
        copy_async(tile + i * (D * 2), src, first + i < left ? 16 : 0);
}

// Two tiles of ROWS positions, keys and values or queries and upstream gradients, each twice: one pair fills while the other is
// used. Lies in shared memory, on 1024 bytes.
template <int ROWS>
struct Stages {
    act_t tiles[2][2][ROWS * D];
    __device__ __forceinline__ unsigned first(int j) const { return shared_address(tiles[j & 1][0]); }
    __device__ __forceinline__ unsigned second(int j) const { return shared_address(tiles[j & 1][1]); }
};

// Pointers of one (batch, head): q, k, v rows are `wide` apart, out rows `narrow`; blockIdx.x = batch * H + head.
struct Head {
    size_t qkv, out;
    int narrow, wide;
    __device__ __forceinline__ Head(unsigned block, int T, int H) : narrow(H * D), wide(3 * H * D) {
        const unsigned b = block / H, h = block % H;
        qkv = (size_t)b * T * wide + h * D, out = (size_t)b * T * narrow + h * D;
    }
};

// The same for the 16 M rows of a warp, from `row` of T on; `src` and `dst` are row 0.
template <int M>
__device__ __forceinline__ void load_rows(A (&a)[M][STEPS], const act_t* src, int stride, int row, int T) {
#pragma unroll
    for (int m = 0; m < M; ++m) load_a(a[m], src + (size_t)(row + 16 * m) * stride, stride, T - row - 16 * m);
}
template <int M>
__device__ __forceinline__ void store_rows(act_t* dst, int stride, const C (&c)[M][COLS], float factor, int row, int T) {
#pragma unroll
    for (int m = 0; m < M; ++m)
        store_c(dst + (size_t)(row + 16 * m) * stride, stride, c[m], factor, factor, T - row - 16 * m);
}

// A warp's 16 M rows: [first, end)
template <int M>
struct Rows {
    int first, end;
    __device__ __forceinline__ explicit Rows(int block_row) : first(block_row + warp_id() * 16 * M), end(first + 16 * M) {}
};

// Waits for the pair of tiles that is under way. Afterwards nobody reads the pair before it any more.
__device__ __forceinline__ void await_tiles() {
    wait_all();
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
