/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The pool of apply workers of one leader.
 *
 * Owns the dynamic segment, the DSA area, the leader's slot, its workers and
 * its temporary files.
 *
 * I1	No worker outlives its leader: however the leader ends, it stops the
 *		commits, ends every worker it registered (also one that has not started
 *		yet) and waits until the postmaster says that each is gone.  It does so
 *		before it gives up its place as the subscription's apply worker, so
 *		that the next leader reads a start position that nobody moves any more.
 *		The replication origin is free by then, too.
 * I2	That code takes no heavyweight lock and needs no transaction: DROP
 *		SUBSCRIPTION waits for the leader with locks held.
 * I3	A worker slot is given back only when its process is gone.
 *
 * A leader killed with SIGKILL needs nothing: the postmaster restarts all
 * processes.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "pool.h"
#include "serial.h"

/* Time that workers get to leave by themselves before they are signalled. */
#define STOP_PATIENCE_MS 100

static Pool *pool = NULL;
static dsa_area *area = NULL;
static dsm_handle segment_handle;
static LeaderSlot *leader_slot = NULL;
static BackgroundWorkerHandle *handles[PGPARREP_MAX_WORKER_NUMBER];
static bool warned_few_workers = false;

static void
pool_exit(int code, Datum arg)
{
	pool_stop();
	/* I1: the next leader wants the origin, and the server frees it too late */
	if (COMPAT_ORIGIN_SHARED)
		replorigin_session_reset();
	FileSetDeleteAll(&pool->fileset);
	shared_free_leader_slot(leader_slot);
}

void
pool_memory_context(void *arg)
{
	if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES)
		errhint("Make room for dynamic shared memory (/dev/shm if dynamic_shared_memory_type is posix) or lower pgparrep.apply_buffer; the subscription will be tried again.");
}

Pool *
pool_create(RepOriginId origin, const char *origin_name)
{
	ErrorContextCallback context = {error_context_stack, pool_memory_context, NULL};
	ResourceOwner oldowner = CurrentResourceOwner;
	MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);
	dsm_segment *segment;

	/* Segments and area live as long as the process, not a transaction. */
	CurrentResourceOwner = NULL;
	error_context_stack = &context;
	segment = dsm_create(sizeof(Pool), 0);
	dsm_pin_mapping(segment);
	segment_handle = dsm_segment_handle(segment);
	pool = dsm_segment_address(segment);
	memset(pool, 0, sizeof(Pool));

	area = dsa_create(Shared->dsa_tranche);
	dsa_pin_mapping(area);
	error_context_stack = context.previous;
	CurrentResourceOwner = oldowner;

	leader_slot = shared_take_leader_slot(MyLogicalRepWorker->subid);

	/* Runs before the callback that gives up our place as apply worker (I1). */
	before_shmem_exit(pool_exit, (Datum) 0);

	pool->subid = MyLogicalRepWorker->subid;
	pool->dbid = MyLogicalRepWorker->dbid;
	pool->userid = MyLogicalRepWorker->userid;
	pool->leader_pid = MyProcPid;
	pool->leader_procno = compat_my_procno();
	pool->leader_slot = leader_slot - Shared->leaders;
	pool->origin = origin;
	strlcpy(pool->origin_name, origin_name, sizeof(pool->origin_name));
	pool->dsa = dsa_get_handle(area);
	pg_atomic_init_u64(&pool->handed, 0);
	pg_atomic_init_u64(&pool->claimed, 0);
	pg_atomic_init_u64(&pool->committed, 0);
	pg_atomic_init_u64(&pool->leader_wait_csn, 0);
	pg_atomic_init_u32(&pool->nidle, 0);
	pg_atomic_init_u32(&pool->nwaiting, 0);
	pg_atomic_init_u32(&pool->stop, 0);
	pg_atomic_init_u64(&pool->failed_csn, 0);
	pg_atomic_init_u32(&pool->flush_when_idle, 0);
	pg_atomic_init_u32(&pool->nworkers, 0);
	for (int i = 0; i < POOL_RING_SIZE; i++)
		pg_atomic_init_u32(&pool->ring[i].worker, 0);
	serial_init(pool);
	for (int i = 0; i < POOL_EAGER; i++)
	{
		EagerTxn   *eager = &pool->eager[i];

		pg_atomic_init_u32(&eager->state, EAGER_STATE(EAGER_FREE, 0));
		pg_atomic_init_u32(&eager->waiting, 0);
		pg_atomic_init_u64(&eager->bytes, 0);
		pg_atomic_init_u64(&eager->csn, 0);
		LWLockInitialize(&eager->lock, Shared->eager_tranche);
	}

	StartTransactionCommand();	/* it looks up temp_tablespaces */
	FileSetInit(&pool->fileset);
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcxt);
	return pool;
}

dsa_area *
pool_area(void)
{
	return area;
}

LeaderSlot *
pool_leader_slot(void)
{
	return leader_slot;
}

