/* A query's result depends on its own keys alone, taken in the order of their positions. */
#include "attention_rows.h"
#include "keys.h"

#define PICK __builtin_shufflevector

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

/* Of four vectors at once, each by the same tree. */
INLINE void four_sums(floats a, floats b, floats c, floats d, float *sums) {
    floats ab = PICK(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                PICK(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    floats cd = PICK(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
                PICK(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    floats v = PICK(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               PICK(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    v += PICK(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += PICK(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    store_some(sums, 4, v);
}

/* scores[i]: the scaled product of q with key first + i. */
INLINE void score(const keys *s, const float *q, float *scores, const int chunks,
                  const _Bool whole) {
    const int dim = s->shape->head_dim;
    const float scale = 1.0f / sqrtf(dim);
    floats query[MOST_CHUNKS] = {0};
#pragma GCC unroll 16
    for (int n = 0; n < chunks; n++) query[n] = chunk(q, n, dim, whole) * scale;
    for (int j = s->first, end; j < s->last; j = end) {
        const float *k = run_of(s, s->cache->k, j, &end);
        for (int i = j; i < end; i += 4, k += 4 * dim) {
            floats products[4];
#pragma GCC unroll 4
            for (int lane = 0; lane < 4; lane++) {
                const float *key = k + (i + lane < end ? lane : 0) * dim;
                products[lane] = (floats){0};
#pragma GCC unroll 16
                for (int n = 0; n < chunks; n++)
                    products[lane] += query[n] * chunk(key, n, dim, whole);
            }
            /* up to three behind the end: overwritten by the next run, or never read */
            four_sums(products[0], products[1], products[2], products[3], scores + i - s->first);
        }
    }
}

/* G heads that share their keys: q, out [G, head_dim], scores [G, most]. */
INLINE void attend(const keys *s, const float *q, float *scores, int most, float *out,
                   const int G, const int chunks, const _Bool whole) {
    const int dim = s->shape->head_dim;
    floats acc[MOST_TOGETHER][MOST_CHUNKS];
    float mass[MOST_TOGETHER];
    for (int g = 0; g < G; g++) {
        score(s, q + g * dim, scores + g * most, chunks, whole);
        mass[g] = shares(scores + g * most, s->last - s->first);
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 16
        for (int n = 0; n < chunks; n++) acc[g][n] = (floats){0};
    for (int j = s->first, end; j < s->last; j = end) {
        const float *v = run_of(s, s->cache->v, j, &end);
        for (int i = j; i < end; i++, v += dim)
#pragma GCC unroll 16
            for (int n = 0; n < chunks; n++) {
                floats value = chunk(v, n, dim, whole);
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) acc[g][n] += value * scores[g * most + i - s->first];
            }
    }
    for (int g = 0; g < G; g++)
        for (int n = 0; n < chunks; n++) {
            const int left = dim - n * LANES;
            store_some(out + g * dim + n * LANES, left < LANES ? left : LANES,
                       acc[g][n] * (1.0f / mass[g]));
        }
}

#define ATTEND(G, DIM)                                                                           \
    static void attend_##G##_##DIM(const keys *s, const float *q, float *scores, int most,       \
                                   float *out) {                                                 \
        attend(s, q, scores, most, out, G, DIM / LANES, 1);                                      \
    }
ATTEND(1, 64)
ATTEND(2, 64)
ATTEND(3, 64)
ATTEND(4, 64)
ATTEND(1, 128)
ATTEND(2, 128)
static void attend_any(const keys *s, const float *q, float *scores, int most, float *out) {
    attend(s, q, scores, most, out, 1, (s->shape->head_dim + LANES - 1) / LANES, 0);
}

typedef void (*kernel)(const keys *, const float *q, float *scores, int most, float *out);
static const kernel by_64[] = {attend_1_64, attend_2_64, attend_3_64, attend_4_64};
static const kernel by_128[] = {attend_1_128, attend_2_128};

/* The kernel of the most heads at a time that divide the group. */
static kernel choose(int dim, int group, int *heads) {
    const int most = dim == 64 ? 4 : dim == 128 ? 2 : 1;
    for (*heads = most; group % *heads; --*heads) continue;
    return dim == 64 ? by_64[*heads - 1] : dim == 128 ? by_128[*heads - 1] : attend_any;
}

void attention_phase(team *me, const head_shape *s, const cache *c, const row_batch *b,
                     const float *q, int stride, const int *first, const int *last, float *scores,
                     int most, float *out) {
    const int dim = s->head_dim, group = s->heads / s->kv_heads;
    int together;
    const kernel run = choose(dim, b->rows > 1 ? group : 1, &together);
    float *own = scores + (long)team_thread(me) * MOST_QUERIES * most;
    const int parts = s->heads / together;
    for (int item, end; team_take(me, b->rows * parts, 1, &item, &end);) {
        const int row = item / parts, head = item % parts * together;
        const int rows = rows_together(s, b, row);
        const float *from = q + (long)row * stride + head * dim;
        float *to = out + ((long)row * s->heads + head) * dim;
        keys seen = {s, c, b, row, head / group, first[row], last[row]};
        if (rows == 1) run(&seen, from, own, most, to);
        if (rows > 1) attend_rows(&seen, first + row, last + row, rows, from, stride, together, own, most, to);
    }
    team_barrier(me);
}
