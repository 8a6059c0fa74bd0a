// Sampling in one launch: `steps` tokens for each of R rows of text, on cards with clusters (sm_90 on). Forward only.
//
//   k_text   what k_token_embed, k_token_linear, k_token_attn, k_token_head and k_token_pick do token by token, of which it
//            is the fast form, 0.11 against 0.22 ms a token of the 12M: a row is a cluster of blocks, which hand each other
//            vectors through shared memory. A block has heads of its own, from their q, k and v to their output, and
//            columns of the other products.
//
// Shapes   text: (R, S) int32, -1 where a token is to be found, S > T    uniform: (R, S) float32, in [0, 1)
//          cache: from cache[16 bytes * cache_at[l]] on (R, 2, H, T, D) act_t    weights: flat, in the checkpoint's order
//          matrices: layer 0's, act_t: Q K V (in 16 bits side by side, else one after the other), O, W_1, W_2; `stride`
//          elements from layer to layer    head: (V, C) act_t    D and C multiples of 4 PACK
// Writes   the cache at place ... place + steps - 1, text after place where it is -1
// Launch   grid (CLUSTER * R,), block (512,), shared: see struct Row
// Repeats  bit for bit: lanes, warps and blocks are added in their order
#include "gelu.cuh"
#include "token_cluster.cuh"
#include "token_pick.cuh"

#if __CUDA_ARCH__ >= 900
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(TEXT_BLOCK, 1)
#else
#define CLUSTERED
#endif

constexpr int PLACES = 4;      // of a cached head that a thread reads at a time
constexpr int HEAD_LANES = 8;  // that read four rows of the head at a time
constexpr int MAILBOXES = 10;  // 9, and a place that keeps what follows at a multiple of 16 bytes
enum { ATT, MIDDLE, ACTIVE, X };  // what the four products of a layer make

// What a block holds of its row of text, in shared memory. Vectors that come from all blocks are there twice, for layers in
// turn: a block may be ahead of another by the better part of a layer.
struct Row {
    float *vectors, *logits, *y, *qkv, *scores, *part;
    unsigned long long* bars;
    int* text;
    int C, P;

