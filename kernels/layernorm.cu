// LayerNorm over the last axis, with its backward twin.
//
//   forward   xh = (x - mean) * rstd             y   = xh * gamma + beta
//   backward  g  = dy * gamma                    dx = old + rstd * (g - avg(g) - xh * avg(g * xh))
//             dgamma += sum over rows of dy * xh      dbeta += sum over rows of dy
//
// Shapes   x y dy dx old: (N, C) act_t, C a multiple of PACK and at most 32 PACK LN_PACKS    gamma beta: (C,) float32
//          mean rstd: (N,) float32    partial: (K, 2, C) float32, a slab a block of bwd
//          grads: the flat gradients, float32, where LayerNorm l has dgamma, dbeta (2C) from where[l] on
//          partials: (M, K, 2, C), the partial of M LayerNorms
// Writes   fwd assigns y, mean, rstd; bwd assigns dx, the residual stream's gradient, which it adds to when old is dx, and
//          partial; bwd_params adds into dgamma and dbeta of all M
// Launch   fwd: grid (ceil(N / 4),), block (128,): a row for a team of warps, which is one warp up to 32 elements a lane
//          bwd: grid (K,), block (256,): slab k has the rows of teams k TEAMS ... and every (K TEAMS)-th row from there
//          bwd_params: grid (ceil(2C / 32), M), block (256,)
// Repeats  bit for bit: K is fixed; rows, teams, their warps and slabs are added in their order
#include "prelude.cuh"

#ifndef LN_PACKS
#define LN_PACKS 2  // packs of a row for each lane of a warp: ceil(C / (32 PACK))
#endif
// Warps that share a row. Backward keeps two sums for each element that a lane holds: beyond 32 elements registers run out.
constexpr int TEAM = LN_PACKS * PACK <= 32 ? 1 : LN_PACKS * PACK <= 64 ? 2 : 4;
constexpr int PACKS = (LN_PACKS + TEAM - 1) / TEAM;  // that a lane holds
constexpr int WIDTH = PACKS * PACK;                  // elements of them
constexpr int BWD_WARPS = 8, TEAMS = BWD_WARPS / TEAM;
static_assert(LN_PACKS * PACK <= 128, "at most 4096 elements a row");

__device__ __forceinline__ int team_id() { return warp_id() / TEAM; }

// The column of a lane's element e.
__device__ __forceinline__ int column(int e) { return (e / PACK * TEAM * WARP + threadIdx.x % (TEAM * WARP)) * PACK + e % PACK; }

__device__ __forceinline__ void team_wait() {  // barrier 0 is the block's
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team_id()), "n"(TEAM * WARP) : "memory");
}

// Sum over a team, returned to every lane; warps are added in their order. Needs at most BWD_WARPS warps.
__device__ __forceinline__ float team_sum(float v) {
    v = warp_sum(v);
    if constexpr (TEAM > 1) {
        __shared__ float part[BWD_WARPS];
        team_wait();  // the last sum may still be read
        if (lane_id() == 0) part[warp_id()] = v;
        team_wait();
        v = 0.0f;
        for (int w = 0; w < TEAM; ++w) v += part[team_id() * TEAM + w];
    }
    return v;
}

// A row of a team, in registers: its lane l holds packs l, l + 32 TEAM, ... What lies past C reads as zero.
struct Row {
    Pack p[PACKS];
    __device__ __forceinline__ void load(const act_t* row, int C) {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int c = column(k * PACK);
            p[k] = c < C ? load_pack(row + c) : Pack{};
        }
    }
    __device__ __forceinline__ void store(act_t* row, int C) const {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int c = column(k * PACK);
            if (c < C) store_pack(row + c, p[k]);
        }
    }
    __device__ __forceinline__ float get(int e) const { return p[e / PACK].get(e % PACK); }
    __device__ __forceinline__ void set(int e, float v) { p[e / PACK].set(e % PACK, v); }
};

// A pack's worth of gamma or beta, by 16-byte loads.
struct Gains {
    float v[PACK];
    __device__ __forceinline__ Gains(const float* gamma, int c, int C) {
#pragma unroll
        for (int i = 0; i < PACK; i += 4)
            *reinterpret_cast<float4*>(v + i) = c < C ? *reinterpret_cast<const float4*>(gamma + c + i) : float4{};
    }
};

