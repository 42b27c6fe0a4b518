/* A few threads that run one job together, phase by phase. */
#pragma once
#include <stdatomic.h>

typedef struct pool pool;
typedef struct team team; /* one thread's view of the running job */
typedef void (*job)(void *argument, team *me);

/* For the life of the process. */
pool *pool_new(int threads);
/* Runs `body` on every thread of the pool, the caller's included; returns when all have ended.
   Callers take turns. */
void pool_run(pool *, job body, void *argument);

int team_thread(const team *);
int team_threads(const team *);
/* Hands out the items 0..count-1 of a phase, `grain` at a time, to whoever asks first; false when
   none is left. Every thread asks until then and goes on to the next phase by team_barrier. */
_Bool team_take(team *, int count, int grain, int *first, int *end);
/* Ends a phase: returns when every thread has come here. */
void team_barrier(team *);
