/* Every output is summed over its inputs in one order, whatever the number of rows: SPAN inputs one
   after the other, then span by span. Rows therefore keep their bits. */
#include "linear_int8.h"
#include "vector.h"

enum {
    SPAN = 64,
    AHEAD = 4096, /* bytes of weights that are fetched in advance: prefetchers stop at pages */
    MOST_TILES = 4,
    GROUP = 48, /* rows that share a span of weights while it is in the first-level cache */
#ifdef __AVX512F__
    MOST_ROWS = 12, /* rows at a time, as registers allow */
    MOST_OF_TWO = 6, /* of two tiles */
#else
    MOST_ROWS = 3,
    MOST_OF_TWO = 2,
#endif
};

/* One span of T tiles by M rows, added to total [M][2 T]; `tile` is the distance of two tiles. */
INLINE void span_of(const uint32_t *weight, long tile, const float *x, int in, int count,
                    floats *total, const int M, const int T, const int half) {
    floats acc[MOST_ROWS][MOST_TILES * 2];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int t = 0; t < 2 * T; t++) acc[m][t] = (floats){0};
    for (int k = 0; k < count; k++) {
        floats w[MOST_TILES * 2];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const uint32_t *row = weight + t * tile + (long)k * (half ? LANES : TILE);
            __builtin_prefetch((const char *)row + AHEAD);
            if (half) {
                words pair = *(const words *)row;
                w[2 * t] = (floats)(pair << 16);
                w[2 * t + 1] = (floats)(pair & 0xffff0000u);
            } else {
                w[2 * t] = *(const floats *)row;
                w[2 * t + 1] = *(const floats *)(row + LANES);
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int t = 0; t < 2 * T; t++) acc[m][t] += w[t] * x[(long)m * in + k];
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int t = 0; t < 2 * T; t++) total[m * 2 * T + t] += acc[m][t];
}

typedef void (*kernel)(const uint32_t *weight, long tile, const float *x, int in, int count,
                       floats *total);
#define KERNEL(M, T)                                                                             \
    static void half_##M##_##T(const uint32_t *weight, long tile, const float *x, int in,        \
                               int count, floats *total) {                                       \
        span_of(weight, tile, x, in, count, total, M, T, 1);                                     \
    }                                                                                            \
    static void full_##M##_##T(const uint32_t *weight, long tile, const float *x, int in,        \
                               int count, floats *total) {                                       \
        span_of(weight, tile, x, in, count, total, M, T, 0);                                     \
    }
#define PAIR(M, T) {full_##M##_##T, half_##M##_##T}
KERNEL(1, 4)
KERNEL(2, 2)
KERNEL(1, 1)
KERNEL(2, 1)
KERNEL(3, 1)
#ifdef __AVX512F__
KERNEL(3, 2)
KERNEL(4, 2)
KERNEL(5, 2)
KERNEL(6, 2)
KERNEL(4, 1)
KERNEL(5, 1)
KERNEL(6, 1)
KERNEL(7, 1)
KERNEL(8, 1)
KERNEL(9, 1)
KERNEL(10, 1)
KERNEL(11, 1)
KERNEL(12, 1)
#endif
static const kernel four_tiles[][2] = {{0, 0}, PAIR(1, 4)};
static const kernel two_tiles[][2] = {
    {0, 0}, {0, 0}, PAIR(2, 2),
#ifdef __AVX512F__
    PAIR(3, 2), PAIR(4, 2), PAIR(5, 2), PAIR(6, 2),
#endif
};
static const kernel one_tile[][2] = {
    {0, 0}, PAIR(1, 1), PAIR(2, 1), PAIR(3, 1),
#ifdef __AVX512F__
    PAIR(4, 1), PAIR(5, 1), PAIR(6, 1), PAIR(7, 1), PAIR(8, 1),
    PAIR(9, 1), PAIR(10, 1), PAIR(11, 1), PAIR(12, 1),
#endif
};

/* Tiles and rows at a time. Few rows take several tiles: a single sum would wait for each of its
   additions, and a single stream of weights for memory. */
typedef struct {
    int tiles, rows;
    const kernel (*of_rows)[2];
} shape;

static shape shape_of(int rows, int left) {
    if (rows == 1 && left >= 4) return (shape){4, 1, four_tiles};
    if (rows > 1 && rows <= MOST_OF_TWO && left >= 2) return (shape){2, MOST_OF_TWO, two_tiles};
    return (shape){1, MOST_ROWS, one_tile};
}

