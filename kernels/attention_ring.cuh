// How the wgmma kernels stream: a ring of tile pairs that a block copies ahead, and a block's place in the problem.

#include "attention_wgmma.cuh"

constexpr int TILE = 64;  // positions of a tile: of a block's rows and of a stage of the ring

// STAGES pairs of tiles, keys and values or queries and upstream gradients. While one is summed and the next is multiplied,
// LOOK more are under way; a turn refills the one before it. Lies in shared memory, on 1024 bytes.
template <int STAGES>
struct Ring {
    static constexpr int LOOK = STAGES - 2;
    act_t tiles[STAGES][2][TILE * D];
    __device__ __forceinline__ unsigned first(int slot) const { return shared_address(tiles[slot][0]); }
    __device__ __forceinline__ unsigned second(int slot) const { return shared_address(tiles[slot][1]); }
    __device__ __forceinline__ static constexpr int next(int slot) { return slot + 1 == STAGES ? 0 : slot + 1; }
    __device__ __forceinline__ static constexpr int refill(int slot) { return (slot + LOOK + 1) % STAGES; }
};

// This thread's pieces of a tile of an array whose rows are `stride` apart; tiles of one array come one after another.
struct Pieces {
    static constexpr int STEP = BLOCK / PIECES;  // rows that the block copies at once
    const act_t* src;
    unsigned dst;
    int step, row;
    __device__ __forceinline__ Pieces(const act_t* tile, int stride, int top)
        : step(STEP * stride), row(top + threadIdx.x / PIECES) {
        const int first = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        src = tile + (size_t)first * stride + piece * 8, dst = place(first, piece);
    }
    // Starts the copy, of the array that lies `more` elements on; positions from T on become zero.
    __device__ __forceinline__ void copy(unsigned tile, int more, int T) const {
#pragma unroll
        for (int i = 0; i < TILE / STEP; ++i)
            copy_async(tile + dst + i * STEP * (D * 2), src + more + (size_t)(i * step), row + i * STEP < T ? 16 : 0);
    }
    __device__ __forceinline__ void next() { src += TILE / STEP * step, row += TILE; }
};

// The next keys and their values, which lie `narrow` elements on, into a slot.
template <int STAGES>
__device__ __forceinline__ void copy_keys(const Ring<STAGES>& ring, int slot, Pieces& keys, int narrow, int T) {
    keys.copy(ring.first(slot), 0, T), keys.copy(ring.second(slot), narrow, T), keys.next();
}

// Turns over keys, a round of the ring, slots being constants, or fewer: false when only one is left, or none.
template <int STAGES, int SLOT = 0, class Warp>
__device__ __forceinline__ bool round(Warp& warp, int& left, int& slot, Pieces& keys, int narrow, int T) {
    slot = SLOT;
    if (left <= 1) return false;
    warp.template turn<false>(SLOT, left > Ring<STAGES>::LOOK, keys, narrow, T, 0), --left;
    if constexpr (SLOT + 1 == STAGES) return true;
    else return round<STAGES, SLOT + 1>(warp, left, slot, keys, narrow, T);
}

// Waits for this thread's copies but the last PENDING groups and shows them to wgmma; a barrier then makes them everyone's.
template <int PENDING>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A block's head and tile of rows; grid (H, tiles * ROUND, ceil(B / ROUND)). ROUND rows of the batch run together, tile by tile:
// few, so that their keys and values stay in the cache, but enough that long blocks start early and short ones fill the end.
template <int ROUND>
struct Spot {
    size_t qkv, out;  // position 0 of the head in arrays of that shape; their rows are `wide` and `narrow` apart
    unsigned head, tile, batch;
    int narrow, wide;
    __device__ __forceinline__ Spot(int T, int H) : narrow(H * D), wide(3 * H * D) {
        unsigned x, y, z;  // read anew each time: what follows from them is not kept in registers through a kernel's loop
        asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%ctaid.y; mov.u32 %2, %%ctaid.z;" : "=r"(x), "=r"(y), "=r"(z));
        batch = z * ROUND + y % ROUND, tile = y / ROUND, head = batch * H + x;
        out = (size_t)batch * T * narrow + x * D, qkv = (size_t)batch * T * wide + x * D;
    }
    // Floats before this head's part of the rows scratch; the two parts of a head are R apart.
    __device__ __forceinline__ size_t rows(int T) const { return (size_t)head * 2 * padded(T); }
    __device__ __forceinline__ static int padded(int T) { return (T + 127) / 128 * 128; }
};
