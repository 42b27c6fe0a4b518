/* Products with weights of 8 bits, where the processor multiplies bytes; for drafts, which may err. */
#pragma once
#include "linear.h"

/* As linear_phase, for INT8. */
void int8_phase(team *, const linear *, const float *x, float *y, int rows, _Bool add);
