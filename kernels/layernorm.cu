// LayerNorm over the last axis, with its backward twin.
//
//   forward   xh = (x - mean) * rstd             y   = xh * gamma + beta
//   backward  g  = dy * gamma                    dx = old + rstd * (g - avg(g) - xh * avg(g * xh))
//             dgamma += sum over rows of dy * xh      dbeta += sum over rows of dy
//
// Shapes   x y dy dx old: (N, C) act_t, C a multiple of PACK, at most LN_LANES LN_PACKS PACK    gamma beta: (C,) float32
//          mean rstd: (N,) float32    partial: (K, 2, C) float32, a slab a block of bwd
//          grads: the flat gradients, float32, where LayerNorm l has dgamma, dbeta (2C) from where[l] on
//          partials: (M, K, 2, C), the partial of M LayerNorms
//          q: (N, C) E4M3, largest, scale: as in fp8.cu
// Writes   fwd assigns y, mean, rstd; bwd assigns dx, the residual stream's gradient, which it adds to when old is dx, and
//          partial; bwd_params adds into dgamma and dbeta of all M. fp8 is the same for precision fp8, and assigns q, the
//          cast of y or of dx
// Launch   fwd: any grid, block (256,), with as many blocks at most as largest has places     bwd: grid (K,), block (256,)
//          block b has the rows b TEAMS ... b TEAMS + TEAMS - 1 and every (gridDim TEAMS)-th from there, a row for a team
//          bwd_params: grid (ceil(2C / 32), M), block (256,)
// Repeats  bit for bit: K is fixed; rows, teams, their warps and slabs are added in their order
//
// A row is read once, into the registers of its team. Forward starts the next row's loads before it works on this one.
// __fmul_rn stands where the compiler could fuse a product with one sum or with another: a kernel and its fp8 form must choose alike.
#include "fp8.cuh"

#ifndef LN_LANES
#define LN_LANES 32  // of a team, which shares a row: 16, a warp, or several
#define LN_PACKS 2   // of a row that a lane holds: ceil(C / (PACK LN_LANES))
#define LN_WHOLE 0   // 1: C is LN_LANES LN_PACKS PACK
#endif
constexpr int WIDTH = LN_PACKS * PACK;  // elements that a lane holds
constexpr int BLOCK = 256, TEAMS = BLOCK / LN_LANES;
constexpr int TEAM_WARPS = (LN_LANES + WARP - 1) / WARP, WARP_TEAMS = (WARP + LN_LANES - 1) / LN_LANES;
// Blocks that should fit a multiprocessor: as many as registers allow without spilling.
constexpr bool SMALL = WIDTH * sizeof(act_t) <= 48;
constexpr int FWD_BLOCKS = !SMALL ? 2 : LN_WHOLE && __CUDA_ARCH__ < 1000 ? 4 : 3, BWD_BLOCKS = SMALL ? 2 : 1;
constexpr int FP8_FWD_BLOCKS = SMALL ? 3 : 2, FP8_BWD_BLOCKS = SMALL && __CUDA_ARCH__ / 100 == 9 ? 2 : 1;

__device__ __forceinline__ int team_id() { return threadIdx.x / LN_LANES; }
__device__ __forceinline__ int team_lane() { return threadIdx.x % LN_LANES; }
__device__ __forceinline__ int column(int k) { return (k * LN_LANES + team_lane()) * PACK; }  // of a lane's pack k
__device__ __forceinline__ bool inside(int k, int C) { return k < LN_PACKS - 1 || LN_WHOLE || column(k) < C; }

// Whether a team of this warp has row n or one before it in the same round: what a warp does together, it does for all.
__device__ __forceinline__ bool any_row(int n, int N) { return n - team_id() % WARP_TEAMS < N; }

// K sums over a team, returned to every lane; warps are added in their order.
template <int K>
__device__ __forceinline__ void team_sums(float (&v)[K]) {
#pragma unroll
    for (int d = min(LN_LANES, WARP) / 2; d > 0; d >>= 1)
#pragma unroll
        for (int k = 0; k < K; ++k) v[k] += __shfl_xor_sync(FULL, v[k], d);
    if constexpr (TEAM_WARPS > 1) {
        __shared__ float part[K][BLOCK / WARP];
        auto wait = [] { asm volatile("bar.sync %0, %1;" ::"r"(1 + team_id()), "n"(LN_LANES) : "memory"); };  // 0 is the block's
        wait();  // the last sums may still be read
        for (int k = 0; k < K; ++k)
            if (lane_id() == 0) part[k][warp_id()] = v[k];
        wait();
        for (int k = 0; k < K; ++k) {
            v[k] = 0.0f;
#pragma unroll
            for (int w = 0; w < TEAM_WARPS; ++w) v[k] += part[k][team_id() * TEAM_WARPS + w];
        }
    }
}

