// Token and position embedding, with its backward twin.
//
//   forward   x[b, t] = wte[id[b, t]] + wpe[t]
//   backward  dwte[id] += sum of dx over the positions that hold id        dwpe[t] += sum over b of dx[b, t]
//
// Shapes   x dx: (B, T, C) act_t    wte dwte: (V, C) float32    wpe dwpe: (context, C) float32, context >= T
//          tokens: (B, S) int32, the ids are the first T of each row, S >= T
//          order: (N,) int32, all positions b * T + t sorted by their id, equal ids in order of position
//          first: (V + 1,) int32, the positions of id v are order[first[v]] ... order[first[v + 1] - 1]
// Writes   fwd assigns x; bwd adds into dwte, bwd_position adds into dwpe
// Launch   fwd: grid (N,), block (128,)     bwd: grid (V, ceil(C / (32 PACK))), block (256,)
//          bwd_position: grid (T, ceil(C / (32 PACK))), block (32,)      C a multiple of PACK
// Repeats  bit for bit: a block owns its output, its eight warps take every eighth position and are added in order
#include "prelude.cuh"

constexpr int EMBED_WARPS = 8;
constexpr int SPAN = WARP * PACK;  // columns of one warp

extern "C" __global__ void k_embed_fwd(act_t* x /* N C */, const int* tokens /* B S */, const float* wte /* V C */,
                                       const float* wpe /* U C */, int T, int S, int C) {
    const size_t row = blockIdx.x, t = row % T;
    const float* token = wte + (size_t)tokens[row / T * S + t] * C;
    const float* place = wpe + t * C;
    for (int c = threadIdx.x * PACK; c < C; c += blockDim.x * PACK) {
        Pack out;
#pragma unroll
        for (int i = 0; i < PACK; ++i) out.set(i, token[c + i] + place[c + i]);
        store_pack(x + row * C + c, out);
    }
}

// Sum of this warp's share of the positions, columns c ... c + PACK - 1. Four loads are in flight at a time.
__device__ __forceinline__ void sum_positions(float* sum, const act_t* dx, const int* order, int begin, int end, int C,
                                              int c) {
    for (int i = begin + warp_id(); i < end; i += 4 * EMBED_WARPS) {
        Pack in[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = i + j * EMBED_WARPS;
            if (k < end) in[j] = load_pack(dx + (size_t)order[k] * C + c);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (i + j * EMBED_WARPS >= end) continue;
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum[e] += in[j].get(e);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARP* EMBED_WARPS)
    k_embed_bwd(float* dwte /* V C */, const act_t* dx /* N C */, const int* order /* N */, const int* first, int C) {
    __shared__ float part[EMBED_WARPS][SPAN];
    const int begin = first[blockIdx.x], end = first[blockIdx.x + 1];
    if (begin == end) return;
    const int c = blockIdx.y * SPAN + lane_id() * PACK;
    float sum[PACK] = {};
    if (c < C) sum_positions(sum, dx, order, begin, end, C, c);
#pragma unroll
    for (int e = 0; e < PACK; ++e) part[warp_id()][lane_id() * PACK + e] = sum[e];
    __syncthreads();
    const int column = blockIdx.y * SPAN + threadIdx.x;
    if (threadIdx.x >= SPAN || column >= C) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < EMBED_WARPS; ++w) total += part[w][threadIdx.x];
    dwte[(size_t)blockIdx.x * C + column] += total;
}

extern "C" __global__ void k_embed_bwd_position(float* dwpe /* U C */, const act_t* dx /* N C */, int B, int T, int C) {
    const int c = (blockIdx.y * WARP + threadIdx.x) * PACK;
    if (c >= C) return;
    float sum[PACK] = {};
    for (int b = 0; b < B; ++b) {
        const Pack in = load_pack(dx + ((size_t)b * T + blockIdx.x) * C + c);
#pragma unroll
        for (int e = 0; e < PACK; ++e) sum[e] += in.get(e);
    }
#pragma unroll
    for (int e = 0; e < PACK; ++e) dwpe[(size_t)blockIdx.x * C + c + e] += sum[e];
}
