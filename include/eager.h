/*-------------------------------------------------------------------------
 *
 * eager.h
 *	  Transactions that are applied before their commit: the leader's part.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_EAGER_H
#define PGPARREP_EAGER_H

#include "postgres.h"

#include "streamrel.h"
#include "txnbuf.h"

extern void eager_init(Pool *pool, dsa_area *area);

/*
 * A change has been appended to a transaction; handed is the newest CSN handed
 * out.  Begins to apply the transaction if that is due and may_begin, or goes on.
 */
extern void eager_change(TxnBuffer *txn, Conflict conflict, Csn handed,
						 bool may_begin);

/* Tells workers of what has been appended since the last call. */
extern void eager_announce(void);

/* The transaction is applied from its buffer only, once it has committed. */
extern void eager_never(TxnBuffer *txn);

/* So are all that have not committed by now.  Some may be begun again. */
extern void eager_cancel_all(void);

/*
 * The transaction gets that place in the commit order.  True if the worker that
 * applies it keeps it; eager_complete has to follow, before "handed" advances
 * and when nothing will be written to the buffer any more.
 */
extern bool eager_commit(TxnBuffer *txn, PoolTxn *ptxn);
extern void eager_complete(TxnBuffer *txn, Csn csn);

/* For txnbuf.c: the chunks of the transaction have gone to its file. */
extern void eager_spilled(TxnBuffer *txn);

#endif							/* PGPARREP_EAGER_H */
