// What sampling needs beside the training kernels: one new token a row, with a cache of keys and values. Forward only.
//
//   k_token_embed   x[r] = wte[text[r, place]] + wpe[place]
//   k_token_attn    puts this token's k and v into the cache, then attends to places 0 ... place
//   k_token_pick    where text[r, place + 1] is -1: draws it from softmax(logits / temperature) over the top_k largest
//                   logits (and the equals of the last of them), of which the likeliest stay that together reach top_p of
//                   their sum (and the equals again); temperature 0 takes the largest, the lowest id of equals.
//                   The number drawn is uniform[r, place + 1], in [0, 1)
//   k_token_next    place += 1
//
// Shapes   x out: (R, C) act_t    qkv: (R, 3, H, D) act_t    cache: (R, 2, H, T, D) act_t    logits: (R, P) act_t
//          text: (R, S) int32, -1 where a token is to be found, S > T    uniform: (R, S) float32
// Writes   assigns x, out, the cache at `place`, text at place + 1
// Launch   k_token_embed: grid (R,), block (128,)     k_token_attn: grid (H, R), block (128,), shared T + 128 floats
//          k_token_pick: grid (R,), block (1024,)     k_token_next: grid (1,), block (32,)
// Repeats  bit for bit: keys and ids are shared out by thread number and added in order
#include "prelude.cuh"

constexpr int PICK_BLOCK = 1024;

struct Sampling {
    int place;  // the token that is read now; the same for all rows
    float temperature;
    int top_k;    // 0: all
    float top_p;  // 1: all
};

extern "C" __global__ void k_token_embed(act_t* x /* R C */, const int* text /* R S */, const Sampling* sampling,
                                         const float* wte /* V C */, const float* wpe /* T C */, int S, int C) {
    const size_t r = blockIdx.x, place = sampling->place;
    const float* token = wte + (size_t)text[r * S + place] * C;
    const float* here = wpe + place * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) x[r * C + c] = to_act(token[c] + here[c]);
}

__device__ __forceinline__ float dot(const act_t* a, const act_t* b, int D) {
    float sum = 0.0f;
    for (int d = 0; d < D; d += PACK) {
        const Pack x = load_pack(a + d), y = load_pack(b + d);
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum += x.get(i) * y.get(i);
    }
    return sum;
}

// Softmax of p[0] ... p[n - 1] in place, not yet divided by its sum, which is returned.
__device__ __forceinline__ float exponentials(float* p, int n) {
    float top = -INFINITY, sum = 0.0f;
    for (int j = threadIdx.x; j < n; j += blockDim.x) top = fmaxf(top, p[j]);
    top = block_max(top);
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += p[j] = expf(p[j] - top);
    return block_sum(sum);
}

extern "C" __global__ void k_token_attn(act_t* out /* R C */, act_t* cache, const act_t* qkv /* R E */,
                                        const Sampling* sampling, int T, int H, int D) {
    extern __shared__ float p[];  // T scores, then blockDim.x partial outputs
    const int h = blockIdx.x, r = blockIdx.y, n = sampling->place + 1, C = H * D;
    act_t* keys = cache + ((size_t)(2 * r) * H + h) * T * D;
    act_t* values = keys + (size_t)H * T * D;
    const act_t* row = qkv + (size_t)r * 3 * C + h * D;
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        keys[(size_t)(n - 1) * D + d] = row[C + d];
        values[(size_t)(n - 1) * D + d] = row[2 * C + d];
    }
    __syncthreads();
    const float scale = rsqrtf((float)D);
    for (int j = threadIdx.x; j < n; j += blockDim.x) p[j] = dot(row, keys + (size_t)j * D, D) * scale;
    const float total = exponentials(p, n);
    const int groups = blockDim.x / D, d = threadIdx.x % D, g = threadIdx.x / D;
    float sum = 0.0f;
#pragma unroll 8  // loads in flight; the sums stay in order
    for (int j = g; j < n; j += groups) sum += p[j] * to_float(values[(size_t)j * D + d]);
    p[T + threadIdx.x] = sum;
    __syncthreads();
    if (g != 0) return;
    for (int k = 1; k < groups; ++k) sum += p[T + k * D + d];
    out[(size_t)r * C + h * D + d] = to_act(sum / total);
}

// Float order as integer order.
__device__ __forceinline__ unsigned rank_of(float v) {
    const unsigned bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// How many logits rank at `least` or above; all threads of the block take part.
__device__ __forceinline__ int count_from(const act_t* logits, unsigned least, int V) {
    int count = 0;
    for (int first = 0; first < V; first += blockDim.x) {
        const int v = first + threadIdx.x;
        count += __syncthreads_count(v < V && rank_of(to_float(logits[v])) >= least);
    }
    return count;
}

// The rank of the k-th largest logit, found bit by bit.
__device__ __forceinline__ unsigned kth_rank(const act_t* logits, int k, int V) {
    unsigned least = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const unsigned higher = least | (1u << bit);
        if (count_from(logits, higher, V) >= k) least = higher;
    }
    return least;
}

