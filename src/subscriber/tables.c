/*-------------------------------------------------------------------------
 *
 * tables.c
 *	  The leader's part in the initial copy of tables.
 *
 * The server's table sync workers copy a table and then catch up with the
 * leader; its own function process_syncing_tables, called by the leader,
 * starts them, tells them how far to go, waits for them, and makes a table
 * ready when the leader has come to where they stopped.
 *
 * I1	That function takes a position up to which everything has been applied.
 *		It is called only with an empty pipeline, and with what has been
 *		received: nothing that was handed out lies beyond.  Nor does anything
 *		that an earlier leader has left to table sync and that does not come
 *		again: the position of the slot counts as received from the beginning,
 *		and the origin moves with what is left out as well (worker.c, I10), for
 *		whoever goes by that, as the server's own apply does.
 * I2	Whether a table that is in initial copy gets a change is decided here,
 *		by the state of the table and the LSN of the commit record, when the
 *		transaction is handed out.  Workers do not look at states.  With I1 no
 *		state changes between a decision and the commit.
 * I3	The decision is about a table, not about its name.  A worker that finds
 *		another one of that name, or one where there was none, must not apply
 *		anything to it: its rows are the initial copy's affair.
 *
 * I4	A sync worker that an earlier leader has told how far to go, but which it
 *		has not waited for, ends before the first decision: what commits after
 *		that place and before the end of the copy is visible would be applied by
 *		nobody.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "catalog/pg_subscription_rel.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/inval.h"
#include "utils/wait_event.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "keyplan.h"
#include "leader.h"
#include "tables.h"
#include "test_points.h"

/* How often tables in initial copy are worth an empty pipeline. */
#define SYNC_MS 1000

/* How often to look for the end of one that an earlier leader has told to end. */
#define SETTLE_MS 20

static bool tables_stale = true;	/* set by invalidations */
static bool tables_not_ready = true;
static TimestampTz last_sync_at = 0;

static void
forget_state(RelVersion *rel, void *arg)
{
	rel->state = 0;
}

static void
tables_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	tables_stale = true;
	streamrel_foreach(forget_state, NULL);
}

static void
reread_tables(void)
{
	if (!tables_stale)
		return;
	tables_stale = false;
	leader_start_tx();
	tables_not_ready = compat_not_ready_relations(MySubscription->oid) != NIL;
	leader_commit_tx();
}

void
tables_init(void)
{
	CacheRegisterSyscacheCallback(SUBSCRIPTIONRELMAP, tables_callback, (Datum) 0);
	reread_tables();
}

bool
tables_in_copy(void)
{
	return tables_not_ready;
}

/*
 * Decides by the state of table sync as of now.  What was read of it holds
 * until a row of pg_subscription_rel changes.
 */
bool
tables_apply(RelVersion *rel, TransactionId xid, Oid *relid, XLogRecPtr commit_lsn)
{
	/* Not there, or locked? */
	*relid = keyplan_localoid(rel, xid);
	if (!OidIsValid(*relid))
	{
		leader_start_tx();
		*relid = keyplan_find_relation(rel);
		leader_commit_tx();
		if (!OidIsValid(*relid))
			return true;		/* the worker will complain (I3) */
	}

	if (rel->state != SUBREL_STATE_READY || !OidIsValid(rel->localoid))
	{
		XLogRecPtr	statelsn;
		char		state;

		leader_start_tx();
		state = GetSubscriptionRelState(MySubscription->oid, *relid, &statelsn);
		leader_commit_tx();
		rel->state = state;
		rel->statelsn = statelsn;
	}
	return rel->state == SUBREL_STATE_READY ||
		   (rel->state == SUBREL_STATE_SYNCDONE && rel->statelsn <= commit_lsn);
}

/* Is a table sync worker in one of two states? */
static bool
any_sync_worker(char one, char other)
{
	List	   *workers;
	ListCell   *lc;
	bool		result = false;

	LWLockAcquire(LogicalRepWorkerLock, LW_SHARED);
	workers = compat_workers_find(MyLogicalRepWorker->subid);
	foreach(lc, workers)
	{
		LogicalRepWorker *worker = lfirst(lc);

		if (OidIsValid(worker->relid) &&
			(worker->relstate == one || worker->relstate == other))
			result = true;
	}
	LWLockRelease(LogicalRepWorkerLock);
	list_free(workers);
	return result;
}

bool
tables_due(bool idle)
{
	reread_tables();
	if (idle)
		return true;
	return tables_not_ready &&
		   (any_sync_worker(SUBREL_STATE_SYNCWAIT, SUBREL_STATE_SYNCWAIT) ||
			TimestampDifferenceExceeds(last_sync_at, GetCurrentTimestamp(), SYNC_MS));
}

bool
tables_end_copies(void)
{
	/* In the second it has yet to commit. */
	if (!any_sync_worker(SUBREL_STATE_CATCHUP, SUBREL_STATE_SYNCDONE))
		return false;

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 SETTLE_MS, WAIT_EVENT_LOGICAL_SYNC_STATE_CHANGE);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	AcceptInvalidationMessages();
	return true;
}

void
tables_sync(XLogRecPtr received)
{
	last_sync_at = GetCurrentTimestamp();
	CRASH_POINT("before_table_sync");
	process_syncing_tables(received);
	CRASH_POINT("table_synced");
	if (tables_not_ready)
		tables_stale = true;
}
