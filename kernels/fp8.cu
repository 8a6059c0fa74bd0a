// Precision fp8: tensors into E4M3, the scales that they take, and the readable form of an E4M3 product.
//
//   cast      q = e4m3(x scale.to)                                       y = (x w') x.back w.back (+ old)
//   scales    to = 2^e, the largest that leaves max(history) to under 224: a tensor may double from step to step
//   weights   to = 2^e, the largest that leaves the matrix's own maximum to at most 448: it is known when they are cast
//
// Shapes   q x: (n,) e4m3_t and act_t, n a multiple of 16    largest: (K,) or (M, K) float32, a part of a maximum each
//          history: (M, H) float32, the maxima of M tensors in the last H steps, latest first, 0 where there was none
//          scales: (M,) Scale; tensor 2 k is the input of matrix k, 2 k + 1 the gradient of its output
//          copy: the 16-bit working copies; matrices: (M,) Matrix; natural, transposed: where matrix m lies from m.to on,
//          as (rows, cols) and as (cols, rows), both multiples of 32
//          linear: y old: (N, O) act_t, x: (N, I), w: (O, I) e4m3_t
// Writes   cast assigns q and raises largest (its caller clears it once a step); scales shifts history and assigns scales,
//          if the step was applied: what led to a loss or norm that is not finite is forgotten. weight_largest assigns
//          largest; cast_weights assigns natural, transposed and scales. linear assigns y; old may be y
// Launch   cast: grid (at most K,), block (256,)     scales: grid (M,), block (256,)
//          weight_largest: grid (K, M), block (256,)     cast_weights: grid (64 x 64 tiles of the largest, M), block (256,)
//          linear: grid (ceil(O / 64), ceil(N / 4)), block (256,)
// Repeats  bit for bit: a maximum is the same in any order
#include "fp8.cuh"
#include "control.cuh"

constexpr int BYTES = 16;  // numbers that a thread converts at a time: one 16-byte store

struct alignas(BYTES) Sixteen {
    unsigned short pairs[BYTES / 2];
};

struct Matrix {
    int from, rows, cols, to;  // in copy from `from` on, (rows, cols)
};

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_cast(e4m3_t* q /* n */, float* largest /* K */, const act_t* x /* n */, const Scale* scale, long long n) {
    const float to = scale->to;
    float top = 0.0f;
    for (long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * BYTES; at < n;
         at += (long long)gridDim.x * blockDim.x * BYTES) {
        Sixteen out;
#pragma unroll
        for (int i = 0; i < BYTES; i += PACK) convert_pack(out.pairs + i / 2, load_pack(x + at + i), to, top);
        *reinterpret_cast<Sixteen*>(q + at) = out;
    }
    raise_largest(largest, top);
}

// first_input and first_gradient stand for a history that is still empty.
extern "C" __global__ void __launch_bounds__(256)
    k_fp8_scales(Scale* scales, float* history /* M H */, const float* largest /* M K */, const Control* control,
                 float first_input, float first_gradient, int H, int K) {
    if (!control->apply) return;
    float top = 0.0f;
    for (int k = threadIdx.x; k < K; k += blockDim.x) top = fmaxf(top, largest[blockIdx.x * K + k]);
    top = fminf(block_max(top), 3.0e38f);  // finite, so that it can be forgotten
    if (threadIdx.x != 0) return;
    float* h = history + blockIdx.x * H;
    for (int i = H - 1; i > 0; --i) h[i] = h[i - 1];
    h[0] = top;
    for (int i = 1; i < H; ++i) top = fmaxf(top, h[i]);
    if (top == 0.0f) top = blockIdx.x % 2 ? first_gradient : first_input;
    scales[blockIdx.x] = scale_for(top, 1);
}

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_weight_largest(float* largest /* M K */, const act_t* copy, const Matrix* matrices, int K) {
    const Matrix m = matrices[blockIdx.y];
    const int n = m.rows * m.cols;
    float top = 0.0f;
    for (int at = (blockIdx.x * blockDim.x + threadIdx.x) * PACK; at < n; at += gridDim.x * blockDim.x * PACK) {
        const Pack in = load_pack(copy + m.from + at);
#pragma unroll
        for (int i = 0; i < PACK; ++i) top = fmaxf(top, fabsf(in.get(i)));
    }
    top = block_max(top);
    if (threadIdx.x == 0) largest[blockIdx.y * K + blockIdx.x] = top;
}

constexpr int EDGE = 64;               // of a tile
constexpr int PER_LINE = EDGE / BYTES;  // threads that share a row of a tile

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_cast_weights(e4m3_t* natural, e4m3_t* transposed, Scale* scales, const float* largest /* M K */,
                       const act_t* copy, const Matrix* matrices, int K) {
    __shared__ alignas(BYTES) e4m3_t tile[EDGE][EDGE + BYTES];
    const Matrix m = matrices[blockIdx.y];
    const int across = (m.cols + EDGE - 1) / EDGE, down = (m.rows + EDGE - 1) / EDGE;
    if (blockIdx.x >= across * down) return;
    const float top = block_max(threadIdx.x < K ? largest[blockIdx.y * K + threadIdx.x] : 0.0f);
    const Scale scale = scale_for(top, 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = scale;

    const int row0 = blockIdx.x / across * EDGE, col0 = blockIdx.x % across * EDGE;
    const int line = threadIdx.x / PER_LINE, first = threadIdx.x % PER_LINE * BYTES;  // of the tile as it is read and written
    if (row0 + line < m.rows && col0 + first < m.cols) {
        const size_t at = (size_t)(row0 + line) * m.cols + col0 + first;
        Sixteen out;
        float seen = 0.0f;
#pragma unroll
        for (int i = 0; i < BYTES; i += PACK)
            convert_pack(out.pairs + i / 2, load_pack(copy + m.from + at + i), scale.to, seen);
        *reinterpret_cast<Sixteen*>(natural + m.to + at) = out;
        *reinterpret_cast<Sixteen*>(&tile[line][first]) = out;
    }
    __syncthreads();
    if (col0 + line < m.cols && row0 + first < m.rows) {
        Sixteen out;
#pragma unroll
        for (int i = 0; i < BYTES; i += 2)
            out.pairs[i / 2] = tile[first + i][line] | (unsigned short)tile[first + i + 1][line] << 8;
        *reinterpret_cast<Sixteen*>(transposed + m.to + (size_t)(col0 + line) * m.rows + row0 + first) = out;
    }
}

constexpr int LINEAR_COLS = 64, LINEAR_ROWS = 4;  // of the outputs of a block

__device__ __forceinline__ float from_e4m3(e4m3_t v) { return __half2float(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)); }

extern "C" __global__ void __launch_bounds__(256)
    k_fp8_linear(act_t* y /* N O */, const e4m3_t* x /* N I */, const e4m3_t* w /* O I */, const act_t* old /* N O */,
                 const Scale* x_scale, const Scale* w_scale, int N, int I, int O, int adds) {
    const int o = blockIdx.x * LINEAR_COLS + threadIdx.x % LINEAR_COLS;
    const int n = blockIdx.y * LINEAR_ROWS + threadIdx.x / LINEAR_COLS;
    if (n >= N || o >= O) return;
    float sum = 0.0f;
    for (int i = 0; i < I; ++i) sum += from_e4m3(x[(size_t)n * I + i]) * from_e4m3(w[(size_t)o * I + i]);
    const size_t at = (size_t)n * O + o;
    y[at] = to_act(sum * x_scale->back * w_scale->back + (adds ? to_float(old[at]) : 0.0f));
}
