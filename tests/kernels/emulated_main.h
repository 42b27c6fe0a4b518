// Runs the kernel included before it on some GPUs at once; every fiber in turn until all have ended.
#pragma once

static const Params *given;
static void enter() {
  rollout(given[running->gpu]);
  running->done = true;
  give_way();
}

static void prepare(Fiber &fiber, int place) {
  fiber.thread = place % THREADS, fiber.cta = place / THREADS % CTAS;
  fiber.gpu = place / (THREADS * CTAS);
  fiber.stack.resize(1 << 16);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, enter, 0);
}

// -1: they wait for each other.
extern "C" int run_emulated(const Params *params, int gpus, int shared_bytes) {
  given = params, ctas = CTAS;
  blocks.assign((size_t)gpus * CTAS, Block());
  fibers.assign((size_t)gpus * CTAS * THREADS, Fiber());
  for (auto &block : blocks) block.memory.assign(shared_bytes, 0xa5), block.warps.resize(WARPS);
  for (size_t i = 0; i < fibers.size(); i++) prepare(fibers[i], (int)i);
  size_t left = fibers.size();
  for (int rounds = 0; left; rounds++) {
    if (rounds > 1 << 20) return -1;
    for (auto &fiber : fibers) {
      if (fiber.done) continue;
      running = &fiber;
      swapcontext(&scheduler, &fiber.context);
      left -= fiber.done;
    }
  }
  return 0;
}
