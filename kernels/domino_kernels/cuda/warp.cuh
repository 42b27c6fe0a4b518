// What the kernels ask of a GPU, by name; tests/kernels/emulated_warp.h is the same on a CPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
struct __align__(16) Quad { u32 x, y, z, w; };
struct __align__(8) Words { u32 x, y; };

#define KERNEL extern "C" __global__
#define LIMITS(threads) __launch_bounds__(threads, 1)
#define FUNCTION __device__ __forceinline__
#define THREAD ((int)threadIdx.x)
#define CTA ((int)blockIdx.x)
extern __shared__ __align__(16) u8 shared_memory[];

FUNCTION int again(int v) {  // v, so that what follows from it is not kept in registers
  asm volatile("" : "+r"(v));
  return v;
}
FUNCTION void sync() { __syncthreads(); }
FUNCTION void converge() { __syncwarp(); }
FUNCTION u32 shuffle_xor(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
FUNCTION int warp_max(int v) { return __reduce_max_sync(0xffffffffu, v); }
FUNCTION u32 votes(bool v) { return __ballot_sync(0xffffffffu, v); }
FUNCTION int as_int(float v) { return __float_as_int(v); }
FUNCTION float as_float(int v) { return __int_as_float(v); }
FUNCTION float fast_exp(float v) { return __expf(v); }
FUNCTION float reciprocal(float v) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
FUNCTION int shared_add(int *at, int v) { return atomicAdd(at, v); }
FUNCTION void shared_max(int *at, int v) { atomicMax(at, v); }
FUNCTION void shared_max(s64 *at, s64 v) { atomicMax(at, v); }

// Words that other CTAs, or other GPUs, write while this kernel runs.
FUNCTION Quad peek16(const void *at) {
  Quad v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
FUNCTION s64 peek8(const void *at) {
  s64 v;
  asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(v) : "l"(at));
  return v;
}
FUNCTION int peek4(const void *at) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
FUNCTION void poke(s64 *at, s64 v) {
  asm volatile("st.relaxed.sys.global.s64 [%0], %1;" ::"l"(at), "l"(v));
}
FUNCTION void poke(int *at, int v) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(v));
}
FUNCTION void poke(u16 *at, u16 v) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(at), "h"(v));
}
FUNCTION void wait_a_little() {}

FUNCTION Quad read16(const void *at) {  // never written while the kernel runs
  Quad v;
  asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}
FUNCTION void prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
FUNCTION void copy16(void *to, const void *from) {
  u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from));
}
FUNCTION void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// acc [16, 8] += a [16, 32] b [32, 8], bytes
FUNCTION void multiply_bytes(int *acc, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#ifdef HALF_IS_FP16
#define HALF_TYPE "f16"
#else
#define HALF_TYPE "bf16"
#endif
// acc [16, 8] += a [16, 16] b [16, 8], two-byte floats
FUNCTION void multiply_halves(float *acc, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF_TYPE "." HALF_TYPE ".f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FUNCTION u16 narrow(float v) {
  u16 h;
  asm("cvt.rn." HALF_TYPE ".f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
}
FUNCTION float widen(u16 h) {
#ifdef HALF_IS_FP16
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
  return v;
#else
  return as_float((int)((u32)h << 16));
#endif
}
