// Runs the kernel included before it; every fiber in turn until all have ended. -1: they hang.
static Params given;
static void enter() {
  rollout(given);
  running->done = true;
  give_way();
}
extern "C" int run_emulated(const Params *params, int shared_bytes) {
  given = *params;
  blocks.assign(CTAS, Block());
  fibers.assign((size_t)CTAS * THREADS, Fiber());
  for (auto &block : blocks) block.memory.resize(shared_bytes), block.warps.resize(WARPS);
  for (size_t i = 0; i < fibers.size(); i++) {
    Fiber &fiber = fibers[i];
    fiber.thread = (int)(i % THREADS), fiber.cta = (int)(i / THREADS);
    fiber.stack.resize(1 << 16);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  size_t left = fibers.size();
  for (int rounds = 0; left; rounds++) {
    if (rounds > 1 << 22) return -1;
    for (auto &fiber : fibers) {
      if (fiber.done) continue;
      running = &fiber;
      swapcontext(&scheduler, &fiber.context);
      left -= fiber.done;
    }
  }
  return 0;
}