// A row of a team, in registers. What lies past C reads as zero.
struct Row {
    Pack p[LN_PACKS];
    __device__ __forceinline__ void load(const act_t* row, int C) {
#pragma unroll
        for (int k = 0; k < LN_PACKS; ++k) p[k] = inside(k, C) ? load_pack(row + column(k)) : Pack{};
    }
    // Rearranges bytes by `same`, which is 0x3210, but the compiler must not know: what it unpacked before it unpacks again
    // then, and does not keep it in registers meanwhile.
    __device__ __forceinline__ void forget(unsigned same) {
#pragma unroll
        for (int k = 0; k < LN_PACKS; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) p[k].words()[i] = __byte_perm(p[k].words()[i], 0, same);
    }
    __device__ __forceinline__ float get(int e) const { return p[e / PACK].get(e % PACK); }
};

// What a row becomes, in E4M3 too unless q is null. A thread keeps the largest number in top.
struct Casts {
    e4m3_t* q;
    const Scale* scale;
    float top;
    __device__ __forceinline__ void store(const Row& row, size_t at, int C) {
        if (!q) return;
#pragma unroll
        for (int k = 0; k < LN_PACKS; ++k)
            if (inside(k, C)) store_codes(q + at + column(k), row.p[k], scale->to, top);
    }
};

// gamma or beta of a lane's columns, by 16-byte loads.
__device__ __forceinline__ void load_gains(float (&gains)[WIDTH], const float* gamma, int C) {
#pragma unroll
    for (int e = 0; e < WIDTH; e += 4) {
        const int k = e / PACK;
        const float4 four = inside(k, C) ? *reinterpret_cast<const float4*>(gamma + column(k) + e % PACK) : float4{};
        gains[e] = four.x, gains[e + 1] = four.y, gains[e + 2] = four.z, gains[e + 3] = four.w;
    }
}

// gamma and beta in shared memory, where a lane's four are beside its neighbours'.
struct Gains {
    float4 gamma[WIDTH / 4][LN_LANES], beta[WIDTH / 4][LN_LANES];
    __device__ __forceinline__ void load(const float* from_gamma, const float* from_beta, int C) {
        for (int i = threadIdx.x; i < WIDTH / 4 * LN_LANES; i += BLOCK) {
            const int four = i / LN_LANES, lane = i % LN_LANES, c = (four * 4 / PACK * LN_LANES + lane) * PACK + four * 4 % PACK;
            const float4 g = c < C ? *reinterpret_cast<const float4*>(from_gamma + c) : float4{};
            const float4 b = c < C ? *reinterpret_cast<const float4*>(from_beta + c) : float4{};
            gamma[four][lane] = g, beta[four][lane] = b;
        }
    }
    // A lane's pack k, scaled and shifted.
    __device__ __forceinline__ Pack apply(const float* v, int k) const {
        Pack out;
#pragma unroll
        for (int i = 0; i < PACK; i += 4) {
            const float4 g = gamma[(k * PACK + i) / 4][team_lane()], b = beta[(k * PACK + i) / 4][team_lane()];
            out.set(i, v[i] * g.x + b.x), out.set(i + 1, v[i + 1] * g.y + b.y);
            out.set(i + 2, v[i + 2] * g.z + b.z), out.set(i + 3, v[i + 3] * g.w + b.w);
        }
        return out;
    }
};

// 1 / sqrt(v) within an ulp: the approximation and a step of Newton's.
__device__ __forceinline__ float inverse_root(float v) {
    const float r = rsqrtf(v);
    return r * (1.5f - 0.5f * v * r * r);
}

// A row without its mean, into v; returns mean and rstd.
__device__ __forceinline__ float2 center(float (&v)[WIDTH], const Row& row, int C, float inverse, float eps) {
    float sum[1] = {}, square[1] = {};
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) sum[0] += v[e] = row.get(e);
    team_sums(sum);
    const float mean = __fmul_rn(sum[0], inverse);
