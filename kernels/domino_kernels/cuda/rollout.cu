// A whole Domino rollout in one launch: base logits in, the chosen tokens out.
//
// Every CTA owns eight GRU units, a few rows of W1 and a run of the vocabulary, whose 8-bit W2 copy
// stays in its shared memory for all steps. CTAs hand values to each other in slots of global
// memory that hold EMPTY (all ones) at first: who needs a value reads its slot until it is there.
// No slot is written twice, no value is EMPTY. All CTAs must run at the same time (cooperative).
//
// Compiled with: WARPS, CTAS (of a GPU), RANKS, OCTETS (requests / 8), E, EP (multiple of 64, >= E),
// G, and FULL, which evaluates every token exactly instead of those that the bounds leave.

#define THREADS (WARPS * 32)
#define REQUESTS (OCTETS * 8)
#define TILE 8                            // tokens
#define COPY (TILE * EP)                  // bytes of a tile's copy
#define RECORD (COPY + TILE * 8)          // and each token's scale and slack
#define OWN_ROWS ((E + CTAS - 1) / CTAS)  // of W1, at most TILE
#define STATE (E * 2 + 64)                // bytes of a row of states, of banks of their own
#define BYTES (EP + 64)
#define COLUMNS 32                        // gates r, z, n of eight units, then rows of W1
#define SUMS 40                           // floats of a row of sums, of banks of their own
#define SUM_BYTES (WARPS * PASS * 8 * SUMS * 4)
#define BOTTLENECK_BYTES (REQUESTS * (2 * BYTES + STATE))
#define PARTS (CTAS * RANKS)
#define PER_LANE(count) (((count) + 31) / 32)
#define PASS (OCTETS < 2 ? OCTETS : 2)    // octets scanned at once
#define CHUNKS ((G / 32 + WARPS - 1) / WARPS)  // of a state, by a warp
#define NEAR 3                            // tiles in shared memory bounded in a turn, at most,
#define HELD (PASS == 1)                  // while one outside it is on its way; without registers
#define AHEAD (OCTETS == 1 ? 1 : 0)       // for it: at once. Those asked for before the bottlenecks
#define LIKELY 2                          // requests whose own best tokens' gates are asked for
#define TOGETHER (FULL ? 2 : 1)           // tiles evaluated at once
#define EACH ((REQUESTS + WARPS - 1) / WARPS)  // requests of a warp, at most
#define LOWEST (-0x7fffffff - 1)
#define NONE (-0x7fffffffffffffffll - 1)
#define ROUNDING 9.5367431640625e-07f     // 2^-20; this and the next two as in rollout_certified
#define S_STEPS 16192.0f
#define D_WEIGHT 100.0f
#define INFINITY_ as_float(0x7f800000)

struct Pair { float x, y; };

struct Params {
  const float *base;         // [n, batch, base_width], this rank's tokens
  const float *from_hidden;  // [n, batch, E]
  const float *table;        // [tokens, 3 G]
  const u16 *w;              // [E + 3 G, G]
  const u16 *w2;             // [vocab, E]
  const u8 *copy;            // [tiles, RECORD]
  const s64 *start;          // [batch] keys of the current tokens
  s64 *ids;                  // [batch, ids_width]
  u16 *h;                    // slots [n, batch, G]
  u16 *s;                    // slots [n, batch, E]
  int *lower;                // slots [n, batch, CTAS]
  s64 *keys[RANKS];          // slots [2, n, batch, PARTS] of each rank, used by turns
  const int *turn;           // counts runs
  s64 turn_stride;           // of the slots
  int batch, n, base_width, ids_width, vocab, first, rank, tiles, resident;
};

struct Shared {
  u8 *copy, *high, *low, *state;
  float *sums, *gates, *hidden, *upper, *reach, *step, *bound;
  s64 *best, *slots;  // slots: this rank's keys
  int *lower, *token, *count, *left;  // left: `count` tiles to evaluate
  s64 turn;
  int row;  // tiles of a CTA, at most: of `upper` [REQUESTS, row]
};

