// A whole Domino rollout in one launch: base logits in, the chosen tokens out.
//
// Every CTA owns eight GRU units, a few rows of W1 and a run of the vocabulary, whose 6-bit W2 copy
// stays in its shared memory for all steps, as far as it fits. CTAs hand values to each other in
// slots of global memory that hold EMPTY (all ones) at first: who needs a value reads its slot
// until it is there. No slot is written twice, no value is EMPTY. All CTAs must run at the same
// time (cooperative).
//
// Compiled with: WARPS, CTAS (of a GPU), RANKS, OCTETS (requests / 8), E, EP (multiple of 128,
// >= E), G, and FULL, which evaluates every token exactly, not only those that the bounds leave.

#define THREADS (WARPS * 32)
#define REQUESTS (OCTETS * 8)
#define TILE 8                            // tokens
#define BLOCKS (EP / 128)                 // of a token's values, 32 for each of four lanes
#define HIGH (TILE * EP / 2)              // bytes of a tile's high four bits, then come the low two
#define COPY (HIGH + TILE * EP / 4)       // bytes of a tile's copy
#define RECORD (COPY + TILE * 8)          // and each token's scale and slack
#define OWN_ROWS ((E + CTAS - 1) / CTAS)  // of W1, at most TILE
#define STATE (E * 2 + 64)                // bytes of a row of states, of banks of their own
#define BYTES (EP + 64)
#define COLUMNS 32                        // gates r, z, n of eight units, then rows of W1
#define SUMS 40                           // floats of a row of sums, of banks of their own
#define SUM_BYTES (WARPS * PASS * 8 * SUMS * 4)
#define BOTTLENECK_BYTES (REQUESTS * (BYTES + STATE))
#define PARTS (CTAS * RANKS)
#define PER_LANE(count) (((count) + 31) / 32)
#define PASS (OCTETS < 2 ? OCTETS : 2)    // octets scanned at once
#define CHUNKS ((G / 32 + WARPS - 1) / WARPS)  // of a state, by a warp
#define NEAR (PASS == 1 ? 2 : 1)          // pairs whose base logits are on their way
#define LIKELY 8                          // requests whose likely tokens' gates are asked for
#define TOGETHER (FULL ? 2 : 1)           // tiles evaluated at once
#define EACH ((REQUESTS + WARPS - 1) / WARPS)  // requests of a warp, at most
#define EMPTY -1
#define LOWEST (-0x7fffffff - 1)
#define NONE (-0x7fffffffffffffffll - 1)
#define ROUNDING 9.5367431640625e-07f     // 2^-20, as in rollout_certified
#define S_STEPS 127.0f                    // of the largest value of a bottleneck
#define D_WEIGHT 33.0f                    // as in rollout_resident
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
  u8 *copy, *bytes, *state;
  float *sums, *gates, *hidden, *upper, *reach, *step, *bound;
  s64 *best, *slots;  // best keys [REQUESTS, WARPS]; slots: this rank's keys
  int *lower, *likely, *token, *count, *left;  // left: `count` tiles to evaluate
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

// The best key of each request, once those of all parts are there: slots [.., PARTS], of the warp's
// requests r, r + WARPS, ..
FUNCTION void best_keys(const s64 *slots, int batch, int r, s64 *best) {
  const int lane = THREAD % 32;
  s64 v[EACH][PER_LANE(PARTS)];
  bool missing = true;
  while (missing) {
    missing = false;
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
      for (int i = 0; i < PER_LANE(PARTS); i++) {
        const bool real = r + k * WARPS < batch && lane + 32 * i < PARTS;
        v[k][i] = real ? peek8(slots + (s64)(r + k * WARPS) * PARTS + lane + 32 * i) : NONE;
      }
#pragma unroll
    for (int i = 0; i < EACH * PER_LANE(PARTS); i++)
      missing |= v[i / PER_LANE(PARTS)][i % PER_LANE(PARTS)] == EMPTY;
    if (missing) wait_a_little();
  }
  converge();
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    s64 own = NONE;
#pragma unroll
    for (int i = 0; i < PER_LANE(PARTS); i++) own = larger(v[k][i], own);
    const int score = (int)(own >> 32), most = warp_max(score);  // then the lowest id of those
    const int id = warp_max(score == most ? (int)(own & 0xffffffffll) : 0);
    best[k] = ((s64)most << 32) + id;
  }
}

