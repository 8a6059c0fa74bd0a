// Matrix products for one new token in each of a few rows, with what stands around them in a block. Forward only.
//
//   k_token_linear   y = x w, with x first normalised (norm), and then gelu(y) (act) or residual + y (add), as asked
//   k_token_head     logits = LayerNorm(x) head'
//
// Shapes   x: (R, I) act_t, out residual: (R, O) act_t, R at most 4    gamma beta: (I,) float32
//          w: act_t, element (i, o) at w[o / width * matrix + i * row + o % width]; I and width multiples of PACK
//          head: (V, I) act_t    logits: (R, P) act_t, P >= V
// Writes   k_token_linear assigns out; k_token_head the first V columns of logits. Arguments that are not asked for are not
//          read.
// Launch   k_token_linear: grid (ceil(O / (2 PACK)),), block (256,)     k_token_head: grid (ceil(V / 8),), block (256,)
//          shared 4 I act_t
// Repeats  bit for bit: 128 groups of threads share out I by number; a warp's are added by pairs, then the warps in order
#include "gelu.cuh"

constexpr int ROWS = 4, LANES = 2, THREADS = 256, GROUPS = THREADS / LANES;
constexpr int SPAN = LANES * PACK;  // columns of a block: few, so that there are many blocks

// Row r of x by warp r, normalised and rounded as the training kernel does it.
__device__ __forceinline__ void stage_normalised(act_t* xs, const act_t* x, const float* gamma, const float* beta, int I,
                                                 float eps) {
    float sum = 0.0f, square = 0.0f;
    for (int i = lane_id() * PACK; i < I; i += WARP * PACK) {
        const Pack p = load_pack(x + i);
        store_pack(xs + i, p);
#pragma unroll
        for (int e = 0; e < PACK; ++e) sum += p.get(e);
    }
    const float mean = warp_sum(sum) / I;
    for (int i = lane_id() * PACK; i < I; i += WARP * PACK) {
        const Pack p = load_pack(xs + i);
#pragma unroll
        for (int e = 0; e < PACK; ++e) square += (p.get(e) - mean) * (p.get(e) - mean);
    }
    const float rstd = 1.0f / sqrtf(warp_sum(square) / I + eps);
    for (int i = lane_id() * PACK; i < I; i += WARP * PACK) {
        Pack p = load_pack(xs + i);
#pragma unroll
        for (int e = 0; e < PACK; ++e) p.set(e, (p.get(e) - mean) * rstd * gamma[i + e] + beta[i + e]);
        store_pack(xs + i, p);
    }
}

// All rows of x in shared memory; rows past R are zero.
__device__ __forceinline__ void stage(act_t* xs, const act_t* x, const float* gamma, const float* beta, int R, int I,
                                      int norm, float eps) {
    const int r = warp_id();
    if (norm && r < R) stage_normalised(xs + (size_t)r * I, x + (size_t)r * I, gamma, beta, I, eps);
    for (int k = threadIdx.x * PACK; k < ROWS * I; k += blockDim.x * PACK) {
        if (k >= R * I) store_pack(xs + k, Pack{});
        else if (!norm) store_pack(xs + k, load_pack(x + k));
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    k_token_linear(act_t* out /* R O */, const act_t* x /* R I */, const act_t* residual /* R O */,
                   const float* gamma, const float* beta, const act_t* w, int R, int I, int O, int width, int matrix,
                   int row, int norm, int act, int add, float eps) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float part[THREADS / WARP][ROWS][SPAN];
    act_t* xs = reinterpret_cast<act_t*>(shared);
    stage(xs, x, gamma, beta, R, I, norm, eps);
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, o = (blockIdx.x * LANES + lane) * PACK;
    const act_t* column = w + (size_t)(o / width) * matrix + o % width;
    float sum[ROWS][PACK] = {};
#pragma unroll 4
    for (int i = group; i < I && o < O; i += GROUPS) {
        const Pack p = load_pack(column + (size_t)i * row);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum[r][e] += to_float(xs[r * I + i]) * p.get(e);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int e = 0; e < PACK; ++e) {
#pragma unroll
            for (int next = LANES; next < WARP; next *= 2) sum[r][e] += __shfl_xor_sync(~0u, sum[r][e], next);
            if (lane_id() < LANES) part[warp_id()][r][lane * PACK + e] = sum[r][e];
        }
    __syncthreads();
    const int r = threadIdx.x / SPAN, c = blockIdx.x * SPAN + threadIdx.x % SPAN;
    if (r >= R || c >= O) return;
    float y = 0.0f;
#pragma unroll
    for (int warp = 0; warp < THREADS / WARP; ++warp) y += part[warp][r][threadIdx.x % SPAN];
    if (act) y = gelu(y);
    if (add) y += to_float(residual[(size_t)r * O + c]);
    out[(size_t)r * O + c] = to_act(y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    k_token_head(act_t* logits /* R P */, const act_t* x /* R I */, const float* gamma /* I */,
                 const float* beta /* I */, const act_t* head, int R, int I, int V, int P, float eps) {
    extern __shared__ __align__(16) unsigned char shared[];
    act_t* xs = reinterpret_cast<act_t*>(shared);
    stage(xs, x, gamma, beta, R, I, 1, eps);
    const int v = blockIdx.x * (THREADS / WARP) + warp_id();
    if (v >= V) return;
    float sum[ROWS] = {};
    for (int i = lane_id() * PACK; i < I; i += WARP * PACK) {
        const Pack h = load_pack(head + (size_t)v * I + i);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const Pack y = load_pack(xs + (size_t)r * I + i);
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum[r] += y.get(e) * h.get(e);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float logit = warp_sum(sum[r]);
        if (lane_id() == 0 && r < R) logits[(size_t)r * P + v] = to_act(logit);
    }
}