static void write(const linear *l, int tile, const floats *total, int tiles, int rows, float *y,
                  _Bool add) {
    for (int row = 0; row < rows; row++)
        for (int t = 0; t < 2 * tiles; t++) {
            const int first = tile * TILE + t * LANES, left = l->out - first;
            if (left <= 0) break;
            float *to = y + (long)row * l->out + first;
            floats value = total[row * 2 * tiles + t];
            if (l->bias) value += load_up_to(l->bias + first, left);
            if (add) value += load_up_to(to, left);
            store_up_to(to, left, value);
        }
}

static void write_gated(const linear *l, int tile, const floats *gates, const floats *ups, int tiles,
                        int rows, float *y) {
    const int half = l->out / 2;
    for (int i = 0; i < rows * 2 * tiles; i++) {
        const int row = i / (2 * tiles), first = tile * TILE + i % (2 * tiles) * LANES;
        floats gate = gates[i], up = ups[i];
        if (l->bias) gate += load(l->bias + first), up += load(l->bias + half + first);
        store(y + (long)row * half + first, silu(gate) * up);
    }
}

/* The tiles of a shape from `tile` on, by up to GROUP rows in equal parts -> total [rows][2 tiles]. */
static void sums_of(const linear *l, shape s, int tile, const float *x, int rows, floats *total) {
    memset(total, 0, rows * s.tiles * 2 * sizeof(floats));
    const long row_words = l->kind == HALF ? LANES : TILE, tile_words = row_words * l->in;
    const uint32_t *weight = (const uint32_t *)l->weight + tile * tile_words;
    const int parts = (rows + s.rows - 1) / s.rows;
    for (int k = 0; k < l->in; k += SPAN) {
        const int count = l->in - k < SPAN ? l->in - k : SPAN;
        for (int part = 0; part < parts; part++) {
            const int row = rows * part / parts, next = rows * (part + 1) / parts;
            s.of_rows[next - row][l->kind](weight + k * row_words, tile_words,
                                           x + (long)row * l->in + k, l->in, count,
                                           total + row * 2 * s.tiles);
        }
    }
}

static void tiles_of(const linear *l, int tile, int end, const float *x, float *y, int rows,
                     _Bool add) {
    floats total[GROUP * 2];
    for (shape s; tile < end; tile += s.tiles) {
        s = shape_of(rows, end - tile);
        for (int row = 0; row < rows; row += GROUP) {
            const int count = rows - row < GROUP ? rows - row : GROUP;
            sums_of(l, s, tile, x + (long)row * l->in, count, total);
            write(l, tile, total, s.tiles, count, y + (long)row * l->out, add);
        }
    }
}

/* As tiles_of, of a layer whose second half are the ups of the gates in its first. */
static void gated_tiles_of(const linear *l, int tile, int end, const float *x, float *y, int rows) {
    floats gates[GROUP * 2], ups[GROUP * 2];
    const int half = l->out / 2;
    for (shape s; tile < end; tile += s.tiles) {
        s = shape_of(rows, end - tile);
        for (int row = 0; row < rows; row += GROUP) {
            const int count = rows - row < GROUP ? rows - row : GROUP;
            sums_of(l, s, tile, x + (long)row * l->in, count, gates);
            sums_of(l, s, half / TILE + tile, x + (long)row * l->in, count, ups);
            write_gated(l, tile, gates, ups, s.tiles, count, y + (long)row * half);
        }
    }
}

/* How tiles are handed out: `many` times `large` of them, the rest one by one. */
typedef struct {
    int large, many, pieces;
} division;

static division divided(int count, int large, int parts) {
    const int many = count / large / parts * parts; /* as many for each of `parts` */
    return (division){large, many, many + count - many * large};
}

static _Bool take(team *me, division d, int *first, int *end) {
    int piece, next;
    if (!team_take(me, d.pieces, 1, &piece, &next)) return 0;
    *first = piece < d.many ? piece * d.large : piece + d.many * (d.large - 1);
    *end = *first + (piece < d.many ? d.large : 1);
    return 1;
}

void gated_phase(team *me, const linear *l, const float *x, float *y, int rows) {
    const division d = divided(l->out / 2 / TILE, rows == 1 ? 4 : 2, 1);
    for (int first, end; take(me, d, &first, &end);) gated_tiles_of(l, first, end, x, y, rows);
    team_barrier(me);
}

void linear_phase(team *me, const linear *l, const float *x, float *y, int rows, _Bool add) {
    if (l->kind == INT8) {
        int8_phase(me, l, x, y, rows, add);
        return;
    }
    const int count = (l->out + TILE - 1) / TILE, grain = grain_of(count);
    const int tiles = shape_of(rows, count).tiles; /* of few tiles, all threads take the same number */
    const division d = grain > 1 ? divided(count, grain, 1) : divided(count, tiles, team_threads(me));
    for (int first, end; take(me, d, &first, &end);) tiles_of(l, first, end, x, y, rows, add);
    team_barrier(me);
}
