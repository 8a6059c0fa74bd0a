// A product of 16-bit matrices for sm_90a whose results pass through an elementwise kernel on the same multiprocessor.
//
//   c (N, O) = a (N, I) b     b (I, O) row-major, or, TRANSPOSED, (O, I) row-major
//
// A block stays for the whole launch and takes tiles of 128 x 128 in turn. Of its five warpgroups the first starts copies: stages of
// 64 summed positions go round a ring in shared memory. Two multiply, 64 rows each, round their sums and park the tile in
// shared memory. The last two finish it, row by row, while the next tiles are multiplied.
//
// Seen on an H200, and why it is cut so: beside wgmma an FFMA or FMUL takes its 1.2 cycles from the tensor cores, all others run at
// half to four fifths of their speed, so what finishes a tile must be many warps that wait for nothing. Shared memory's 128
// bytes a cycle bound the products: 640 cycles a stage, 512 without. dev/LOG.md tells of the forms that were slower.

#pragma once
#include "tma.cuh"

constexpr int EDGE = 128, DEPTH = 64, STAGES = 5, PARKS = 2;  // rows and columns of a tile, summed positions of a stage
constexpr int GROUP = 128, READERS = 2 * GROUP / WARP;        // threads of a warpgroup, warps of two
constexpr int BOX = 64 * 64 * 2;                              // bytes of 64 rows of 64 numbers
constexpr int STAGE = 4 * BOX;                                // a's rows, then b's

// Shared memory, in bytes from its start: stages, parked tiles in strips of 64 columns, barriers of 8 bytes.
constexpr int STRIP = 2 * BOX, PARK_SIZE = 2 * STRIP, PARK = STAGES * STAGE;
constexpr int FULL_STAGE = PARK + PARKS * PARK_SIZE, EMPTY_STAGE = FULL_STAGE + 8 * STAGES;
constexpr int FULL_PARK = EMPTY_STAGE + 8 * STAGES, EMPTY_PARK = FULL_PARK + 8 * PARKS;
constexpr int SHARED = EMPTY_PARK + 8 * PARKS;
#ifdef SHARED_BYTES
static_assert(SHARED == SHARED_BYTES, "what it is launched with");
#endif

extern __shared__ __align__(1024) unsigned char memory[];

// What a block does in its turn `i`: the tile at (row, column).
struct Tiles {
    int across, count;
    __device__ __forceinline__ Tiles(int N, int O) : across(O / EDGE), count((N + EDGE - 1) / EDGE * across) {}
    __device__ __forceinline__ int number(int i) const { return blockIdx.x + i * gridDim.x; }
    __device__ __forceinline__ bool has(int i) const { return number(i) < count; }
    __device__ __forceinline__ int row(int i) const { return number(i) / across * EDGE; }
    __device__ __forceinline__ int column(int i) const { return number(i) % across * EDGE; }
};

// A place in the ring, from its first stage on.
struct Ring {
    unsigned base;
    int slot = 0, parity = 0;
    __device__ __forceinline__ explicit Ring(unsigned base) : base(base) {}
    __device__ __forceinline__ void next() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ unsigned tile() const { return base + slot * STAGE; }
    __device__ __forceinline__ unsigned full() const { return base + FULL_STAGE + 8 * slot; }
    __device__ __forceinline__ unsigned empty() const { return base + EMPTY_STAGE + 8 * slot; }
};

// ---- The copying thread ----------------------------------------------------------------------------------------------

template <bool TRANSPOSED>
__device__ __forceinline__ void copy_in(unsigned base, const Map* a, const Map* b, const Tiles& t, int I) {
    Ring ring(base);
    for (int i = 0; t.has(i); ++i) {
        const int row = t.row(i), column = t.column(i);
        for (int k = 0; k < I; k += DEPTH, ring.next()) {
            wait(ring.empty(), ring.parity ^ 1);
            arrive_and_await(ring.full(), STAGE);
            load_tile(ring.tile(), a, k, row, ring.full());
            const unsigned to = ring.tile() + 2 * BOX;
            if (TRANSPOSED) load_tile(to, b, k, column, ring.full());
            else load_tile(to, b, column, k, ring.full()), load_tile(to + BOX, b, column + 64, k, ring.full());
        }
    }
}

