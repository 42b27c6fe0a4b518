/* Neighbouring rows of one sequence see nearly the same keys, and read them together. */
#pragma once
#include "keys.h"

/* How many rows from `row` on are attended to together; 0: it belongs to one before. Blocks begin
   at positions that are multiples of MOST_ROWS_TOGETHER. */
int rows_together(const head_shape *, const row_batch *, int row);

/* The same bits as row by row. first, last, q and out are of the first of the rows (2 or more);
   `heads` neighbouring heads share the keys. q [rows, stride], out [rows, heads * head_dim] of all
   heads; scores: MOST_QUERIES * most floats. */
void attend_rows(const keys *, const int *first, const int *last, int rows, const float *q,
                 int stride, int heads, float *scores, int most, float *out);
