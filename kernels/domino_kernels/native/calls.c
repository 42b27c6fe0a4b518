/* Single operations for callers that have no larger job. */
#include "argmax.h"
#include "linear.h"

typedef struct {
    const linear *layer;
    const float *x;
    float *y;
    int rows, add;
} product_call;

static void product(void *argument, team *me) {
    const product_call *c = argument;
    linear_phase(me, c->layer, c->x, c->y, c->rows, c->add);
}

/* x [rows, in] -> y [rows, out], added to what y holds where `add`. */
void domino_linear(pool *p, const linear *l, const float *x, float *y, int rows, int add) {
    product_call c = {l, x, y, rows, add};
    pool_run(p, product, &c);
}

typedef struct {
    const float *x;
    int rows, n;
    best *found;
    int64_t *places;
} argmax_call;

static void argmax(void *argument, team *me) {
    const argmax_call *c = argument;
    argmax_phase(me, c->x, c->rows, c->n, c->found, c->places);
}

/* See argmax_phase. */
void domino_argmax(pool *p, const float *x, int rows, int n, void *found, int64_t *places) {
    argmax_call c = {x, rows, n, found, places};
    pool_run(p, argmax, &c);
}
