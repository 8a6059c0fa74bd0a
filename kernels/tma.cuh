// Hopper's copies of tiles between memory and shared memory, and the barriers in shared memory that count them (sm_90a).
//
// A copy is started by one thread and done by the copy engine. It follows a map of the whole matrix, which the host encodes;
// what lies outside of the matrix is read as zero. Rows of 128 bytes: the 16-byte pieces of a row are permuted by
// the row (piece ^ row % 8), so that eight rows of one piece lie in different banks. A tile starts at a multiple of 1024 bytes.

#pragma once
#include "prelude.cuh"

struct alignas(64) Map {  // CUtensorMap
    unsigned long long words[16];
};

// ---- Barriers: 8 bytes, in phases; a phase ends with its last arrival and its last awaited byte ----------------------

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Threads of the block see what init_barrier() did after this and __syncthreads().
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_and_await(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until phases of this parity are over. An end that does not come is a defect: an error is better than a card that hangs.
__device__ __forceinline__ void wait(unsigned barrier, int parity) {
#pragma unroll 1
    for (int turns = 0; turns < 1 << 22; ++turns) {
        int over;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                     : "=r"(over)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (over) return;
    }
    __trap();
}

// ---- Copies ----------------------------------------------------------------------------------------------------------

// The box of `map` at (x, y), x in elements of a row, to `tile`; its bytes arrive at `barrier`.
__device__ __forceinline__ void load_tile(unsigned tile, const Map* map, int x, int y, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(tile), "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}
