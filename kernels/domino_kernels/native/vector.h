/* Sixteen floats at a time, whatever the processor's registers hold; exp and sums over them. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };
typedef float floats __attribute__((vector_size(64), may_alias));
typedef uint32_t words __attribute__((vector_size(64), may_alias));
typedef float floats_unaligned __attribute__((vector_size(64), may_alias, aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE floats load(const float *p) { return *(const floats_unaligned *)p; }
INLINE void store(float *p, floats v) { *(floats_unaligned *)p = v; }

INLINE floats load_some(const float *p, int count, float rest) {
    floats v = {0};
    v += rest;
    memcpy(&v, p, count * sizeof(float));
    return v;
}

INLINE void store_some(float *p, int count, floats v) { memcpy(p, &v, count * sizeof(float)); }

/* A vector or, of a last one, the first `count` numbers: memcpy of a count that varies is a call. */
INLINE floats load_up_to(const float *p, int count) {
    return count >= LANES ? load(p) : load_some(p, count, 0);
}

INLINE void store_up_to(float *p, int count, floats v) {
    if (count >= LANES)
        store(p, v);
    else
        store_some(p, count, v);
}

/* Always the same tree of additions. */
INLINE float sum(floats v) {
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return v[0];
}

/* 1 / sqrt(mean of squares + eps) of x [n]. */
INLINE float inverse_rms(const float *x, int n, float eps) {
    floats squares = {0};
    for (int i = 0; i < n; i += LANES) {
        floats v = n - i < LANES ? load_some(x + i, n - i, 0) : load(x + i);
        squares += v * v;
    }
    return 1.0f / sqrtf(sum(squares) / n + eps);
}

INLINE floats blend(words mask, floats yes, floats no) {
    return (floats)((mask & (words)yes) | (~mask & (words)no));
}

INLINE floats maximum(floats a, floats b) { return blend((words)(a > b), a, b); }
INLINE floats minimum(floats a, floats b) { return blend((words)(a < b), a, b); }

/* e^x within 2 ulp: 2^n e^r with |r| <= ln(2)/2, e^r by its series; flushed to 0 below -87. */
INLINE floats exponential(floats x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const floats zero = {0};
    words tiny = (words)(x < zero - 87.0f);
    x = maximum(minimum(x, zero + 88.0f), zero - 87.0f);
    floats shifted = x * 1.44269504f + magic;
    floats n = shifted - magic;
    floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    floats p = zero + 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    words scaled = (words)p + ((words)shifted << 23);
    return (floats)(scaled & ~tiny);
}

INLINE floats sigmoid(floats x) { return 1.0f / (exponential(-x) + 1.0f); }

INLINE floats silu(floats x) { return x * sigmoid(x); }

/* Within 1e-7 of the exact value, absolutely. */
INLINE floats hyperbolic_tangent(floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }
