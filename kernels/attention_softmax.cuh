// Forward of 16-bit attention as a warp sees it: a softmax that runs over tiles of keys, and the sum of values that it weights.

#include "attention_stages.cuh"

constexpr float SLACK = 8.0f / SCALE2;  // a row's maximum may lag by this: p stays below 2^8, rescaling becomes rare

// A warp's 16 M rows of queries: scores against one tile of keys, softmax so far, weighted sum of values.
template <int M, int KEYS>
struct Softmax {
    C o[M][COLS];      // sum of p * v, p relative to exp(top)
    float top[M][2];   // a maximum of the row (score units, unscaled) that lags by at most SLACK
    float sum[M][2];   // this lane's part of the sum of p

    __device__ __forceinline__ Softmax() {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < COLS; ++n) o[m][n] = {};
            top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;
        }
    }

    // Raises `top` where this tile's scores exceed it by more than SLACK, and rescales what is summed so far.
    __device__ __forceinline__ void raise(const C (&s)[KEYS / 8][M]) {
        float next[M][2];
        bool grows = false;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float v = fmaxf(s[0][m].r[2 * r], s[0][m].r[2 * r + 1]);
#pragma unroll
                for (int n = 1; n < KEYS / 8; ++n) v = fmaxf(v, fmaxf(s[n][m].r[2 * r], s[n][m].r[2 * r + 1]));
                v = quad_max(v);
                const bool up = v > top[m][r] + SLACK;
                next[m][r] = up ? v : top[m][r];
                grows |= up;
            }
        if (!__any_sync(FULL, grows)) return;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float f = exp2_fast((top[m][r] - next[m][r]) * SCALE2);
                top[m][r] = next[m][r], sum[m][r] *= f;
#pragma unroll
                for (int n = 0; n < COLS; ++n) o[m][n].r[2 * r] *= f, o[m][n].r[2 * r + 1] *= f;
            }
    }

    // s becomes p; its row sums are added to this lane's part.
    __device__ __forceinline__ void exponentials(C (&s)[KEYS / 8][M]) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float shift = top[m][i / 2] * SCALE2;
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) {
                    s[n][m].r[i] = exp2_fast(s[n][m].r[i] * SCALE2 - shift);
                    sum[m][i / 2] += s[n][m].r[i];
                }
            }
    }

    // Tile j of keys and values
    __device__ __forceinline__ void add(const A (&q)[M][STEPS], const Stages<KEYS>& stages, int j, const Rows<M>& rows) {
        const int key = j * KEYS;
        const Tile keys(stages.first(j)), values(stages.second(j));
        if (key + KEYS <= rows.first) add_tile<false>(q, keys, values, 0);
        else if (key < rows.end) add_tile<true>(q, keys, values, lane_ahead(rows.first, key));
    }

    // One tile of keys and values. `ahead`: how far this lane's first row is ahead of its first key.
    template <bool MASKED>
    __device__ __forceinline__ void add_tile(const A (&q)[M][STEPS], const Tile& keys, const Tile& values, int ahead) {
        C s[KEYS / 8][M];
        mul_rows(s, q, keys, 0);
        if (MASKED) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        if (later(n, i) > ahead + below(m, i)) s[n][m].r[i] = -INFINITY;
        }
        raise(s);
        exponentials(s);
        A p[KEYS / 16][M];
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int m = 0; m < M; ++m) set_half(p[n / 2][m], n % 2, s[n][m]);
        add_cols(o, p, values, 0);
    }

    // out and lse of this warp's rows; `out` is position 0 of the head.
    __device__ __forceinline__ void store(act_t* out, int stride, float* lse, int row, int T) const {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const int r = row + 16 * m;
            const float low = quad_sum(sum[m][0]), high = quad_sum(sum[m][1]);
            store_c(out + (size_t)r * stride, stride, o[m], 1.0f / low, 1.0f / high, T - r);
            const int mine = r + lane_id() / 4 + 8 * (threadIdx.x % 4);  // lanes 0 and 1 of a quad write rows g and g + 8
            if (threadIdx.x % 4 < 2 && mine < T)
                lse[(size_t)blockIdx.x * T + mine] =
                    threadIdx.x % 4 ? top[m][1] * SCALE + logf(high) : top[m][0] * SCALE + logf(low);
        }
    }
};
