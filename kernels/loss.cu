// Cross-entropy over the padded vocabulary, with its backward twin, and the two in one pass. The head's matrix
// product is in head.cu.
//
//   forward   loss[n] = lse[n] - logits[n, target[n]]          lse = log(sum over v < V of exp(logits[n, v]))
//   backward  dlogits[n, v] = (exp(logits - lse) - (v == target)) * scale       0 where v >= V
//             scale = loss_scale / N
//
// Shapes   logits: (N, P) act_t, P a multiple of PACK, P >= V; losses lse: (N,) float32
//          tokens: (B, T + 1) int32, the target of position (b, t) is tokens[b, t + 1]
// Writes   fwd assigns losses and lse; bwd assigns logits, in place; fused assigns losses and logits and reads a row once:
//          it stays in registers. Probabilities are not stored.
//          k_loss_mean adds mean(losses) * share to control.loss
// Launch   fwd, bwd: grid (N,), block (256,)     fused: grid (N,), block (LOSS_THREADS,), so many that LOSS_PACKS hold a row
//          mean: grid (1,), block (1024,)     block_sums: grid (B,), block (256,)
// Repeats  bit for bit
#include "prelude.cuh"
#include "control.cuh"

#ifndef LOSS_PACKS
#define LOSS_PACKS (40 / PACK)  // packs of a row that a thread of k_loss_fused holds: ceil(P / (PACK LOSS_THREADS))
#define LOSS_THREADS 64         // of its block
#endif

// exp(x - top)
__device__ __forceinline__ float exponential(float x, float top) {
#if ACT == ACT_FP32
    return expf(x - top);
#else  // off by 1e-6 where |x - top| < 20, far below a 16-bit logit's rounding; under 1e-38 it is 0
    return exp2_fast(fmaf(x, LOG2E, -top * LOG2E));
#endif
}

// log(sum(exp)) of one row by one block, in one pass: each thread keeps its own maximum and rescales its sum.
__device__ __forceinline__ float row_lse(const act_t* row, int V) {
    float top = -INFINITY, sum = 0.0f;
    for (int v = threadIdx.x * PACK; v < V; v += blockDim.x * PACK) {
        const Pack in = load_pack(row + v);
        float here = top;
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (v + i < V) here = fmaxf(here, in.get(i));
        float more = 0.0f;
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (v + i < V) more += exponential(in.get(i), here);
        sum = sum * exponential(top, here) + more;
        top = here;
    }
    const float all = block_max(top);
    return all + logf(block_sum(top == -INFINITY ? 0.0f : sum * exponential(top, all)));
}

// The gradient of one row in its place.
__device__ __forceinline__ void row_gradient(act_t* row, float lse, int target, float scale, int V, int P) {
    for (int v = threadIdx.x * PACK; v < P; v += blockDim.x * PACK) {
        Pack cell = load_pack(row + v);
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float p = exponential(cell.get(i), lse) - (v + i == target ? 1.0f : 0.0f);
            cell.set(i, v + i < V ? p * scale : 0.0f);
        }
        store_pack(row + v, cell);
    }
}

__device__ __forceinline__ int target_of(const int* tokens, int row, int T) {
    return tokens[(size_t)(row / T) * (T + 1) + row % T + 1];
}

extern "C" __global__ void k_loss_fwd(float* losses /* N */, float* lse /* N */, const act_t* logits /* N P */,
                                      const int* tokens /* B S */, int T, int V, int P) {
    const act_t* row = logits + (size_t)blockIdx.x * P;
    const float all = row_lse(row, V);
    if (threadIdx.x != 0) return;
    lse[blockIdx.x] = all;
    losses[blockIdx.x] = all - to_float(row[target_of(tokens, blockIdx.x, T)]);
}

extern "C" __global__ void k_loss_bwd(act_t* logits /* N P */, const float* lse /* N */, const int* tokens /* B S */,
                                      const Control* control, int T, int V, int P) {
    const float scale = control->loss_scale / (float)gridDim.x;
    row_gradient(logits + (size_t)blockIdx.x * P, lse[blockIdx.x], target_of(tokens, blockIdx.x, T), scale, V, P);
}

// k_loss_fused: a row lies in the registers of a block, thread t has packs t, t + LOSS_THREADS, ... Few threads with many
// packs each are fast: they have much to load at once, and few to wait for.
constexpr int HELD = LOSS_PACKS * PACK, LOSS_WARPS = LOSS_THREADS / WARP;
constexpr bool TIGHT = ACT != ACT_FP32 && HELD <= 40 && LOSS_WARPS <= 8;
constexpr int FUSED_REGISTERS = HELD + (TIGHT ? 24 : 64);  // so many that nothing spills
constexpr int FUSED_FIT = 65536 / (LOSS_THREADS * FUSED_REGISTERS);  // blocks a multiprocessor
constexpr int FUSED_BLOCKS = FUSED_FIT > 16 ? 16 : FUSED_FIT < 1 ? 1 : FUSED_FIT;