// The last step's tokens, by every CTA for itself.
FUNCTION void choose(const Params &p, const Shared &m, int j) {
  const int warp = THREAD / 32;
  s64 best[EACH];
  if (j) best_keys(m.slots + (s64)(j - 1) * p.batch * PARTS, p.batch, warp, best);
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
    for (int r = again(THREAD); r < p.batch; r += THREADS) m.lower[r] = LOWEST;
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

// The bottleneck of every request as it is and in bytes, with what that makes of the bounds.
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
    most = as_float(warp_max(as_int(most)));  // none is below 0
    const float step = most > 0.0f ? most / S_STEPS : 1.0f, steps = reciprocal(step);
    u32 bytes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float whole = floorf(s[i] * steps + 0.5f), error = s[i] - whole * step;
      bytes[i / 4] |= ((u32)(int)whole & 0xff) << (i % 4 * 8);
      errors += error * error;
    }
    for (int mask = 16; mask; mask >>= 1) {
      squares += shuffle_xor(squares, mask);
      errors += shuffle_xor(errors, mask);
    }
    if (lane * 8 < EP) *(Words *)(m.bytes + r * BYTES + lane * 8) = {bytes[0], bytes[1]};
    if (lane == 0) {
      m.step[r] = step;
      m.reach[r] = sqrtf(squares) + D_WEIGHT * sqrtf(errors);
    }
  }
  sync();
}

// The best lower bounds of those CTAs whose own have come by now, to m.bound: any will do, as all
// hold, and to wait for the last costs more than the few tiles that it would leave out.
FUNCTION void share_bounds(const Params &p, const Shared &m, int j) {
  const int warp = again(THREAD) / 32, lane = again(THREAD) % 32;
  int *slots = p.lower + (s64)j * p.batch * CTAS;
  for (int r = again(THREAD); r < p.batch; r += THREADS) poke(slots + r * CTAS + CTA, m.lower[r]);
  for (int r = warp; r < p.batch; r += WARPS) {
    const int *at = slots + r * CTAS + lane;
    int v[PER_LANE(CTAS)], best = m.lower[r];
#pragma unroll
    for (int i = 0; i < PER_LANE(CTAS); i++)
      v[i] = lane + 32 * i < CTAS ? peek4(at + 32 * i) : EMPTY;
#pragma unroll
    for (int i = 0; i < PER_LANE(CTAS); i++) best = larger(v[i] == EMPTY ? LOWEST : v[i], best);
    best = warp_max(best);
    if (lane == 0) m.bound[r] = unordered(best);
  }
  sync();
}

// What a lane needs of some octets of bottlenecks to bound scores: the bytes l of request n, and
// what bounds of requests 2 l and 2 l + 1 are made of.
struct Bounding {
  Quad b[PASS][EP / 64];
  float reach[PASS][2], step[PASS][2], best[PASS][2];
};

FUNCTION void read_bounding(const Shared &m, Bounding &s, int o) {
  const int n = THREAD % 32 / 4, l = THREAD % 4;
#pragma unroll
  for (int i = 0; i < PASS; i++) {
    const int r = (o + i) * 8;
#pragma unroll
    for (int c = 0; c < EP / 64; c++)
      s.b[i][c] = *(const Quad *)(m.bytes + (r + n) * BYTES + c * 64 + l * 16);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      s.reach[i][c] = m.reach[r + l * 2 + c], s.step[i][c] = m.step[r + l * 2 + c];
      s.best[i][c] = -INFINITY_;
    }
  }
}

// Base logits of token n of a pair's two tiles, for requests 2 l and 2 l + 1.
struct Logits {
  float of[PASS][2][2];  // tile, request
};

// Two tiles, sixteen tokens, which one product takes together: the lane's share of token n of each.
struct Tiles {
  Quad high[2][BLOCKS];  // four bits of each value
  Words low[2][BLOCKS];  // two more
  Pair about[2];         // scale and slack
  Logits base;
};

// The bytes of a block's 32 values: four times the 6-bit ones.
FUNCTION void unpack(const Quad &high, const Words &low, u32 *bytes) {
  const u32 h[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const u32 two = i < 2 ? low.x : low.y;
    bytes[2 * i] = (h[i] & 0xf0f0f0f0) | ((i % 2 ? two : two >> 4) & 0x0c0c0c0c);
    bytes[2 * i + 1] = (h[i] << 4 & 0xf0f0f0f0) | ((i % 2 ? two << 2 : two >> 2) & 0x0c0c0c0c);
  }
}