extern "C" __global__ void k_layernorm_fwd(act_t* y /* N C */, float* mean /* N */, float* rstd /* N */,
                                           const act_t* x /* N C */, const float* gamma /* C */,
                                           const float* beta /* C */, int N, int C, float eps) {
#pragma unroll 1
    for (int turn = 0; turn < TEAM; ++turn) {  // a block has as many rows as warps
        const int n = (blockIdx.x * TEAM + turn) * (blockDim.x / (WARP * TEAM)) + team_id();
        if (n >= N) return;
        Row row;
        row.load(x + (size_t)n * C, C);
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sum += row.get(e);
        const float m = team_sum(sum) / C;
#pragma unroll  // the variance is a second pass: one pass cancels when |mean| is large
        for (int e = 0; e < WIDTH; ++e) square += column(e) < C ? (row.get(e) - m) * (row.get(e) - m) : 0.0f;
        const float r = 1.0f / sqrtf(team_sum(square) / C + eps);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const Gains gain(gamma, column(k * PACK), C), shift(beta, column(k * PACK), C);
#pragma unroll
            for (int i = 0; i < PACK; ++i)
                row.set(k * PACK + i, (row.get(k * PACK + i) - m) * r * gain.v[i] + shift.v[i]);
        }
        row.store(y + (size_t)n * C, C);
        if (threadIdx.x % (TEAM * WARP) == 0) mean[n] = m, rstd[n] = r;
    }
}

constexpr int AT_ONCE = TEAMS;  // teams whose sums lie side by side, in 32 KiB

// Sums over the rows of a slab: the teams' sums side by side in shared memory, then added in their order.
__device__ __forceinline__ void store_slab(float* slab, const float (&sum)[WIDTH], float (*part)[WIDTH * TEAM * WARP], int C) {
    float* mine = part[team_id() % AT_ONCE];
    for (int first = 0; first < TEAMS; first += AT_ONCE) {
        if (team_id() / AT_ONCE == first / AT_ONCE) {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) mine[column(e)] = (first ? mine[column(e)] : 0.0f) + sum[e];
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        float total = 0.0f;
#pragma unroll
        for (int t = 0; t < AT_ONCE; ++t) total += part[t][c];
        slab[c] = total;
    }
    __syncthreads();  // part is reused by the next call
}

extern "C" __global__ void __launch_bounds__(WARP* BWD_WARPS, LN_PACKS <= 2 ? 2 : 1)
    k_layernorm_bwd(act_t* dx /* N C */, float* partial /* K 2 C */, const act_t* old /* N C */,
                    const act_t* dy /* N C */, const act_t* x /* N C */, const float* gamma /* C */, const float* mean /* N */,
                    const float* rstd /* N */, int N, int C) {
    __shared__ float part[AT_ONCE][WIDTH * TEAM * WARP];
    float dgamma[WIDTH] = {}, dbeta[WIDTH] = {};
    for (int n = blockIdx.x * TEAMS + team_id(); n < N; n += gridDim.x * TEAMS) {
        Row in, up, out;
        in.load(x + (size_t)n * C, C), up.load(dy + (size_t)n * C, C), out.load(old + (size_t)n * C, C);
        const float m = mean[n], r = rstd[n];
        float sum_g = 0.0f, sum_gxh = 0.0f;
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const Gains gain(gamma, column(k * PACK), C);
#pragma unroll
            for (int i = 0; i < PACK; ++i) {  // up is 0 past C
                const int e = k * PACK + i;
                const float xh = (in.get(e) - m) * r, d = up.get(e), g = d * gain.v[i];
                sum_g += g, sum_gxh += g * xh, dgamma[e] += d * xh, dbeta[e] += d;
            }
        }
        const float avg_g = team_sum(sum_g) / C, avg_gxh = team_sum(sum_gxh) / C;
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const Gains gain(gamma, column(k * PACK), C);
#pragma unroll
            for (int i = 0; i < PACK; ++i) {
                const int e = k * PACK + i;
                const float xh = (in.get(e) - m) * r;
                out.set(e, out.get(e) + r * (up.get(e) * gain.v[i] - avg_g - xh * avg_gxh));
            }
        }
        out.store(dx + (size_t)n * C, C);
    }
    float* slab = partial + (size_t)blockIdx.x * 2 * C;
    store_slab(slab, dgamma, part, C);
    store_slab(slab + C, dbeta, part, C);
}

extern "C" __global__ void __launch_bounds__(WARP* BWD_WARPS)
    k_layernorm_bwd_params(float* grads, const int* where /* M */, const float* partials /* M K 2 C */, int K, int C) {
    __shared__ float part[BWD_WARPS][WARP];
    const int k = blockIdx.x * WARP + lane_id();
    const float* slabs = partials + (size_t)blockIdx.y * K * 2 * C;
    float sum = 0.0f;
#pragma unroll 8
    for (int slab = warp_id(); slab < K; slab += BWD_WARPS) sum += k < 2 * C ? slabs[(size_t)slab * 2 * C + k] : 0.0f;
    part[warp_id()][lane_id()] = sum;
    __syncthreads();
    if (warp_id() != 0 || k >= 2 * C) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < BWD_WARPS; ++w) total += part[w][lane_id()];
    grads[where[blockIdx.y] + k] += total;
}
