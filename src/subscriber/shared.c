/*-------------------------------------------------------------------------
 *
 * shared.c
 *	  Main shared memory of a subscriber.
 *
 * Owns SharedState: one slot for each possible leader and apply worker.
 *
 * I1	A slot is free when its subid is InvalidOid.  Taking and freeing happen
 *		under SharedState.lock, by the leader only: a worker that died needs
 *		no cleanup of its own.
 * I2	Everything else in a slot is written by one process and read by others
 *		without regard to it.  So each field is atomic, or set once: by the
 *		leader before the slot is published, or, as pid and procno of a worker
 *		are, from "not known yet" to its value by the worker when it starts.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "miscadmin.h"
#include "postmaster/bgworker_internals.h"
#include "replication/logicallauncher.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "compat.h"
#include "shared.h"

SharedState *Shared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
shared_size(void)
{
	Size		size = MAXALIGN(sizeof(SharedState));

	size = add_size(size, MAXALIGN(mul_size(sizeof(LeaderSlot),
											max_logical_replication_workers)));
	size = add_size(size, MAXALIGN(mul_size(sizeof(WorkerSlot),
											max_worker_processes)));
	size = add_size(size, MAXALIGN(mul_size(sizeof(LastLeader),
											max_logical_replication_workers)));
	return size;
}

static void
shared_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche(PGPARREP_NAME, 1);
}

static void
shared_startup(void)
{
	bool		found;
	char	   *ptr;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	ptr = ShmemInitStruct(PGPARREP_NAME, shared_size(), &found);
	Shared = (SharedState *) ptr;
	if (!found)
	{
		memset(ptr, 0, shared_size());
		ptr += MAXALIGN(sizeof(SharedState));
		Shared->leaders = (LeaderSlot *) ptr;
		Shared->nleaders = max_logical_replication_workers;
		ptr += MAXALIGN(sizeof(LeaderSlot) * max_logical_replication_workers);
		Shared->workers = (WorkerSlot *) ptr;
		Shared->nworkers = max_worker_processes;
		ptr += MAXALIGN(sizeof(WorkerSlot) * max_worker_processes);
		Shared->last = (LastLeader *) ptr;
		Shared->lock = &GetNamedLWLockTranche(PGPARREP_NAME)->lock;
		Shared->dsa_tranche = LWLockNewTrancheId();
		Shared->eager_tranche = LWLockNewTrancheId();
	}
	LWLockRelease(AddinShmemInitLock);
	LWLockRegisterTranche(Shared->dsa_tranche, "pgparrep_changes");
	LWLockRegisterTranche(Shared->eager_tranche, "pgparrep_eager");
}

void
shared_init(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shared_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shared_startup;
}

/*
 * Takes the slot of a leader.  There is one for each logical replication
 * worker that the server can run, so one is always free.
 */
LeaderSlot *
shared_take_leader_slot(Oid subid)
{
	LeaderSlot *slot = NULL;

	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Shared->nleaders; i++)
	{
		if (Shared->leaders[i].subid == InvalidOid)
		{
			slot = &Shared->leaders[i];
			memset(slot, 0, sizeof(*slot));
			pg_atomic_init_u32(&slot->workers_wanted, 0);
			pg_atomic_init_u32(&slot->workers, 0);
			pg_atomic_init_u64(&slot->received_lsn, 0);
			pg_atomic_init_u64(&slot->applied_lsn, 0);
			pg_atomic_init_u64(&slot->flushed_lsn, 0);
			pg_atomic_init_u64(&slot->in_progress, 0);
			pg_atomic_init_u64(&slot->cached, 0);
			pg_atomic_init_u64(&slot->spilled, 0);
			pg_atomic_init_u64(&slot->waiting, 0);
			pg_atomic_init_u64(&slot->transactions, 0);
			pg_atomic_init_u64(&slot->retries, 0);
			pg_atomic_init_u64(&slot->yields, 0);
			pg_atomic_init_u64(&slot->deadlocks, 0);
			pg_atomic_init_u64(&slot->eager, 0);
			pg_atomic_init_u64(&slot->eager_rolled_back, 0);
			slot->pid = MyProcPid;
			slot->subid = subid;
			break;
		}
	}
	LWLockRelease(Shared->lock);

	if (slot == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("no free leader slot for a parallel subscription"),
				 errdetail("All %d slots are in use.", Shared->nleaders),
				 errhint("Increase max_logical_replication_workers.")));
	return slot;
}

