// Backward of attention by wgmma as a warp sees it: the gradient of its queries, or those of its keys and values.

#include "attention_ring.cuh"

// A warp's 16 rows of queries: what they sum is dq, without the factor 1 / sqrt(D). The sum of a tile runs beside the next.
template <int STAGES>
struct Queries {
    struct Memory {
        Ring<STAGES> kv;
        act_t q[TILE * D], g[TILE * D];  // queries and upstream gradients
    };
    Memory& mem;
    const Tile q, g;
    C dq[COLS];
    A ds[4];                   // of the tile whose sum comes next
    float lse2[2], delta[2];  // of rows g and g + 8

    __device__ __forceinline__ explicit Queries(Memory& mem) : mem(mem), q(shared_address(mem.q)), g(shared_address(mem.g)) {
#pragma unroll
        for (int n = 0; n < COLS; ++n) dq[n] = {};
    }

    // lse in base 2 and delta of this warp's rows, which go into `rows` too. dout, out: position 0 of the head; lse, rows: its
    // part
    __device__ __forceinline__ void statistics(const act_t* dout, const act_t* out, int stride, const float* lse, float* rows,
                                               int row, int T) {
        const int t = threadIdx.x % 4;
        uint4 a[2][D / 32], b[2][D / 32];
        float l[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int mine = min(row + lane_id() / 4 + 8 * r, T - 1);
            l[r] = lse[mine];
#pragma unroll
            for (int c = 0; c < D / 32; ++c) {
                const size_t at = (size_t)mine * stride + 32 * c + 8 * t;
                a[r][c] = *reinterpret_cast<const uint4*>(dout + at), b[r][c] = *reinterpret_cast<const uint4*>(out + at);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int mine = row + lane_id() / 4 + 8 * r;
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < D / 32; ++c) {
                const uint4 x = a[r][c], y = b[r][c];
                sum += dot2(x.x, y.x) + dot2(x.y, y.y) + dot2(x.z, y.z) + dot2(x.w, y.w);
            }
            delta[r] = quad_sum(sum);
            lse2[r] = mine < T ? l[r] * LOG2E : INFINITY;  // beyond T: p = exp2(finite - inf) = 0
            if (t < 2) rows[t * Spot<1>::padded(T) + mine] = t == 0 ? lse2[r] : mine < T ? delta[r] : 0.0f;
        }
    }

    __device__ __forceinline__ void start(C (&x)[8], C (&y)[8], int slot) {
        start_products();
        multiply(x, q, Tile(mem.kv.first(slot)));
        multiply(y, g, Tile(mem.kv.second(slot)));
    }
    template <bool MASKED>
    __device__ __forceinline__ void probabilities(C (&x)[8], int ahead) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& p = x[n].r[i];
                p = exp2_fast(p * SCALE2 - lse2[i / 2]);
                if (MASKED && later(n, i) > ahead + below(0, i)) p = 0.0f;
            }
    }
    __device__ __forceinline__ void gradients(const C (&x)[8], C (&y)[8]) const {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) y[n].r[i] = x[n].r[i] * (y[n].r[i] - delta[i / 2]);
    }
    __device__ __forceinline__ void add_keys(int slot) {
        start_products();
        add_positions(dq, ds, Tile(mem.kv.first(slot)));
    }

    // ds of the first tile
    __device__ __forceinline__ void begin(bool masked, int ahead) {
        C x[8], y[8];
        start(x, y, 0);
        wait_products<1>(x);
        if (masked) probabilities<true>(x, ahead);
        else probabilities<false>(x, 0);
        wait_products<0>(y);
        gradients(x, y);
        pack(ds, y);
    }

    // ds of the tile after `slot` beside the sum of `slot`. LAST: that tile lies on the diagonal, none is left to copy.
    template <bool LAST>
    __device__ __forceinline__ void turn(int slot, bool more, Pieces& keys, int narrow, int T, int ahead) {
        const int next = mem.kv.next(slot), refill = mem.kv.refill(slot);
        await_copies<Ring<STAGES>::LOOK - 1>();
        __syncthreads();
        C x[8], y[8];
        start(x, y, next);
        add_keys(slot);
        if (!LAST) {
            if (more) copy_keys(mem.kv, refill, keys, narrow, T);
            commit();
        }
        wait_products<2>(x);
        probabilities<LAST>(x, ahead);
        wait_products<1>(y);
        gradients(x, y);
        wait_products<0>(dq);
        pack(ds, y);
    }
};

