/*-------------------------------------------------------------------------
 *
 * tables.h
 *	  The leader's part in the initial copy of tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TABLES_H
#define PGPARREP_TABLES_H

#include "postgres.h"

#include "access/xlogdefs.h"

#include "streamrel.h"

extern void tables_init(void);

/*
 * Before anything is received: waits a moment and returns true while the copy of
 * a table is at its end, on the word of an earlier leader.
 */
extern bool tables_end_copies(void);

/* Is any table not ready yet? */
extern bool tables_in_copy(void);

/*
 * Should a transaction's changes of a relation be applied, or does table sync
 * take care of them?  Asked when the transaction is handed out.  The answer is
 * about the local table *relid, which is invalid if there is none of that name.
 */
extern bool tables_apply(RelVersion *rel, TransactionId xid, Oid *relid,
						 XLogRecPtr commit_lsn);

/*
 * Is it time for tables_sync?  idle: it can be called now; otherwise the
 * pipeline has to be emptied for it, which has to be worth while.
 */
extern bool tables_due(bool idle);

/*
 * Lets the server's code do what is due.  Everything up to received has been
 * applied, and nothing beyond it handed out.
 */
extern void tables_sync(XLogRecPtr received);

#endif							/* PGPARREP_TABLES_H */
