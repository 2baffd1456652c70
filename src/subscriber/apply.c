/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  Applying the changes of one remote transaction: entry points.
 *
 * The work is spread over
 *
 *	relation.c	remote relations and how they map to local tables
 *	target.c	tables that the transaction has open
 *	tuple.c		reading messages, converting values
 *	find.c		finding the row to be updated or deleted
 *	row.c		changing a row of a table without row triggers
 *	triggered.c	changing a row of a table with row triggers
 *	conflict.c	reporting missing rows and conflicts
 *
 * This file owns what there is once in a transaction: its description, the
 * active snapshot, the memory contexts and the error context.
 *
 * Invariants:
 *
 * I1. An active snapshot is pushed from the first change to the end, except
 *	   while waiting for our turn.  Row lookups depend on it (find.c).
 * I2. After a wait for our turn the snapshot is a new one.
 * I3. What a change allocates is gone when the next one comes.
 * I4. What was seen counts only if it was our turn before we looked.  That it
 *	   is our turn now says nothing: the transaction before ours may have
 *	   committed between the look and the question.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "worker.h"

/* Flags of a TRUNCATE message. */
#define TRUNCATE_RESTART_IDENTITY 2

/* Tables that the transaction has open live here.  Reset by target.c. */
MemoryContext apply_txn_cxt = NULL;

/* Reset after each change. */
static MemoryContext change_cxt = NULL;

/* Set by apply_begin, used for error messages only. */
static ApplyTxn current_txn;
static const char *origin_name = NULL;

/* Is our snapshot pushed, and was it our turn before it was taken? */
static bool snapshot_pushed = false;
static bool snapshot_at_turn = false;

/* What is being applied right now, for error messages. */
static struct
{
	const char *message_type;
	RemoteRel  *remote;			/* NULL: more than one, or not known */
	int			column;			/* of remote, or -1 */
} current_change;

static ErrorContextCallback commit_errcallback;

/* Now, and as of the last commit. */
static uint64 missing_rows = 0;
static uint64 missing_rows_before = 0;

static void add_error_context(void *arg);

void
apply_init(const char *name)
{
	origin_name = name;
	apply_txn_cxt = AllocSetContextCreate(TopMemoryContext,
										  "pgparrep transaction",
										  ALLOCSET_DEFAULT_SIZES);
	change_cxt = AllocSetContextCreate(TopMemoryContext,
									   "pgparrep change",
									   ALLOCSET_DEFAULT_SIZES);
	relation_init();
}

uint64
apply_missing_rows(void)
{
	return missing_rows;
}

void
apply_count_missing(void)
{
	missing_rows++;
}

/* Names the column that is being converted, or -1 for none. */
void
apply_set_column(int remote)
{
	current_change.column = remote;
}

/*
 * From here on until the callback is popped errors name the transaction, and
 * what is done for it, to a relation if that is one.
 */
static inline void
push_error_context(ErrorContextCallback *callback, const char *message_type,
				   RemoteRel *remote)
{
	current_change.message_type = message_type;
	current_change.remote = remote;
	current_change.column = -1;

	callback->callback = add_error_context;
	callback->arg = NULL;
	callback->previous = error_context_stack;
	error_context_stack = callback;
}

static void
push_snapshot(void)
{
	Assert(!snapshot_pushed);
#ifdef PGPARREP_SABOTAGE_MISSING_EARLY
	snapshot_at_turn = true;
#else
	snapshot_at_turn = worker_at_turn();	/* I4: before it is taken */
#endif
	PushActiveSnapshot(GetTransactionSnapshot());
	snapshot_pushed = true;
}

static void
pop_snapshot(void)
{
	if (snapshot_pushed)
		PopActiveSnapshot();
	snapshot_pushed = false;
	snapshot_at_turn = false;
}

/* Starts something that may run code of users. */
void
apply_new_snapshot(void)
{
	SetCurrentStatementStartTimestamp();
	pop_snapshot();
	push_snapshot();
}

bool
apply_saw_turn(void)
{
	return snapshot_at_turn;
}

/*
 * Waits until all transactions before ours have committed, and sees them
 * afterwards.  Returns false if that was so already when the active snapshot
 * was taken, so that everything seen since counts (I4).  The caller holds no
 * buffer pins.
 */
