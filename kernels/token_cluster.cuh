// What the blocks of a cluster do together for one row of text: vectors that all of them hold, and products whose columns
// they share out. Weights are fetched into registers before the numbers that they meet are there: the way from the
// second-level cache and the wait for the other blocks take their time together.

#pragma once
#include "prelude.cuh"

#ifndef CLUSTER
#define CLUSTER 8
#endif
constexpr int TEXT_BLOCK = 512, TEXT_WARPS = TEXT_BLOCK / WARP;
constexpr int QUAD = 4 * PACK;  // columns of a warp: four lanes, 64 bytes of a row of weights, eight rows at a time
// Packs of weights that a thread fetches ahead; with one more sm_90 would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int AHEAD = ACT == ACT_FP32 ? 5 : 6;
#else
constexpr int AHEAD = 4;
#endif

constexpr int MOST_TRIES = 1 << 24;

// A pack as it lies in memory. What waits in registers waits like this: as PACK numbers it would take twice as many.
struct Raw {
    unsigned word[4];

    __device__ __forceinline__ float get(int e) const {
#if ACT == ACT_BF16
        return __uint_as_float(e % 2 ? word[e / 2] & 0xffff0000u : word[e / 2] << 16);
#elif ACT == ACT_FP16
        return __half2float(__ushort_as_half((unsigned short)(e % 2 ? word[e / 2] >> 16 : word[e / 2] & 0xffffu)));
#else
        return __uint_as_float(word[e]);
#endif
    }
};

__device__ __forceinline__ Raw load_raw(const act_t* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {v.x, v.y, v.z, v.w};
}

__device__ __forceinline__ void unpack(float (&v)[PACK], const Raw& raw) {
#pragma unroll
    for (int e = 0; e < PACK; ++e) v[e] = raw.get(e);
}

__device__ __forceinline__ float rounded(float v) { return to_float(to_act(v)); }

__device__ __forceinline__ int block_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Until all blocks are here.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A vector of which every block has a copy, filled by all blocks in turn after turn: a write counts its bytes where it lands,
// and whoever waits until all of a turn's are there sees them. A barrier of the cluster would first wait for all the weights
// that are on their way.
struct Mailbox {
    unsigned long long* bar;  // in shared memory

    // By one thread, before the first turn: `bytes` are to come.
    __device__ __forceinline__ void open(int bytes) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
        expect(bytes);
    }
    __device__ __forceinline__ void expect(int bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                     : "memory");
    }
    // Until all of turn `turn`, counted from 0, is here; then the next turn's may come.
    __device__ __forceinline__ void wait(int turn, int bytes) const {
        unsigned done = 0;
        for (int tries = 0; !done; ++tries) {
            asm volatile(
                "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                "selp.u32 %0, 1, 0, p;\n\t}"
                : "=r"(done)
                : "r"(shared_address(bar)), "r"(turn & 1)
                : "memory");
            if (tries > MOST_TRIES) __trap();  // an error, where else the card would hang
        }
        if (threadIdx.x == 0) expect(bytes);
    }
    // Four numbers to block `rank`, where this block has `mine`, which lies at a multiple of 16 bytes.
    __device__ __forceinline__ void tell(float* mine, const float (&v)[4], int rank) const {
        unsigned at, there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(bar)), "r"(rank));
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
            "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(there)
            : "memory");
    }
    // One number of each thread to all blocks; four threads side by side do it together.
    __device__ __forceinline__ void tell_all(float* mine, float value) const {
        const int lane = lane_id() % 4;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __shfl_sync(0xfu << (lane_id() & ~3), value, i, 4);
#pragma unroll
        for (int rank = 0; rank < CLUSTER; rank += 4) tell(mine - lane, v, rank + lane);
    }
};

// Which columns of a matrix a warp takes, and which rows of them. A block takes quads of columns, its warps a quad together:
// of 8 * warps rows in turn each reads eight.
struct Share {
    int offset;       // elements from the matrix's first column to the quad's, -1: none
    int place, step;  // this warp's first row, and from there to its next
    int quads, first;  // of the block; the number of its first column
};

// The share of a warp in a block's `quads` quads. Quad q begins at (q / group) * skip + q % group * QUAD.
__device__ __forceinline__ Share share_of(int quads, int group, int skip, int first, int warp) {
    const int n = TEXT_WARPS / max(quads, 1), q = warp / n;
    return {q < quads ? q / group * skip + q % group * QUAD + first : -1, warp % n * 8, 8 * n, quads, first};
}

