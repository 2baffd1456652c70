/*-------------------------------------------------------------------------
 *
 * order.h
 *	  The commit order: claiming transactions, waiting for commits, making a
 *	  commit known (apply worker).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_ORDER_H
#define PGPARREP_ORDER_H

#include "postgres.h"

#include "shared.h"

extern void order_init(Pool *pool, int slot);

/* Ends the process when the leader is going or another worker has failed. */
extern void order_exit_if_stopped(void);

/*
 * The next transaction, or a group of transactions up to *last, or 0 and an
 * eager transaction; waits for one.  Exits the process at a stop.
 */
extern Csn	order_claim(Csn *last, EagerTxn **eager);

/* Has the commit before csn been made known? */
extern bool order_at_turn(Csn csn);

/*
 * The first CSN of what is applied together with csn - 1, and commits with it.
 * May be too high, if that is changing.
 */
extern Csn	order_group_before(Csn csn);

/*
 * Waits until a commit, and so all before it, has been made known.  With
 * in_transaction the process may hold locks: it then raises
 * ERRCODE_T_R_SERIALIZATION_FAILURE when an earlier transaction waits for
 * them.
 */
extern void order_wait(Csn csn, WorkerState state, bool in_transaction);

/*
 * An eager transaction: its CSN, 0 if it has none yet; makes it the one in
 * work, which from then on is a transaction like any other.
 */
extern Csn	order_eager_csn(EagerTxn *eager);
extern void order_adopt(Csn csn);

/* Transactions in work that are earlier have lower CSNs than this. */
extern Csn	order_bound(void);

/*
 * Waits until more than up to a position of an eager transaction has arrived,
 * or it has ended; raises an error if it is in the way of others, or nothing
 * comes.  order_eager_look is for each change, where it does not wait.
 */
extern void order_wait_changes(EagerTxn *eager, uint64 position);
extern void order_eager_look(void);

/*
 * The attempt is over: committed, or rolled back.  Returns the CSN if the
 * transaction has one, and so stays with this worker; 0 if not.
 */
extern Csn	order_eager_end(EagerTxn *eager);

/*
 * The number of the table at which the earlier transaction waits, once after
 * such an error of order_wait.
 */
#define ORDER_NO_YIELD UINT32_MAX
extern uint32 order_yield_table(void);

/*
 * Makes the commit of a transaction, or of a group, known; all before it must
 * have been.  Raises no error.
 */
extern void order_publish(Csn first, Csn last);

/* The group is given up: its transactions follow one by one. */
extern void order_ungroup(Csn csn);

extern void order_set_state(WorkerState state);

/* An error of this worker counts: nothing may commit after what has. */
extern void order_fail(Csn csn);

#endif							/* PGPARREP_ORDER_H */
