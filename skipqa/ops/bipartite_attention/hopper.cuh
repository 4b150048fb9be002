// Single instructions of a Hopper GPU under names, for `gathered.cu` and `merge.cu`.
//
// HALF: numbers are float16, else bfloat16.

#pragma once

#ifdef HALF
#define TYPE "f16"
#else
#define TYPE "bf16"
#endif
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ u32 shared_address(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void barrier_init(u32 at, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(u32 at) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@!p bra again; }" ::"r"(at),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ int read_int(u32 at) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ int read_u16(u32 at) {
  u16 x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ uint4 load_matrices(u32 at) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ __forceinline__ uint4 load_transposed(u32 at) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ __forceinline__ void mma16(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma8(float* c, u32 a0, u32 a1, u32 b0) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE
               ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 x;
  asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
  return x;
}
__device__ __forceinline__ float2 unpack(u32 x) {
  float2 y;
#ifdef HALF
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
      : "=f"(y.x), "=f"(y.y)
      : "r"(x));
#else
  y.x = __uint_as_float(x << 16);
  y.y = __uint_as_float(x & 0xffff0000u);
#endif
  return y;
}
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same value, computed with where it is used: what is kept over the loop costs a register.
__device__ __forceinline__ int here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Past the L1 cache, which local memory needs.
__device__ __forceinline__ uint4 load_global(const void* at) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at)
               : "memory");
  return x;
}
// Predicated, without a branch.
__device__ __forceinline__ float load_float_if(bool wanted, const void* at) {
  float x = -INFINITE;
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.f32 %0, [%1]; }"
               : "+f"(x)
               : "l"(at), "r"((int)wanted)
               : "memory");
  return x;
}
__device__ __forceinline__ void store4_if(bool wanted, void* at, u32 a, u32 b, u32 c, u32 d) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.u32 [%4], {%0,%1,%2,%3}; }" ::"r"(a),
      "r"(b), "r"(c), "r"(d), "l"(at), "r"((int)wanted)
      : "memory");
}
__device__ __forceinline__ void store2_if(bool wanted, void* at, u32 a, u32 b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.u32 [%2], {%0,%1}; }" ::"r"(a), "r"(b),
      "l"(at), "r"((int)wanted)
      : "memory");
}