    __device__ __forceinline__ Row(float* at, int C, int D, int T, int S, int V) : C(C), P((V + 3) / 4 * 4) {
        bars = reinterpret_cast<unsigned long long*>(at);
        vectors = at + 2 * MAILBOXES, logits = vectors + 14 * C, y = logits + P, qkv = y + C;
        part = qkv + 3 * D, scores = part + TEXT_WARPS * (D + 1);
        text = reinterpret_cast<int*>(scores + T);
    }
    // What product `which` of the layer with running number `layer` makes; X, the last, as the next layer's input.
    __device__ __forceinline__ float* vector(int which, int layer) const {
        return vectors + (which == X ? 12 * C : 2 * which * C) + (layer & 1) * (which == ACTIVE ? 4 * C : C);
    }
    __device__ __forceinline__ Mailbox mailbox(int which, int layer) const { return {bars + 2 * which + (layer & 1)}; }
    __device__ __forceinline__ Mailbox of_logits() const { return {bars + 8}; }
    __device__ __forceinline__ int bytes(int which) const { return 4 * (which == ACTIVE ? 4 * C : C); }
    __device__ __forceinline__ void open() const {
        for (int m = 0; m < 8; ++m) mailbox(m / 2, m % 2).open(bytes(m / 2));
        of_logits().open(4 * P);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

// One head's keys, and its values `apart` elements behind them; a lane's share of them is pack `lane` of place `first`,
// first + step, and so on.
struct Head {
    act_t* keys;
    int h, apart, D, lane, first, step;

    __device__ __forceinline__ Head(act_t* cache, int h, int H, int T, int D) : h(h), D(D) {
        const int lanes = D / PACK;
        keys = cache + (size_t)h * T * D, apart = H * T * D;
        lane = threadIdx.x % lanes, first = threadIdx.x / lanes, step = TEXT_BLOCK / lanes;
    }
    // Element i of the key and value, one behind the other, of place n.
    __device__ __forceinline__ void keep(int i, int n, act_t v) const {
        keys[(i < D ? 0 : apart - D) + (size_t)n * D + i] = v;
    }
    // use(place, whether it is one) for this lane's places up to n with its pack of a key or value in `got`: before n from the
    // cache, n itself from shared memory. Whole warps go along.
    template <class Use>
    __device__ __forceinline__ void each(float (&got)[PACK], bool values, const float* last, int n, Use use) const {
        const act_t* from = keys + (values ? apart : 0) + lane * PACK;
#pragma unroll 1
        for (int base = 0; base < n; base += PLACES * step) {
            Raw raw[PLACES];
#pragma unroll
            for (int k = 0; k < PLACES; ++k)
                if (base + first + k * step < n) raw[k] = load_raw(from + (size_t)(base + first + k * step) * D);
#pragma unroll
            for (int k = 0; k < PLACES; ++k) {
                unpack(got, raw[k]);
                use(base + first + k * step, base + first + k * step < n);
            }
        }
#pragma unroll
        for (int e = 0; e < PACK; ++e) got[e] = last[lane * PACK + e];
        use(n, first == 0);
    }
};

// Scaled scores of places 0 ... n, whose key is the row's own; returns the largest of the block.
__device__ __forceinline__ float score(const Row& row, const Head& head, int n) {
    __shared__ float tops[TEXT_WARPS];
    float q[PACK], key[PACK], top = -INFINITY;
#pragma unroll
    for (int e = 0; e < PACK; ++e) q[e] = row.qkv[head.lane * PACK + e];
    const float scale = rsqrtf((float)head.D);
    auto note = [&](int place, bool valid) {
        float s = 0.0f;
#pragma unroll
        for (int e = 0; e < PACK; ++e) s += q[e] * key[e];
#pragma unroll 1
        for (int d = 1; d < head.D / PACK; d *= 2) s += __shfl_xor_sync(FULL, s, d);
        if (!valid) return;
        top = fmaxf(top, s * scale);
        if (head.lane == 0) row.scores[place] = s * scale;
    };
    head.each(key, false, row.qkv + head.D, n, note);
    top = warp_max(top);
    if (lane_id() == 0) tops[warp_id()] = top;
    __syncthreads();
    return warp_max(tops[lane_id() % TEXT_WARPS]);
}

// The head's output, rounded, to all blocks: the values of places 0 ... n by their scores.
__device__ __forceinline__ void blend(const Mailbox& out, float* att, const Row& row, const Head& head,
                                      float top, int n) {
    float sum[PACK] = {}, value[PACK], total = 0.0f;
    auto add = [&](int place, bool valid) {
        if (!valid) return;
        const float w = expf(row.scores[place] - top);
        total += w;
#pragma unroll
        for (int e = 0; e < PACK; ++e) sum[e] += w * value[e];
    };
    head.each(value, true, row.qkv + 2 * head.D, n, add);
#pragma unroll 1
    for (int bit = head.D / PACK; bit < WARP; bit *= 2) {
        total += __shfl_xor_sync(FULL, total, bit);
#pragma unroll
        for (int e = 0; e < PACK; ++e) sum[e] += __shfl_xor_sync(FULL, sum[e], bit);
    }
    float* mine = row.part + warp_id() * (head.D + 1);
    if (lane_id() < head.D / PACK) {
#pragma unroll
        for (int e = 0; e < PACK; ++e) mine[head.lane * PACK + e] = sum[e];
        mine[head.D] = total;
    }
    __syncthreads();
    if ((int)threadIdx.x >= head.D) return;
    float all = 0.0f, weights = 0.0f;
#pragma unroll 4
    for (int w = 0; w < TEXT_WARPS; ++w) {
        all += row.part[w * (head.D + 1) + threadIdx.x];
        weights += row.part[w * (head.D + 1) + head.D];
    }
    out.tell_all(att + threadIdx.x, rounded(all / weights));
}

// Attention of one head from q, k and v of place n.
__device__ __forceinline__ void attend(const Row& row, const Head& head, int n, int layer) {
    __syncthreads();
    const float top = score(row, head, n);
    blend(row.mailbox(ATT, layer), row.vector(ATT, layer) + head.h * head.D, row, head, top, n);
}

// Logits of this block's share of the vocabulary, to all blocks.
__device__ __forceinline__ void logits(const Row& row, const act_t* head, int V, int C) {
    const int share = (row.P / 4 + CLUSTER - 1) / CLUSTER * 4, begin = block_rank() * share, end = min(begin + share, V);
    const int lane = lane_id() % HEAD_LANES, group = threadIdx.x / HEAD_LANES, step = 4 * TEXT_BLOCK / HEAD_LANES;
#pragma unroll 1
    for (int base = begin; base < end; base += step) {
        const int v = base + 4 * group;
        float sum[4] = {};
#pragma unroll 3
        for (int c = lane * PACK; c < C; c += HEAD_LANES * PACK) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (v + k >= end) continue;
                const Raw p = load_raw(head + (size_t)(v + k) * C + c);
#pragma unroll
                for (int e = 0; e < PACK; ++e) sum[k] += row.y[c + e] * p.get(e);
            }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
            for (int bit = 1; bit < HEAD_LANES; bit *= 2) sum[k] += __shfl_xor_sync(FULL, sum[k], bit);
            sum[k] = rounded(sum[k]);
        }
        if (v >= end) continue;
        for (int rank = lane; rank < CLUSTER; rank += HEAD_LANES) row.of_logits().tell(row.logits + v, sum, rank);
    }
}

