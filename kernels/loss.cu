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
// Launch   fwd, bwd: grid (N,), block (256,)     fused: grid (N,), block (P / (PACK LOSS_PACKS) or more,), whole warps, at most 512
//          mean: grid (1,), block (1024,)     block_sums: grid (B,), block (256,)
// Repeats  bit for bit
#include "prelude.cuh"
#include "control.cuh"

#ifndef LOSS_PACKS
#define LOSS_PACKS 2  // packs of a row that a thread of k_loss_fused holds: ceil(P / (PACK threads))
#define LOSS_THREADS 512  // of a block of k_loss_fused
#endif

__device__ __forceinline__ float exponential(float x) {
#if ACT == ACT_FP32
    return expf(x);
#else
    return __expf(x);  // off by 1e-6 where |x| < 20, far below a 16-bit logit's rounding
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
            if (v + i < V) more += exponential(in.get(i) - here);
        sum = sum * exponential(top - here) + more;
        top = here;
    }
    const float all = block_max(top);
    return all + logf(block_sum(top == -INFINITY ? 0.0f : sum * exponential(top - all)));
}

// The gradient of one row in its place.
__device__ __forceinline__ void row_gradient(act_t* row, float lse, int target, float scale, int V, int P) {
    for (int v = threadIdx.x * PACK; v < P; v += blockDim.x * PACK) {
        Pack cell = load_pack(row + v);
#pragma unroll
        for (int i = 0; i < PACK; ++i) {
            const float p = exponential(cell.get(i) - lse) - (v + i == target ? 1.0f : 0.0f);
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

// Threads that should fit a multiprocessor: as many as registers allow without spilling.
constexpr int FUSED_THREADS = LOSS_PACKS <= 2 ? 1536 : LOSS_PACKS == 3 ? 1152 : LOSS_THREADS;

// A row lies in the registers of a block: thread t holds packs t, t + blockDim.x, ...
__device__ __forceinline__ int first_of(int k) { return (k * blockDim.x + threadIdx.x) * PACK; }

// Pack k of a row, with -inf where there is no word: its exponential is 0, so that nobody else must look.
__device__ __forceinline__ Pack load_words(const act_t* row, int k, int V, int P) {
    Pack p = first_of(k) < P ? load_pack(row + first_of(k)) : Pack{};
    if (first_of(k) + PACK > V)
#pragma unroll
        for (int i = 0; i < PACK; ++i)
            if (first_of(k) + i >= V) p.set(i, -INFINITY);
    return p;
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS, FUSED_THREADS / LOSS_THREADS)
    k_loss_fused(float* losses /* N */, act_t* logits /* N P */, const int* tokens /* B S */, const Control* control,
                 int T, int V, int P) {
    const int target = target_of(tokens, blockIdx.x, T);
    act_t* row = logits + (size_t)blockIdx.x * P;
    const float at_target = to_float(row[target]);  // read by all before anyone writes: barriers lie between
    Pack p[LOSS_PACKS];
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < LOSS_PACKS; ++k) {
        p[k] = load_words(row, k, V, P);
#pragma unroll
        for (int i = 0; i < PACK; ++i) top = fmaxf(top, p[k].get(i));
    }
    top = block_max(top);
#pragma unroll
    for (int k = 0; k < LOSS_PACKS; ++k)
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum += exponential(p[k].get(i) - top);
    const float lse = top + logf(block_sum(sum)), scale = control->loss_scale / (float)gridDim.x;
    if (threadIdx.x == 0) losses[blockIdx.x] = lse - at_target;
#pragma unroll
    for (int k = 0; k < LOSS_PACKS; ++k) {
#pragma unroll
        for (int i = 0; i < PACK; ++i) p[k].set(i, exponential(p[k].get(i) - lse) * scale);
        if (first_of(k) < P) store_pack(row + first_of(k), p[k]);
    }
    if (target / PACK % blockDim.x == threadIdx.x)  // whoever has just stored it
        row[target] = to_act((exponential(at_target - lse) - 1.0f) * scale);
}

extern "C" __global__ void k_loss_mean(Control* control, const float* losses /* N */, int N, float share) {
    float sum = 0.0f;
    for (int n = threadIdx.x; n < N; n += blockDim.x) sum += losses[n];
    sum = block_sum(sum);
    if (threadIdx.x == 0) control->loss += sum / (float)N * share;
}

extern "C" __global__ void k_loss_block_sums(float* sums /* B */, const float* losses /* N */, int T) {
    float sum = 0.0f;
    for (int t = threadIdx.x; t < T; t += blockDim.x) sum += losses[(size_t)blockIdx.x * T + t];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