FUNCTION int ordered(float v) {
  int bits = as_int(v == 0.0f ? 0.0f : v);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
FUNCTION float unordered(int v) { return as_float(v ^ ((v >> 31) & 0x7fffffff)); }
FUNCTION s64 pack_key(float score, int token) {
  return ((s64)ordered(score) << 32) + (0x7fffffff - token);
}
FUNCTION int key_token(s64 key) { return 0x7fffffff - (int)(key & 0xffffffffll); }
FUNCTION float sigmoid(float v) { return reciprocal(1.0f + fast_exp(-v)); }
FUNCTION float shuffle_xor(float v, int mask) { return as_float(shuffle_xor((u32)as_int(v), mask)); }
FUNCTION int shuffle_xor(int v, int mask) { return (int)shuffle_xor((u32)v, mask); }
FUNCTION s64 shuffle_xor(s64 v, int mask) {
  u32 low = shuffle_xor((u32)v, mask), high = shuffle_xor((u32)((u64)v >> 32), mask);
  return (s64)(((u64)high << 32) | low);
}
FUNCTION float larger(float a, float b) { return a > b ? a : b; }  // b where a is no number
FUNCTION s64 larger(s64 a, s64 b) { return a > b ? a : b; }
FUNCTION int larger(int a, int b) { return a > b ? a : b; }
FUNCTION bool filled(u32 halves) { return (halves & 0xffff) != 0xffff && halves >> 16 != 0xffff; }
FUNCTION bool filled(Quad v) { return filled(v.x) && filled(v.y) && filled(v.z) && filled(v.w); }

FUNCTION Quad wait_halves(const u16 *at) {  // eight two-byte slots
  Quad v = peek16(at);
  while (!filled(v)) {
    wait_a_little();
    v = peek16(at);
  }
  return v;
}

// The most of each request's SLOTS slots [.., SLOTS], once they are there: of the warp's requests
// r, r + WARPS, ..; `peek` reads one.
template <int SLOTS, class Word, class Peek>
FUNCTION void most_of(const Word *slots, int batch, int r, Word none, Word *best, Peek peek) {
  const int lane = THREAD % 32;
  Word v[EACH][PER_LANE(SLOTS)];
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
      for (int i = 0; i < PER_LANE(SLOTS); i++) {
        const bool real = r + k * WARPS < batch && lane + 32 * i < SLOTS;
        v[k][i] = real ? peek(slots + (s64)(r + k * WARPS) * SLOTS + lane + 32 * i) : none;
      }
#pragma unroll
    for (int i = 0; i < EACH * PER_LANE(SLOTS); i++)
      missing |= v[i / PER_LANE(SLOTS)][i % PER_LANE(SLOTS)] == -1;
    if (missing) wait_a_little();
  }
  converge();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    best[k] = none;
#pragma unroll
    for (int i = 0; i < PER_LANE(SLOTS); i++) best[k] = larger(v[k][i], best[k]);
    for (int mask = 16; mask; mask >>= 1) best[k] = larger(shuffle_xor(best[k], mask), best[k]);
  }
}

FUNCTION s64 peek_key(const s64 *at) { return peek8(at); }
FUNCTION int peek_bound(const int *at) { return peek4(at); }

// The last step's tokens, by every CTA for itself.
FUNCTION void choose(const Params &p, const Shared &m, int j) {
  const int warp = THREAD / 32;
  s64 best[EACH];
  if (j)
    most_of<PARTS>(m.slots + (s64)(j - 1) * p.batch * PARTS, p.batch, warp, NONE, best, peek_key);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int r = warp + k * WARPS;
    if (r >= p.batch || THREAD % 32) continue;
    m.token[r] = key_token(j ? best[k] : p.start[r]);
    if (j && CTA == 0) p.ids[r * p.ids_width + j - 1] = m.token[r];
  }
  sync();
}