// Where the parameters lie.
struct Model {
    const act_t* matrices;  // of layer 0, and `stride` elements behind them of layer 1
    const float* layers;    // all of layer 0 in the checkpoint's order, LayerNorms last
    int stride, C, H, D;

    // A lane's slice of product 0: q, k and v of head h, 1: W_O, 2: W_1, 3: W_2.
    __device__ __forceinline__ Slice slice(int l, int which, int h, const Share& s) const {
        const bool packed = ACT != ACT_FP32;
        const int start = which == 0 ? 0 : which == 3 ? 8 : which + 2;  // in matrices of C x C
        const act_t* w = matrices + (size_t)l * stride + (size_t)start * C * C + (which == 0 ? h * D : 0);
        return Slice(w, which == 3 ? 4 * C : C, which == 2 ? 4 * C : which == 0 && packed ? 3 * C : C, s);
    }
    // This warp's shares in the four products, which are the same in all layers.
    __device__ __forceinline__ void shares(Share (*all)[TEXT_WARPS]) const {
        const int warp = lane_id();
        if (warp_id() > 0 || warp >= TEXT_WARPS) return;
        const int skip = ACT != ACT_FP32 ? C : C * C;
        all[0][warp] = share_of(block_rank() < H ? 3 * D / QUAD : 0, D / QUAD, skip, 0, warp);
        all[1][warp] = all[3][warp] = side_by_side(C, warp);
        all[2][warp] = side_by_side(4 * C, warp);
    }
    // LayerNorm 0 or 1 of a layer; behind the last layer comes the last LayerNorm.
    __device__ __forceinline__ Norm norm(int l, int which, int L) const {
        const size_t at = (size_t)l * (12 * C + 4) * C + (l < L ? (12 * C + 2 * which) * C : 0);
        return Norm(layers + at, C);
    }
};

// What becomes of a column of a product; the thread's is `first` and its own number.
__device__ __forceinline__ void take(const Row& row, const Head& head, int first, int which, int layer, int n, float y) {
    const int c = first + threadIdx.x;
    if (which == ATT) {
        row.qkv[c] = rounded(y);
        if (c >= head.D) head.keep(c - head.D, n, to_act(y));
        return;
    }
    if (which == MIDDLE) y += row.vector(X, layer)[c];
    if (which == ACTIVE) y = gelu(y);
    if (which == X) y += row.vector(MIDDLE, layer)[c];
    row.mailbox(which, layer).tell_all(row.vector(which, which == X ? layer + 1 : layer) + c, rounded(y));
}

