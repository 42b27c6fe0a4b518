/* Sixteen keys are turned once, so that each lane is a key, and meet all queries of the rows. A score
   is the sum that `four_sums` of attention.c takes, in the same order. */
#include "attention_rows.h"

enum { TOGETHER = 4, MOST_DIM = 128 }; /* queries at a time */
#define PICK __builtin_shufflevector

int rows_together(const head_shape *s, const row_batch *b, int row) {
    if (s->head_dim != 64 && s->head_dim != 128) return 1;
    if (row && b->table[row] == b->table[row - 1] && b->position[row] % MOST_ROWS_TOGETHER) return 0;
    int end = row + 1;
    while (end < b->rows && b->table[end] == b->table[row] && b->position[end] % MOST_ROWS_TOGETHER)
        end++;
    return end - row;
}

/* [16][16] transposed: each round turns the place of a number, row and column as one word, by a bit. */
INLINE void transpose(floats *v) {
    for (int round = 0; round < 4; round++) {
        floats w[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            floats a = v[i], b = v[i + LANES / 2];
            w[2 * i] = PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            w[2 * i + 1] = PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) v[i] = w[i];
    }
}

/* The keys from `key` on -> turned [head_dim][16]; lanes behind the last repeat the first. */
INLINE void turn(const keys *s, int key, floats *turned, const int chunks) {
    const float *from[LANES];
    for (int lane = 0, end; lane < LANES;) {
        if (key + lane >= s->last) {
            from[lane++] = from[0];
            continue;
        }
        const float *k = run_of(s, s->cache->k, key + lane, &end);
        for (; lane < LANES && key + lane < end; k += chunks * LANES) from[lane++] = k;
    }
    for (int n = 0; n < chunks; n++) {
        floats v[LANES];
#pragma GCC unroll 16
        for (int lane = 0; lane < LANES; lane++) v[lane] = load(from[lane] + n * LANES);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) turned[n * LANES + i] = v[i];
    }
}

/* Lane `lane` of the products of TOGETHER queries with sixteen keys. */
INLINE void lane_of(const floats *turned, const float *q, int lane, floats *to, const int chunks) {
#pragma GCC unroll 4
    for (int m = 0; m < TOGETHER; m++) to[m] = (floats){0};
#pragma GCC unroll 8
    for (int n = 0; n < chunks; n++)
#pragma GCC unroll 4
        for (int m = 0; m < TOGETHER; m++)
            to[m] += turned[n * LANES + lane] * q[(m * chunks + n) * LANES + lane];
}

INLINE void add_to(floats *a, const floats *b) {
#pragma GCC unroll 4
    for (int m = 0; m < TOGETHER; m++) a[m] += b[m];
}

/* (lane + lane 2) + (lane 1 + lane 3), counted from `lane`. */
INLINE void four_lanes(const floats *turned, const float *q, int lane, floats *to,
                       const int chunks) {
    floats other[TOGETHER], next[TOGETHER];
    lane_of(turned, q, lane, to, chunks);
    lane_of(turned, q, lane + 2, next, chunks);
    add_to(to, next);
    lane_of(turned, q, lane + 1, other, chunks);
    lane_of(turned, q, lane + 3, next, chunks);
    add_to(other, next);
    add_to(to, other);
}

/* q [TOGETHER, head_dim], scaled, with sixteen keys -> scores [TOGETHER, most]. */
INLINE void score(const floats *turned, const float *q, float *scores, int most, const int chunks) {
    floats low[TOGETHER], high[TOGETHER], next[TOGETHER];
    four_lanes(turned, q, 0, low, chunks);
    four_lanes(turned, q, 8, next, chunks);
    add_to(low, next);
    four_lanes(turned, q, 4, high, chunks);
    four_lanes(turned, q, 12, next, chunks);
    add_to(high, next);
    add_to(low, high);
#pragma GCC unroll 4
    for (int m = 0; m < TOGETHER; m++) store(scores + (long)m * most, low[m]);
}

typedef struct {
    const float *shares; /* of key s->first on */
    float mass;
    int first, last;
    floats *sums; /* [chunks] */
} query;