// A warp's 16 rows of keys and values: what they sum is dk (without the factor 1 / sqrt(D)) and dv. Scores are transposed here:
// rows are keys, columns are queries, so that p and ds are again the left side of the next product.
template <int STAGES>
struct Keys {
    struct Memory {
        Ring<STAGES> qg;
        act_t k[TILE * D], v[TILE * D];
        float stats[STAGES][2][TILE];  // lse in base 2 and delta of a stage's queries
    };
    Memory& mem;
    const Tile k, v;
    C dk[COLS], dv[COLS];
    A p[4], ds[4];  // ds of the tile whose sum comes next

    __device__ __forceinline__ explicit Keys(Memory& mem) : mem(mem), k(shared_address(mem.k)), v(shared_address(mem.v)) {
#pragma unroll
        for (int n = 0; n < COLS; ++n) dk[n] = {}, dv[n] = {};
    }

    // ds of the queries in `slot`, and their part of dv. FIRST: there is no sum of the slot `before` to run beside.
    template <bool FIRST>
    __device__ __forceinline__ void step(int slot, int before, int ahead) {
        C x[8], y[8];
        start_products();
        multiply(x, k, Tile(mem.qg.first(slot)));
        multiply(y, v, Tile(mem.qg.second(slot)));
        if (!FIRST) add_positions(dk, ds, Tile(mem.qg.first(before)));
        const float* lse2 = mem.stats[slot][0] + 2 * (threadIdx.x % 4);  // of this lane's columns 2t, 2t + 1
        const float* delta = lse2 + TILE;
        float2 l[8];
#pragma unroll
        for (int n = 0; n < 8; ++n) l[n] = *reinterpret_cast<const float2*>(lse2 + 8 * n);
        wait_products<FIRST ? 1 : 2>(x);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& s = x[n].r[i];
                s = exp2_fast(s * SCALE2 - (i % 2 ? l[n].y : l[n].x));
                if (FIRST && later(n, i) < ahead + below(0, i)) s = 0.0f;
            }
            set_half(p[n / 2], n % 2, x[n]);
        }
        start_products();
        add_positions(dv, p, Tile(mem.qg.second(slot)));
        wait_products<FIRST ? 1 : 2>(y);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; ++i) y[n].r[i] = x[n].r[i] * (y[n].r[i] - (i % 2 ? d.y : d.x));
        }
        if (!FIRST) wait_products<1>(dk);
        pack(ds, y);
        wait_products<0>(dv);
    }

    // A round of the ring, slots being constants, or fewer turns: false when none is left. `slot` is the one whose sum is left.
    template <int SLOT = 0, class Copy>
    __device__ __forceinline__ bool round(int& left, int& slot, Copy& from, int T) {
        slot = SLOT;
        if (left == 0) return false;
        await_copies<Ring<STAGES>::LOOK - 1>();
        __syncthreads();
        if (left > Ring<STAGES>::LOOK) from.copy(mem, mem.qg.refill(SLOT), T);
        commit();
        step<false>(mem.qg.next(SLOT), SLOT, 0), --left;
        if constexpr (SLOT + 1 == STAGES) return true;
        else return round<SLOT + 1>(left, slot, from, T);
    }
};

// This thread's pieces of queries, upstream gradients and their statistics; tiles come one after another.
struct QueryPieces {
    Pieces q, g;
    const float* rows;
    unsigned place;
    __device__ __forceinline__ QueryPieces(const Pieces& q, const Pieces& g, const float* rows, int T) : q(q), g(g) {
        this->rows = rows + threadIdx.x / 16 % 2 * Spot<1>::padded(T) + 4 * (threadIdx.x % 16);
        place = 16 * (threadIdx.x % 32);
    }
    template <class Memory>
    __device__ __forceinline__ void copy(Memory& mem, int slot, int T) {
        q.copy(mem.qg.first(slot), 0, T), g.copy(mem.qg.second(slot), 0, T);
        if (threadIdx.x < 32) copy_async(shared_address(mem.stats[slot][0]) + place, rows, 16);
        q.next(), g.next(), rows += TILE;
    }
};