static bool
start_worker(void)
{
	BackgroundWorker bgw;
	BackgroundWorkerHandle *handle;
	MemoryContext oldcxt;
	WorkerStart start;
	int			slot = shared_take_worker_slot(pool->subid);
	int			n = pg_atomic_read_u32(&pool->nworkers);
	bool		ok;

	if (slot < 0)
		return false;

	memset(&start, 0, sizeof(start));
	start.pool = segment_handle;
	start.slot = slot;
	start.generation = Shared->workers[slot].generation;

	memset(&bgw, 0, sizeof(bgw));
	bgw.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	bgw.bgw_start_time = BgWorkerStart_RecoveryFinished;
	bgw.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(bgw.bgw_library_name, sizeof(bgw.bgw_library_name), PGPARREP_NAME);
	snprintf(bgw.bgw_function_name, sizeof(bgw.bgw_function_name),
			 "pgparrep_apply_worker_main");
	snprintf(bgw.bgw_name, sizeof(bgw.bgw_name),
			 PGPARREP_APPLY_WORKER_TYPE " for subscription %u", pool->subid);
	snprintf(bgw.bgw_type, sizeof(bgw.bgw_type), PGPARREP_APPLY_WORKER_TYPE);
	bgw.bgw_notify_pid = MyProcPid;
	memcpy(bgw.bgw_extra, &start, sizeof(start));

	oldcxt = MemoryContextSwitchTo(TopMemoryContext);
	ok = RegisterDynamicBackgroundWorker(&bgw, &handle);
	MemoryContextSwitchTo(oldcxt);
	if (!ok)
	{
		shared_free_worker_slot(slot);
		return false;
	}

	handles[n] = handle;
	pool->workers[n] = slot;
	pg_write_barrier();
	pg_atomic_write_u32(&pool->nworkers, n + 1);
	pg_atomic_write_u32(&leader_slot->workers, n + 1);
	return true;
}

int
pool_start_workers(int wanted)
{
	int			n = pg_atomic_read_u32(&pool->nworkers);

	pg_atomic_write_u32(&leader_slot->workers_wanted, wanted);
	while (n < wanted && start_worker())
		n++;

	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start an apply worker for subscription \"%s\"",
						MySubscription->name),
				 errdetail("All %d slots of max_worker_processes are in use.",
						   max_worker_processes),
				 errhint("Increase max_worker_processes or lower the worker_number of subscriptions.")));
	if (n < wanted && !warned_few_workers)
	{
		warned_few_workers = true;
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("subscription \"%s\" runs with %d apply workers instead of %d",
						MySubscription->name, n, wanted),
				 errdetail("All %d slots of max_worker_processes are in use.",
						   max_worker_processes),
				 errhint("Increase max_worker_processes or lower worker_number; more workers start when slots come free.")));
	}
	return n;
}

bool
pool_lost_worker(void)
{
	int			n = pg_atomic_read_u32(&pool->nworkers);

	for (int i = 0; i < n; i++)
	{
		pid_t		pid;

		if (GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED)
			return true;
	}
	return false;
}

/* Waits until no worker is left, or some time has passed; true if none is. */
static bool
wait_until_gone(long patience)
{
	int			n = pg_atomic_read_u32(&pool->nworkers);

	for (long waited = 0;; waited += 10)
	{
		bool		gone = true;

		for (int i = 0; i < n; i++)
		{
			pid_t		pid;
			BgwHandleStatus status;

			if (handles[i] == NULL)
				continue;
			status = GetBackgroundWorkerPid(handles[i], &pid);
			if (status == BGWH_STOPPED)
			{
				shared_free_worker_slot(pool->workers[i]);
				handles[i] = NULL;
			}
			else
				gone = false;
		}
		if (gone)
			return true;
		if (patience >= 0 && waited >= patience)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10, compat_wait_event("PgparrepStopWorkers"));
		ResetLatch(MyLatch);
	}
}

void
pool_stop(void)
{
	int			n = pg_atomic_read_u32(&pool->nworkers);

#ifdef PGPARREP_SABOTAGE_NO_FENCE
	return;
#endif
	pg_atomic_write_u32(&pool->stop, 1);
	pg_memory_barrier();
	for (int i = 0; i < n; i++)
		shared_wake(Shared->workers[pool->workers[i]].procno);
	if (wait_until_gone(STOP_PATIENCE_MS))
		return;

	/* One that waits for a lock, or has not started yet. */
	for (int i = 0; i < n; i++)
		if (handles[i] != NULL)
			TerminateBackgroundWorker(handles[i]);
	(void) wait_until_gone(-1);
}

void
pool_wake_idle(int n)
{
	int			nworkers;

	pg_memory_barrier();		/* see order_claim */
	if (pg_atomic_read_u32(&pool->nidle) == 0)
		return;
	nworkers = pg_atomic_read_u32(&pool->nworkers);
	for (int i = 0; i < nworkers && n > 0; i++)
	{
		WorkerSlot *slot = &Shared->workers[pool->workers[i]];

		if (pg_atomic_read_u32(&slot->state) == WORKER_IDLE)
		{
			shared_wake(slot->procno);
			n--;
		}
	}
}
