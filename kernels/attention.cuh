// What 16-bit and float32 attention share: the scale of the scores. D is the head width.

#include "prelude.cuh"

static_assert(D == 32 || D == 64 || D == 128, "head width 32, 64 or 128");

constexpr int BLOCK = 128;  // threads
constexpr float SCALE = D == 32 ? 0.17677669529663687f : D == 64 ? 0.125f : 0.08838834764831845f;  // 1 / sqrt(D)
constexpr float SCALE2 = SCALE * LOG2E;  // exp(x * SCALE) = exp2(x * SCALE2)
