// GELU's formula, for the kernels that apply it. See gelu.cu.

#pragma once
#include "prelude.cuh"

constexpr float SLOPE = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float CUBE = 0.044715f;

__device__ __forceinline__ float sigmoid(float u) {
#if ACT == ACT_FP32
    return 1.0f / (1.0f + expf(-u));
#else
    return __fdividef(1.0f, 1.0f + __expf(-u));  // 2 ulp off, far below a 16-bit result's rounding
#endif
}

__device__ __forceinline__ float gelu(float x) { return x * sigmoid(SLOPE * (x + CUBE * x * x * x)); }
