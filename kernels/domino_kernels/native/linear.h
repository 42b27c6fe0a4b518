/* Linear layers over weights packed once: y = x W^T + b in float32, rows independent of each other. */
#pragma once
#include "pool.h"
#include <stdint.h>

enum { TILE = 32 }; /* outputs computed together; weights are stored tile by tile */
enum { FULL, HALF, INT8 }; /* kinds of weights */

typedef struct {
    const void *weight; /* [tiles][in][TILE]: float32, or bfloat16 with outputs i and i + 16 paired;
                           8 bits: [tiles][in / 4][TILE][4] */
    const float *bias;  /* [out] or NULL */
    const float *scale; /* [tiles * TILE], of 8 bits: what one is worth */
    const int32_t *start; /* [tiles * TILE], of 8 bits: -128 times the sum of an output's weights */
    int in, out;
    int kind;
} linear;

/* Tiles handed out at a time. */
static inline int grain_of(int tiles) { return tiles > 256 ? 16 : tiles > 24 ? 4 : 1; }

/* A phase of the team: y [rows, out] = x [rows, in] W^T + b, added to what y holds where `add`. */
void linear_phase(team *, const linear *, const float *x, float *y, int rows, _Bool add);

/* Whether gated_phase takes a layer. */
static inline _Bool can_be_gated(const linear *l) {
    return l->kind != INT8 && l->out % (2 * TILE) == 0;
}
/* A phase: gates and ups of l [2 n, in] -> y [rows, n] = silu(gate) * up. */
void gated_phase(team *, const linear *, const float *x, float *y, int rows);
