// Rows x [n <= 256, K] and weights [2, N, K], gates before ups, in; silu(gate) * up [n, N] out.
//
// A CTA holds all rows and 96 gates with their ups, so that 12,288 columns are 128 CTAs, which run
// at once. One thread copies tiles; two groups of four warps multiply, each 128 of the rows.

struct __align__(128) TensorMap { u8 bytes[128]; };
struct __align__(128) Params {
  TensorMap x, w;
  u16 *out;
  int rows, columns, steps;  // steps: of DEPTH input columns
};

constexpr int STAGES = 4, DEPTH = 64, ROWS = 256, COLUMNS = 96, HALF = ROWS / 2;
constexpr int X_BYTES = ROWS * DEPTH * 2, W_BYTES = 2 * COLUMNS * DEPTH * 2;
constexpr int STAGE = X_BYTES + W_BYTES, BARRIERS = STAGES * STAGE;
constexpr int WARPS = 8;  // that multiply

FUNCTION void barrier_of(u32 at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}
FUNCTION void expect(u32 at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
FUNCTION void arrive(u32 at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
FUNCTION void await(u32 at, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}" ::"r"(at), "r"(parity)
      : "memory");
}
FUNCTION void copy_rows(u32 to, const TensorMap *from, u32 barrier, int k) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, 0}], [%2];" ::"r"(to), "l"(from), "r"(barrier), "r"(k)
      : "memory");
}
FUNCTION void copy_weights(u32 to, const TensorMap *from, u32 barrier, int k, int column) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, 0}], [%2];" ::"r"(to), "l"(from), "r"(barrier), "r"(k), "r"(column)
      : "memory");
}
FUNCTION void after_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// How the matrix unit finds rows of 128 bytes, swizzled in groups of 8.
FUNCTION u64 matrix(u32 at) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define RESULTS \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
  "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)

// d [64, 192] += x [64, 16] w [192, 16]^T, later
FUNCTION void multiply(float (&d)[96], u64 x, u64 w) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
               "{" RESULTS "}, %96, %97, p, 1, 1, 0, 0;\n}"
               : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80)
               : "l"(x), "l"(w));
}

FUNCTION void copy_all(const Params &p, u32 base, u32 full, u32 empty, int column) {
  for (int s = 0; s < STAGES && s < p.steps; ++s) {  // weights are no other kernel's result
    expect(full + 8 * s, STAGE);
    copy_weights(base + s * STAGE + X_BYTES, &p.w, full + 8 * s, s * DEPTH, column);
  }
  after_previous();
  asm volatile("griddepcontrol.launch_dependents;");
  for (int step = 0; step < p.steps; ++step) {
    int s = step % STAGES;
    u32 to = base + s * STAGE;
    if (step >= STAGES) {
      await(empty + 8 * s, (step / STAGES + 1) & 1);
      expect(full + 8 * s, STAGE);
      copy_weights(to + X_BYTES, &p.w, full + 8 * s, step * DEPTH, column);
    }
    copy_rows(to, &p.x, full + 8 * s, step * DEPTH);
  }
}

FUNCTION void multiply_all(float (&a)[96], float (&b)[96], int steps, u32 base, u32 full, u32 empty,
                           int first) {
  for (int i = 0; i < 96; ++i) a[i] = b[i] = 0.0f;
  for (int step = 0; step < steps; ++step) {
    int s = step % STAGES;
    await(full + 8 * s, step / STAGES & 1);
    u64 x = matrix(base + s * STAGE + first * 128), w = matrix(base + s * STAGE + X_BYTES);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) {  // 16 numbers are 32 bytes, in units of 16
      multiply(a, x + 2 * k, w + 2 * k);
      multiply(b, x + 2 * k + 64 * 128 / 16, w + 2 * k);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
    if (step > 0 && THREAD % 32 == 0) arrive(empty + 8 * ((step - 1) % STAGES));
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 96; ++i) asm volatile("" : "+f"(a[i]), "+f"(b[i])::"memory");
}

FUNCTION u32 gated(float g0, float u0, float g1, float u1) {
  u32 both;
  float v0 = g0 * reciprocal(1.0f + fast_exp(-g0)) * u0;
  float v1 = g1 * reciprocal(1.0f + fast_exp(-g1)) * u1;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v1), "f"(v0));
  return both;
}

// d [64, 192], as the matrix unit leaves it, to 64 rows of out from `first` on.
FUNCTION void put(const float (&d)[96], const Params &p, int first, int column) {
  int row = first + THREAD / 32 % 4 * 16 + THREAD % 32 / 4;
#pragma unroll
  for (int i = 0; i < 24; ++i) {
    int g = 4 * (i / 2) + 2 * (i % 2), r = row + 8 * (i % 2), c = column + 8 * (i / 2);
    u32 both = gated(d[g], d[g + 48], d[g + 1], d[g + 49]);
    c += THREAD % 4 * 2;
    if (r < p.rows && c < p.columns) *(u32 *)(p.out + (s64)r * p.columns + c) = both;
  }
}

KERNEL void LIMITS(384) gated_rows(const __grid_constant__ Params p) {
  u32 base = ((u32)__cvta_generic_to_shared(shared_memory) + 1023) & ~1023u;
  u32 full = base + BARRIERS, empty = full + 8 * STAGES;
  int column = CTA * COLUMNS, group = THREAD / 128;
  if (THREAD == 0) {
    for (int s = 0; s < STAGES; ++s) barrier_of(full + 8 * s, 1), barrier_of(empty + 8 * s, WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  sync();
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (THREAD == 0) copy_all(p, base, full, empty, column);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  float a[96], b[96];
  int first = (group - 1) * HALF;
  multiply_all(a, b, p.steps, base, full, empty, first);
  after_previous();
  put(a, p, first, column);
  put(b, p, first + 64, column);
}