// All layers of place n, from x to x in all blocks; then y is what the last LayerNorm makes of x. `ahead` holds the first weights
// of the first product, `norm` the first LayerNorm; `done` layers have run before. A round is a product with what stands
// around it; heads of a block follow each other.
__device__ __forceinline__ void layers(const Row& row, const Model& model, const Share (*shares)[TEXT_WARPS],
                                       Raw (&ahead)[AHEAD], Norm& norm, act_t* cache, const int* cache_at, int n, int done,
                                       int L, int T, float eps) {
    const int rank = block_rank();
    int l = 0, which = ATT, h = rank;
    Share share = shares[ATT][warp_id()];
    Slice slice = model.slice(0, ATT, h, share);
#pragma unroll 1
    while (true) {
        const int layer = done + l;
        if ((which == ATT && h == rank) || which == ACTIVE)
            norm.apply(row.y, row.vector(which == ATT ? X : MIDDLE, layer), model.C, eps);
        if (l == L) return;
        const Head head(cache + (size_t)cache_at[l] * PACK, h, model.H, T, model.D);
        const bool attends = which == ATT && h < model.H, more = which == ATT && h + CLUSTER < model.H;
        float sum[PACK] = {}, y;
        multiply(sum, which == MIDDLE || which == X ? row.vector(which - 1, layer) : row.y, ahead, slice);
        const int product = which;
        const Share now = share;
        h = more ? h + CLUSTER : rank;
        which = more ? ATT : (which + 1) % 4;
        l += which == ATT && !more;
        share = shares[which][warp_id()];
        if (l < L) slice = model.slice(l, which, h, share), slice.fetch(ahead, 0);
        if (product == MIDDLE || product == X) norm = model.norm(l, product == MIDDLE, L);
        if (gather(y, sum, now)) take(row, head, now.first, product, layer, n, y);
        if (attends) attend(row, head, n, layer);
        if (!more) row.mailbox(product, layer).wait(layer >> 1, row.bytes(product));
    }
}

extern "C" __global__ void CLUSTERED
    k_text(int* text /* R S */, const float* uniform /* R S */, const Sampling* sampling, act_t* cache,
           const int* cache_at /* L */, const float* weights, const act_t* matrices, const act_t* head, int place,
           int steps, int stride, int R, int S, int L, int C, int H, int D, int T, int V, float eps) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float shared[];
    __shared__ Share shares[4][TEXT_WARPS];
    const Row row(shared, C, D, T, S, V);
    const size_t r = blockIdx.x / CLUSTER;
    const float* wpe = weights + (size_t)V * C;
    const Model model = {matrices, wpe + (size_t)T * C, stride, C, H, D};
#pragma unroll 1
    for (int s = threadIdx.x; s < S; s += TEXT_BLOCK) row.text[s] = text[r * S + s];
    model.shares(shares);
    if (threadIdx.x == 0) row.open();
    __syncthreads();
    cluster_sync();  // nobody writes to a block that has not begun
    const Choice choice = sampling->choice;
    int token = row.text[place], layer = 0, picks = 0;
#pragma unroll 1
    for (int end = place + steps; place < end; ++place, layer += L) {
        Raw ahead[AHEAD];
        model.slice(0, ATT, block_rank(), shares[ATT][warp_id()]).fetch(ahead, 0);
        Norm norm = model.norm(0, 0, L);
        const float u = uniform[r * S + place + 1];
#pragma unroll 1
        for (int c = threadIdx.x; c < C; c += TEXT_BLOCK)
            row.vector(X, layer)[c] = rounded(weights[(size_t)token * C + c] + wpe[(size_t)place * C + c]);
        __syncthreads();
        layers(row, model, shares, ahead, norm, cache + r * 2 * T * C, cache_at, place, layer, L, T, eps);
        token = row.text[place + 1];
        if (token >= 0) continue;
        logits(row, head, V, C);
        row.of_logits().wait(picks++, 4 * row.P);
        token = pick(row.logits, choice, u, V);
        if (block_rank() == 0 && threadIdx.x == 0) text[r * S + place + 1] = token;
    }
#endif
}
