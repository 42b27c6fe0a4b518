/* The keys and values that a query sees, run by run of neighbours in its pages. */
#pragma once
#include "attention.h"
#include "vector.h"

enum { MOST_CHUNKS = 16 }; /* head_dim up to 256 */

INLINE float *slot(float *base, const head_shape *s, const cache *c, const row_batch *b, int row,
                   int head, int position) {
    const long page = b->pages[b->table[row] + position / c->page_size];
    return base + ((page * s->kv_heads + head) * c->page_size + position % c->page_size) * s->head_dim;
}

typedef struct {
    const head_shape *shape;
    const cache *cache;
    const row_batch *rows;
    int row, kv_head, first, last;
} keys;

/* Where the run of neighbouring keys from `key` on ends, and the first of its vectors. */
INLINE const float *run_of(const keys *s, float *base, int key, int *end) {
    const int page_end = (key / s->cache->page_size + 1) * s->cache->page_size;
    *end = page_end < s->last ? page_end : s->last;
    return slot(base, s->shape, s->cache, s->rows, s->row, s->kv_head, key);
}

INLINE floats share_of(float *scores, int count, float highest) {
    floats share = exponential(load_some(scores, count, -INFINITY) - highest);
    store_some(scores, count, share);
    return share;
}

/* scores -> e^(score - highest), their sum returned. */
INLINE float shares(float *scores, int count) {
    const int whole = count / LANES * LANES, rest = count - whole;
    floats high = load_some(scores + whole, rest, -INFINITY), mass = {0};
    for (int i = 0; i < whole; i += LANES) high = maximum(high, load(scores + i));
    float highest = high[0];
    for (int i = 1; i < LANES; i++) highest = high[i] > highest ? high[i] : highest;
    for (int i = 0; i < whole; i += LANES) mass += share_of(scores + i, LANES, highest);
    if (rest) mass += share_of(scores + whole, rest, highest);
    return sum(mass);
}
