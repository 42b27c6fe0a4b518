/* Threads spin for a moment before they sleep: between two products of a model there is no time to
   wake anybody. A thread that finds the processor taken by others gives its turn away. */
#include "pool.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { SPINS_BEFORE_YIELD = 200, SPINS_BEFORE_SLEEP = 2000, LINE = 64 };

struct pool {
    int threads;
    pthread_mutex_t busy; /* one job at a time */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    job body;
    void *argument;
    _Alignas(LINE) atomic_uint generation; /* one more with every job */
    _Alignas(LINE) atomic_int working;
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_uint phase;
    _Alignas(LINE) atomic_int next[2]; /* first item not handed out, of this phase and the next */
};

struct team {
    pool *pool;
    int thread;
    unsigned phase;
};

static void pause_briefly(int spins) {
    if (spins % SPINS_BEFORE_YIELD == SPINS_BEFORE_YIELD - 1) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int team_thread(const team *t) { return t->thread; }

int team_threads(const team *t) { return t->pool->threads; }

_Bool team_take(team *t, int count, int grain, int *first, int *end) {
    *first = atomic_fetch_add_explicit(&t->pool->next[t->phase & 1], grain, memory_order_relaxed);
    *end = *first + grain < count ? *first + grain : count;
    return *first < count;
}

void team_barrier(team *t) {
    pool *p = t->pool;
    unsigned phase = t->phase++;
    if (atomic_fetch_add(&p->arrived, 1) == p->threads - 1) {
        atomic_store(&p->arrived, 0);
        atomic_store(&p->next[phase & 1], 0);
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; spins++)
        pause_briefly(spins);
}

static void take_part(pool *p, int thread) {
    team me = {p, thread, atomic_load(&p->phase)};
    p->body(p->argument, &me);
}

typedef struct {
    pool *pool;
    int thread;
} start;

static void *work(void *argument) {
    start own = *(start *)argument;
    free(argument);
    pool *p = own.pool;
    for (unsigned seen = 0;;) {
        int spins = 0;
        while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen) {
            pause_briefly(spins);
            if (++spins < SPINS_BEFORE_SLEEP) continue;
            pthread_mutex_lock(&p->lock);
            while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        seen++;
        take_part(p, own.thread);
        atomic_fetch_sub_explicit(&p->working, 1, memory_order_release);
    }
    return NULL;
}

static void announce(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, job body, void *argument) {
    pthread_mutex_lock(&p->busy);
    p->body = body;
    p->argument = argument;
    atomic_store(&p->working, p->threads - 1);
    if (p->threads > 1) announce(p);
    take_part(p, 0);
    for (int spins = 0; atomic_load_explicit(&p->working, memory_order_acquire); spins++)
        pause_briefly(spins);
    pthread_mutex_unlock(&p->busy);
}

pool *pool_new(int threads) {
    pool *p = aligned_alloc(LINE, (sizeof(pool) + LINE - 1) / LINE * LINE);
    *p = (pool){.threads = threads};
    pthread_mutex_init(&p->busy, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < threads; i++) {
        start *own = malloc(sizeof *own);
        *own = (start){p, i};
        pthread_t worker;
        pthread_create(&worker, NULL, work, own);
        pthread_detach(worker);
    }
    return p;
}
