// Forward of attention by wgmma: a softmax that runs over tiles of keys, one turn ahead of the sum of values that it weights.

#include "attention_ring.cuh"

constexpr float LN2 = 0.6931471805599453f, LIMIT = 256.0f;  // LIMIT: of a lane's part of a tile's row sum

// A warp's 16 rows. Exponentials are relative to `shift`, which is a maximum of the first tile and rises only when a part of a
// row sum passes LIMIT: then the tile is made once more. So no maximum is looked for in most tiles.
template <int STAGES>
struct Forward {
    struct Memory {
        Ring<STAGES> kv;
        act_t q[TILE * D];
    };
    Memory& mem;
    const Tile q;
    C o[COLS];       // sum of p * v
    C s[8];          // scores of a tile, then p
    A p[4];          // p of the tile whose values come next
    float shift[2];  // of rows g and g + 8, base 2
    float sum[2];    // this lane's part of the sum of p, without the tile whose values come next
    float part[2];   // this lane's part of that tile's
    bool over = false;

    __device__ __forceinline__ explicit Forward(Memory& mem) : mem(mem), q(shared_address(mem.q)) {
#pragma unroll
        for (int n = 0; n < COLS; ++n) o[n] = {};
        shift[0] = shift[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
    }

    __device__ __forceinline__ void mask(int ahead) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (later(n, i) > ahead + below(0, i)) s[n].r[i] = -INFINITY;
    }

    // Raises `shift` to this tile's maximum, and rescales what is summed so far.
    __device__ __forceinline__ void raise() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float v = fmaxf(s[0].r[2 * r], s[0].r[2 * r + 1]);
#pragma unroll
            for (int n = 1; n < 8; ++n) v = fmaxf(v, fmaxf(s[n].r[2 * r], s[n].r[2 * r + 1]));
            const float next = fmaxf(quad_max(v) * SCALE2, shift[r]), f = exp2_fast(shift[r] - next);
            shift[r] = next, sum[r] *= f;
#pragma unroll
            for (int n = 0; n < COLS; ++n) o[n].r[2 * r] *= f, o[n].r[2 * r + 1] *= f;
        }
    }

    // s becomes p, and `part` its sums.
    __device__ __forceinline__ void weigh() {
        part[0] = part[1] = 0.0f;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& e = s[n].r[i];
                e = exp2_fast(e * SCALE2 - shift[i / 2]), part[i / 2] += e;
            }
    }

    // A tile's p with its own maximum: the first tile, or one whose p was too large
    __device__ __forceinline__ void begin(int slot, bool masked, int ahead) {
        start_products();
        multiply(s, q, Tile(mem.kv.first(slot)));
        wait_products<0>(s);
        if (masked) mask(ahead);
        raise();
        weigh();
        pack(p, s);
    }

    __device__ __forceinline__ void add_values(int slot) {
        start_products();
        add_positions(o, p, Tile(mem.kv.second(slot)));
    }

    // The barrier of a turn: tells whether the tile in `slot` must be made again, and counts it in.
    __device__ __forceinline__ void settle(int slot, bool masked, int ahead) {
        if (__syncthreads_or(over)) begin(slot, masked, ahead);
        sum[0] += part[0], sum[1] += part[1];
    }

    // p of the tile after `slot` beside the sum of values of `slot`. LAST: that tile lies on the diagonal, none is left to copy.
    template <bool LAST>
    __device__ __forceinline__ void turn(int slot, bool more, Pieces& keys, int narrow, int T, int ahead) {
        const int next = mem.kv.next(slot), refill = mem.kv.refill(slot);
        await_copies<Ring<STAGES>::LOOK - 1>();
        settle(slot, false, 0);
        start_products();
        multiply(s, q, Tile(mem.kv.first(next)));
        add_values(slot);
        if (!LAST) {
            if (more) copy_keys(mem.kv, refill, keys, narrow, T);
            commit();
        }
        wait_products<1>(s);
        if (LAST) mask(ahead);
        weigh();
        wait_products<0>(o);
        over = !(part[0] <= LIMIT) || !(part[1] <= LIMIT);  // NaN too
        pack(p, s);
    }

    // out (its position 0) and lse (of this head) of this warp's rows
    __device__ __forceinline__ void store(act_t* out, int stride, float* lse, int row, int T) const {
        const float low = quad_sum(sum[0]), high = quad_sum(sum[1]);
        store_c(out + (size_t)row * stride, stride, o, 1.0f / low, 1.0f / high, T - row);
        const int t = threadIdx.x % 4, mine = row + lane_id() / 4 + 8 * t;  // lanes 0 and 1 of a quad write rows g and g + 8
        if (t < 2 && mine < T) lse[mine] = t ? shift[1] * LN2 + logf(high) : shift[0] * LN2 + logf(low);
    }
};
