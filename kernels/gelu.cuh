// GELU's formula, for the kernels that apply it. See gelu.cu.

#pragma once
#include "prelude.cuh"

constexpr float SLOPE = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float CUBE = 0.044715f;

// 1 / (1 + exp(-u)) for u = x (SLOPE + SLOPE CUBE x^2), square = x^2
__device__ __forceinline__ float sigmoid(float x, float square) {
#if ACT == ACT_FP32
    return 1.0f / (1.0f + expf(-x * fmaf(SLOPE * CUBE, square, SLOPE)));
#else
    // 2 ulp off, far below a 16-bit result's rounding. What .ftz flushes, an exponential below 2^-126, would be lost in the sum.
    const float e = exp2_fast(x * fmaf(-LOG2E * SLOPE * CUBE, square, -LOG2E * SLOPE));
    float s;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
#endif
}

__device__ __forceinline__ float gelu(float x) { return x * sigmoid(x, x * x); }

// value = gelu(x), the same bits as above; slope = up gelu'(x).
__device__ __forceinline__ void gelu_slope(float x, float up, float& value, float& slope) {
    const float square = x * x, s = sigmoid(x, square);
    value = x * s;
    slope = up * fmaf(fmaf(-value, s, value), fmaf(3.0f * CUBE * SLOPE, square, SLOPE), s);
}

__device__ __forceinline__ Pack gelu_pack(const Pack& in) {
    Pack out;
#pragma unroll
    for (int i = 0; i < PACK; ++i) out.set(i, gelu(in.get(i)));
    return out;
}

// From h and da: gelu(h) and dh.
__device__ __forceinline__ void gelu_slopes(const Pack& in, const Pack& up, Pack& value, Pack& slope) {
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        float a, dh;
        gelu_slope(in.get(i), up.get(i), a, dh);
        value.set(i, a), slope.set(i, dh);
    }
}
