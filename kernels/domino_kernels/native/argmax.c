/* The place of the highest value of each row; the lowest place on ties. */
#include "argmax.h"
#include "vector.h"

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
        if (better || (high[i] == found.value && high[i] > -INFINITY && (int)at[i] < found.place))
            found = (best){high[i], at[i]};
    }
    return found;
}

void argmax_phase(team *me, const float *x, int rows, int n, best *found, int64_t *places) {
    const int blocks = (n + BLOCK - 1) / BLOCK;
    for (int item, end; team_take(me, rows * blocks, 1, &item, &end);) {
        const int begin = item % blocks * BLOCK, last = begin + BLOCK < n ? begin + BLOCK : n;
        found[item] = best_of(x + (long)(item / blocks) * n, begin, last);
    }
    team_barrier(me);
    for (int row, end; team_take(me, rows, rows, &row, &end);)
        for (; row < end; row++) {
            best top = found[(long)row * blocks];
            for (int i = 1; i < blocks && top.place >= 0; i++) {
                const best other = found[(long)row * blocks + i];
                if (other.place < 0 || other.value > top.value) top = other;
            }
            places[row] = top.place;
        }
    team_barrier(me);
}