// The own units' next state, published.
FUNCTION void advance(const Params &p, const Shared &m, int j) {
  if (j) {  // `publish` and `evaluate` have read them
    for (int r = again(THREAD); r < p.batch; r += THREADS) m.best[r] = NONE, m.lower[r] = LOWEST;
    if (THREAD == 0) *m.count = 0;
  }
  for (int i = again(THREAD); i < 8 * p.batch; i += THREADS) {
    const int unit = i % 8, r = i / 8, u = CTA * 8 + unit;
    if (u >= G) continue;
    const float *row = p.table + (s64)m.token[r] * (3 * G) + u, *gates = m.gates + r * 24 + unit;
    const float reset = sigmoid(row[0] + gates[0]), update = sigmoid(row[G] + gates[8]);
    const float fresh = 2.0f * sigmoid(2.0f * (row[2 * G] + reset * gates[16])) - 1.0f;
    const float next = (1.0f - update) * fresh + update * m.hidden[r * 8 + unit];
    m.hidden[r * 8 + unit] = next;
    poke(p.h + ((s64)j * p.batch + r) * G + u, narrow(next));
  }
}

// Gates of the own units from this step's whole state, and the own part of the bottleneck.
FUNCTION void project(const Params &p, const Shared &m, int j) {
  const int warp = THREAD / 32, lane = THREAD % 32, n = lane / 4, l = lane % 4;
  const u16 *h = p.h + (s64)j * p.batch * G;
  Quad w[CHUNKS][4];
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    const int chunk = warp + i * WARPS;
#pragma unroll
    for (int t = 0; t < 4; t++) {
      const bool ours = t < 3 ? CTA * 8 + n < G : n < OWN_ROWS && CTA * OWN_ROWS + n < E;
      const int row = t < 3 ? E + t * G + CTA * 8 + n : CTA * OWN_ROWS + n;
      const int at = ours && chunk < G / 32 ? row * G + chunk * 32 : 0;
      w[i][t] = read16(p.w + at + l * 8);
    }
  }
  if (OCTETS > 1)  // the last request's first: all of it, read over and over, would fill the L2
    for (int chunk = warp; chunk < G / 32; chunk += WARPS)
      wait_halves(h + (s64)(p.batch - 1) * G + chunk * 32 + l * 8);
  for (int o = 0; o < OCTETS; o += PASS) {
    Quad x[PASS][CHUNKS];
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int i = 0; i < PASS * CHUNKS; i++) {
        const int r = (o + i / CHUNKS) * 8 + n, chunk = warp + i % CHUNKS * WARPS;
        Quad v = {0, 0, 0, 0};
        if (r < p.batch && chunk < G / 32) v = peek16(h + (s64)r * G + chunk * 32 + l * 8);
        x[i / CHUNKS][i % CHUNKS] = v;
      }
#pragma unroll
      for (int i = 0; i < PASS * CHUNKS; i++) missing |= !filled(x[i / CHUNKS][i % CHUNKS]);
      if (missing) wait_a_little();
    }
    converge();
#pragma unroll
    for (int i = 0; i < PASS; i++) {
#pragma unroll
      for (int t = 0; t < 4; t++) {
        float acc[4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
          multiply_halves(acc, x[i][c].x, 0, x[i][c].y, 0, w[c][t].x, w[c][t].y);
          multiply_halves(acc, x[i][c].z, 0, x[i][c].w, 0, w[c][t].z, w[c][t].w);
        }
        Pair *to = (Pair *)(m.sums + (warp * PASS * 8 + i * 8 + n) * SUMS + t * 8 + l * 2);
        *to = {acc[0], acc[1]};
      }
    }
    sync();
    for (int i = THREAD; i < PASS * 8 * COLUMNS; i += THREADS) {
      const int r = o * 8 + i / COLUMNS, column = i % COLUMNS, e = CTA * OWN_ROWS + column - 24;
      const float *sums = m.sums + i / COLUMNS * SUMS + column;
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < WARPS; part++) sum += sums[part * PASS * 8 * SUMS];
      if (column < 24) {
        m.gates[r * 24 + column] = sum;
      } else if (j && column < 24 + OWN_ROWS && e < E && r < p.batch) {
        sum += p.from_hidden[((s64)j * p.batch + r) * E + e];
        poke(p.s + ((s64)j * p.batch + r) * E + e, narrow(sum * sigmoid(sum)));
      }
    }
    sync();
  }
}

