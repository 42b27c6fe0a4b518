/* Weights of 8 bits, a scale for each output; rows are rounded to 8 bits here, a scale for each row.
   Sums are exact integers, so rows keep their bits whatever their number. */
#include "linear_int8.h"
#include "vector.h"

#ifdef __AVX512VNNI__
#include <immintrin.h>

enum {
    FOUR = 4,      /* inputs that one instruction multiplies and adds, byte by byte */
    AHEAD = 4096,  /* as in linear.c */
    GROUP = 24,    /* rows rounded at a time, on each thread's stack */
    MOST_ROWS = 12, /* rows at a time, as registers allow */
};

int domino_has_int8(void) { return 1; }

/* x [in] -> bytes [stride], 128 more than the rounded value; the scale of the rounded values. */
static float rounded(const float *x, int in, uint8_t *bytes, int stride) {
    const float magic = 12582912.0f + 128; /* 1.5 * 2^23: adding it rounds to an integer */
    floats high = {0}, low = {0};
    for (int i = 0; i < in; i += LANES) {
        floats v = load_up_to(x + i, in - i);
        high = maximum(high, v);
        low = minimum(low, v);
    }
    high = maximum(high, -low);
    float highest = 0;
    for (int i = 0; i < LANES; i++) highest = high[i] > highest ? high[i] : highest;
    const float by = highest > 0 ? 127 / highest : 0;
    for (int i = 0; i < stride; i += LANES) {
        words v = (words)(load_up_to(x + i, in - i) * by + magic);
        _mm_storeu_si128((__m128i *)(bytes + i), _mm512_cvtepi32_epi8((__m512i)v));
    }
    return highest / 127;
}

/* A tile by M rows: sums [M][2]. */
INLINE void sums_of(const int8_t *weight, const int32_t *start, const uint8_t *x, int stride,
                    int fours, __m512i *sums, const int M) {
    __m512i acc[MOST_ROWS][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        acc[m][0] = _mm512_loadu_si512(start);
        acc[m][1] = _mm512_loadu_si512(start + LANES);
    }
    for (int k = 0; k < fours; k++) {
        const int8_t *row = weight + (long)k * TILE * FOUR;
        __builtin_prefetch(row + AHEAD);
        __builtin_prefetch(row + AHEAD + 64);
        __m512i w0 = _mm512_load_si512(row), w1 = _mm512_load_si512(row + 64);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            int32_t four;
            memcpy(&four, x + (long)m * stride + k * FOUR, FOUR);
            __m512i value = _mm512_set1_epi32(four);
            acc[m][0] = _mm512_dpbusd_epi32(acc[m][0], value, w0);
            acc[m][1] = _mm512_dpbusd_epi32(acc[m][1], value, w1);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        sums[2 * m] = acc[m][0];
        sums[2 * m + 1] = acc[m][1];
    }
}

typedef void (*kernel)(const int8_t *weight, const int32_t *start, const uint8_t *x, int stride,
                       int fours, __m512i *sums);
#define KERNEL(M)                                                                                \
    static void rows_##M(const int8_t *weight, const int32_t *start, const uint8_t *x,           \
                         int stride, int fours, __m512i *sums) {                                 \
        sums_of(weight, start, x, stride, fours, sums, M);                                       \
    }
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)
KERNEL(5)
KERNEL(6)
KERNEL(7)
KERNEL(8)
KERNEL(9)
KERNEL(10)
KERNEL(11)
KERNEL(12)
static const kernel of_rows[] = {0,      rows_1, rows_2, rows_3, rows_4,  rows_5, rows_6,
                                 rows_7, rows_8, rows_9, rows_10, rows_11, rows_12};

static void write(const linear *l, int tile, const __m512i *sums, const float *scales, int rows,
                  float *y, _Bool add) {
    for (int row = 0; row < rows; row++)
        for (int t = 0; t < 2; t++) {
            const int first = tile * TILE + t * LANES, left = l->out - first;
            if (left <= 0) break;
            float *to = y + (long)row * l->out + first;
            floats value = (floats)_mm512_cvtepi32_ps(sums[2 * row + t]);
            value *= load(l->scale + first) * scales[row];
            if (l->bias) value += load_up_to(l->bias + first, left);
            if (add) value += load_up_to(to, left);
            store_up_to(to, left, value);
        }
}

void int8_phase(team *me, const linear *l, const float *x, float *y, int rows, _Bool add) {
    const int stride = (l->in + LANES - 1) / LANES * LANES, fours = (l->in + FOUR - 1) / FOUR;
    const int tiles = (l->out + TILE - 1) / TILE, grain = grain_of(tiles);
    uint8_t bytes[GROUP * stride];
    float scales[GROUP];
    for (int start = 0; start < rows; start += GROUP) {
        const int count = rows - start < GROUP ? rows - start : GROUP;
        const int parts = (count + MOST_ROWS - 1) / MOST_ROWS;
        for (int row = 0; row < count; row++)
            scales[row] = rounded(x + (long)(start + row) * l->in, l->in, bytes + row * stride, stride);
        for (int tile, end; team_take(me, tiles, grain, &tile, &end);)
            for (; tile < end; tile++)
                for (int part = 0; part < parts; part++) {
                    const int row = count * part / parts, next = count * (part + 1) / parts;
                    __m512i sums[MOST_ROWS * 2];
                    of_rows[next - row]((const int8_t *)l->weight + (long)tile * fours * TILE * FOUR,
                                        l->start + tile * TILE, bytes + row * stride, stride, fours,
                                        sums);
                    write(l, tile, sums, scales + row, next - row,
                          y + (long)(start + row) * l->out, add);
                }
        team_barrier(me);
    }
}
#else
int domino_has_int8(void) { return 0; }

/* Never called: without the instruction no weights are packed so. */
void int8_phase(team *me, const linear *l, const float *x, float *y, int rows, _Bool add) {
    (void)me, (void)l, (void)x, (void)y, (void)rows, (void)add;
}
#endif