// ---- The multiplying warpgroups --------------------------------------------------------------------------------------

// What a warpgroup has of a tile, 64 rows: element 4 j + e is at row 16 warp + lane / 4 + 8 (e / 2), column 8 j + 2 (lane % 4) + e % 2.
typedef float Sums[EDGE / 2];

// A matrix descriptor: address, distance of 64 columns (only where rows are summed), distance of eight rows, 128-byte rows; in
// units of 16 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned tile, unsigned long long columns) {
    return (tile & 0x3ffff) >> 4 | columns << 16 | 64ull << 32 | 1ull << 62;
}

#define F4(c, i) "+f"((c)[i]), "+f"((c)[i + 1]), "+f"((c)[i + 2]), "+f"((c)[i + 3])
#define F16(c, i) F4(c, i), F4(c, i + 4), F4(c, i + 8), F4(c, i + 12)

// c (64, 128) = a (64, 16) b (16, 128), or added to it. BY_COLUMNS: b's rows are summed
template <int BY_COLUMNS>
__device__ __forceinline__ void wgmma(Sums& c, unsigned long long a, unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." PAIR "." PAIR " {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
                 "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
                 "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, %67; }"
                 : F16(c, 0), F16(c, 16), F16(c, 32), F16(c, 48)
                 : "l"(a), "l"(b), "r"(add), "n"(BY_COLUMNS));
}

// c += a stage of products; a step of 16 positions is 32 bytes on in a row, or 16 rows on.
template <bool TRANSPOSED>
__device__ __forceinline__ void multiply_stage(Sums& c, unsigned a_tile, unsigned b_tile, bool first) {
    const unsigned long long a = descriptor(a_tile, 1), b = descriptor(b_tile, TRANSPOSED ? 1 : BOX / 16);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) wgmma<!TRANSPOSED>(c, a + 2 * k, b + (TRANSPOSED ? 2 : 128) * k, !first || k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// At most PENDING stages of products are under way afterwards.
template <int PENDING>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// What the warp has done with shared memory is done.
__device__ __forceinline__ void arrive_warp(unsigned barrier) {
    __syncwarp();
    if (lane_id() == 0) arrive(barrier);
}

// c = 64 rows of a tile, a's being number `member` of two in each stage
template <bool TRANSPOSED>
__device__ __forceinline__ void multiply(Sums& c, Ring& ring, int member, int I) {
    unsigned last = 0;
    for (int k = 0; k < I; k += DEPTH, ring.next()) {
        wait(ring.full(), ring.parity);
        multiply_stage<TRANSPOSED>(c, ring.tile() + member * BOX, ring.tile() + 2 * BOX, k == 0);
        await_products<1>();
        if (k) arrive_warp(last);
        last = ring.empty();
    }
    await_products<0>();
    arrive_warp(last);
#pragma unroll
    for (int n = 0; n < EDGE / 2; n += 4) asm volatile("" : F4(c, n)::"memory");  // no use of c moves up across the wait
}

// Four 8 x 8 matrices of 16 bits from registers to a strip; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(unsigned at, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]),
                 "r"(r[3])
                 : "memory");
}

// A parked number is at its row's 128 bytes in the strip of its column, in piece (8 columns) ^ row % 8. A lane names row lane % 16 of
// 16 x 16 numbers: matrices of rows and of the next eight rows in the first eight columns, then in the others.
__device__ __forceinline__ void park(const Sums& c, unsigned strips, int member) {
    const int lane = lane_id(), row = 64 * member + 16 * (warp_id() % 4) + lane % 16;
    const unsigned start = strips + row * 128 + ((lane / 16 ^ lane % 8) << 4);
#pragma unroll
    for (int column = 0; column < EDGE; column += 16) {
        unsigned r[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) r[e] = pack2(c[column / 2 + 2 * e], c[column / 2 + 2 * e + 1]);
        store_matrices((start ^ column % 64 * 2) + column / 64 * STRIP, r);
    }
}

