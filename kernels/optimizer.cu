// Clipping by the global L2 norm, AdamW with decoupled weight decay, and clearing. No backward twins.
//
//   m += (1 - beta1) (g - m)      v += (1 - beta2) (g^2 - v)
//   w -= lr (m correction1 / (sqrt(v correction2) + eps) + decay w)          eps stands outside the root
//   g is the gradient times control.factor, which undoes the loss scale, averages microbatches and clips.
//
// Shapes   g w m v: (n,) float32, n a multiple of 4; partial: (G,) float32; losses norms: (window,) float32
//          chunks: (K,) Chunk, which cover the n parameters once; copy: working copies of the weights, act_t
// Writes   grad_norm_partial assigns partial: sums of squares of NORM_CHUNK gradients each; grad_norm_final adds them in
//          order, decides what becomes of the step and writes control, losses[slot] and norms[slot] (0 for a step that
//          fp16 skips);
//          grad_scale multiplies g; adamw assigns w, m, v and copy; zero_grads assigns g. In one pass over memory each.
// Launch   grad_norm_partial: grid (G,), block (256,)     grad_norm_final: grid (1,), block (1024,)
//          adamw: grid (K,), block (256,)     grad_scale, zero_grads: grid (ceil(n / 1024),), block (256,)
// Repeats  bit for bit: fixed chunks, added in their order
#include "prelude.cuh"
#include "control.cuh"

constexpr int NORM_CHUNK = 8192;  // gradients of one partial sum
constexpr float SCALE_MAX = 16777216.0f, SCALE_MIN = 1.0f;
constexpr int GROW_AFTER = 2000;  // good steps until the loss scale doubles, as in PyTorch's GradScaler
constexpr int GIVE_UP = 20;       // overflows in a row

// Part of one tensor: parameters [at, at + count), from the tensor's element `first` on. Element k of the tensor, in rows
// of `width`, has its working copy at copy + (k / width) * stride + k % width; copy is -1 where there is none.
struct Chunk {
    int at, count, decay, copy, first, width, stride;
};

extern "C" __global__ void k_grad_norm_partial(float* partial /* G */, const float* g /* n */, int n) {
    const int begin = blockIdx.x * NORM_CHUNK;
    float sum = 0.0f;
    for (int i = threadIdx.x * 4; i < NORM_CHUNK && begin + i < n; i += blockDim.x * 4) {
        const float4 x = *reinterpret_cast<const float4*>(g + begin + i);
        sum += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// The loss scale after a step (Micikevicius et al. 2018): halved on overflow, doubled after a long good stretch.
__device__ void adapt_scale(Control* c, bool finite) {
    c->good = finite ? c->good + 1 : 0;
    c->streak = finite ? 0 : c->streak + 1;
    c->skipped += !finite;
    if (!finite) c->loss_scale = fmaxf(c->loss_scale * 0.5f, SCALE_MIN);
    if (c->good == GROW_AFTER) c->loss_scale = fminf(c->loss_scale * 2.0f, SCALE_MAX), c->good = 0;
}

extern "C" __global__ void __launch_bounds__(1024)
    k_grad_norm_final(Control* control, float* losses, float* norms, const float* partial /* G */, int G, float share,
                      float clip, int dynamic) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < G; i += blockDim.x) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x != 0) return;
    Control c = *control;
    const float undo = share / c.loss_scale, norm = sqrtf(sum) * undo, loss = c.loss;
    const bool finite = isfinite(norm) && isfinite(loss);
    const bool skip = dynamic && isfinite(loss) && !finite;  // the scaled gradient overflowed, the model is well
    if (dynamic && !c.frozen) adapt_scale(&c, finite);
    if (!finite && (!skip || c.streak >= GIVE_UP)) c.frozen = 1;
    c.apply = finite && !c.frozen;
    c.factor = norm > clip ? undo * (clip / norm) : undo;
    losses[c.slot] = loss;
    norms[c.slot] = skip && !c.frozen ? 0.0f : norm;
    c.slot += 1;
    c.loss = 0.0f;
    *control = c;
}

extern "C" __global__ void k_grad_scale(float* g /* n */, const Control* control, int n) {
    const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (at >= n) return;
    float4 x = *reinterpret_cast<float4*>(g + at);
    const float f = control->factor;
    *reinterpret_cast<float4*>(g + at) = make_float4(x.x * f, x.y * f, x.z * f, x.w * f);
}

extern "C" __global__ void k_zero_grads(float* g /* n */, int n) {
    const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (at < n) *reinterpret_cast<float4*>(g + at) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Four weights in 16 bits, where the matrix ops read them. In float32 they read the weights themselves.
__device__ __forceinline__ void store_copy(act_t* copy, const Chunk& c, int local, float4 w) {
#if ACT != ACT_FP32
    if (c.copy < 0) return;
    const int k = c.first + local;
    act_t* to = copy + c.copy + (size_t)(k / c.width) * c.stride + k % c.width;
    to[0] = to_act(w.x), to[1] = to_act(w.y), to[2] = to_act(w.z), to[3] = to_act(w.w);
#endif
}

struct Hyper {
    float lr, correction1, correction2, keep1, keep2, eps, decay;
};

__device__ __forceinline__ void adamw_one(float& w, float& m, float& v, float g, const Hyper& h) {
    m += h.keep1 * (g - m);
    v += h.keep2 * (g * g - v);
    w -= h.lr * (m * h.correction1 / (sqrtf(v * h.correction2) + h.eps) + h.decay * w);
}

extern "C" __global__ void __launch_bounds__(256)
    k_adamw(float* w /* n */, float* m /* n */, float* v /* n */, act_t* copy, const float* g /* n */,
            const Chunk* chunks, const Control* control, const Rates* rates, float keep1, float keep2, float eps,
            float decay) {
    if (!control->apply) return;
    const Chunk c = chunks[blockIdx.x];
    const Hyper h = {rates->lr, rates->correction1, rates->correction2, keep1, keep2, eps, c.decay ? decay : 0.0f};
    const float f = control->factor;
    for (int i = threadIdx.x * 4; i < c.count; i += blockDim.x * 4) {
        const size_t at = c.at + i;
        float4 W = *reinterpret_cast<float4*>(w + at), M = *reinterpret_cast<float4*>(m + at),
               U = *reinterpret_cast<float4*>(v + at);
        const float4 G = *reinterpret_cast<const float4*>(g + at);
        adamw_one(W.x, M.x, U.x, G.x * f, h);
        adamw_one(W.y, M.y, U.y, G.y * f, h);
        adamw_one(W.z, M.z, U.z, G.z * f, h);
        adamw_one(W.w, M.w, U.w, G.w * f, h);
        *reinterpret_cast<float4*>(w + at) = W;
        *reinterpret_cast<float4*>(m + at) = M;
        *reinterpret_cast<float4*>(v + at) = U;
        store_copy(copy, c, i, W);
    }
}

// The working copies from the weights, after a load.
extern "C" __global__ void k_copy_weights(act_t* copy, const float* w /* n */, const Chunk* chunks) {
    const Chunk c = chunks[blockIdx.x];
    for (int i = threadIdx.x * 4; i < c.count; i += blockDim.x * 4)
        store_copy(copy, c, i, *reinterpret_cast<const float4*>(w + c.at + i));
}
