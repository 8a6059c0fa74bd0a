// What 16-bit and float32 attention share: the scale of the scores and their exponential. D is the head width.

#include "prelude.cuh"

static_assert(D == 32 || D == 64 || D == 128, "head width 32, 64 or 128");

constexpr int BLOCK = 128;  // threads
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SCALE = D == 32 ? 0.17677669529663687f : D == 64 ? 0.125f : 0.08838834764831845f;  // 1 / sqrt(D)
constexpr float SCALE2 = SCALE * LOG2E;  // exp(x * SCALE) = exp2(x * SCALE2)

__device__ __forceinline__ float exp2_fast(float x) {  // 2 ulp; -inf gives 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
