// What sampling needs beside the training kernels: one new token a row, with a cache of keys and values. Forward only.
//
//   k_token_embed   x[r] = wte[token[r]] + wpe[place]
//   k_token_attn    puts this token's k and v into the cache, then attends to places 0 ... place
//
// Shapes   x out: (R, C) act_t    qkv: (R, 3, H, D) act_t    cache: (R, 2, H, T, D) act_t    tokens: (R,) int32
//          place: one int32, the same for all rows
// Writes   assigns x, out, and the cache at `place`
// Launch   k_token_embed: grid (R,), block (128,)     k_token_attn: grid (H, R), block (128,), shared T + 128 floats
// Repeats  bit for bit: keys are shared out by thread number and added in order
#include "prelude.cuh"

extern "C" __global__ void k_token_embed(act_t* x /* R C */, const int* tokens /* R */, const int* place,
                                         const float* wte /* V C */, const float* wpe /* T C */, int C) {
    const float* token = wte + (size_t)tokens[blockIdx.x] * C;
    const float* here = wpe + (size_t)*place * C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) x[(size_t)blockIdx.x * C + c] = to_act(token[c] + here[c]);
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

extern "C" __global__ void k_token_attn(act_t* out /* R C */, act_t* cache, const act_t* qkv /* R E */, const int* place,
                                        int T, int H, int D) {
    extern __shared__ float p[];  // T scores, then blockDim.x partial outputs
    const int h = blockIdx.x, r = blockIdx.y, n = *place + 1, C = H * D;
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
    for (int j = g; j < n; j += groups) sum += p[j] * to_float(values[(size_t)j * D + d]);
    p[T + threadIdx.x] = sum;
    __syncthreads();
    if (g != 0) return;
    for (int k = 1; k < groups; ++k) sum += p[T + k * D + d];
    out[(size_t)r * C + h * D + d] = to_act(sum / total);
}
