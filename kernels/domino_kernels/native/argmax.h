/* The place of the highest value of each row; the lowest place on ties. */
#pragma once
#include "pool.h"
#include <stdint.h>

enum { BLOCK = 4096 };

typedef struct {
    float value;
    int place; /* -1: a NaN was there */
} best;

/* Two phases: x [rows, n] -> places [rows], -1 where a row holds a NaN;
   found: scratch for each started BLOCK of each row. */
void argmax_phase(team *, const float *x, int rows, int n, best *found, int64_t *places);