bool
apply_wait_turn(void)
{
	if (snapshot_at_turn)
		return false;

	pop_snapshot();
	worker_wait_turn();
	AcceptInvalidationMessages();
	apply_new_snapshot();

	return true;
}

void
apply_begin(const ApplyTxn *txn)
{
	Assert(IsTransactionState());
	Assert(!snapshot_pushed);

	current_txn = *txn;
}

void
apply_next(const ApplyTxn *txn)
{
	current_txn = *txn;
}

/* Stores rows that were kept back. */
void
apply_flush(void)
{
	ErrorContextCallback errcallback;
	MemoryContext oldcxt;
	Target	   *target = row_batch();

	if (target == NULL)
		return;

	push_error_context(&errcallback, "INSERT", target->remote);
	oldcxt = MemoryContextSwitchTo(change_cxt);
	row_flush();
	CommandCounterIncrement();
	MemoryContextSwitchTo(oldcxt);
	MemoryContextReset(change_cxt);

	error_context_stack = errcallback.previous;
}

void
apply_end(void)
{
	apply_flush();
	target_close_all();
	pop_snapshot();
}

/*
 * Around the commit, where deferred constraints are checked: an error there
 * has to name the transaction as well.
 */
void
apply_begin_commit(const ApplyTxn *txn, const char *message_type)
{
	current_txn = *txn;
	push_error_context(&commit_errcallback, message_type, NULL);
}

void
apply_end_commit(void)
{
	error_context_stack = commit_errcallback.previous;
	missing_rows_before = missing_rows;
}

void
apply_abort(void)
{
	snapshot_pushed = false;
	snapshot_at_turn = false;
	missing_rows = missing_rows_before;
	target_forget_all();
	relation_after_rollback();
	MemoryContextReset(change_cxt);
}

void
apply_change(uint32 version, char type, char *body, int len)
{
	ErrorContextCallback errcallback;
	MemoryContext oldcxt;
	RemoteRel  *remote;
	Relation	rel;
	UserContext ucxt;
	bool		switch_user;
	bool		triggered;
	bool		has_old;

	remote = relation_lookup(version);
	if (row_batch() != NULL &&
		(type != LOGICAL_REP_MSG_INSERT || remote->target != row_batch() ||
		 !remote->map->valid))
		apply_flush();

	push_error_context(&errcallback,
					   type == LOGICAL_REP_MSG_INSERT ? "INSERT" :
					   type == LOGICAL_REP_MSG_UPDATE ? "UPDATE" :
					   type == LOGICAL_REP_MSG_DELETE ? "DELETE" :
														"???",
					   remote);
	oldcxt = MemoryContextSwitchTo(change_cxt);

	tuple_parse(remote, type, body, len, &has_old);

	if (!snapshot_pushed)
		push_snapshot();

	/* Something about the table has changed that its lock does not prevent. */
	if (remote->target != NULL && unlikely(!remote->target->map->valid))
		target_close_all();

	triggered = false;
	if (remote->target != NULL)
		rel = remote->target->rel;
	else
	{
		rel = relation_open_local(remote, RowExclusiveLock);
		triggered = remote->map->row_triggers;
	}
	relation_check_expected(remote, rel);

	if (type != LOGICAL_REP_MSG_INSERT)
		relation_check_updatable(remote, remote->map, rel);

	switch_user = compat_run_as_table_owner();
	if (switch_user)
		SwitchToUntrustedUser(rel->rd_rel->relowner, &ucxt);

	if (!triggered)
	{
		RowResult	result = ROW_DONE;

		if (remote->target == NULL)
			target_open(remote, rel);
		switch (type)
		{
			case LOGICAL_REP_MSG_INSERT:
				result = row_insert(remote->target);
				break;
			case LOGICAL_REP_MSG_UPDATE:
				result = row_update(remote->target, has_old);
				break;
			case LOGICAL_REP_MSG_DELETE:
				result = row_delete(remote->target);
				break;
		}

		if (result == ROW_TRIGGERED)
		{
			triggered = true;
			target_close_all();
			rel = relation_open_local(remote, RowExclusiveLock);
		}
		else
			ResetPerTupleExprContext(remote->target->estate);
	}

	if (triggered)
	{
		triggered_change(remote, rel, type, has_old);
		table_close(rel, NoLock);
	}

	if (switch_user)
		RestoreUserContext(&ucxt);

	/* A row may be met again by the next change. */
	CommandCounterIncrement();

	MemoryContextSwitchTo(oldcxt);
	MemoryContextReset(change_cxt);

	error_context_stack = errcallback.previous;
}

