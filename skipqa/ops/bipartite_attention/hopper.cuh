// Single instructions of a Hopper GPU under names, for the kernels in `*.cu`.
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
// All programs of a cluster have come this far, and see what the others wrote before.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
// What was written to shared memory by ordinary instructions is there for the tensor cores too.
__device__ __forceinline__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ uint4 load_matrices(u32 at) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

// Products of a warpgroup: 64 rows of A, each warp's 16 in its registers, with B in shared memory.
__device__ __forceinline__ void product_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all but the LATER last groups; names their accumulators, so that nothing reads them
// earlier.
template <int LATER, int N>
__device__ __forceinline__ void product_wait(float (&x)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
// A matrix in rows of 128 bytes whose 16-byte columns are exchanged by the row's number mod 8
// (128-byte swizzle); `next` bytes lead to the next 64 columns.
__device__ __forceinline__ u64 matrix_at(u32 at, u32 next) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(next >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

#define F4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define F16(x, i) F4(x, i), F4(x, i + 4), F4(x, i + 8), F4(x, i + 12)
#define R10(a) \
  "%" #a "0,%" #a "1,%" #a "2,%" #a "3,%" #a "4,%" #a "5,%" #a "6,%" #a "7,%" #a "8,%" #a "9"
#define R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9"

// x = a b^T, or added to x: 104 rows of b, of which 16 columns.
__device__ __forceinline__ void product_rows(float (&x)[52], uint4 a, u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %57, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n104k16.f32." TYPE "." TYPE " {" R0
      "," R10(1) "," R10(2) "," R10(3) "," R10(4) ",%50,%51}, {%52,%53,%54,%55}, %56, p, 1, 1, 0; }"
      : F16(x, 0), F16(x, 16), F16(x, 32), F4(x, 48)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
// x = a b, or added to x: 16 rows of b.
__device__ __forceinline__ void product_columns(float (&x)[64], uint4 a, u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" R0
      "," R10(1) "," R10(2) "," R10(3) "," R10(4) "," R10(
          5) ",%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
      : F16(x, 0), F16(x, 16), F16(x, 32), F16(x, 48)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void product_columns(float (&x)[32], uint4 a, u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" R0
      "," R10(1) "," R10(2) ",%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
      : F16(x, 0), F16(x, 16)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
// x = a b, or added to x: both in shared memory, each as it lies or transposed; 64 columns.
template <int TRANSPOSE_A, int TRANSPOSE_B>
__device__ __forceinline__ void product_64(float (&x)[32], u64 a, u64 b, int add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" R0
      "," R10(1) "," R10(2) ",%30,%31}, %32, %33, p, 1, 1, %35, %36; }"
      : F16(x, 0), F16(x, 16)
      : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSE_A), "n"(TRANSPOSE_B));
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

// The same value, computed where it is used: what is kept over a loop costs a register.
__device__ __forceinline__ u32 here(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Predicated, without a branch; zeros if not wanted. Past the L1 cache.
__device__ __forceinline__ uint4 load4_if(bool wanted, const void* at) {
  uint4 x = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; "
      "@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
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
