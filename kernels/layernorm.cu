// LayerNorm over the last axis, with its backward twin.
//
//   forward   xh = (x - mean) * rstd             y   = xh * gamma + beta
//   backward  g  = dy * gamma                    dx += rstd * (g - avg(g) - xh * avg(g * xh))
//             dgamma += sum over rows of dy * xh      dbeta += sum over rows of dy
//
// Shapes   x y dy dx: (N, C) act_t    gamma beta dgamma dbeta: (C,) float32    mean rstd: (N,) float32
//          partial: (SLABS, 2, C) float32 scratch; a slab is every SLABS-th group of 8 rows
// Writes   fwd assigns y, mean, rstd; bwd adds into dx (the residual stream's gradient); bwd_partial assigns partial;
//          bwd_params adds into dgamma and dbeta
// Launch   fwd, bwd: grid (ceil(N / 4),), block (128,): a warp a row
//          bwd_partial: grid (ceil(C / (32 PACK)), SLABS), block (256,)     bwd_params: grid (ceil(2C / 256),), block (256,)
//          C a multiple of PACK
// Repeats  bit for bit: slabs and warps are added in their order
#include "prelude.cuh"

constexpr int SPAN = WARP * PACK;  // columns of one warp's step
constexpr int ROWS = 8;            // warps of bwd_partial

// Statistics of one row by one warp; the variance is a second pass, since one pass cancels when |mean| >> spread.
__device__ __forceinline__ float2 row_statistics(const act_t* x, int C, float eps) {
    float sum = 0.0f, square = 0.0f;
    for (int c = lane_id() * PACK; c < C; c += SPAN) {
        const Pack in = load_pack(x + c);
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum += in.get(i);
    }
    const float mean = warp_sum(sum) / C;
    for (int c = lane_id() * PACK; c < C; c += SPAN) {
        const Pack in = load_pack(x + c);
#pragma unroll
        for (int i = 0; i < PACK; ++i) square += (in.get(i) - mean) * (in.get(i) - mean);
    }
    return {mean, 1.0f / sqrtf(warp_sum(square) / C + eps)};
}

extern "C" __global__ void k_layernorm_fwd(act_t* y /* N C */, float* mean /* N */, float* rstd /* N */,
                                           const act_t* x /* N C */, const float* gamma /* C */,
                                           const float* beta /* C */, int N, int C, float eps) {
    const int row = blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (row >= N) return;
    const act_t* in_row = x + (size_t)row * C;
    const float2 s = row_statistics(in_row, C, eps);
    for (int c = lane_id() * PACK; c < C; c += SPAN) {
        const Pack in = load_pack(in_row + c);
        Pack out;
#pragma unroll
        for (int i = 0; i < PACK; ++i) out.set(i, (in.get(i) - s.x) * s.y * gamma[c + i] + beta[c + i]);
        store_pack(y + (size_t)row * C + c, out);
    }
    if (lane_id() == 0) mean[row] = s.x, rstd[row] = s.y;
}

extern "C" __global__ void k_layernorm_bwd(act_t* dx /* N C */, const act_t* dy /* N C */, const act_t* x /* N C */,
                                           const float* gamma /* C */, const float* mean /* N */,
                                           const float* rstd /* N */, int N, int C) {
    const int row = blockIdx.x * (blockDim.x / WARP) + warp_id();
    if (row >= N) return;
    const size_t base = (size_t)row * C;
    const float m = mean[row], r = rstd[row];
    float sum_g = 0.0f, sum_gxh = 0.0f;
    for (int c = lane_id() * PACK; c < C; c += SPAN) {
        const Pack in = load_pack(x + base + c), up = load_pack(dy + base + c);
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float g = up.get(i) * gamma[c + i];
            sum_g += g;
            sum_gxh += g * (in.get(i) - m) * r;
        }
    }
    const float avg_g = warp_sum(sum_g) / C, avg_gxh = warp_sum(sum_gxh) / C;
    for (int c = lane_id() * PACK; c < C; c += SPAN) {
        const Pack in = load_pack(x + base + c), up = load_pack(dy + base + c);
        Pack out = load_pack(dx + base + c);
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float xh = (in.get(i) - m) * r;
            out.set(i, out.get(i) + r * (up.get(i) * gamma[c + i] - avg_g - xh * avg_gxh));
        }
        store_pack(dx + base + c, out);
    }
}

extern "C" __global__ void __launch_bounds__(WARP* ROWS)
    k_layernorm_bwd_partial(float* partial /* K 2 C */, const act_t* dy /* N C */, const act_t* x /* N C */,
                            const float* mean /* N */, const float* rstd /* N */, int N, int C) {
    __shared__ float part[ROWS][2][SPAN];
    const int c = blockIdx.x * SPAN + lane_id() * PACK;
    float dgamma[PACK] = {}, dbeta[PACK] = {};
    for (int row = blockIdx.y * ROWS + warp_id(); row < N && c < C; row += gridDim.y * ROWS) {
        const Pack in = load_pack(x + (size_t)row * C + c), up = load_pack(dy + (size_t)row * C + c);
        const float m = mean[row], r = rstd[row];
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            dgamma[i] += up.get(i) * (in.get(i) - m) * r;
            dbeta[i] += up.get(i);
        }
    }
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        part[warp_id()][0][lane_id() * PACK + i] = dgamma[i];
        part[warp_id()][1][lane_id() * PACK + i] = dbeta[i];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 2 * SPAN; k += blockDim.x) {
        const int which = k / SPAN, column = blockIdx.x * SPAN + k % SPAN;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < ROWS; ++w) sum += part[w][which][k % SPAN];
        if (column < C) partial[((size_t)blockIdx.y * 2 + which) * C + column] = sum;
    }
}

extern "C" __global__ void k_layernorm_bwd_params(float* dgamma /* C */, float* dbeta /* C */,
                                                  const float* partial /* K 2 C */, int K, int C) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= 2 * C) return;
    float sum = 0.0f;
    for (int slab = 0; slab < K; ++slab) sum += partial[(size_t)slab * 2 * C + k];
    if (k < C) dgamma[k] += sum;
    else dbeta[k - C] += sum;
}