__device__ __forceinline__ int first_of(int k) { return (k * LOSS_THREADS + threadIdx.x) * PACK; }

// Pack k of a row, with -inf where there is no word: its exponential is 0, so that nobody else must look.
__device__ __forceinline__ Pack load_words(const act_t* row, int k, int V, int P) {
    Pack p = first_of(k) < P ? load_pack(row + first_of(k)) : Pack{};
    if (first_of(k) + PACK > V)
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (first_of(k) + i >= V) p.set(i, -INFINITY);
    return p;
}

// The larger of each two elements, two at a time where they have 16 bits.
__device__ __forceinline__ Pack larger(const Pack& a, const Pack& b) {
    Pack c;
#if ACT == ACT_FP32
#pragma unroll
    for (int i = 0; i < PACK; ++i) c.v[i] = fmaxf(a.v[i], b.v[i]);
#else
#pragma unroll
    for (int i = 0; i < PACK; i += 2)
        *reinterpret_cast<Pair*>(c.v + i) = __hmax2(*reinterpret_cast<const Pair*>(a.v + i), *reinterpret_cast<const Pair*>(b.v + i));
#endif
    return c;
}

// A thread's part of a row as exp(logit - top), top being its warp's largest logit, which is returned.
__device__ __forceinline__ float load_exponentials(float (&e)[HELD], const act_t* row, int V, int P) {
    Pack p[LOSS_PACKS];
#pragma unroll
    for (int k = 0; k < LOSS_PACKS; ++k) p[k] = load_words(row, k, V, P);
    Pack largest = p[0];
#pragma unroll
    for (int k = 1; k < LOSS_PACKS; ++k) largest = larger(largest, p[k]);
    float top = -3.0e38f;  // finite for a warp without words
#pragma unroll
    for (int i = 0; i < PACK; ++i) top = fmaxf(top, largest.get(i));
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < HELD; ++i) e[i] = exponential(p[i / PACK].get(i % PACK), top);
    return top;
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, FUSED_BLOCKS)
    k_loss_fused(float* losses /* N */, act_t* logits /* N P */, const int* tokens /* B S */, const Control* control,
                 int T, int V, int P) {
    __shared__ float2 part[LOSS_WARPS];  // a warp's largest logit, and its sum beside that
    const int n = gridDim.x - 1 - blockIdx.x;  // last rows first: the head's product has just written them
    const int target = target_of(tokens, n, T);
    act_t* row = logits + (size_t)n * P;
    const float at_target = to_float(row[target]);  // before the barrier: after it, it is written
    float e[HELD], sum = 0.0f, all = 0.0f;
    const float top = load_exponentials(e, row, V, P), scale = control->loss_scale / (float)gridDim.x;
#pragma unroll
    for (int i = 0; i < HELD; ++i) sum += e[i];
    sum = warp_sum(sum);
    if (lane_id() == 0) part[warp_id()] = {top, sum};
    __syncthreads();
    float most = part[0].x;
    for (int w = 1; w < LOSS_WARPS; ++w) most = fmaxf(most, part[w].x);
    for (int w = 0; w < LOSS_WARPS; ++w) all += part[w].y * exponential(part[w].x, most);
    const float factor = exponential(top, most) * scale / all;
#pragma unroll
    for (int k = 0; k < LOSS_PACKS; ++k) {
        Pack p;
#pragma unroll
        for (int i = 0; i < PACK; ++i) p.set(i, e[k * PACK + i] * factor);
        if (first_of(k) < P) store_pack(row + first_of(k), p);
    }
    if (target / PACK % LOSS_THREADS != threadIdx.x) return;
    row[target] = to_act((exponential(at_target, most) / all - 1.0f) * scale);  // by whoever has just stored it
    losses[n] = most + logf(all) - at_target;
}

// Sum over the n numbers from v on, to every thread of the block.
__device__ __forceinline__ float sum_of(const float* v, int n) {
    float sum = (int)threadIdx.x < n % 4 ? v[n / 4 * 4 + threadIdx.x] : 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
        const float4 four = reinterpret_cast<const float4*>(v)[i];
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return block_sum(sum);
}

extern "C" __global__ void k_loss_mean(Control* control, const float* losses /* N */, int N, float share) {
    const float sum = sum_of(losses, N);
    if (threadIdx.x == 0) control->loss += sum / (float)N * share;
}

extern "C" __global__ void k_loss_block_sums(float* sums /* B */, const float* losses /* N */, int T) {
    float sum = 0.0f;
    for (int t = threadIdx.x; t < T; t += blockDim.x) sum += losses[(size_t)blockIdx.x * T + t];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
