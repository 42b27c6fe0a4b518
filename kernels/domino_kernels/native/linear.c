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
#else
    MOST_ROWS = 3,
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
/* One row needs several tiles at a time: a single sum waits for each of its additions. */
KERNEL(1, 4)
KERNEL(2, 2)
KERNEL(1, 1)
KERNEL(2, 1)
KERNEL(3, 1)
#ifdef __AVX512F__
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
static const kernel one_row[2] = PAIR(1, 4), two_rows[2] = PAIR(2, 2);
static const kernel one_tile[][2] = {
    {0, 0}, PAIR(1, 1), PAIR(2, 1), PAIR(3, 1),
#ifdef __AVX512F__
    PAIR(4, 1), PAIR(5, 1), PAIR(6, 1), PAIR(7, 1), PAIR(8, 1),
    PAIR(9, 1), PAIR(10, 1), PAIR(11, 1), PAIR(12, 1),
#endif
};

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

/* `tiles` tiles from `tile` on, by up to GROUP rows in equal parts; `only`: the kernel of all rows. */
static void group_of(const linear *l, int tile, int tiles, const float *x, float *y, int rows,
                     _Bool add, const kernel *only) {
    floats total[GROUP * 2];
    memset(total, 0, rows * tiles * 2 * sizeof(floats));
    const long row_words = l->kind == HALF ? LANES : TILE, tile_words = row_words * l->in;
    const uint32_t *weight = (const uint32_t *)l->weight + tile * tile_words;
    const int parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int k = 0; k < l->in; k += SPAN) {
        const int count = l->in - k < SPAN ? l->in - k : SPAN;
        for (int part = 0; part < parts; part++) {
            const int row = rows * part / parts, next = rows * (part + 1) / parts;
            const kernel run = only ? only[l->kind] : one_tile[next - row][l->kind];
            run(weight + k * row_words, tile_words, x + (long)row * l->in + k, l->in, count,
                total + row * 2 * tiles);
        }
    }
    write(l, tile, total, tiles, rows, y, add);
}

static void tiles_of(const linear *l, int tile, int end, const float *x, float *y, int rows,
                     _Bool add) {
    if (rows == 1)
        for (; tile + 4 <= end; tile += 4) group_of(l, tile, 4, x, y, 1, add, one_row);
    if (rows == 2)
        for (; tile + 2 <= end; tile += 2) group_of(l, tile, 2, x, y, 2, add, two_rows);
    for (; tile < end; tile++)
        for (long row = 0; row < rows; row += GROUP)
            group_of(l, tile, 1, x + row * l->in, y + row * l->out,
                     rows - row < GROUP ? rows - row : GROUP, add, 0);
}

void linear_phase(team *me, const linear *l, const float *x, float *y, int rows, _Bool add) {
    if (l->kind == INT8) {
        int8_phase(me, l, x, y, rows, add);
        return;
    }
    const int count = (l->out + TILE - 1) / TILE;
    for (int first, end; team_take(me, count, grain_of(count), &first, &end);)
        tiles_of(l, first, end, x, y, rows, add);
    team_barrier(me);
}
