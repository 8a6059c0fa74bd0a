// How a token is picked from a row of logits by the threads of one block. Softmax over the top_k largest logits (and the
// equals of the last of them), of which the likeliest stay that together reach top_p of their sum (and the equals again).

#pragma once
#include "prelude.cuh"

constexpr int PICK_BLOCK = 1024;  // threads at most
#if ACT == ACT_BF16
constexpr int LOWEST_BIT = 16;  // of a rank, below which all logits are the same
#elif ACT == ACT_FP16
constexpr int LOWEST_BIT = 13;
#else
constexpr int LOWEST_BIT = 0;
#endif

// A logit is of type act_t, or a float of the same values.
template <class Logit>
__device__ __forceinline__ float number(Logit v) {
    return to_float(v);
}
template <>
__device__ __forceinline__ float number(float v) {
    return v;
}

struct Choice {
    float temperature;  // 0: the largest, the lowest id of equals
    int top_k;          // 0: all
    float top_p;        // 1: all
};

struct Sampling {
    int place;  // the token that is read now, the same for all rows; k_text is told it
    Choice choice;
};

// Float order as integer order.
__device__ __forceinline__ unsigned rank_of(float v) {
    const unsigned bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// How many logits rank at `least` or above; `turn` is another than in the call before.
template <class Logit>
__device__ __forceinline__ int count_from(const Logit* logits, unsigned least, int V, int turn) {
    __shared__ int part[2][WARP];
    int count = 0;
    for (int v = threadIdx.x; v < V; v += blockDim.x) count += rank_of(number(logits[v])) >= least;
    count = __reduce_add_sync(FULL, count);
    if (lane_id() == 0) part[turn & 1][warp_id()] = count;
    __syncthreads();
    return __reduce_add_sync(FULL, lane_id() < (int)blockDim.x / WARP ? part[turn & 1][lane_id()] : 0);
}

// The rank of the k-th largest logit, found bit by bit.
template <class Logit>
__device__ __forceinline__ unsigned kth_rank(const Logit* logits, int k, int V) {
    unsigned least = 0;
    for (int bit = 31; bit >= LOWEST_BIT; --bit) {
        const unsigned higher = least | (1u << bit);
        if (count_from(logits, higher, V, bit) >= k) least = higher;
    }
    return least;
}

__device__ __forceinline__ float weight(float logit, unsigned least, float top, float temperature) {
    return rank_of(logit) >= least ? expf((logit - top) / temperature) : 0.0f;
}

// What the logits that rank at `least` or above weigh. Whatever `least` is, the order of adding is the same, so that a
// higher one never weighs more.
template <class Logit>
__device__ __forceinline__ float mass_from(const Logit* logits, unsigned least, float top, float temperature, int V) {
    float sum = 0.0f;
#pragma unroll 1
    for (int v = threadIdx.x; v < V; v += blockDim.x) sum += weight(number(logits[v]), least, top, temperature);
    return block_sum(sum);
}

// The highest rank from which on the logits weigh `p` of what they weigh from rank `from` on, found bit by bit.
template <class Logit>
__device__ __forceinline__ unsigned nucleus_rank(const Logit* logits, unsigned from, float p, float top,
                                                 float temperature, int V) {
    const float goal = p * mass_from(logits, from, top, temperature, V);
    unsigned least = 0;
    for (int bit = 31; bit >= LOWEST_BIT; --bit) {
        const unsigned higher = least | (1u << bit);
        if (higher <= from || mass_from(logits, higher, top, temperature, V) >= goal) least = higher;
    }
    return min(least, rank_of(top));
}

// The first lane at which the running sum of the lanes' parts passes `left`, from which the sum before it is taken off.
// Where rounding lets none pass, the last lane that has a part.
__device__ __forceinline__ int find_part(float part, float& left) {
    float sum = part;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        const float below = __shfl_up_sync(FULL, sum, d);
        if (lane_id() >= d) sum += below;
    }
    const unsigned past = __ballot_sync(FULL, left < sum), some = __ballot_sync(FULL, part > 0.0f);
    const int lane = past ? __ffs(past) - 1 : some ? WARP - 1 - __clz(some) : 0;
    const float before = __shfl_sync(FULL, sum, max(lane - 1, 0));
    if (lane > 0) left = fmaxf(left - before, 0.0f);
    return lane;
}

// The first id from `begin` on at which the running sum of weights passes `left`; the last that has a weight, if none does.
template <class Logit>
__device__ __forceinline__ int find_id(const Logit* logits, int begin, float left, unsigned least, float top,
                                       float temperature, int V) {
    int last = -1;
#pragma unroll 1
    for (int v = min(begin, V - 1); v < V; ++v) {
        const float here = weight(number(logits[v]), least, top, temperature);
        if (here > 0.0f) last = v;
        if (left < here) break;
        left -= here;
    }
#pragma unroll 1
    for (int v = begin; last < 0 && v-- > 0;)  // rounding went past the last id that has a weight
        if (weight(number(logits[v]), least, top, temperature) > 0.0f) last = v;
    return max(last, 0);
}

// The first id at which the running sum of weights passes `u` of their total. Each thread sums a stretch of ids, then each
// warp its threads; the first warp goes down from warps to threads to ids.
template <class Logit>
__device__ __forceinline__ int draw(const Logit* logits, unsigned least, float top, float temperature, float u, int V) {
    __shared__ float threads[PICK_BLOCK], warps[WARP];
    __shared__ int drawn;
    const int stretch = (V + blockDim.x - 1) / blockDim.x, begin = min((int)threadIdx.x * stretch, V);
    float sum = 0.0f;
    for (int v = begin; v < min(begin + stretch, V); ++v) sum += weight(number(logits[v]), least, top, temperature);
    threads[threadIdx.x] = sum;
    sum = warp_sum(sum);
    if (lane_id() == 0) warps[warp_id()] = sum;
    __syncthreads();
    if (warp_id() == 0) {
        const float part = lane_id() < (int)blockDim.x / WARP ? warps[lane_id()] : 0.0f;
        float left = u * warp_sum(part);
        const int w = find_part(part, left), t = w * WARP + find_part(threads[w * WARP + lane_id()], left);
        drawn = find_id(logits, t * stretch, left, least, top, temperature, V);
    }
    __syncthreads();
    return drawn;
}

// The lowest id of the largest logit.
template <class Logit>
__device__ __forceinline__ int largest(const Logit* logits, float top, int V) {
    float least = (float)V;
    for (int v = threadIdx.x; v < V; v += blockDim.x)
        if (number(logits[v]) == top) least = fminf(least, (float)v);
    return min((int)-block_max(-least), V - 1);
}

// A token, the same in all threads; `u` is uniform in [0, 1).
template <class Logit>
__device__ __forceinline__ int pick(const Logit* logits, const Choice& choice, float u, int V) {
    float top = -INFINITY;
    for (int v = threadIdx.x; v < V; v += blockDim.x) top = fmaxf(top, number(logits[v]));
    top = block_max(top);
    if (choice.temperature == 0.0f) return largest(logits, top, V);
    const int k = choice.top_k;
    unsigned least = k > 0 && k < V ? kth_rank(logits, k, V) : 0u;
    if (choice.top_p < 1.0f) least = nucleus_rank(logits, least, choice.top_p, top, choice.temperature, V);
    return draw(logits, least, top, choice.temperature, u, V);
}
