// What sampling needs beside the training kernels: one new token a row, with a cache of keys and values. Forward only.
//
//   k_token_embed   x[r] = wte[text[r, place]] + wpe[place]
//   k_token_attn    puts this token's k and v into the cache, then attends to places 0 ... place
//   k_token_pick    where text[r, place + 1] is -1: draws it from softmax(logits / temperature), see token_pick.cuh; the
//                   number drawn is uniform[r, place + 1], in [0, 1)
//   k_token_next    place += 1
//
// Shapes   x out: (R, C) act_t    qkv: (R, 3, H, D) act_t    cache: (R, 2, H, T, D) act_t    logits: (R, P) act_t
//          text: (R, S) int32, -1 where a token is to be found, S > T    uniform: (R, S) float32
// Writes   assigns x, out, the cache at `place`, text at place + 1
// Launch   k_token_embed: grid (R,), block (128,)     k_token_attn: grid (H, R), block (128,), shared T + 128 floats
//          k_token_pick: grid (R,), block (1024,)     k_token_next: grid (1,), block (32,)
// Repeats  bit for bit: keys and ids are shared out by thread number and added in order
#include "token_pick.cuh"

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

extern "C" __global__ void __launch_bounds__(PICK_BLOCK)
    k_token_pick(int* text /* R S */, const act_t* logits /* R P */, const float* uniform /* R S */,
                 const Sampling* sampling, int V, int P, int S) {
    const size_t next = (size_t)blockIdx.x * S + sampling->place + 1;
    if (text[next] >= 0) return;
    const int token = pick(logits + (size_t)blockIdx.x * P, sampling->choice, uniform[next], V);
    if (threadIdx.x == 0) text[next] = token;
}

extern "C" __global__ void k_token_next(Sampling* sampling) {
    if (threadIdx.x == 0) sampling->place += 1;
}