/* Adds the values of keys from..end-1 to Q queries, key after key. */
INLINE void weigh(const keys *s, int from, int end, const query *of, const int Q,
                  const int chunks) {
    floats sums[TOGETHER][MOST_DIM / LANES];
    const float *shares[TOGETHER];
#pragma GCC unroll 4
    for (int m = 0; m < Q; m++) {
        shares[m] = of[m].shares - s->first;
#pragma GCC unroll 8
        for (int n = 0; n < chunks; n++) sums[m][n] = of[m].sums[n];
    }
    for (int j = from, stop; j < end; j = stop) {
        const float *v = run_of(s, s->cache->v, j, &stop);
        if (stop > end) stop = end;
        for (int i = j; i < stop; i++, v += chunks * LANES) {
            floats value[MOST_DIM / LANES];
#pragma GCC unroll 8
            for (int n = 0; n < chunks; n++) value[n] = load(v + n * LANES);
#pragma GCC unroll 4
            for (int m = 0; m < Q; m++) {
                const float share = shares[m][i];
#pragma GCC unroll 8
                for (int n = 0; n < chunks; n++) sums[m][n] += value[n] * share;
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < Q; m++)
#pragma GCC unroll 8
        for (int n = 0; n < chunks; n++) of[m].sums[n] = sums[m][n];
}

/* Keys that all of Q queries see are read once; those at the edges by each query that sees them,
   so that what a row must not see cannot reach it, be it no number. */
INLINE void weigh_all(const keys *s, const query *of, const int Q, const int chunks) {
    int from = of[0].first, end = of[0].last;
    for (int m = 1; m < Q; m++) {
        from = of[m].first > from ? of[m].first : from;
        end = of[m].last < end ? of[m].last : end;
    }
    if (end < from) end = from;
    for (int m = 0; m < Q; m++)
        weigh(s, of[m].first, from < of[m].last ? from : of[m].last, of + m, 1, chunks);
    weigh(s, from, end, of, Q, chunks);
    for (int m = 0; m < Q; m++) weigh(s, end, of[m].last, of + m, 1, chunks);
}

INLINE void attend(const keys *s, const int *first, const int *last, int rows, const float *q,
                   int stride, int heads, float *scores, int most, float *out, const int chunks) {
    enum { AT_ONCE = 16 }; /* sums that fit into registers */
    const int dim = chunks * LANES, count = rows * heads;
    const int padded = (count + TOGETHER - 1) / TOGETHER * TOGETHER;
    const float scale = 1.0f / sqrtf(dim);
    floats turned[MOST_DIM], sums[MOST_QUERIES][MOST_DIM / LANES];
    float scaled[MOST_QUERIES * MOST_DIM];
    query queries[MOST_QUERIES];
    memset(sums, 0, sizeof(sums));
    for (int i = 0; i < count; i++)
        for (int d = 0; d < dim; d++)
            scaled[i * dim + d] = q[(long)(i / heads) * stride + i % heads * dim + d] * scale;
    memset(scaled + count * dim, 0, (padded - count) * dim * sizeof(float));
    for (int j = s->first; j < s->last; j += LANES) {
        turn(s, j, turned, chunks);
        for (int i = 0; i < padded; i += TOGETHER)
            score(turned, scaled + i * dim, scores + (long)i * most + j - s->first, most, chunks);
    }
    for (int i = 0; i < count; i++) {
        const int row = i / heads;
        float *own = scores + (long)i * most;
        const float mass = shares(own + first[row] - s->first, last[row] - first[row]);
        queries[i] = (query){own, mass, first[row], last[row], sums[i]};
    }
    int i = 0;
    for (; i + AT_ONCE / chunks <= count; i += AT_ONCE / chunks)
        weigh_all(s, queries + i, AT_ONCE / chunks, chunks);
    for (; i < count; i++) weigh_all(s, queries + i, 1, chunks);
    const int all = s->shape->heads * dim;
    for (i = 0; i < count; i++)
        for (int n = 0; n < chunks; n++)
            store(out + (long)(i / heads) * all + i % heads * dim + n * LANES,
                  sums[i][n] * (1.0f / queries[i].mass));
}

void attend_rows(const keys *s, const int *first, const int *last, int rows, const float *q,
                 int stride, int heads, float *scores, int most, float *out) {
    keys seen = *s;
    for (int row = 1; row < rows; row++) {
        seen.first = first[row] < seen.first ? first[row] : seen.first;
        seen.last = last[row] > seen.last ? last[row] : seen.last;
    }
    if (s->shape->head_dim == 64)
        attend(&seen, first, last, rows, q, stride, heads, scores, most, out, 4);
    else
        attend(&seen, first, last, rows, q, stride, heads, scores, most, out, 8);
}
