/* Linear layers over weights packed once: y = x W^T + b in float32, rows independent of each other. */
#pragma once
#include "pool.h"
#include <stdint.h>

enum { TILE = 32 }; /* outputs computed together; weights are stored tile by tile */

typedef struct {
    const void *weight; /* [tiles][in][TILE]: float32, or bfloat16 with outputs i and i + 16 paired */
    const float *bias;  /* [out] or NULL */
    int in, out;
    int half; /* whether the weights are bfloat16 */
} linear;

/* A phase of the team: y [rows, out] = x [rows, in] W^T + b, added to what y holds where `add`. */
void linear_phase(team *, const linear *, const float *x, float *y, int rows, _Bool add);