FUNCTION void multiply_tiles(const Tiles &pair, const Quad (*b)[EP / 64], int (*acc)[4]) {
  int more[PASS][4] = {};  // two, as each product would wait for the one before
#pragma unroll
  for (int k = 0; k < BLOCKS; k++) {
    u32 x[8], y[8];
    unpack(pair.high[0][k], pair.low[0][k], x);
    unpack(pair.high[1][k], pair.low[1][k], y);
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int i = 0; i < PASS; i++) {
        const Quad &s = b[i][k * 2 + c];
        multiply_bytes(acc[i], x[c * 4], y[c * 4], x[c * 4 + 1], y[c * 4 + 1], s.x, s.y);
        multiply_bytes(more[i], x[c * 4 + 2], y[c * 4 + 2], x[c * 4 + 3], y[c * 4 + 3], s.z, s.w);
      }
  }
#pragma unroll
  for (int i = 0; i < PASS * 4; i++) acc[i / 4][i % 4] += more[i / 4][i % 4];
}

// The highest of eight lanes' bounds [tile, request] for one of the four, of the lane's own place.
FUNCTION float highest_of(const float (*top)[2]) {
  const int lane = again(THREAD) % 32;
  const bool second = lane & 16, odd = lane & 8;
  float mine[2];
#pragma unroll
  for (int c = 0; c < 2; c++)
    mine[c] = larger(shuffle_xor(second ? top[0][c] : top[1][c], 16),
                     second ? top[1][c] : top[0][c]);
  float highest = larger(shuffle_xor(odd ? mine[0] : mine[1], 8), odd ? mine[1] : mine[0]);
  highest = larger(shuffle_xor(highest, 4), highest);
  if (highest > -INFINITY_) highest += ROUNDING * (highest < 0.0f ? -highest : highest);
  return highest;
}

// A pair's highest bounds to `upper` [8 PASS, row], its lower ones into the best; room: tiles.
FUNCTION void bound_tiles(Bounding &s, const Tiles &pair, float *upper, int row, int room) {
  const int lane = again(THREAD) % 32, tile = lane / 16, odd = lane / 8 % 2;
  int product[PASS][4] = {};
  multiply_tiles(pair, s.b, product);
#pragma unroll
  for (int i = 0; i < PASS; i++) {
    float top[2][2];
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float scaled = (float)product[i][k * 2 + c] * (pair.about[k].x * s.step[i][c]);
        const float middle = pair.base.of[i][k][c] + scaled;
        const float radius = pair.about[k].y * s.reach[i][c], high = middle + radius;
        top[k][c] = high == high ? high : INFINITY_;  // no number: to be evaluated
        s.best[i][c] = larger(middle - radius, s.best[i][c]);
      }
    const float highest = highest_of(top);
    if (!(lane & 4) && tile < room) upper[(i * 8 + lane % 4 * 2 + odd) * row + tile] = highest;
  }
}

// Where base logits of the lane's requests r, r + 1, r + 8, .. are, from token n of the CTA's first
// tile on.
struct Base {
  const float *at;
  int r, room;  // room: own tokens from there on
};

FUNCTION Base base_of(const Params &p, int j, int first_tile, int own, int o) {
  const int lane = again(THREAD) % 32, r = o * 8 + lane % 4 * 2, v = first_tile * TILE + lane / 4;
  const int end = (first_tile + own) * TILE, last = end < p.vocab ? end : p.vocab;
  return {p.base + ((s64)j * p.batch + r) * p.base_width + v, r, last - v};
}

FUNCTION void read_base(const Params &p, const Base &base, int pair, Logits &to) {
#pragma unroll
  for (int i = 0; i < PASS; i++)
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int v = (pair * 2 + k) * TILE;
        const bool real = base.r + i * 8 + c < p.batch && v < base.room;
        to.of[i][k][c] = real ? base.at[(s64)(i * 8 + c) * p.base_width + v] : -INFINITY_;
      }
}

// A pair's part of the copy; its second tile, if there is none, is the first again.
template <class Read>
FUNCTION void read_copy(const u8 *copy, Tiles &to, int own, int pair, Read read) {
  const int lane = again(THREAD) % 32;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const u8 *record = copy + (pair * 2 + k < own ? pair * 2 + k : pair * 2) * RECORD;
#pragma unroll
    for (int c = 0; c < BLOCKS; c++) {
      to.high[k][c] = read(record + (c * 32 + lane) * 16);
      to.low[k][c] = *(const Words *)(record + HIGH + (c * 32 + lane) * 8);
    }
    to.about[k] = *(const Pair *)(record + COPY + lane / 4 * 8);
  }
}

