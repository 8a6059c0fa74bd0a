// Numbers of 8 bits in the E4M3 form (Micikevicius et al. 2022), and the power of two that each tensor of them is scaled by.
//
// E4M3 has 4 bits of exponent and 3 of fraction: normal from 2^-6 to 448 = 1.75 * 2^8, below that steps of 2^-9, NaN, no
// infinity. A conversion rounds to nearest even and ends at 448; NaN stays NaN. Scaling by a power of two rounds nothing.

#pragma once
#include "prelude.cuh"
#include <cuda_fp8.h>

typedef __nv_fp8_storage_t e4m3_t;

// What a tensor's numbers were multiplied by, and what brings them back; cuBLASLt reads `back`.
struct alignas(16) Scale {
    float back, to, unused[2];
};

constexpr int TOP = 8;       // 448 is 1.75 * 2^TOP
constexpr int WIDEST = 100;  // of a scale's exponent, so that the scale and its inverse are normal numbers

// The least e with top <= 1.75 * 2^e, for top > 0; a float's bits are its exponent, then its fraction.
__device__ __forceinline__ int exponent(float top) {
    const int bits = __float_as_int(top);
    return (bits >> 23) - 127 + ((bits & 0x7fffff) > 0x600000);
}

__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// The scale under which a tensor whose largest number is `top` stays below 448 / 2^spare, in less than two such steps.
__device__ __forceinline__ Scale scale_for(float top, int spare) {
    const int e = max(-WIDEST, min(WIDEST, TOP - spare - exponent(top)));
    return {power_of_two(-e), power_of_two(e), {0.0f, 0.0f}};
}

// A pack scaled and rounded, two codes a word; the largest of it and of `top` is left in top. fmaxf leaves out NaN, which
// the loss then shows.
__device__ __forceinline__ void convert_pack(unsigned short* pairs, const Pack& in, float scale, float& top) {
#pragma unroll
    for (int i = 0; i < PACK; i += 2) {
        const float a = in.get(i), b = in.get(i + 1);
        top = fmaxf(top, fmaxf(fabsf(a), fabsf(b)));
        pairs[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(a * scale, b * scale), __NV_SATFINITE, __NV_E4M3);
    }
}

struct alignas(PACK) Codes {
    unsigned short pairs[PACK / 2];
};

// A pack into E4M3 at `to`, by one store.
__device__ __forceinline__ void store_codes(e4m3_t* to, const Pack& in, float scale, float& top) {
    Codes out;
    convert_pack(out.pairs, in, scale, top);
    *reinterpret_cast<Codes*>(to) = out;
}

// The block's maximum into its place of `largest`, over what earlier microbatches left there.
__device__ __forceinline__ void raise_largest(float* largest, float top) {
    top = block_max(top);
    if (threadIdx.x == 0) largest[blockIdx.x] = fmaxf(largest[blockIdx.x], top);
}