// The bottleneck of every request as it is and in two bytes, with what that makes of the bounds.
FUNCTION void gather(const Params &p, const Shared &m, int j) {
  const int warp = THREAD / 32, lane = THREAD % 32;
  Quad all[EACH];
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
      const int r = warp + k * WARPS;
      all[k] = {0, 0, 0, 0};
      if (r < p.batch && lane * 8 < E) all[k] = peek16(p.s + ((s64)j * p.batch + r) * E + lane * 8);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) missing |= !filled(all[k]);
    if (missing) wait_a_little();
  }
  converge();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int r = warp + k * WARPS;
    if (r >= p.batch) continue;
    const Quad v = all[k];
    if (lane * 8 < E) *(Quad *)(m.state + r * STATE + lane * 16) = v;
    if (FULL) continue;
    const u32 words[4] = {v.x, v.y, v.z, v.w};
    float s[8], most = 0.0f, squares = 0.0f, errors = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      s[i] = widen((u16)(words[i / 2] >> (i % 2 * 16)));
      most = larger(s[i] < 0.0f ? -s[i] : s[i], most);
      squares += s[i] * s[i];
    }
    for (int mask = 16; mask; mask >>= 1) most = larger(shuffle_xor(most, mask), most);
    float step = most / S_STEPS;
    step = step > 0.0f ? step : 1.0f;
    u32 high[2] = {0, 0}, low[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float whole = floorf(s[i] / step + 0.5f), error = s[i] - whole * step;
      const float upper = floorf(whole / 128.0f + 0.5f);
      high[i / 4] |= ((u32)(int)upper & 0xff) << (i % 4 * 8);
      low[i / 4] |= ((u32)(int)(whole - 128.0f * upper) & 0xff) << (i % 4 * 8);
      errors += error * error;
    }
    for (int mask = 16; mask; mask >>= 1) {
      squares += shuffle_xor(squares, mask);
      errors += shuffle_xor(errors, mask);
    }
    if (lane * 8 < EP) {
      for (int i = 0; i < 2; i++) {
        *(u32 *)(m.high + r * BYTES + lane * 8 + i * 4) = high[i];
        *(u32 *)(m.low + r * BYTES + lane * 8 + i * 4) = low[i];
      }
    }
    if (lane == 0) {
      m.step[r] = step;
      m.reach[r] = sqrtf(squares) + D_WEIGHT * sqrtf(errors);
    }
  }
  sync();
}

// The best lower bounds, to m.bound. Few requests do with this CTA's own: it leaves a tile or two
// more to each CTA, which takes less time than to wait for all others' bounds.
FUNCTION void share_bounds(const Params &p, const Shared &m, int j) {
  for (int r = THREAD; r < p.batch; r += THREADS) {
    poke(p.lower + ((s64)j * p.batch + r) * CTAS + CTA, m.lower[r]);
    m.lower[r] = LOWEST;
  }
  int best[EACH];
  const int *slots = p.lower + (s64)j * p.batch * CTAS;
  most_of<CTAS>(slots, p.batch, THREAD / 32, LOWEST, best, peek_bound);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (THREAD % 32 == 0) m.bound[THREAD / 32 + k * WARPS] = unordered(best[k]);
}

// What a warp needs of some octets of bottlenecks to bound scores.
struct Bounding {
  u32 a[PASS][EP / 64][8];
  float reach[PASS], step[PASS], best[PASS];
};

FUNCTION void read_bounding(const Shared &m, Bounding &s, int o) {
  const int n = THREAD % 32 / 4, l = THREAD % 4;
#pragma unroll
  for (int i = 0; i < PASS; i++) {
    const int r = (o + i) * 8 + n;
    s.reach[i] = m.reach[r], s.step[i] = m.step[r], s.best[i] = -INFINITY_;
#pragma unroll
    for (int c = 0; c < EP / 64; c++) {
      const Quad high = *(const Quad *)(m.high + r * BYTES + c * 64 + l * 16);
      const Quad low = *(const Quad *)(m.low + r * BYTES + c * 64 + l * 16);
      u32 *a = s.a[i][c];
      a[0] = high.x, a[1] = low.x, a[2] = high.y, a[3] = low.y;
      a[4] = high.z, a[5] = low.z, a[6] = high.w, a[7] = low.w;
    }
  }
}

