/* The place of the highest value of each row; the lowest place on ties. */
#include "pool.h"
#include "vector.h"
#include <math.h>
#include <stdint.h>

enum { BLOCK = 4096 };

typedef struct {
    float value;
    int place; /* -1: a NaN was there */
} best;

typedef struct {
    const float *x;
    int rows, n;
    best *found; /* [rows, blocks] */
    int64_t *places;
} call;

static best best_of(const float *x, int begin, int end) {
    floats high = {0};
    words lane, at = {0}, odd = {0};
    for (int i = 0; i < LANES; i++) lane[i] = i;
    high -= INFINITY;
    for (int i = begin; i < end; i += LANES) {
        floats v = end - i < LANES ? load_some(x + i, end - i, -INFINITY) : load(x + i);
        words above = (words)(v > high);
        at = (above & (lane + i)) | (~above & at);
        high = blend(above, v, high);
        odd |= (words)(v != v);
    }
    best found = {-INFINITY, begin};
    for (int i = 0; i < LANES; i++) {
        if (odd[i]) return (best){0, -1};
        const _Bool better = high[i] > found.value;
        if (better || (high[i] == found.value && isfinite(high[i]) && (int)at[i] < found.place))
            found = (best){high[i], at[i]};
    }
    return found;
}

static void argmax(void *argument, team *me) {
    const call *c = argument;
    const int blocks = (c->n + BLOCK - 1) / BLOCK;
    for (int item, end; team_take(me, c->rows * blocks, 1, &item, &end);) {
        const int begin = item % blocks * BLOCK, last = begin + BLOCK < c->n ? begin + BLOCK : c->n;
        c->found[item] = best_of(c->x + (long)(item / blocks) * c->n, begin, last);
    }
    team_barrier(me);
    for (int row, end; team_take(me, c->rows, c->rows, &row, &end);)
        for (; row < end; row++) {
            best top = c->found[(long)row * blocks];
            for (int i = 1; i < blocks && top.place >= 0; i++) {
                const best other = c->found[(long)row * blocks + i];
                if (other.place < 0 || other.value > top.value) top = other;
            }
            c->places[row] = top.place;
        }
    team_barrier(me);
}

/* x [rows, n] -> places [rows], -1 where a row holds a NaN; found: scratch of 8 bytes for each
   started 4096 values of each row. */
void domino_argmax(pool *p, const float *x, int rows, int n, void *found, int64_t *places) {
    call c = {x, rows, n, found, places};
    pool_run(p, argmax, &c);
}