FUNCTION Quad read_far(const u8 *at) { return read16(at); }
FUNCTION Quad read_near(const u8 *at) { return *(const Quad *)at; }

FUNCTION int near_pairs(const Params &p, int own) {
  return own <= p.resident ? (own + 1) / 2 : p.resident / 2;
}

// What a warp has on its way: a pair that is not in shared memory, base logits of some that are.
struct Ahead {
  Tiles far;
  Logits base[NEAR];
};

FUNCTION void ask_far(const Params &p, Ahead &ahead, const Base &base, int first_tile, int own,
                      int pair) {
  if (pair * 2 >= own) return;
  read_copy(p.copy + (s64)first_tile * RECORD, ahead.far, own, pair, read_far);
  read_base(p, base, pair, ahead.far.base);
}

FUNCTION void ask_near(const Params &p, Ahead &ahead, const Base &base, int near, int pair) {
#pragma unroll
  for (int k = 0; k < NEAR; k++)
    if (pair + k * WARPS < near) read_base(p, base, pair + k * WARPS, ahead.base[k]);
}

// This warp's first pair that is not in shared memory.
FUNCTION int first_far(const Params &p, int own) {
  const int near = near_pairs(p, own), warp = again(THREAD) / 32;
  const int past = near - warp + WARPS - 1;
  return warp + (past < 0 ? 0 : past / WARPS * WARPS);
}

FUNCTION void ask_ahead(const Params &p, Ahead &ahead, int j, int first_tile, int own, int o) {
  const Base base = base_of(p, j, first_tile, own, o);
  ask_far(p, ahead, base, first_tile, own, first_far(p, own));
  ask_near(p, ahead, base, near_pairs(p, own), again(THREAD) / 32);
}

// Bounds of every own token's score: the highest of each tile to m.upper, the best lower ones to
// m.bound. While a warp bounds a share of its pairs in shared memory, one outside it is on its way.
FUNCTION void scan(const Params &p, const Shared &m, int j, int first_tile, int own, Ahead &ahead) {
  const int lane = again(THREAD) % 32;
  const int near = near_pairs(p, own), pairs = (own + 1) / 2;
  for (int o = 0; o < OCTETS; o += PASS) {
    if (o || OCTETS > PASS) ask_ahead(p, ahead, j, first_tile, own, o);
    const Base base = base_of(p, j, first_tile, own, o);
    Bounding s;
    read_bounding(m, s, o);
    float *upper = m.upper + o * 8 * m.row;
    int t = again(THREAD) / 32, f = first_far(p, own);
#pragma unroll 1
    while (t < near || f < pairs) {
      if (f < pairs) {
        bound_tiles(s, ahead.far, upper + f * 2, m.row, own - f * 2);
        f += WARPS;
        ask_far(p, ahead, base, first_tile, own, f);
      }
#pragma unroll
      for (int k = 0; k < NEAR; k++) {
        if (t >= near) break;
        Tiles pair;
        read_copy(m.copy, pair, own, t, read_near);
        pair.base = ahead.base[k];
        bound_tiles(s, pair, upper + t * 2, m.row, own - t * 2);
        t += WARPS;
      }
      ask_near(p, ahead, base, near, t);
    }
#pragma unroll
    for (int i = 0; i < PASS * 2; i++) {
      float best = s.best[i / 2][i % 2];
      for (int mask = 4; mask < 32; mask *= 2) best = larger(shuffle_xor(best, mask), best);
      if (best > -INFINITY_) best -= ROUNDING * (best < 0.0f ? -best : best);
      if (lane < 4) shared_max(m.lower + (o + i / 2) * 8 + lane * 2 + i % 2, ordered(best));
    }
  }
  sync();
  share_bounds(p, m, j);
}

// The tiles with a token that may be the best, to m.left: any warp may evaluate them. A warp looks
// at four tiles of eight requests at once.
FUNCTION void choose_tiles(const Params &p, const Shared &m, int own) {
  const int lane = again(THREAD) % 32, r = lane % 8;
  for (int begin = again(THREAD) / 32 * 4; begin < own; begin += WARPS * 4) {
    const int t = begin + lane / 8;
    bool found = false;
#pragma unroll
    for (int o = 0; o < OCTETS; o++)
      if (o * 8 + r < p.batch && t < own)
        found |= !(m.upper[(o * 8 + r) * m.row + t] < m.bound[o * 8 + r]);
    const u32 all = votes(found);
    if (lane < 4 && (all >> lane * 8 & 0xff)) m.left[shared_add(m.count, 1)] = begin + lane;
  }
  sync();
}

