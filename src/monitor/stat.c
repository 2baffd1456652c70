/*-------------------------------------------------------------------------
 *
 * stat.c
 *	  Functions behind the views pgparrep.stat_subscription and
 *	  pgparrep.stat_apply_worker.
 *
 * They read main shared memory, under the lock that keeps slots from being
 * taken and freed meanwhile.  That lock does not stop the counters, so that
 * watching costs the workers nothing; two columns of a row may be a moment
 * apart.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "compat.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(pgparrep_stat_get_subscription);
PG_FUNCTION_INFO_V1(pgparrep_stat_get_apply_worker);

static void
check_preloaded(void)
{
	if (Shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pgparrep is not preloaded on this server"),
				 errhint("Add pgparrep to shared_preload_libraries and restart the server.")));
}

static void
put_lsn(Datum *value, bool *isnull, uint64 lsn)
{
	*isnull = (lsn == InvalidXLogRecPtr);
	*value = LSNGetDatum(lsn);
}

Datum
pgparrep_stat_get_subscription(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);

	LWLockAcquire(Shared->lock, LW_SHARED);
	for (int i = 0; i < Shared->nleaders; i++)
	{
		LeaderSlot *slot = &Shared->leaders[i];
		Datum		values[17];
		bool		nulls[17] = {0};

		if (slot->subid == InvalidOid)
			continue;
		values[0] = ObjectIdGetDatum(slot->subid);
		values[1] = Int32GetDatum(slot->pid);
		values[2] = Int32GetDatum(pg_atomic_read_u32(&slot->workers_wanted));
		values[3] = Int32GetDatum(pg_atomic_read_u32(&slot->workers));
		put_lsn(&values[4], &nulls[4], pg_atomic_read_u64(&slot->received_lsn));
		put_lsn(&values[5], &nulls[5], pg_atomic_read_u64(&slot->applied_lsn));
		put_lsn(&values[6], &nulls[6], pg_atomic_read_u64(&slot->flushed_lsn));
		values[7] = Int64GetDatum(pg_atomic_read_u64(&slot->in_progress));
		values[8] = Int64GetDatum(pg_atomic_read_u64(&slot->cached));
		values[9] = Int64GetDatum(pg_atomic_read_u64(&slot->spilled));
		values[10] = Int64GetDatum(pg_atomic_read_u64(&slot->waiting));
		values[11] = Int64GetDatum(pg_atomic_read_u64(&slot->transactions));
		values[12] = Int64GetDatum(pg_atomic_read_u64(&slot->retries));
		values[13] = Int64GetDatum(pg_atomic_read_u64(&slot->yields));
		values[14] = Int64GetDatum(pg_atomic_read_u64(&slot->deadlocks));
		values[15] = Int64GetDatum(pg_atomic_read_u64(&slot->eager));
		values[16] = Int64GetDatum(pg_atomic_read_u64(&slot->eager_rolled_back));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	LWLockRelease(Shared->lock);
	return (Datum) 0;
}

static const char *
state_name(WorkerState state)
{
	switch (state)
	{
		case WORKER_STARTING:
			return "starting";
		case WORKER_IDLE:
			return "idle";
		case WORKER_APPLYING:
			return "applying";
		case WORKER_WAIT_DEPENDENCY:
			return "waiting for dependency";
		case WORKER_WAIT_TURN:
			return "waiting for turn";
		case WORKER_WAIT_RETRY:
			return "waiting to retry";
		case WORKER_WAIT_CHANGES:
			return "waiting for changes";
		case WORKER_COMMITTING:
			return "committing";
		case WORKER_STOPPED:
			return "stopped";
	}
	return "unknown";
}

Datum
pgparrep_stat_get_apply_worker(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	check_preloaded();
	InitMaterializedSRF(fcinfo, 0);

	LWLockAcquire(Shared->lock, LW_SHARED);
	for (int i = 0; i < Shared->nworkers; i++)
	{
		WorkerSlot *slot = &Shared->workers[i];
		Datum		values[12];
		bool		nulls[12] = {0};
		bool		busy;
		uint64		csn;
		uint64		wait;

		if (slot->subid == InvalidOid || slot->pid == 0)
			continue;
		csn = pg_atomic_read_u64(&slot->csn);
		wait = pg_atomic_read_u64(&slot->wait_csn);
		busy = (csn != 0);
		values[0] = ObjectIdGetDatum(slot->subid);
		values[1] = Int32GetDatum(slot->pid);
		values[2] = Int32GetDatum(slot->leader_pid);
		values[3] = CStringGetTextDatum(state_name(pg_atomic_read_u32(&slot->state)));
		values[4] = TransactionIdGetDatum(pg_atomic_read_u32(&slot->remote_xid));
		nulls[4] = !busy && pg_atomic_read_u32(&slot->eager) == 0;
		put_lsn(&values[5], &nulls[5], pg_atomic_read_u64(&slot->commit_lsn));
		nulls[5] |= !busy;
		values[6] = Int64GetDatum(pg_atomic_read_u64(&slot->transactions));
		values[7] = Int64GetDatum(pg_atomic_read_u64(&slot->changes));
		values[8] = Int64GetDatum(pg_atomic_read_u64(&slot->retries));
		values[9] = Int64GetDatum(pg_atomic_read_u64(&slot->postponed));
		values[10] = Int64GetDatum(pg_atomic_read_u64(&slot->missing));
		values[11] = Int64GetDatum((int64) (csn - wait));
		nulls[11] = (wait == 0 || !busy);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	LWLockRelease(Shared->lock);
	return (Datum) 0;
}
