/*-------------------------------------------------------------------------
 *
 * apply.h
 *	  Applying the changes of one remote transaction to the local tables.
 *
 * Used by an apply worker (worker.c), which owns the local transaction, the
 * order and the retries.  Call sequence for each attempt at a transaction:
 *
 *		StartTransactionCommand
 *		apply_begin
 *			apply_change | apply_truncate | apply_next ...
 *		apply_end
 *		apply_begin_commit
 *		CommitTransactionCommand
 *		apply_end_commit
 *
 * or, after an error anywhere in it, AbortOutOfAnyTransaction and apply_abort.
 *
 * The files of apply call back what worker.h declares.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_APPLY_H
#define PGPARREP_APPLY_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "utils/relcache.h"

/* What is known of the remote transaction that is being applied. */
typedef struct ApplyTxn
{
	TransactionId remote_xid;	/* publisher's top-level transaction id */
	XLogRecPtr	commit_lsn;		/* start of its commit record: "finished at" */
	XLogRecPtr	end_lsn;		/* end of its commit record: origin position */
	TimestampTz commit_time;	/* publisher's commit time */
} ApplyTxn;

/*
 * Once in a process, after the database connection is there and MySubscription
 * is set.  origin_name is kept by reference.
 */
extern void apply_init(const char *origin_name);

/*
 * Makes a version of a remote relation known.  body is the body of an 'R'
 * message of the logical replication protocol, after its type byte.  A
 * version number is never reused for another body in the life of a process.
 * Raises ERRCODE_PROTOCOL_VIOLATION for a malformed body.
 */
extern void apply_define_relation(uint32 version, const char *body, int len);
extern bool apply_knows_relation(uint32 version);

/*
 * The table that the following changes of a known relation are meant for.  If
 * the one of that name is another, they raise
 * ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE.
 */
extern void apply_expect_relation(uint32 version, Oid relid);
extern void apply_forget_relation(uint32 version);

extern void apply_begin(const ApplyTxn *txn);

/* Changes of another remote transaction follow, in the same local one. */
extern void apply_next(const ApplyTxn *txn);

/*
 * Applies one insert ('I'), update ('U') or delete ('D') of the relation with
 * the given version.  body is the message's body after its type byte (it
 * starts with the remote relation's OID).  It is private memory of the caller,
 * may be scribbled on, and body[len] is writable too, so that a value can be
 * terminated in place.
 */
extern void apply_change(uint32 version, char type, char *body, int len);

/*
 * Applies one TRUNCATE of the relations with the given versions.  flags are
 * the option bits of the protocol's message (1 = CASCADE, 2 = RESTART
 * IDENTITY).
 */
extern void apply_truncate(int nrels, const uint32 *versions, uint8 flags);

/*
 * Rows of inserts that follow each other are stored several at a time.  Stores
 * what is left, whose errors come only now.  apply_end does it, too.
 */
extern void apply_flush(void);

/* Closes what the transaction had open; before it commits. */
extern void apply_end(void);

/*
 * Around the commit, or whatever the publisher's message asks for at the end.
 * Also of a transaction of which nothing was applied, for which apply_begin was
 * not called.
 */
extern void apply_begin_commit(const ApplyTxn *txn, const char *message_type);
extern void apply_end_commit(void);

/* Forgets what the transaction had open; after it was rolled back. */
extern void apply_abort(void);

/* Changes for which no row was found, since the process started. */
extern uint64 apply_missing_rows(void);

/*
 * Does a trigger of the table fire for changes that are applied row by row?
 * Statement triggers do not.
 */
extern bool apply_fires_row_triggers(Relation rel);

#endif							/* PGPARREP_APPLY_H */