// Eight tokens' exact scores, from W2's rows `w`, into the best keys.
FUNCTION void score(const Params &p, const Shared &m, const float *base, const Quad *w, int v,
                    s64 *key) {
  const int n = again(THREAD) % 32 / 4, l = again(THREAD) % 4;
#pragma unroll
  for (int o = 0; o < OCTETS; o++) {
    float logits[2], acc[4] = {}, more[4] = {};
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int r = o * 8 + n, token = v + l * 2 + c;
      const bool real = r < p.batch && token < p.vocab;
      logits[c] = real ? base[(s64)r * p.base_width + token] : 0.0f;
    }
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
        const float score = logits[c] + (acc[c] + more[c]);
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
    if (l == 0) m.best[(o * 8 + n) * WARPS + warp] = key[o];
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
    if (THREAD % 32 == 0) m.best[i / shares * WARPS + THREAD / 32] = key;
  }
}

// The own best keys of all warps, to all ranks. The gates of those whose tiles the bounds leave are
// asked for: one of them is the token, and its row of the table is far.
FUNCTION void publish(const Params &p, const Shared &m, int j, int first_tile) {
  sync();
  for (int r = again(THREAD); r < p.batch; r += THREADS) {
    const s64 at = ((s64)j * p.batch + r) * PARTS + p.rank * CTAS + CTA;
    s64 best = NONE;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) best = larger(m.best[r * WARPS + warp], best);
#pragma unroll
    for (int rank = 0; rank < RANKS; rank++) poke(p.keys[rank] + m.turn + at, best);
    const int token = key_token(best), tile = (token - p.first) / TILE - first_tile;
    const bool left = best != NONE && !FULL && !(m.upper[r * m.row + tile] < m.bound[r]);
    m.likely[r] = left ? token : -1;
  }
  if (FULL || p.batch > LIKELY) return;
  sync();
  const int lines = (3 * G * 4 + 127) / 128;
  for (int i = again(THREAD); i < lines * p.batch; i += THREADS) {
    const int token = m.likely[i / lines];
    if (token >= 0) prefetch(p.table + (s64)token * (3 * G) + i % lines * 32);
  }
}

FUNCTION Shared layout(const Params &p, int tiles) {
  Shared m;
  u8 *at = shared_memory;
#define TAKE(name, type, bytes) m.name = (type *)at, at += ((bytes) + 15) / 16 * 16
  u8 *const shared = at;  // sums are done with when there are bottlenecks
  TAKE(bytes, u8, REQUESTS * BYTES);
  TAKE(state, u8, REQUESTS * STATE);
  m.sums = (float *)shared;
  at = shared + (SUM_BYTES > BOTTLENECK_BYTES ? SUM_BYTES : BOTTLENECK_BYTES);
  TAKE(gates, float, REQUESTS * 24 * 4);
  TAKE(hidden, float, REQUESTS * 8 * 4);
  TAKE(reach, float, REQUESTS * 4);
  TAKE(step, float, REQUESTS * 4);
  TAKE(bound, float, REQUESTS * 4);
  TAKE(best, s64, REQUESTS * WARPS * 8);
  TAKE(lower, int, REQUESTS * 4);
  TAKE(likely, int, REQUESTS * 4);
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
  for (int i = THREAD; i < REQUESTS * WARPS; i += THREADS) m.best[i] = NONE;
  for (int r = THREAD; r < REQUESTS; r += THREADS) {
    m.lower[r] = LOWEST;
    m.reach[r] = 0.0f, m.step[r] = 1.0f, m.bound[r] = INFINITY_;
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
  publish(p, m, 0, first_tile);
  if (p.n > 1) project(p, m, 0);
  copies_done();
  for (int j = 1; j < p.n; j++) {
    choose(p, m, j);
    advance(p, m, j);
    fetch(p, j, first_tile, own);
    Ahead ahead;
    if (!FULL && OCTETS <= PASS) ask_ahead(p, ahead, j, first_tile, own, 0);
    project(p, m, j);
    gather(p, m, j);
    if (!FULL) scan(p, m, j, first_tile, own, ahead);
    if (!FULL) choose_tiles(p, m, own);
    evaluate(p, m, j, first_tile, own);
    publish(p, m, j, first_tile);
  }
  if (CTA == 0) choose(p, m, p.n);
}
