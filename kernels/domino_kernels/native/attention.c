/* A query's result depends on its own keys alone, taken in the order of their positions. */
#include "attention.h"
#include "vector.h"
#include <math.h>

enum { MOST_CHUNKS = 16 }; /* head_dim up to 256 */

static float *slot(float *base, const head_shape *s, const cache *c, const row_batch *b, int row,
                   int head, int position) {
    const long page = b->pages[b->table[row] + position / c->page_size];
    return base + ((page * s->kv_heads + head) * c->page_size + position % c->page_size) * s->head_dim;
}

static float inverse_rms(const float *x, int n, float eps) {
    floats squares = {0};
    for (int i = 0; i < n; i += LANES) {
        floats v = n - i < LANES ? load_some(x + i, n - i, 0) : load(x + i);
        squares += v * v;
    }
    return 1.0f / sqrtf(sum(squares) / n + eps);
}

/* x [head_dim] -> normed where there is a norm, then rotated, to y (may be x). */
static void rotated(const head_shape *s, const float *norm, const float *x, int position, float *y) {
    const int half = s->head_dim / 2;
    const float *cosine = s->cos + (long)position * half, *sine = s->sin + (long)position * half;
    const float scale = norm ? inverse_rms(x, s->head_dim, s->eps) : 1.0f;
    for (int i = 0; i < half; i++) {
        const float a = norm ? x[i] * scale * norm[i] : x[i];
        const float b = norm ? x[i + half] * scale * norm[i + half] : x[i + half];
        y[i] = a * cosine[i] - b * sine[i];
        y[i + half] = b * cosine[i] + a * sine[i];
    }
}

void heads_phase(team *me, const head_shape *s, const cache *c, const row_batch *b, float *q,
                 const float *keys, int stride) {
    const int dim = s->head_dim, items = s->kv_heads + (q ? s->heads : 0);
    for (int item, end; team_take(me, b->rows * items, items, &item, &end);)
        for (; item < end; item++) {
            const int row = item / items, head = item % items, position = b->position[row];
            if (head >= s->kv_heads) {
                float *x = q + (long)row * stride + (head - s->kv_heads) * dim;
                rotated(s, s->q_norm, x, position, x);
                continue;
            }
            const float *key = keys + (long)row * stride + head * dim;
            rotated(s, s->k_norm, key, position, slot(c->k, s, c, b, row, head, position));
            memcpy(slot(c->v, s, c, b, row, head, position), key + s->kv_heads * dim,
                   dim * sizeof(float));
        }
    team_barrier(me);
}

INLINE floats chunk(const float *p, int c, int dim, const _Bool whole) {
    const int left = dim - c * LANES;
    return whole || left >= LANES ? load(p + c * LANES) : load_some(p + c * LANES, left, 0);
}

/* One head of one row; `chunks` vectors cover head_dim, exactly where `whole`. */
INLINE void attend(const head_shape *s, const cache *c, const row_batch *b, int row, int head,
                   const float *q, int first, int last, float *scores, float *out,
                   const int chunks, const _Bool whole) {
    const int dim = s->head_dim, kv_head = head / (s->heads / s->kv_heads);
    const float scale = 1.0f / sqrtf(dim);
    floats query[MOST_CHUNKS], acc[MOST_CHUNKS];
#pragma GCC unroll 16
    for (int i = 0; i < chunks; i++) query[i] = chunk(q, i, dim, whole) * scale;
#pragma GCC unroll 16
    for (int i = 0; i < chunks; i++) acc[i] = (floats){0};
    float highest = -INFINITY;
    for (int j = first, end; j < last; j = end) {
        end = (j / c->page_size + 1) * c->page_size;
        end = end < last ? end : last;
        const float *k = slot(c->k, s, c, b, row, kv_head, j);
        for (int i = j; i < end; i++, k += dim) {
            floats products = {0};
#pragma GCC unroll 16
            for (int n = 0; n < chunks; n++) products += query[n] * chunk(k, n, dim, whole);
            const float score = sum(products);
            scores[i - first] = score;
            highest = score > highest ? score : highest;
        }
    }
    const int count = last - first;
    floats mass = {0};
    for (int i = 0; i < count; i += LANES) {
        const int left = count - i < LANES ? count - i : LANES;
        floats share = exponential(load_some(scores + i, left, -INFINITY) - highest);
        mass += share;
        store_some(scores + i, left, share);
    }
    for (int j = first, end; j < last; j = end) {
        end = (j / c->page_size + 1) * c->page_size;
        end = end < last ? end : last;
        const float *v = slot(c->v, s, c, b, row, kv_head, j);
        for (int i = j; i < end; i++, v += dim)
#pragma GCC unroll 16
            for (int n = 0; n < chunks; n++) acc[n] += scores[i - first] * chunk(v, n, dim, whole);
    }
    const float inverse = 1.0f / sum(mass);
#pragma GCC unroll 16
    for (int i = 0; i < chunks; i++) {
        const int left = dim - i * LANES;
        store_some(out + i * LANES, left < LANES ? left : LANES, acc[i] * inverse);
    }
}

void attention_phase(team *me, const head_shape *s, const cache *c, const row_batch *b,
                     const float *q, int stride, const int *first, const int *last, float *scores,
                     int most, float *out) {
    const int dim = s->head_dim, chunks = (dim + LANES - 1) / LANES;
    float *own = scores + (long)team_thread(me) * most;
    for (int item, end; team_take(me, b->rows * s->heads, 1, &item, &end);) {
        const int row = item / s->heads, head = item % s->heads;
        const float *query = q + (long)row * stride + head * dim;
        float *to = out + ((long)row * s->heads + head) * dim;
        if (dim == 64)
            attend(s, c, b, row, head, query, first[row], last[row], own, to, 4, 1);
        else if (dim == 128)
            attend(s, c, b, row, head, query, first[row], last[row], own, to, 8, 1);
        else
            attend(s, c, b, row, head, query, first[row], last[row], own, to, chunks, 0);
    }
    team_barrier(me);
}