// One tile's highest bounds to `upper` [8 PASS, row], its lower ones into the best; base: the
// lane's logits.
FUNCTION void bound_tile(Bounding &s, const Quad *b, Quad about, const float (*base)[2],
                         float *upper, int row) {
  int acc[PASS][4] = {}, more[PASS][4] = {};  // two, as each product would wait for the one before
#pragma unroll
  for (int c = 0; c < EP / 64; c++) {
#pragma unroll
    for (int i = 0; i < PASS; i++) {
      const u32 *a = s.a[i][c];
      multiply_bytes(acc[i], a[0], a[1], a[2], a[3], b[c].x, b[c].y);
      multiply_bytes(PASS == 1 ? more[i] : acc[i], a[4], a[5], a[6], a[7], b[c].z, b[c].w);
    }
  }
  const float scale[2] = {as_float(about.x), as_float(about.z)};
  const float slack[2] = {as_float(about.y), as_float(about.w)};
#pragma unroll
  for (int i = 0; i < PASS; i++) {
    float highest = -INFINITY_;
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int high = acc[i][c] + more[i][c], low = acc[i][c + 2] + more[i][c + 2];
      const float product = (float)(128 * high + low);
      const float middle = base[i][c] + product * (scale[c] * s.step[i]);
      const float radius = slack[c] * s.reach[i], top = middle + radius;
      highest = larger(top == top ? top : INFINITY_, highest);  // no number: to be evaluated
      s.best[i] = larger(middle - radius, s.best[i]);
    }
    highest = larger(shuffle_xor(highest, 1), highest);
    highest = larger(shuffle_xor(highest, 2), highest);
    if (highest > -INFINITY_) highest += ROUNDING * (highest < 0.0f ? -highest : highest);
    if (THREAD % 4 == 0) upper[(i * 8 + THREAD % 32 / 4) * row] = highest;
  }
}

// Base logits of the lane's requests r, r + 8, .. from its place in this CTA's first tile on.
struct Base {
  const float *at;
  int r, room;  // room: tokens from there on
};

FUNCTION Base base_of(const Params &p, int j, int first_tile, int o) {
  const int lane = again(THREAD) % 32, r = o * 8 + lane / 4, v = first_tile * TILE + lane % 4 * 2;
  return {p.base + ((s64)j * p.batch + r) * p.base_width + v, r, p.vocab - v};
}

FUNCTION void read_base(const Params &p, const Base &base, int tile, float (*at)[2]) {
#pragma unroll
  for (int i = 0; i < PASS; i++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int v = tile * TILE + c;
      const bool real = base.r + i * 8 < p.batch && v < base.room;
      at[i][c] = real ? base.at[(s64)i * 8 * p.base_width + v] : -INFINITY_;
    }
}

// A tile that is not in shared memory, on its way.
struct Far {
  Quad b[EP / 64], about;
  float base[PASS][2];
};

FUNCTION void read_far(const Params &p, Far &far, const Base &base, int first_tile, int tile) {
  const int lane = again(THREAD) % 32;
  const u8 *record = p.copy + (s64)(first_tile + tile) * RECORD;
#pragma unroll
  for (int c = 0; c < EP / 64; c++) far.b[c] = read16(record + (c * 32 + lane) * 16);
  far.about = read16(record + COPY + lane % 4 * 16);
  read_base(p, base, tile, far.base);
}

// This warp's first tile that is not in shared memory.
FUNCTION int first_far(const Params &p, int own) {
  const int near = own < p.resident ? own : p.resident, warp = again(THREAD) / 32;
  const int past = near - warp + WARPS - 1;
  return warp + (past < 0 ? 0 : past / WARPS * WARPS);
}