template <bool TRANSPOSED>
__device__ __forceinline__ void multiply_tiles(unsigned base, const Tiles& t, int member, int I) {
    Sums c;
    Ring ring(base);
    for (int i = 0; t.has(i); ++i) {
        multiply<TRANSPOSED>(c, ring, member, I);
        const int p = i % PARKS;
        wait(base + EMPTY_PARK + 8 * p, (i / PARKS & 1) ^ 1);
        park(c, base + PARK + p * PARK_SIZE, member);
        arrive_warp(base + FULL_PARK + 8 * p);
    }
}

// ---- The whole -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void init_barriers(unsigned base) {
    for (int s = 0; s < STAGES; ++s) init_barrier(base + FULL_STAGE + 8 * s, 1), init_barrier(base + EMPTY_STAGE + 8 * s, READERS);
    for (int p = 0; p < 2 * PARKS; ++p) init_barrier(base + FULL_PARK + 8 * p, READERS);
    show_barriers();
}

// What a thread finishes of a parked tile: eight columns of COUNT rows, and where they lie in an (N, O) matrix.
struct Rows {
    static constexpr int LANES = EDGE / PACK, STEP = 2 * GROUP / LANES, COUNT = EDGE / STEP;  // a row's lanes, rows at a time
    const unsigned char* parked;
    long long at;
    int left, O;  // rows of the matrix from the first on
    __device__ __forceinline__ Rows(const Tiles& t, int i, int N, int O) : O(O) {
        const int thread = threadIdx.x % (2 * GROUP), row = thread / LANES, piece = thread % LANES;
        parked = memory + PARK + i % PARKS * PARK_SIZE + piece / 8 * STRIP + row * 128 + ((piece ^ row) % 8 << 4);
        at = (long long)(t.row(i) + row) * O + t.column(i) + piece * PACK, left = t.has(i) ? N - t.row(i) - row : 0;
    }
    __device__ __forceinline__ Pack get(int r) const { return *reinterpret_cast<const Pack*>(parked + r * STEP * 128); }
    __device__ __forceinline__ bool inside(int r) const { return r * STEP < left; }
    __device__ __forceinline__ long long place(int r) const { return at + (long long)r * STEP * O; }
};

// Every turn, the tile before it is taken by finish(rows, following, await): rows.get() may be called after await(); `following` are
// the rows of the next turn, none after the last. finish.begin(rows) comes before the first.
template <class Finish>
__device__ __forceinline__ void finish_tiles(unsigned base, const Tiles& t, int N, int O, Finish finish) {
    finish.begin(Rows(t, 0, N, O));
    for (int i = 0; t.has(i); ++i) {
        const int p = i % PARKS;
        finish(Rows(t, i, N, O), Rows(t, i + 1, N, O), [&] { wait(base + FULL_PARK + 8 * p, i / PARKS & 1); });
        arrive_warp(base + EMPTY_PARK + 8 * p);
    }
}

template <bool TRANSPOSED, class Finish>
__device__ __forceinline__ void product(const Map* maps, int N, int I, int O, const Finish& finish) {
    const unsigned base = shared_address(memory);
    const Tiles t(N, O);
    if (threadIdx.x == 0) init_barriers(base);
    __syncthreads();
    const int group = threadIdx.x / GROUP;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) copy_in<TRANSPOSED>(base, maps, maps + 1, t, I);
    } else if (group < 3) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
        multiply_tiles<TRANSPOSED>(base, t, group - 1, I);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 120;");
        finish_tiles(base, t, N, O, finish);
    }
}