void
shared_free_leader_slot(LeaderSlot *slot)
{
	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	slot->subid = InvalidOid;
	slot->pid = 0;
	LWLockRelease(Shared->lock);
}

/* Takes the slot of an apply worker; -1 if none is free. */
int
shared_take_worker_slot(Oid subid)
{
	int			result = -1;

	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Shared->nworkers; i++)
	{
		WorkerSlot *slot = &Shared->workers[i];

		if (slot->subid == InvalidOid)
		{
			slot->generation++;
			slot->leader_pid = MyProcPid;
			slot->pid = 0;
			slot->procno = -1;
			pg_atomic_init_u32(&slot->state, WORKER_STARTING);
			pg_atomic_init_u64(&slot->wait_csn, 0);
			pg_atomic_init_u64(&slot->csn, 0);
			pg_atomic_init_u64(&slot->last_csn, 0);
			pg_atomic_init_u32(&slot->eager, 0);
			pg_atomic_init_u32(&slot->table, POOL_EVERY_TABLE);
			pg_atomic_init_u32(&slot->remote_xid, 0);
			pg_atomic_init_u64(&slot->commit_lsn, 0);
			pg_atomic_init_u64(&slot->transactions, 0);
			pg_atomic_init_u64(&slot->changes, 0);
			pg_atomic_init_u64(&slot->retries, 0);
			pg_atomic_init_u64(&slot->postponed, 0);
			pg_atomic_init_u64(&slot->missing, 0);
			slot->subid = subid;
			result = i;
			break;
		}
	}
	LWLockRelease(Shared->lock);
	return result;
}

void
shared_free_worker_slot(int slot)
{
	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	Shared->workers[slot].subid = InvalidOid;
	Shared->workers[slot].pid = 0;
	Shared->workers[slot].procno = -1;
	LWLockRelease(Shared->lock);
}

/* Does a leader of that subscription run?  The caller holds the lock. */
static bool
leader_runs(Oid subid)
{
	for (int i = 0; i < Shared->nleaders; i++)
		if (Shared->leaders[i].subid == subid)
			return true;
	return false;
}

LastLeader *
shared_last_leader(Oid subid)
{
	LastLeader *result = NULL;

	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Shared->nleaders; i++)
	{
		LastLeader *last = &Shared->last[i];

		if (last->subid == subid)
		{
			result = last;
			break;
		}

		/*
		 * Rather a free one than that of a subscription that is disabled or
		 * dropped.  There are as many as there can be leaders.
		 */
		if (last->subid == InvalidOid ||
			((result == NULL || result->subid != InvalidOid) && !leader_runs(last->subid)))
			result = last;
	}
	Assert(result != NULL);
	if (result->subid != subid)
	{
		memset(result, 0, sizeof(*result));
		result->subid = subid;
	}
	LWLockRelease(Shared->lock);
	return result;
}

void
shared_forget_last_leader(Oid subid)
{
	LWLockAcquire(Shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < Shared->nleaders; i++)
		if (Shared->last[i].subid == subid)
			Shared->last[i].subid = InvalidOid;
	LWLockRelease(Shared->lock);
}

void
shared_wake(int procno)
{
	if (procno >= 0)
		SetLatch(&ProcGlobal->allProcs[procno].procLatch);
}

bool
shared_is_transient(int sqlstate)
{
	if (sqlstate == ERRCODE_LOCK_NOT_AVAILABLE)
		return true;
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:	/* deadlock, serialization */
		case ERRCODE_INSUFFICIENT_RESOURCES:	/* memory, locks, disk */
		case ERRCODE_OPERATOR_INTERVENTION: /* cancel, shutdown */
			return true;
		default:
			return false;
	}
}