FUNCTION void read_ahead(const Params &p, Far *ahead, int j, int first_tile, int own) {
  const Base base = base_of(p, j, first_tile, 0);
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    const int tile = first_far(p, own) + k * WARPS;
    if (tile < own) read_far(p, ahead[k], base, first_tile, tile);
  }
}

// Bounds of every own token's score: the highest of each tile to m.upper, the best lower ones to
// m.bound. Tiles outside shared memory, the first of which are `ahead`, are on their way while a
// share of those inside is bounded.
FUNCTION void scan(const Params &p, const Shared &m, int j, int first_tile, int own,
                   const Far *ahead) {
  const int warp = again(THREAD) / 32, lane = again(THREAD) % 32, n = lane / 4, l = lane % 4;
  const int near = own < p.resident ? own : p.resident;
  for (int o = 0; o < OCTETS; o += PASS) {
    const Base base = base_of(p, j, first_tile, o);
    Bounding s;
    read_bounding(m, s, o);
    float *upper = m.upper + o * 8 * m.row;
    int t = warp, f = first_far(p, own);
#pragma unroll
    for (int k = 0; k < AHEAD; k++, f += WARPS)
      if (f < own) {
        const Far &far = ahead[k];
        bound_tile(s, far.b, far.about, far.base, upper + f, m.row);
      }
    const int share = !HELD ? NEAR : near - t <= own - f ? 1 : near - t <= 2 * (own - f) ? 2 : NEAR;
    while (t < near || f < own) {
      Far far;
      if (f < own) read_far(p, far, base, first_tile, f);
      if (!HELD && f < own) bound_tile(s, far.b, far.about, far.base, upper + f, m.row);
      float at[NEAR][PASS][2];
#pragma unroll
      for (int k = 0; k < NEAR; k++)
        if (k < share && t + k * WARPS < near) read_base(p, base, t + k * WARPS, at[k]);
#pragma unroll
      for (int k = 0; k < NEAR; k++) {
        if (k >= share || t >= near) break;
        const u8 *record = m.copy + t * RECORD;
        Quad b[EP / 64];
#pragma unroll
        for (int c = 0; c < EP / 64; c++) b[c] = *(const Quad *)(record + (c * 32 + lane) * 16);
        const Quad about = *(const Quad *)(record + COPY + l * 16);
        bound_tile(s, b, about, at[k], upper + t, m.row);
        t += WARPS;
      }
      if (HELD && f < own) bound_tile(s, far.b, far.about, far.base, upper + f, m.row);
      f += WARPS;
    }
#pragma unroll
    for (int i = 0; i < PASS; i++) {
      float best = s.best[i];
      best = larger(shuffle_xor(best, 1), best);
      best = larger(shuffle_xor(best, 2), best);
      if (best > -INFINITY_) best -= ROUNDING * (best < 0.0f ? -best : best);
      if (l == 0) shared_max(m.lower + (o + i) * 8 + n, ordered(best));
    }
  }
  sync();
  if (OCTETS == 1) return;
  share_bounds(p, m, j);
  sync();
}

// The tiles with a token that may be the best, to m.left: any warp may evaluate them.
FUNCTION void choose_tiles(const Params &p, const Shared &m, int own) {
  for (int t = again(THREAD); t < own; t += THREADS) {
    bool found = false;
    for (int r = 0; r < p.batch; r++) {
      const float bound = OCTETS == 1 ? unordered(m.lower[r]) : m.bound[r];
      found |= !(m.upper[r * m.row + t] < bound);
    }
    if (found) m.left[shared_add(m.count, 1)] = t;
  }
  sync();
}

