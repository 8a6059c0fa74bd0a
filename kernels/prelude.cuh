// What every kernel file starts from: the activation type, 16-byte packs, reductions in a fixed order.
//
// ACT is a compile option: 0 float32, 1 bfloat16, 2 float16. It is the type of activations and of their gradients;
// weights' gradients, m, v, losses and statistics are always float32. All arithmetic is float32.

#pragma once
#define ACT_FP32 0
#define ACT_BF16 1
#define ACT_FP16 2
#ifndef ACT
#error "compile with -DACT=0 (float32), 1 (bfloat16) or 2 (float16)"
#endif

#if ACT == ACT_BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 act_t;
typedef __nv_bfloat162 Pair;
__device__ __forceinline__ float to_float(act_t v) { return __bfloat162float(v); }
__device__ __forceinline__ act_t to_act(float v) { return __float2bfloat16_rn(v); }
#elif ACT == ACT_FP16
#include <cuda_fp16.h>
typedef __half act_t;
typedef __half2 Pair;
__device__ __forceinline__ float to_float(act_t v) { return __half2float(v); }
__device__ __forceinline__ act_t to_act(float v) { return __float2half_rn(v); }
#else
typedef float act_t;
__device__ __forceinline__ float to_float(act_t v) { return v; }
__device__ __forceinline__ act_t to_act(float v) { return v; }
#endif

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr int WARP = 32;
constexpr unsigned FULL = 0xffffffffu;        // every lane takes part
constexpr int PACK = 16 / (int)sizeof(act_t);  // elements of one 16-byte access: 4 or 8

// PACK consecutive elements, moved as one 16-byte access. The address must be a multiple of 16 bytes.
struct alignas(16) Pack {
    act_t v[PACK];
#if ACT == ACT_BF16  // a float's upper half: one operation each, where single elements take two
    __device__ __forceinline__ float get(int i) const {
        return __uint_as_float(i % 2 ? words()[i / 2] & 0xffff0000u : words()[i / 2] << 16);
    }
#else
    __device__ __forceinline__ float get(int i) const { return to_float(v[i]); }
#endif
    __device__ __forceinline__ void set(int i, float x) { v[i] = to_act(x); }
    __device__ __forceinline__ unsigned* words() { return reinterpret_cast<unsigned*>(v); }
    __device__ __forceinline__ const unsigned* words() const { return reinterpret_cast<const unsigned*>(v); }
};
__device__ __forceinline__ Pack load_pack(const act_t* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(act_t* p, const Pack& v) { *reinterpret_cast<Pack*>(p) = v; }

// Two floats, rounded, in one register: `low` in its lower half. PAIR is the type's name in PTX.
#if ACT != ACT_FP32
#if ACT == ACT_BF16
#define PAIR "bf16"
#else
#define PAIR "f16"
#endif
__device__ __forceinline__ unsigned pack2(float low, float high) {
    unsigned u;
    asm("cvt.rn." PAIR "x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}
#endif

constexpr float LOG2E = 1.4426950408889634f;
__device__ __forceinline__ float exp2_fast(float x) {  // 2 ulp off; -inf gives 0, and so does what lies under 2^-126
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ int lane_id() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / WARP; }

// Sum and maximum over the 32 lanes of a warp, returned to every lane; the xor tree is a fixed order.
__device__ __forceinline__ float warp_sum(float v) {
    for (int d = WARP / 2; d > 0; d >>= 1) v += __shfl_xor_sync(FULL, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
    for (int d = WARP / 2; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, d));
    return v;
}

// Sum and maximum over the block, returned to every thread, in a fixed order.
// blockDim.x must be a multiple of 32 and at most 1024. May be called again at once.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float part[WARP];
    v = warp_sum(v);
    if (lane_id() == 0) part[warp_id()] = v;
    __syncthreads();
    v = lane_id() < (int)blockDim.x / WARP ? part[lane_id()] : 0.0f;
    __syncthreads();  // part is reused by the next call
    return warp_sum(v);
}
__device__ __forceinline__ float block_max(float v) {
    __shared__ float part[WARP];
    v = warp_max(v);
    if (lane_id() == 0) part[warp_id()] = v;
    __syncthreads();
    v = part[lane_id() < (int)blockDim.x / WARP ? lane_id() : 0];
    __syncthreads();
    return warp_max(v);
}
