/* The Domino rollout over the full vocabulary: block hidden states in, draft tokens out, one job. */
#include "argmax.h"
#include "linear.h"
#include "vector.h"

typedef struct {
    int hidden, width, bottleneck, vocab; /* width: of the GRU's state */
    const float *embedding;               /* [vocab, hidden] */
    linear lm_head, gru_in, gru_state, from_hidden, from_state, to_vocab;
} head;

typedef struct {
    const head *head;
    int steps, batch;
    const float *z;         /* [steps, batch, hidden] */
    const int64_t *current; /* [batch] */
    float *scores;          /* [steps, batch, vocab]: base logits, then corrected */
    float *states;          /* [steps, batch, width]: the GRU's before step j is scored */
    int64_t *tokens;        /* [steps, batch] */
    float threshold;        /* the steps end when no chance reaches it; 0: never */
    float *chances;         /* [steps, batch]: the head's own, of a token and all before it */
    float *scratch;
} call;

/* Rows of the embedding: ids [batch] -> y [batch, hidden]; id 0 for a choice among NaNs. */
static void embed_phase(team *me, const head *h, const int64_t *ids, float *y, int batch) {
    for (int row, end; team_take(me, batch, 1, &row, &end);)
        memcpy(y + (long)row * h->hidden, h->embedding + (ids[row] < 0 ? 0 : ids[row]) * h->hidden,
               h->hidden * sizeof(float));
    team_barrier(me);
}

/* gates from the token and from the state, each [3, width] (r, z, n) -> the next state. */
static void gru_phase(team *me, const float *token, const float *before, const float *state,
                      float *next, int batch, int width) {
    for (int row, end; team_take(me, batch, 1, &row, &end);) {
        const float *t = token + 3L * row * width, *s = before + 3L * row * width;
        for (int i = 0; i < width; i += LANES) {
            const int n = width - i;
            floats reset = sigmoid(load_up_to(t + i, n) + load_up_to(s + i, n));
            floats update = sigmoid(load_up_to(t + width + i, n) + load_up_to(s + width + i, n));
            floats fresh = hyperbolic_tangent(load_up_to(t + 2 * width + i, n) +
                                              reset * load_up_to(s + 2 * width + i, n));
            floats old = load_up_to(state + (long)row * width + i, n);
            store_up_to(next + (long)row * width + i, n, fresh + update * (old - fresh));
        }
    }
    team_barrier(me);
}

static void silu_phase(team *me, float *x, int count) {
    for (int first, end; team_take(me, count, count, &first, &end);)
        for (int i = 0; i < count; i += LANES) {
            store_up_to(x + i, count - i, silu(load_up_to(x + i, count - i)));
        }
    team_barrier(me);
}

/* The softmax of each chosen token, times `before` [batch] where there is one -> chances [batch]. */
static void chance_phase(team *me, const float *scores, int batch, int vocab, best *found,
                         const int64_t *tokens, const float *before, float *chances) {
    const int blocks = (vocab + BLOCK - 1) / BLOCK;
    for (int item, end; team_take(me, batch * blocks, 1, &item, &end);) {
        const int row = item / blocks, begin = item % blocks * BLOCK;
        const int last = begin + BLOCK < vocab ? begin + BLOCK : vocab;
        const float *x = scores + (long)row * vocab, highest = x[tokens[row] < 0 ? 0 : tokens[row]];
        floats mass = {0};
        for (int i = begin; i < last; i += LANES) {
            floats v = last - i < LANES ? load_some(x + i, last - i, -INFINITY) : load(x + i);
            mass += exponential(v - highest);
        }
        found[item].value = sum(mass);
    }
    team_barrier(me);
    for (int row, end; team_take(me, batch, batch, &row, &end);)
        for (; row < end; row++) {
            float mass = 0;
            for (int i = 0; i < blocks; i++) mass += found[(long)row * blocks + i].value;
            chances[row] = (before ? before[row] : 1) / mass;
        }
    team_barrier(me);
}

/* Whether no sequence's chance reaches the threshold. */
static _Bool is_over(const float *chances, int batch, float threshold) {
    for (int row = 0; row < batch; row++)
        if (!(chances[row] < threshold)) return 0;
    return 1;
}

typedef struct {
    float *row, *token, *before; /* [batch, hidden], [batch, 3 width] twice */
} gru_scratch;

static void advance(team *me, const head *h, const gru_scratch *s, const int64_t *ids,
                    const float *state, float *next, int batch) {
    embed_phase(me, h, ids, s->row, batch);
    linear_phase(me, &h->gru_in, s->row, s->token, batch, 0);
    linear_phase(me, &h->gru_state, state, s->before, batch, 0);
    gru_phase(me, s->token, s->before, state, next, batch, h->width);
}

static void rollout(void *argument, team *me) {
    const call *c = argument;
    const head *h = c->head;
    const long batch = c->batch, steps = c->steps, state_size = batch * h->width;
    const long narrow = batch * h->bottleneck, wide = batch * h->vocab;
    float *from_hidden = c->scratch; /* [steps, batch, bottleneck] */
    gru_scratch gru = {.row = from_hidden + steps * narrow};
    gru.token = gru.row + batch * h->hidden;
    gru.before = gru.token + 3 * state_size;
    float *zero = gru.before + 3 * state_size;
    best *found = (best *)(zero + state_size);
    linear_phase(me, &h->lm_head, c->z, c->scores, steps * batch, 0);
    linear_phase(me, &h->from_hidden, c->z, from_hidden, steps * batch, 0);
    argmax_phase(me, c->scores, batch, h->vocab, found, c->tokens);
    const _Bool ends = c->threshold > 0;
    if (ends) chance_phase(me, c->scores, batch, h->vocab, found, c->tokens, NULL, c->chances);
    if (steps == 1) return;
    advance(me, h, &gru, c->current, zero, c->states, batch);
    for (long j = 1; j < steps; j++) {
        float *state = c->states + j * state_size, *scores = c->scores + j * wide;
        advance(me, h, &gru, c->tokens + (j - 1) * batch, state - state_size, state, batch);
        linear_phase(me, &h->from_state, state, from_hidden + j * narrow, batch, 1);
        silu_phase(me, from_hidden + j * narrow, narrow);
        linear_phase(me, &h->to_vocab, from_hidden + j * narrow, scores, batch, 1);
        argmax_phase(me, scores, batch, h->vocab, found, c->tokens + j * batch);
        if (!ends) continue;
        float *chances = c->chances + j * batch;
        chance_phase(me, scores, batch, h->vocab, found, c->tokens + j * batch, chances - batch,
                     chances);
        if (is_over(chances, batch, c->threshold)) return;
    }
}

/* See `call`; chances, zeroed where steps may not be reached; scratch, zeroed: batch * (steps * bottleneck + hidden + 7 * width) floats, then 8 bytes
   for each started BLOCK of each sequence's vocabulary. */
void domino_rollout(pool *p, const head *h, int steps, int batch, const float *z,
                    const int64_t *current, float *scores, float *states, int64_t *tokens,
                    float threshold, float *chances, float *scratch) {
    call c = {h, steps, batch, z, current, scores, states, tokens, threshold, chances, scratch};
    pool_run(p, rollout, &c);
}