// Eight tokens' exact scores, from W2's rows `w`, into the best keys.
FUNCTION void score(const Params &p, const Shared &m, const float *base, const Quad *w, int v,
                    s64 *key) {
  const int n = again(THREAD) % 32 / 4, l = again(THREAD) % 4;
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    float acc[4] = {}, more[4] = {};
#pragma unroll
    for (int c = 0; c < E / 32; c++) {
      const Quad x = *(const Quad *)(m.state + (o * 8 + n) * STATE + c * 64 + l * 16);
      multiply_halves(acc, x.x, 0, x.y, 0, w[c].x, w[c].y);
      multiply_halves(more, x.z, 0, x.w, 0, w[c].z, w[c].w);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int r = o * 8 + n, token = v + l * 2 + c;
      if (r < p.batch && token < p.vocab) {
        const float score = base[(s64)r * p.base_width + token] + (acc[c] + more[c]);
        key[o] = larger(pack_key(score, token + p.first), key[o]);
      }
    }
  }
}

// Best keys among the own tokens, of m.left if their bounds were made, from W2 itself.
FUNCTION void evaluate(const Params &p, const Shared &m, int j, int first_tile, int own) {
  const int warp = again(THREAD) / 32, lane = again(THREAD) % 32, n = lane / 4, l = lane % 4;
  const float *base = p.base + (s64)j * p.batch * p.base_width;
  s64 key[OCTETS];
#pragma unroll
  for (int o = 0; o < OCTETS; o++) key[o] = NONE;
  const int count = FULL ? own : *m.count;
  for (int begin = warp; begin < count; begin += WARPS * TOGETHER) {
    Quad w[TOGETHER][E / 32];
    int tile[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      const int i = begin + k * WARPS;
      if (i >= count) continue;
      tile[k] = first_tile + (FULL ? i : m.left[i]);
      const int v = tile[k] * TILE + n, row = v < p.vocab ? v : p.vocab - 1;
#pragma unroll
      for (int c = 0; c < E / 32; c++) w[k][c] = read16(p.w2 + (s64)row * E + c * 32 + l * 8);
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      if (begin + k * WARPS < count) score(p, m, base, w[k], tile[k] * TILE, key);
  }
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    key[o] = larger(shuffle_xor(key[o], 1), key[o]);
    key[o] = larger(shuffle_xor(key[o], 2), key[o]);
    if (l == 0 && key[o] != NONE) shared_max(m.best + o * 8 + n, key[o]);
  }
}

// Best base logits among the own tokens; several warps share a request where there are few.
FUNCTION void first_token(const Params &p, const Shared &m, int first_tile, int own) {
  const int shares = (WARPS + p.batch - 1) / p.batch;
  const int begin = first_tile * TILE, room = p.vocab - begin;
  const int tokens = own * TILE < room ? own * TILE : room;
  for (int i = THREAD / 32; i < p.batch * shares; i += WARPS) {
    const float *base = p.base + (s64)(i / shares) * p.base_width + begin;
    s64 key = NONE;
#pragma unroll 8
    for (int v = i % shares * 32 + THREAD % 32; v < tokens; v += shares * 32)
      key = larger(pack_key(base[v], begin + v + p.first), key);
    for (int mask = 16; mask; mask >>= 1) key = larger(shuffle_xor(key, mask), key);
    if (THREAD % 32 == 0 && key != NONE) shared_max(m.best + i / shares, key);
  }
}

// The own best keys, to all ranks. Of few requests the gates of the own best tokens are asked for
// too: one of all CTAs' is the token, and its row of the table is far.
FUNCTION void publish(const Params &p, const Shared &m, int j) {
  sync();
  for (int r = again(THREAD); r < p.batch; r += THREADS) {
    const s64 at = ((s64)j * p.batch + r) * PARTS + p.rank * CTAS + CTA;
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) poke(p.keys[rank] + m.turn + at, m.best[r]);
  }
  const int lines = (3 * G * 4 + 127) / 128;
  if (p.batch <= LIKELY)
    for (int i = again(THREAD); i < lines * p.batch; i += THREADS) {
      const s64 key = m.best[i / lines];
      if (key != NONE) prefetch(p.table + (s64)key_token(key) * (3 * G) + i % lines * 32);
    }
}