#pragma unroll  // the variance is a second pass: one pass cancels when |mean| is large
    for (int e = 0; e < WIDTH; ++e) {
        v[e] -= mean;
        square[0] += inside(e / PACK, C) ? v[e] * v[e] : 0.0f;
    }
    team_sums(square);
    return {mean, inverse_root(square[0] * inverse + eps)};
}

// A block's rows. Returns the thread's largest number.
__device__ __forceinline__ float forward_rows(act_t* y, float* mean, float* rstd, const act_t* x, const float* gamma,
                                              const float* beta, Casts casts, int N, int C, float eps) {
    __shared__ Gains gains;
    if (LN_WHOLE) C = LN_LANES * WIDTH;  // the compiler should know
    const int step = gridDim.x * TEAMS;
    const float inverse = 1.0f / C;
    int n = blockIdx.x * TEAMS + team_id();
    Row row;
    row.load(x + (size_t)min(n, N - 1) * C, C);
    gains.load(gamma, beta, C);
    __syncthreads();
#pragma unroll 1
    for (; any_row(n, N); n += step) {
        Row next;
        if (n + step < N) next.load(x + (size_t)(n + step) * C, C);
        float v[WIDTH];
        const float2 moments = center(v, row, C, inverse, eps);  // mean, rstd
#pragma unroll
        for (int k = 0; k < LN_PACKS; ++k) {
#pragma unroll
            for (int i = 0; i < PACK; ++i) v[k * PACK + i] *= moments.y;
            row.p[k] = gains.apply(v + k * PACK, k);
            if (n < N && inside(k, C)) store_pack(y + (size_t)n * C + column(k), row.p[k]);
        }
        if (n < N && team_lane() == 0) mean[n] = moments.x, rstd[n] = moments.y;
        if (n < N) casts.store(row, (size_t)n * C, C);
        row = next;
    }
    return casts.top;
}

extern "C" __global__ void __launch_bounds__(BLOCK, FWD_BLOCKS)
    k_layernorm_fwd(act_t* y /* N C */, float* mean /* N */, float* rstd /* N */, const act_t* x /* N C */,
                    const float* gamma /* C */, const float* beta /* C */, int N, int C, float eps) {
    forward_rows(y, mean, rstd, x, gamma, beta, {}, N, C, eps);
}

extern "C" __global__ void __launch_bounds__(BLOCK, FP8_FWD_BLOCKS)
    k_fp8_layernorm_fwd(act_t* y /* N C */, float* mean /* N */, float* rstd /* N */, const act_t* x /* N C */,
                        const float* gamma /* C */, const float* beta /* C */, e4m3_t* q /* N C */, float* largest /* K */,
                        const Scale* scale, int N, int C, float eps) {
    raise_largest(largest, forward_rows(y, mean, rstd, x, gamma, beta, {q, scale}, N, C, eps));
}

// Sums over the rows of a slab: the teams' sums side by side in shared memory, then added in their order.
__device__ __forceinline__ void store_slab(float* slab, const float (&sum)[WIDTH], float (*part)[LN_LANES * WIDTH], int C) {
#pragma unroll
    for (int e = 0; e < WIDTH; e += 4)
        *reinterpret_cast<float4*>(&part[team_id()][column(e / PACK) + e % PACK]) = {sum[e], sum[e + 1], sum[e + 2], sum[e + 3]};
    __syncthreads();
    for (int c = threadIdx.x; c < C; c += BLOCK) {
        float total = 0.0f;
#pragma unroll
        for (int t = 0; t < TEAMS; ++t) total += part[t][c];
        slab[c] = total;
    }
    __syncthreads();  // part is reused by the next call
}

// A row's averages of g and of g xh, and its part of dgamma and dbeta. shift is -mean rstd.
__device__ __forceinline__ float2 average(float (&dgamma)[WIDTH], float (&dbeta)[WIDTH], const Row& in, const Row& up,
                                          const float (&gain)[WIDTH], float rstd, float shift, float inverse) {
    float sum[2] = {};
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
        const float xh = in.get(e) * rstd + shift, d = up.get(e), g = __fmul_rn(d, gain[e]);
        sum[0] += g, sum[1] += g * xh, dgamma[e] += d * xh, dbeta[e] += d;
    }
    team_sums(sum);
    return {__fmul_rn(sum[0], inverse), __fmul_rn(sum[1], inverse)};
}

