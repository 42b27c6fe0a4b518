/* Rotary heads, paged keys and values, and the attention over them. */
#pragma once
#include "pool.h"

enum {
    MOST_TOGETHER = 4,                         /* heads that read their keys together */
    MOST_ROWS_TOGETHER = 8,                    /* rows of one sequence that do */
    MOST_QUERIES = MOST_ROWS_TOGETHER * MOST_TOGETHER,
};

typedef struct {
    float *k, *v; /* one layer's [pages, kv_heads, page_size, head_dim] */
    int page_size;
} cache;

typedef struct {
    int heads, kv_heads, head_dim;
    float eps;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *cos, *sin;       /* [positions, head_dim / 2] */
} head_shape;

typedef struct {
    int rows;
    const int *position; /* [rows] */
    const int *table;    /* [rows]: where the pages of the row's sequence begin in `pages` */
    const int *pages;
} row_batch;

/* A phase: norms and rotates the keys of kv [rows, stride] (keys at column `keys`, values behind
   them) into the cache, and where q is not NULL the queries of q [rows, stride] in place. */
void heads_phase(team *, const head_shape *, const cache *, const row_batch *, float *q,
                 const float *keys, int stride);
/* A phase: q [rows, stride] -> out [rows, heads * head_dim]; a row sees the keys first..last-1.
   scores: scratch of MOST_QUERIES * most floats a thread; most: the widest range, and 32 more. */
void attention_phase(team *, const head_shape *, const cache *, const row_batch *, const float *q,
                     int stride, const int *first, const int *last, float *scores, int most,
                     float *out);
