// Token and position embedding, with its backward twin.
//
//   forward   x[b, t] = wte[id[b, t]] + wpe[t]
//   backward  dwte[id] += sum of dx over the positions that hold id        dwpe[t] += sum over b of dx[b, t]
//
// Shapes   x dx: (B, T, C) act_t, C a multiple of PACK    wte dwte: (V, C) float32    wpe dwpe: (context, C) float32, context >= T
//          tokens: (B, S) int32, the ids are the first T of each row, S >= T
//          order: (N,) int32, all positions b * T + t sorted by their id, equal ids in order of position
//          first: (V + 1,) int32, the positions of id v are order[first[v]] ... order[first[v + 1] - 1]
// Writes   fwd assigns x; bwd adds into dwte and dwpe
// Launch   fwd: grid (ceil(T C / (128 PACK)), ceil(B / FWD_ROWS)), block (128,)
//          bwd: grid (ceil(V / TEAMS) + ceil(T / TEAMS), ceil(C / SPAN)), block (256,): ids, then positions
// Repeats  bit for bit: a team of 16 threads owns its output; of an id with many positions the teams of a block take every
//          sixteenth position, and are added in order
#include "prelude.cuh"

constexpr int FWD_ROWS = 4;   // of the batch, for a thread
constexpr int TEAM = 16, TEAMS = 256 / TEAM;
constexpr int SPAN = TEAM * PACK;  // columns of a team
constexpr int FEW = 16;            // positions that one team adds alone
constexpr int AHEAD = 6;           // loads in flight

// PACK floats, by 16-byte loads.
struct Floats {
    float v[PACK];
    __device__ __forceinline__ void load(const float* p) {
#pragma unroll
        for (int i = 0; i < PACK; i += 4) *reinterpret_cast<float4*>(v + i) = *reinterpret_cast<const float4*>(p + i);
    }
    __device__ __forceinline__ void store(float* p) const {
#pragma unroll
        for (int i = 0; i < PACK; i += 4) *reinterpret_cast<float4*>(p + i) = *reinterpret_cast<const float4*>(v + i);
    }
    __device__ __forceinline__ void add_to(float* p) const {
        Floats sum;
        sum.load(p);
#pragma unroll
        for (int i = 0; i < PACK; ++i) sum.v[i] += v[i];
        sum.store(p);
    }
};

extern "C" __global__ void __launch_bounds__(128)
    k_embed_fwd(act_t* x /* N C */, const int* tokens /* B S */, const float* wte /* V C */, const float* wpe /* U C */,
                int B, int T, int S, int C) {
    const int packs = C / PACK, i = blockIdx.x * blockDim.x + threadIdx.x, t = i / packs, c = i % packs * PACK;
    if (t >= T) return;
    const int from = blockIdx.y * FWD_ROWS;
    int id[FWD_ROWS];
    Floats place, token[FWD_ROWS];
    place.load(wpe + (size_t)t * C + c);
#pragma unroll
    for (int b = 0; b < FWD_ROWS; ++b) id[b] = from + b < B ? tokens[(size_t)(from + b) * S + t] : 0;
#pragma unroll
    for (int b = 0; b < FWD_ROWS; ++b) token[b].load(wte + (size_t)id[b] * C + c);
#pragma unroll
    for (int b = 0; b < FWD_ROWS; ++b) {
        Pack out;
#pragma unroll
        for (int e = 0; e < PACK; ++e) out.set(e, token[b].v[e] + place.v[e]);
        if (from + b < B) store_pack(x + ((size_t)(from + b) * T + t) * C + c, out);
    }
}

// Sum of rows of dx: those of order[i], or without an order those of i, for i = begin, begin + step, ... below end.
__device__ __forceinline__ Floats sum_rows(const act_t* dx, const int* order, int begin, int end, int step, int C) {
    Floats sum = {};
    for (int i = begin; i < end; i += AHEAD * step) {
        Pack in[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const int k = i + j * step;
            in[j] = k < end ? load_pack(dx + (size_t)(order ? order[k] : k) * C) : Pack{};
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum.v[e] += in[j].get(e);
    }
    return sum;
}

// An id with many positions, by all teams of a block.
__device__ __forceinline__ void add_together(float* row, const act_t* dx, const int* order, int2 range, int c, int C) {
    __shared__ Floats part[TEAMS][TEAM];
    const int team = threadIdx.x / TEAM;
    Floats sum = {};
    if (c < C) sum = sum_rows(dx + c, order, range.x + team, range.y, TEAMS, C);
    sum.store(part[team][threadIdx.x % TEAM].v);
    __syncthreads();
    if (team == 0 && c < C) {
        for (int k = 1; k < TEAMS; ++k)
#pragma unroll
            for (int e = 0; e < PACK; ++e) sum.v[e] += part[k][threadIdx.x].v[e];
        sum.add_to(row + c);
    }
    __syncthreads();  // part is reused by the next call
}

extern "C" __global__ void __launch_bounds__(256)
    k_embed_bwd(float* dwte /* V C */, float* dwpe /* U C */, const act_t* dx /* N C */, const int* order /* N */,
                const int* first, int V, int B, int T, int C) {
    __shared__ int2 ranges[TEAMS];
    const int blocks = (V + TEAMS - 1) / TEAMS, team = threadIdx.x / TEAM;  // blocks for ids
    const int c = blockIdx.y * SPAN + threadIdx.x % TEAM * PACK;
    if (blockIdx.x >= blocks) {
        const int t = (blockIdx.x - blocks) * TEAMS + team;
        if (t < T && c < C) sum_rows(dx + c, nullptr, t, B * T, T, C).add_to(dwpe + (size_t)t * C + c);
        return;
    }
    const int v = team * blocks + blockIdx.x;  // frequent ids are often neighbours: each to a block of its own
    const int2 range = v < V ? int2{first[v], first[v + 1]} : int2{};
    const bool many = range.y - range.x > FEW;
    if (c < C && range.x < range.y && !many)
        sum_rows(dx + c, order, range.x, range.y, 1, C).add_to(dwte + (size_t)v * C + c);
    if (threadIdx.x % TEAM == 0) ranges[team] = range;
    if (!__syncthreads_or(many)) return;
    for (int k = 0; k < TEAMS; ++k)
        if (ranges[k].y - ranges[k].x > FEW)
            add_together(dwte + (size_t)(k * blocks + blockIdx.x) * C, dx, order, ranges[k], c, C);
}