FUNCTION Shared layout(const Params &p, int tiles) {
  Shared m;
  u8 *at = shared_memory;
#define TAKE(name, type, bytes) m.name = (type *)at, at += ((bytes) + 15) / 16 * 16
  u8 *const shared = at;  // sums are done with when there are bottlenecks
  TAKE(high, u8, REQUESTS * BYTES);
  TAKE(low, u8, REQUESTS * BYTES);
  TAKE(state, u8, REQUESTS * STATE);
  m.sums = (float *)shared;
  at = shared + (SUM_BYTES > BOTTLENECK_BYTES ? SUM_BYTES : BOTTLENECK_BYTES);
  TAKE(gates, float, REQUESTS * 24 * 4);
  TAKE(hidden, float, REQUESTS * 8 * 4);
  TAKE(reach, float, REQUESTS * 4);
  TAKE(step, float, REQUESTS * 4);
  TAKE(bound, float, (WARPS * EACH) * 4);
  TAKE(best, s64, REQUESTS * 8);
  TAKE(lower, int, REQUESTS * 4);
  TAKE(token, int, REQUESTS * 4);
  TAKE(count, int, 4);
  m.row = tiles;  // what comes before lies at places known when compiled
  TAKE(upper, float, REQUESTS * tiles * 4);
  TAKE(left, int, tiles * 4);
  TAKE(copy, u8, p.resident * RECORD);
  m.turn = (*p.turn & 1) * p.turn_stride;
  m.slots = p.keys[0] + m.turn;
#pragma unroll
  for (int rank = 1; rank < RANKS; rank++)
    if (rank == p.rank) m.slots = p.keys[rank] + m.turn;
  return m;
}

FUNCTION void begin(const Params &p, const Shared &m, int first_tile, int own) {
  const u8 *from = p.copy + (s64)first_tile * RECORD;
  const int bytes = (own < p.resident ? own : p.resident) * RECORD;
  if (!FULL)
    for (int i = THREAD * 16; i < bytes; i += THREADS * 16) copy16(m.copy + i, from + i);
  for (int i = THREAD; i < REQUESTS * 24; i += THREADS) m.gates[i] = 0.0f;
  for (int i = THREAD; i < REQUESTS * 8; i += THREADS) m.hidden[i] = 0.0f;
  for (int r = THREAD; r < REQUESTS; r += THREADS) {
    m.best[r] = NONE, m.lower[r] = LOWEST;
    m.reach[r] = 0.0f, m.step[r] = 1.0f;
  }
  sync();
}

// The lines of the base logits that the step is going to read.
FUNCTION void fetch(const Params &p, int j, int first_tile, int own) {
  const int lines = (own * TILE * 4 + 127) / 128;
  const float *base = p.base + (s64)j * p.batch * p.base_width;
  for (int i = THREAD; i < lines * p.batch; i += THREADS) {
    const int v = first_tile * TILE + i % lines * 32;
    if (v < p.vocab) prefetch(base + (s64)(i / lines) * p.base_width + v);
  }
}

KERNEL void LIMITS(THREADS) rollout(Params p) {
  const int each = (p.tiles + CTAS - 1) / CTAS, first_tile = CTA * each;
  const int left = p.tiles - first_tile, own = left < 0 ? 0 : left < each ? left : each;
  const Shared m = layout(p, each);
  begin(p, m, first_tile, own);
  choose(p, m, 0);
  advance(p, m, 0);
  first_token(p, m, first_tile, own);
  publish(p, m, 0);
  if (p.n > 1) project(p, m, 0);
  copies_done();
  for (int j = 1; j < p.n; j++) {
    choose(p, m, j);
    advance(p, m, j);
    fetch(p, j, first_tile, own);
    Far ahead[AHEAD + 1];  // one more, as none is no array
    if (!FULL) read_ahead(p, ahead, j, first_tile, own);
    project(p, m, j);
    gather(p, m, j);
    if (!FULL) scan(p, m, j, first_tile, own, ahead);
    if (!FULL) choose_tiles(p, m, own);
    evaluate(p, m, j, first_tile, own);
    publish(p, m, j);
  }
  if (CTA == 0) choose(p, m, p.n);
}