void
apply_truncate(int nrels, const uint32 *versions, uint8 flags)
{
	ErrorContextCallback errcallback;
	MemoryContext oldcxt;
	List	   *rels = NIL;
	List	   *relids = NIL;
	List	   *relids_logged = NIL;
	ListCell   *lc;

	apply_flush();

	push_error_context(&errcallback, "TRUNCATE", NULL);
	oldcxt = MemoryContextSwitchTo(change_cxt);

	/* TRUNCATE insists on nobody else using the table, not even us. */
	target_close_all();

	worker_require_alone();
	if (!apply_wait_turn())
		apply_new_snapshot();

	for (int i = 0; i < nrels; i++)
	{
		RemoteRel  *remote = relation_lookup(versions[i]);
		Relation	rel = relation_open_local(remote, AccessExclusiveLock);
		Oid			relid = RelationGetRelid(rel);

		relation_check_expected(remote, rel);
		check_privileges(rel, ACL_TRUNCATE);
		rels = lappend(rels, rel);
		relids = lappend_oid(relids, relid);
		if (RelationIsLogicallyLogged(rel))
			relids_logged = lappend_oid(relids_logged, relid);

		if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		{
			List	   *children = find_all_inheritors(relid,
												 AccessExclusiveLock,
												 NULL);

			foreach(lc, children)
			{
				Oid			childid = lfirst_oid(lc);
				Relation	child;

				if (list_member_oid(relids, childid))
					continue;

				/* find_all_inheritors already got the lock */
				child = table_open(childid, NoLock);

				if (RELATION_IS_OTHER_TEMP(child))
				{
					table_close(child, AccessExclusiveLock);
					continue;
				}

				check_privileges(child, ACL_TRUNCATE);
				rels = lappend(rels, child);
				relids = lappend_oid(relids, childid);
				if (RelationIsLogicallyLogged(child))
					relids_logged = lappend_oid(relids_logged, childid);
			}
		}
	}

	/*
	 * As in core, without CASCADE even if the publisher had it: tables that
	 * it reached there came with the message.
	 */
	compat_truncate_guts(rels, relids, relids_logged,
						 (flags & TRUNCATE_RESTART_IDENTITY) != 0);

	foreach(lc, rels)
		table_close((Relation) lfirst(lc), NoLock);

	CommandCounterIncrement();

	MemoryContextSwitchTo(oldcxt);
	MemoryContextReset(change_cxt);

	error_context_stack = errcallback.previous;
}

/*
 * The first line is core's, to the letter: people copy the LSN from it into
 * ALTER SUBSCRIPTION ... SKIP, and monitoring parses it.
 */
static void
add_error_context(void *arg)
{
	RemoteRel  *remote = current_change.remote;

	if (remote == NULL)
		errcontext("processing remote data for replication origin \"%s\" during message type \"%s\" in transaction %u, finished at %X/%X",
				   origin_name,
				   current_change.message_type,
				   current_txn.remote_xid,
				   LSN_FORMAT_ARGS(current_txn.commit_lsn));
	else if (current_change.column < 0)
		errcontext("processing remote data for replication origin \"%s\" during message type \"%s\" for replication target relation \"%s.%s\" in transaction %u, finished at %X/%X",
				   origin_name,
				   current_change.message_type,
				   remote->rel->nspname,
				   remote->rel->relname,
				   current_txn.remote_xid,
				   LSN_FORMAT_ARGS(current_txn.commit_lsn));
	else
		errcontext("processing remote data for replication origin \"%s\" during message type \"%s\" for replication target relation \"%s.%s\" column \"%s\" in transaction %u, finished at %X/%X",
				   origin_name,
				   current_change.message_type,
				   remote->rel->nspname,
				   remote->rel->relname,
				   remote->rel->attnames[current_change.column],
				   current_txn.remote_xid,
				   LSN_FORMAT_ARGS(current_txn.commit_lsn));

	errcontext("apply worker of subscription \"%s\"", MySubscription->name);
}
