// The names of kernels/domino_kernels/cuda/warp.cuh on a CPU: every thread of every CTA is a fiber
// that gives way where threads of a GPU would wait for each other.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef long long s64;
struct alignas(16) Quad { u32 x, y, z, w; };
struct alignas(8) Words { u32 x, y; };

#define KERNEL static
#define FUNCTION static inline
#define LIMITS(threads)

struct Warp { u32 words[32][6]; int arrived = 0; u64 turn = 0; };
struct Block { std::vector<u8> memory; std::vector<Warp> warps; int arrived = 0; u64 turn = 0; };
struct Fiber { ucontext_t context; std::vector<u8> stack; int thread, cta, gpu; bool done = false; };
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static Fiber *running;
static ucontext_t scheduler;
static int ctas;  // of a GPU
#define THREAD (running->thread)
#define CTA (running->cta)
static Block &block_of() { return blocks[running->gpu * ctas + CTA]; }
#define shared_memory (block_of().memory.data())

static void give_way() { swapcontext(&running->context, &scheduler); }
template <class Group> static void meet(Group &group, int size) {
  const u64 turn = group.turn;
  if (++group.arrived == size) {
    group.arrived = 0, group.turn++;
    return;
  }
  while (group.turn == turn) give_way();
}
static Warp &warp_of() { return block_of().warps[THREAD / 32]; }

static void sync() { meet(block_of(), (int)block_of().warps.size() * 32); }
static void converge() { meet(warp_of(), 32); }
static u32 shuffle_xor(u32 v, int mask) {
  warp_of().words[THREAD % 32][0] = v;
  converge();
  v = warp_of().words[THREAD % 32 ^ mask][0];
  converge();
  return v;
}
static int warp_max(int v) {
  for (int mask = 16; mask; mask >>= 1) {
    const int other = (int)shuffle_xor((u32)v, mask);
    v = other > v ? other : v;
  }
  return v;
}
static u32 votes(bool v) {
  u32 all = (u32)v << THREAD % 32;
  for (int mask = 16; mask; mask >>= 1) all |= shuffle_xor(all, mask);
  return all;
}
static int again(int v) { return v; }
template <class To, class From> static To cast(From v) {
  To out;
  memcpy(&out, &v, sizeof out);
  return out;
}
static int as_int(float v) { return cast<int>(v); }
static float as_float(int v) { return cast<float>(v); }
static float fast_exp(float v) { return expf(v); }
static float reciprocal(float v) { return 1.0f / v; }
static int shared_add(int *at, int v) { return (*at += v) - v; }
template <class T> static void shared_max(T *at, T v) { *at = v > *at ? v : *at; }
static Quad peek16(const void *at) { return *(const Quad *)at; }
static s64 peek8(const void *at) { return *(const s64 *)at; }
static int peek4(const void *at) { return *(const int *)at; }
template <class T> static void poke(T *at, T v) { *at = v; }
static void wait_a_little() { give_way(); }
static Quad read16(const void *at) { return *(const Quad *)at; }
static void prefetch(const void *) {}
static void copy16(void *to, const void *from) { memcpy(to, from, 16); }
static void copies_done() {}

#ifdef HALF_IS_FP16
static u16 narrow(float v) { return cast<u16>((_Float16)v); }
static float widen(u16 h) { return (float)cast<_Float16>(h); }
#else
static u16 narrow(float v) {
  const u32 bits = cast<u32>(v);
  return v != v ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float widen(u16 h) { return cast<float>((u32)h << 16); }
#endif

// The parts of a and b that each lane holds are those of mma.sync m16n8; per: values in a word.
template <class T, class Value> static void multiply(T *acc, u32 *ab, int per, Value value) {
  memcpy(warp_of().words[THREAD % 32], ab, 6 * sizeof(u32));
  converge();
  const auto &words = warp_of().words;
  const int n = THREAD % 32 / 4, l = THREAD % 4;
  for (int c = 0; c < 4; c++)
    for (int k = 0; k < 8 * per; k++) {
      const int lane = k / per % 4, half = k / (4 * per);
      const u32 a = words[n * 4 + lane][half * 2 + c / 2];
      const u32 b = words[(l * 2 + c % 2) * 4 + lane][4 + half];
      acc[c] += value(a, k % per) * value(b, k % per);
    }
  converge();
}
static void multiply_bytes(int *acc, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  u32 ab[6] = {a0, a1, a2, a3, b0, b1};
  multiply(acc, ab, 4, [](u32 word, int i) { return (int)(int8_t)(word >> 8 * i); });
}
static void multiply_halves(float *acc, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  u32 ab[6] = {a0, a1, a2, a3, b0, b1};
  multiply(acc, ab, 2, [](u32 word, int i) { return widen((u16)(word >> 16 * i)); });
}
