/* The pre-norm decoder layers of targets and DFlash drafts, a whole stack of them in one job. */
#include "attention.h"
#include "linear.h"
#include "vector.h"

enum { FEW_ROWS = 16 }; /* that each thread norms for itself */

typedef struct {
    const float *norm1, *norm2; /* [hidden] */
    const float *q_norm, *k_norm;
    linear qkv, o, gate_up, down;
    linear context; /* projected rows -> keys and values; out = 0 where there is none */
    int rule;       /* which of the batch's key ranges the layer sees */
    int tap;        /* column of the taps that takes the layer's output, or -1 */
} layer;

typedef struct {
    int layers, hidden, intermediate, heads, kv_heads, head_dim, taps;
    float eps;
    const float *cos, *sin;
    const layer *layer;
} decoder;

typedef struct {
    float *k, *v; /* [layers, pages, kv_heads, page_size, head_dim] */
    int pages, page_size;
} paged_kv;

typedef struct {
    row_batch rows;
    const int *first, *last; /* [rules, rows]: keys first..last-1 are visible */
    int most_keys;           /* the widest range, and 32 more */
} batch;

typedef struct {
    const decoder *model;
    const paged_kv *kv;
    const batch *batch;
    float *x, *taps, *scratch;
} call;

static void norm(const float *x, const float *weight, float eps, float *y, int row, int end, int n) {
    for (; row < end; row++) {
        const float *from = x + (long)row * n;
        float *to = y + (long)row * n;
        const float scale = inverse_rms(from, n, eps);
        for (int i = 0; i < n; i++) to[i] = from[i] * scale * weight[i];
    }
}

/* Rows x [rows, n] normed, in `y` of all threads or, where they are few, in `own` of each: that takes
   less than to wait for one another. */
static const float *normed(team *me, const float *x, const float *weight, float eps, float *y,
                           float *own, int rows, int n) {
    if (rows <= FEW_ROWS) {
        norm(x, weight, eps, own, 0, rows, n);
        return own;
    }
    for (int row, end; team_take(me, rows, 1, &row, &end);) norm(x, weight, eps, y, row, end, n);
    team_barrier(me);
    return y;
}

/* gate_up [rows, 2 n] -> silu(gate) * up [rows, n]. */
static void silu_phase(team *me, const float *gate_up, float *y, int rows, int n) {
    enum { BLOCK = 256 };
    const int blocks = (n + BLOCK - 1) / BLOCK;
    for (int item, end; team_take(me, rows * blocks, 1, &item, &end);) {
        const int row = item / blocks, begin = item % blocks * BLOCK;
        const float *gate = gate_up + 2L * row * n, *up = gate + n;
        for (int i = begin; i < n && i < begin + BLOCK; i += LANES) {
            floats g = load_up_to(gate + i, n - i);
            store_up_to(y + (long)row * n + i, n - i, silu(g) * load_up_to(up + i, n - i));
        }
    }
    team_barrier(me);
}

static head_shape heads_of(const decoder *d, const layer *l) {
    return (head_shape){d->heads, d->kv_heads, d->head_dim, d->eps,
                        l->q_norm, l->k_norm,  d->cos,      d->sin};
}

static cache cache_of(const decoder *d, const paged_kv *kv, int layer_index) {
    const long size = (long)kv->pages * d->kv_heads * kv->page_size * d->head_dim;
    return (cache){kv->k + layer_index * size, kv->v + layer_index * size, kv->page_size};
}

static void copy_tap(const decoder *d, int tap, int rows, const float *x, float *taps) {
    for (int row = 0; row < rows; row++)
        memcpy(taps + ((long)row * d->taps + tap) * d->hidden, x + (long)row * d->hidden,
               d->hidden * sizeof(float));
}

static void forward(void *argument, team *me) {
    const call *c = argument;
    const decoder *d = c->model;
    const int rows = c->batch->rows.rows, queries = d->heads * d->head_dim;
    const int qkv_width = queries + 2 * d->kv_heads * d->head_dim;
    float *shared = c->scratch, *qkv = shared + (long)rows * d->hidden;
    float *attended = qkv + (long)rows * qkv_width, *gate_up = attended + (long)rows * queries;
    float *gated = gate_up + 2L * rows * d->intermediate;
    float *scores = gated + (long)rows * d->intermediate;
    float *own = scores + (long)team_threads(me) * MOST_QUERIES * c->batch->most_keys;
    own += (long)team_thread(me) * FEW_ROWS * d->hidden;
    for (int i = 0; i < d->layers; i++) {
        const layer *l = d->layer + i;
        const head_shape heads = heads_of(d, l);
        const cache kv = cache_of(d, c->kv, i);
        const int *first = c->batch->first + (long)l->rule * rows;
        const int *last = c->batch->last + (long)l->rule * rows;
        const float *x = normed(me, c->x, l->norm1, d->eps, shared, own, rows, d->hidden);
        linear_phase(me, &l->qkv, x, qkv, rows, 0);
        heads_phase(me, &heads, &kv, &c->batch->rows, qkv, qkv + queries, qkv_width);
        attention_phase(me, &heads, &kv, &c->batch->rows, qkv, qkv_width, first, last, scores,
                        c->batch->most_keys, attended);
        linear_phase(me, &l->o, attended, c->x, rows, 1);
        x = normed(me, c->x, l->norm2, d->eps, shared, own, rows, d->hidden);
        if (can_be_gated(&l->gate_up)) {
            gated_phase(me, &l->gate_up, x, gated, rows);
        } else {
            linear_phase(me, &l->gate_up, x, gate_up, rows, 0);
            silu_phase(me, gate_up, gated, rows, d->intermediate);
        }
        linear_phase(me, &l->down, gated, c->x, rows, 1);
        /* x is not written again before the next phases have ended, which thread 0 takes part in */
        if (l->tap >= 0 && team_thread(me) == 0) copy_tap(d, l->tap, rows, c->x, c->taps);
    }
}

static void append(void *argument, team *me) {
    const call *c = argument;
    const decoder *d = c->model;
    for (int i = 0; i < d->layers; i++) {
        const layer *l = d->layer + i;
        const head_shape heads = heads_of(d, l);
        const cache kv = cache_of(d, c->kv, i);
        linear_phase(me, &l->context, c->x, c->scratch, c->batch->rows.rows, 0);
        heads_phase(me, &heads, &kv, &c->batch->rows, NULL, c->scratch, l->context.out);
    }
}

/* x [rows, hidden] in place through all layers; stores the rows' keys and values.
   taps [rows, taps, hidden]; scratch: rows * (hidden + qkv + heads * head_dim + 3 * intermediate) +
   threads * (MOST_QUERIES * most_keys + FEW_ROWS * hidden) floats. */
void domino_forward(pool *p, const decoder *d, const paged_kv *kv, const batch *b, float *x,
                    float *taps, float *scratch) {
    call c = {d, kv, b, x, taps, scratch};
    pool_run(p, forward, &c);
}

/* Projected rows x [rows, hidden] -> context keys and values of every layer;
   scratch: rows * 2 * kv_heads * head_dim floats. */
void domino_append(pool *p, const decoder *d, const paged_kv *kv, const batch *b, const float *x,
                   float *scratch) {
    call c = {d, kv, b, (float *)x, NULL, scratch};
    pool_run(p, append, &c);
}