__device__ __forceinline__ float weight(float logit, unsigned least, float top, float temperature) {
    return rank_of(logit) >= least ? expf((logit - top) / temperature) : 0.0f;
}

// What the logits that rank at `least` or above weigh. Whatever `least` is, the order of adding is the same, so that a
// higher one never weighs more.
__device__ __forceinline__ float mass_from(const act_t* logits, unsigned least, float top, float temperature, int V) {
    float sum = 0.0f;
    for (int v = threadIdx.x; v < V; v += blockDim.x) sum += weight(to_float(logits[v]), least, top, temperature);
    return block_sum(sum);
}

// The highest rank from which on the logits weigh `p` of what they weigh from rank `from` on, found bit by bit.
__device__ __forceinline__ unsigned nucleus_rank(const act_t* logits, unsigned from, float p, float top,
                                                 float temperature, int V) {
    const float goal = p * mass_from(logits, from, top, temperature, V);
    unsigned least = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const unsigned higher = least | (1u << bit);
        if (higher <= from || mass_from(logits, higher, top, temperature, V) >= goal) least = higher;
    }
    return min(least, rank_of(top));
}

// Go through `n` parts until `left` lies in one; what is before it is taken off.
__device__ __forceinline__ int find_part(const float* parts, int n, float& left) {
    int i = 0;
    while (i < n - 1 && left >= parts[i]) left -= parts[i++];
    return i;
}

// The first id at which the running sum of weights passes `u` of their total. Each thread sums a stretch of ids, then each
// warp its threads; one thread goes down from warps to threads to ids.
__device__ int draw(const act_t* logits, unsigned least, float top, float temperature, float u, int V) {
    __shared__ float threads[PICK_BLOCK], warps[WARP];
    __shared__ int drawn;
    const int stretch = (V + blockDim.x - 1) / blockDim.x, begin = min((int)threadIdx.x * stretch, V);
    float sum = 0.0f;
    for (int v = begin; v < min(begin + stretch, V); ++v) sum += weight(to_float(logits[v]), least, top, temperature);
    threads[threadIdx.x] = sum;
    const float all = warp_sum(sum);
    if (lane_id() == 0) warps[warp_id()] = all;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int n = blockDim.x / WARP;
        float total = 0.0f;
        for (int w = 0; w < n; ++w) total += warps[w];
        float left = u * total;
        const int w = find_part(warps, n, left), t = w * WARP + find_part(threads + w * WARP, WARP, left);
        int last = -1;
        for (int v = min(t * stretch, V - 1); v < V; ++v) {
            const float here = weight(to_float(logits[v]), least, top, temperature);
            if (here > 0.0f) last = v;
            if (left < here) break;
            left -= here;
        }
        for (int v = t * stretch; last < 0 && v-- > 0;)  // rounding went past the last id that has a weight
            if (weight(to_float(logits[v]), least, top, temperature) > 0.0f) last = v;
        drawn = max(last, 0);
    }
    __syncthreads();
    return drawn;
}

// The lowest id of the largest logit.
__device__ __forceinline__ int largest(const act_t* logits, float top, int V) {
    float least = (float)V;
    for (int v = threadIdx.x; v < V; v += blockDim.x)
        if (to_float(logits[v]) == top) least = fminf(least, (float)v);
    return min((int)-block_max(-least), V - 1);
}

extern "C" __global__ void __launch_bounds__(PICK_BLOCK)
    k_token_pick(int* text /* R S */, const act_t* logits /* R P */, const float* uniform /* R S */,
                 const Sampling* sampling, int V, int P, int S) {
    const size_t next = (size_t)blockIdx.x * S + sampling->place + 1;
    if (text[next] >= 0) return;
    const act_t* row = logits + (size_t)blockIdx.x * P;
    float top = -INFINITY;
    for (int v = threadIdx.x; v < V; v += blockDim.x) top = fmaxf(top, to_float(row[v]));
    top = block_max(top);
    int token;
    if (sampling->temperature == 0.0f) {
        token = largest(row, top, V);
    } else {
        const int k = sampling->top_k;
        const float p = sampling->top_p, temperature = sampling->temperature;
        unsigned least = k > 0 && k < V ? kth_rank(row, k, V) : 0u;
        if (p < 1.0f) least = nucleus_rank(row, least, p, top, temperature, V);
        token = draw(row, least, top, temperature, uniform[next], V);
    }
    if (threadIdx.x == 0) text[next] = token;
}

extern "C" __global__ void k_token_next(Sampling* sampling) {
    if (threadIdx.x == 0) sampling->place += 1;
}