// A block's rows, and its slab of partial. Returns the thread's largest number.
__device__ __forceinline__ float backward_rows(act_t* dx, float* partial, const act_t* old, const act_t* dy, const act_t* x,
                                               const float* gamma, const float* mean, const float* rstd, Casts casts, int N,
                                               int C) {
    __shared__ alignas(16) float part[TEAMS][LN_LANES * WIDTH];
    if (LN_WHOLE) C = LN_LANES * WIDTH;  // the compiler should know
    const int step = gridDim.x * TEAMS;
    const unsigned same = 0x3210u + ((unsigned)N >> 31);
    float gain[WIDTH], dgamma[WIDTH] = {}, dbeta[WIDTH] = {};
    load_gains(gain, gamma, C);
#pragma unroll 1
    for (int n = blockIdx.x * TEAMS + team_id(); any_row(n, N); n += step) {
        const int row = WARP_TEAMS == 1 ? n : min(n, N - 1);
        const size_t at = (size_t)row * C;
        Row in, up, out;
        in.load(x + at, C), up.load(dy + at, C), out.load(old + at, C);
        const float r = rstd[row], shift = __fmul_rn(-mean[row], r);
        if (WARP_TEAMS > 1 && n >= N) up = {};  // adds nothing
        const float2 avg = average(dgamma, dbeta, in, up, gain, r, shift, 1.0f / C);
        in.forget(same), up.forget(same);
#pragma unroll
        for (int k = 0; k < LN_PACKS; ++k) {
#pragma unroll
            for (int i = 0; i < PACK; ++i) {
                const float xh = in.p[k].get(i) * r + shift, g = up.p[k].get(i) * gain[k * PACK + i];
                out.p[k].set(i, out.p[k].get(i) + r * (g - avg.x - xh * avg.y));
            }
            if (n < N && inside(k, C)) store_pack(dx + at + column(k), out.p[k]);
        }
        if (n < N) casts.store(out, at, C);
    }
    float* slab = partial + (size_t)blockIdx.x * 2 * C;
    store_slab(slab, dgamma, part, C);
    store_slab(slab + C, dbeta, part, C);
    return casts.top;
}

extern "C" __global__ void __launch_bounds__(BLOCK, BWD_BLOCKS)
    k_layernorm_bwd(act_t* dx /* N C */, float* partial /* K 2 C */, const act_t* old /* N C */,
                    const act_t* dy /* N C */, const act_t* x /* N C */, const float* gamma /* C */,
                    const float* mean /* N */, const float* rstd /* N */, int N, int C) {
    backward_rows(dx, partial, old, dy, x, gamma, mean, rstd, {}, N, C);
}

extern "C" __global__ void __launch_bounds__(BLOCK, FP8_BWD_BLOCKS)
    k_fp8_layernorm_bwd(act_t* dx /* N C */, float* partial /* K 2 C */, const act_t* old /* N C */,
                        const act_t* dy /* N C */, const act_t* x /* N C */, const float* gamma /* C */,
                        const float* mean /* N */, const float* rstd /* N */, e4m3_t* q /* N C */,
                        float* largest /* P */, const Scale* scale, int N, int C) {
    raise_largest(largest, backward_rows(dx, partial, old, dy, x, gamma, mean, rstd, {q, scale}, N, C));
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    k_layernorm_bwd_params(float* grads, const int* where /* M */, const float* partials /* M K 2 C */, int K, int C) {
    __shared__ float part[BLOCK / WARP][WARP];
    const int k = blockIdx.x * WARP + lane_id();
    const float* slabs = partials + (size_t)blockIdx.y * K * 2 * C;
    float sum = 0.0f;
#pragma unroll 8
    for (int slab = warp_id(); slab < K; slab += BLOCK / WARP) sum += k < 2 * C ? slabs[(size_t)slab * 2 * C + k] : 0.0f;
    part[warp_id()][lane_id()] = sum;
    __syncthreads();
    if (warp_id() != 0 || k >= 2 * C) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < BLOCK / WARP; ++w) total += part[w][lane_id()];
    grads[where[blockIdx.y] + k] += total;
}
