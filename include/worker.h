/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  Apply worker: what applying a change needs from it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_WORKER_H
#define PGPARREP_WORKER_H

#include "postgres.h"

#include "fmgr.h"

extern PGDLLEXPORT void pgparrep_apply_worker_main(Datum main_arg);

/*
 * Has every earlier transaction of the publisher's commit order committed?
 * Once true it stays true for the rest of the transaction.
 */
extern bool worker_at_turn(void);

/*
 * Waits until worker_at_turn().  The caller must hold no buffer pin or
 * lightweight lock, and must take a new snapshot and search again
 * afterwards.  May raise an error that makes this attempt void (the
 * transaction is repeated at its turn).
 */
extern void worker_wait_turn(void);

/*
 * Something is to be done that has to be the remote transaction's own: it
 * looks at other rows, at the commit perhaps.  Raises an error that makes this
 * attempt void if the local transaction is for a group of remote ones; they
 * follow one by one.
 */
extern void worker_require_alone(void);

/*
 * An error is to be raised that is counted where it is.  Raises another one that
 * makes this attempt void, unless it is the one whose errors are reported.
 */
extern void worker_require_counting(void);

/*
 * Changes were applied in another order than the publisher's (postpone.c), and
 * it shows: raises an error that makes this attempt void.
 */
extern void worker_out_of_order(void);

#endif							/* PGPARREP_WORKER_H */