// In matrices of `columns` columns side by side.
__device__ __forceinline__ Share side_by_side(int columns, int warp) {
    const int n = columns / QUAD, begin = block_rank() * n / CLUSTER, end = (block_rank() + 1) * n / CLUSTER;
    return share_of(end - begin, TEXT_WARPS, 0, begin * QUAD, warp);
}

// A lane's packs of a matrix: one of every eighth row or so, of its warp's quad.
struct Slice {
    const act_t* at;
    int place, rows, step;
    size_t stride;

    __device__ __forceinline__ Slice(const act_t* w, int rows_, int row, const Share& s) {
        place = s.place + lane_id() / 4, rows = s.offset < 0 ? 0 : rows_, step = s.step, stride = (size_t)step * row;
        at = w + (size_t)place * row + s.offset + lane_id() % 4 * PACK;
    }
    // From the pack with number `from` on.
    __device__ __forceinline__ void fetch(Raw (&ahead)[AHEAD], int from) const {
        const act_t* p = at + from * stride;
#pragma unroll
        for (int d = 0; d < AHEAD; ++d, p += stride)
            if (place + (from + d) * step < rows) ahead[d] = load_raw(p);
    }
};

// sum += x w over the rows of a slice, of which the first are in `ahead`.
__device__ __forceinline__ void multiply(float (&sum)[PACK], const float* x, Raw (&ahead)[AHEAD], const Slice& s) {
    for (int from = 0; from * s.step < s.rows; from += AHEAD) {
        if (from > 0) s.fetch(ahead, from);
#pragma unroll
        for (int d = 0; d < AHEAD; ++d) {
            const int place = s.place + (from + d) * s.step;
            if (place >= s.rows) break;
            const float v = x[place];
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum[e] += v * ahead[d].get(e);
        }
    }
}

// Sums over lanes with the same number modulo 4. Each is left with one of its PACK sums, in sum[0]; which, is returned.
__device__ __forceinline__ int scatter_sums(float (&sum)[PACK]) {
    int n = PACK, kept = 0;
#pragma unroll
    for (int bit = 4; bit < WARP; bit *= 2) {
        const bool upper = lane_id() & bit;
        n /= 2;
#pragma unroll
        for (int e = 0; e < PACK / 2; ++e) {
            if (e >= max(n, 1)) continue;
            const float other = n == 0 || !upper ? sum[e + n] : sum[e];
            sum[e] = (n == 0 || !upper ? sum[e] : sum[e + n]) + __shfl_xor_sync(FULL, other, bit);
        }
        kept += upper ? n : 0;
    }
    return kept;
}

// From each lane's sums over its rows to the block's: true for threads that get a column of it, number threadIdx.x, in y.
__device__ __forceinline__ bool gather(float& y, float (&sum)[PACK], const Share& s) {
    __shared__ float part[TEXT_WARPS][QUAD];
    const int e = scatter_sums(sum);
    part[warp_id()][lane_id() % 4 * PACK + e] = sum[0];
    __syncthreads();
    const int n = s.step / 8, q = threadIdx.x / QUAD;
    if (q >= s.quads) return false;
    y = 0.0f;
#pragma unroll 4
    for (int k = 0; k < n; ++k) y += part[q * n + k][threadIdx.x % QUAD];
    return true;
}

// A LayerNorm, with the gain and shift of the element that has the thread's number.
struct Norm {
    const float *gamma, *beta;
    float gain, shift;

    __device__ __forceinline__ Norm(const float* gamma, int C) : gamma(gamma), beta(gamma + C) {
        const int c = min((int)threadIdx.x, C - 1);
        gain = gamma[c], shift = beta[c];
    }
    // y = LayerNorm(x), C wide, rounded; every warp finds mean and deviation by itself.
    __device__ __forceinline__ void apply(float* y, const float* x, int C, float eps) const {
        float sum = 0.0f, square = 0.0f;
#pragma unroll 4
        for (int c = lane_id(); c < C; c += WARP) sum += x[c];
        const float mean = warp_sum(sum) / C;
#pragma unroll 4
        for (int c = lane_id(); c < C; c += WARP) square += (x[c] - mean) * (x[c] - mean);
        const float rstd = rsqrtf(warp_sum(square) / C + eps);
#pragma unroll 1
        for (int c = threadIdx.x; c < C; c += TEXT_BLOCK) {
            const bool first = c == (int)threadIdx.x;
            y[c] = rounded((x[c] - mean) * rstd * (first ? gain : gamma[c]) + (first ? shift : beta[c]));
        }
        __syncthreads();
    }
};
