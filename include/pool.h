/*-------------------------------------------------------------------------
 *
 * pool.h
 *	  The pool of apply workers of one leader.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_POOL_H
#define PGPARREP_POOL_H

#include "postgres.h"

#include "shared.h"

/*
 * Creates the pool of this process, which becomes a leader.  From here on the
 * process ends its workers before it ends itself, however that happens.
 */
extern Pool *pool_create(RepOriginId origin, const char *origin_name);
extern void pool_memory_context(void *arg);
extern dsa_area *pool_area(void);
extern LeaderSlot *pool_leader_slot(void);

/*
 * Starts workers up to a number, or as many as the server lets; to be called
 * now and then.  Returns how many there are.
 */
extern int	pool_start_workers(int wanted);

/* Has a worker that should be there ended? */
extern bool pool_lost_worker(void);

/* Ends all workers and waits until they are gone. */
extern void pool_stop(void);

/* Wakes up to n workers that have nothing to do. */
extern void pool_wake_idle(int n);

#endif							/* PGPARREP_POOL_H */
