/*-------------------------------------------------------------------------
 *
 * order.c
 *	  The commit order (apply worker).
 *
 * Workers take transactions in commit order, apply them side by side, and
 * commit one after the other.  Who claims CSN n waits for the commit of n - 1
 * before it commits itself, and for the commit of an earlier CSN before a
 * change that depends on it.
 *
 * While there is a backlog a worker claims a group of transactions that follow
 * each other and applies them in one local transaction, which saves
 * transaction ids, locks and commits.  To everybody else a group is one commit:
 * it becomes known as a whole, and who waits for one of its CSNs waits for all.
 *
 * An eager transaction (eager.c) is begun by a worker before it has a CSN, and
 * keeps that worker when it gets one; the others pass it by.
 *
 * I1	CSNs are claimed in order, but for those of eager transactions, which
 *		have a worker when they get one.  A worker begins an eager transaction
 *		only if nothing is left to claim, and at most half of the workers are
 *		busy with such then: whatever is handed out later is claimed by one of
 *		the others, as soon as that has done what it claimed before.  So the
 *		oldest transaction that has not committed is in the hands of a worker,
 *		or will be claimed by one that is awake; it waits for no commit.
 * I2	committed goes up from one CSN, or group, to the next, by the worker of
 *		that CSN, after its transaction has become visible and before it
 *		releases its locks.
 *		A reader therefore sees a prefix of the publisher's commits.
 * I3	A waiter announces what it waits for (wait_csn) before it looks at
 *		committed; a publisher advances committed before it looks for waiters.
 *		With a barrier in between on both sides no wake-up is lost.
 *
 * Deadlocks.  A wait for a commit is unknown to the lock manager.  The wait
 * graph has two kinds of edges:
 *
 *		lock edge: a process waits for a lock of another (pg_blocking_pids)
 *		order edge: a worker waits for the commit of an earlier CSN
 *
 * A cycle of lock edges alone is found by the server, which picks a victim;
 * the victim tries again.  Every other cycle has an order edge.  Of all
 * workers in the cycle that wait by an order edge take the one with the
 * highest CSN, W.  What leads to W in the cycle is a path of lock edges that
 * begins at the target of an order edge, a worker whose CSN is lower than
 * that of its waiter and so lower than W's.  So every cycle has a worker W
 * that waits for a commit and that an earlier worker reaches by lock edges
 * alone.  That is what a waiter looks for, each time its wait has lasted a
 * while; W then rolls back, and tries again when its turn has come.  The
 * leader holds no lock that a worker can wait for while it waits for a
 * commit.
 *
 * An eager transaction E without a CSN adds two kinds:
 *
 *		order edge: E waits for a commit that was handed out before a change
 *		data edge: E waits for more of its changes, so for the leader, and that
 *			at times for commits: it has no room, or drains the pipeline
 *
 * Both lead to workers with a CSN only (one that has not been claimed waits
 * for workers with earlier ones).  So count E's CSN as infinite.  If E waits by
 * one of these edges and is part of a cycle, the last edge before it that is no
 * lock edge ends at a worker with a CSN, which therefore reaches E by lock edges
 * alone: the rule above, with E as W, and E gives way.  If no E in the cycle
 * waits so, they are in it by lock edges only, as any process can be, and W is
 * found as above.  Two such, E and F, do not order each other: a cycle between
 * them has a worker with a CSN, or lock edges only.
 *
 * Besides, E can stand in the way for long without any cycle, since nobody
 * knows when it ends.  So it gives way, and is applied after its commit,
 *
 *		to an earlier transaction that waits for its locks, also while it is
 *		busy itself (it looks now and then);
 *		to a session that has waited for its locks for PATIENCE_MS;
 *		after IDLE_MS without a change;
 *		itself, if it waits for a lock for long (worker.c).  That goes for a lock
 *		of a prepared transaction, too, which nobody else could see: its end
 *		may come after a transaction that waits for E.
 *
 * When E gets its CSN it is a transaction like any other, from the next look
 * on.  Until then it may give way to one that is later in truth, which costs
 * an attempt.  Others find it as the holder of that CSN as soon as it is handed
 * out, whatever E is doing.
 *
 * A prepared transaction keeps its locks until the CSN that ends it, so that a
 * wait for one of them is a wait for that CSN, which nobody can see or break.
 * None can be part of a cycle: whatever comes after that CSN does not begin
 * before it is published (leader.c, I7), and what comes before has not met
 * these locks on the publisher, which held them as long.  Where it meets them
 * here all the same, because of a constraint that is only here or of a local
 * session, the server's own apply waits for ever as well, until somebody ends
 * the prepared transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/commit_ts.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/s_lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "guc.h"
#include "order.h"
#include "schedule.h"
#include "serial.h"
#include "test_points.h"

/*
 * Looks at committed this often before it sleeps.  A commit takes some tens
 * of microseconds, a sleep and a wake-up about as long; on few cores the
 * other process needs the core more than the waiter does.
 */
#define SPINS 100

/* Time until a waiter looks for a cycle, first and at most. */
#define FIRST_CHECK_MS 5
#define LAST_CHECK_MS 100

/* Processes that a search for a cycle follows at most. */
#define MAX_VISITED 512

/* An eager transaction: how often it looks at the time, and at who waits. */
#define LOOK_CHANGES 16
#define LOOK_MS 20

/* ... gives way to a local session that has waited for it so long, */
#define PATIENCE_MS 1000

/* ... and ends if nothing came for so long. */
#define IDLE_MS 10000

static Pool *order_pool;
static WorkerSlot *my_slot;
static int	my_slot_no;
static uint32 yield_table = ORDER_NO_YIELD;
static uint32 idle_event;
static uint32 dependency_event;
static uint32 turn_event;
static uint32 retry_event;
static uint32 changes_event;

/* Of the eager transaction in work. */
static TimestampTz looked_at;	/* when it has looked at who waits */
static TimestampTz session_waits_since; /* 0: no local session waits */

void
order_init(Pool *pool, int slot)
{
	order_pool = pool;
	my_slot_no = slot;
	my_slot = &Shared->workers[slot];
	idle_event = compat_wait_event("PgparrepApplyIdle");
	dependency_event = compat_wait_event("PgparrepDependency");
	turn_event = compat_wait_event("PgparrepCommitTurn");
	retry_event = compat_wait_event("PgparrepRetry");
	changes_event = compat_wait_event("PgparrepChanges");
}

void
order_set_state(WorkerState state)
{
	pg_atomic_write_u32(&my_slot->state, state);
}

/* The leader goes, or somebody's error counts: nothing more may commit. */
void
order_exit_if_stopped(void)
{
	if (pg_atomic_read_u32(&order_pool->stop) != 0)
	{
		order_set_state(WORKER_STOPPED);
		proc_exit(0);
	}
}

/* After each wake-up, in every wait. */
static void
after_wait(int rc)
{
	if (rc & WL_LATCH_SET)
		ResetLatch(MyLatch);
	order_exit_if_stopped();
	/* As in any idle session, there is nothing to cancel between transactions. */
	if (!IsTransactionState())
		QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending && !IsTransactionState())
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Does a transaction that has not been claimed change a table that is not
 * changed by groups?  If it is claimed meanwhile, a list of relations outside of
 * its entry may be gone by now, so that this is not looked at.
 */
static bool
changes_what_is_alone(const PoolTxn *ptxn, Csn csn)
{
	int			nrels = *(const volatile int *) &ptxn->nrels;

	if (nrels > POOL_FEW_RELS)
		return true;
	for (int i = 0; i < nrels; i++)
		if (serial_alone(order_pool, ptxn->few_rels[i].table, csn))
			return true;
	return false;
}

/*
 * May a transaction be applied together with others?  It has not been claimed, so
 * that its entry stays as it is; unless another worker claims it meanwhile, and
 * then ours fails.
 */
static bool
may_join(uint64 csn, uint64 *nchanges)
{
	PoolTxn    *ptxn = pool_txn(order_pool, csn);

	*nchanges = ptxn->nchanges;
	return (ptxn->flags & (PTXN_EMPTY | PTXN_SKIPLSN | PTXN_ALONE | PTXN_PREPARE |
						   PTXN_FINISH_PREPARED | PTXN_EAGER)) == 0 &&
		   ptxn->file == 0 && !changes_what_is_alone(ptxn, csn);
}

static bool
try_claim(Csn *first, Csn *last)
{
	uint64		claimed = pg_atomic_read_u64(&order_pool->claimed);

	for (;;)
	{
		uint64		handed = pg_atomic_read_u64(&order_pool->handed);
		int			n;

		if (claimed >= handed)
			return false;
		pg_read_barrier();
		if (pool_txn(order_pool, claimed + 1)->flags & PTXN_EAGER)
		{
			if (pg_atomic_compare_exchange_u64(&order_pool->claimed, &claimed,
											   claimed + 1))
				claimed++;
			continue;
		}
		/* Each transaction has to keep its own commit time, if that counts. */
		n = schedule_group_size(claimed + 1, handed,
								pg_atomic_read_u32(&order_pool->nworkers),
								track_commit_timestamp ? 1 : pgparrep_group_transactions,
								may_join);
		if (pg_atomic_compare_exchange_u64(&order_pool->claimed, &claimed,
										   claimed + n))
		{
			*first = claimed + 1;
			*last = claimed + n;
			return true;
		}
	}
}

/*
 * More to do than this worker has taken?  Then wakes one more, which does the
 * same.  Where many transactions come at once, all that the leader's wake-ups
 * have found idle may be this one.
 */
static void
pass_on(void)
{
	int			n;

	/* Not idle any more first: the leader looks after handing out. */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&order_pool->nidle) == 0 ||
		pg_atomic_read_u64(&order_pool->claimed) >=
			pg_atomic_read_u64(&order_pool->handed))
		return;
	n = pg_atomic_read_u32(&order_pool->nworkers);
	for (int i = 0; i < n; i++)
	{
		WorkerSlot *slot = &Shared->workers[order_pool->workers[i]];

		if (pg_atomic_read_u32(&slot->state) == WORKER_IDLE)
		{
			shared_wake(slot->procno);
			break;
		}
	}
}

/* Takes an eager transaction that the leader offers; NULL if it does not. */
static EagerTxn *
try_eager(void)
{
	for (int i = 0; i < POOL_EAGER; i++)
	{
		EagerTxn   *eager = &order_pool->eager[i];
		uint32		state = EAGER_STATE(EAGER_OFFERED, 0);

		if (pg_atomic_read_u32(&eager->state) == state &&
			pg_atomic_compare_exchange_u32(&eager->state, &state,
										   EAGER_STATE(EAGER_RUNNING, my_slot_no)))
			return eager;
	}
	return NULL;
}

Csn
order_claim(Csn *last, EagerTxn **eager)
{
	Csn			csn = 0;
	long		timeout = 0;

	*eager = NULL;

	order_exit_if_stopped();
	if (!try_claim(&csn, last))
	{
		if (pg_atomic_read_u32(&order_pool->flush_when_idle) != 0)
		{
			XLogFlush(XactLastCommitEnd);
			shared_wake(order_pool->leader_procno);
		}

		order_set_state(WORKER_IDLE);
		pgstat_report_activity(STATE_IDLE, NULL);
		timeout = pgstat_report_stat(false);
		pg_atomic_fetch_add_u32(&order_pool->nidle, 1);
		for (;;)
		{
			int			rc;

			/* Announced as idle first: the leader looks after handing out. */
			pg_memory_barrier();
			if (try_claim(&csn, last))
				break;
			*eager = try_eager();
			if (*eager != NULL)
				break;
			rc = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
							   (timeout > 0 ? WL_TIMEOUT : 0),
						   timeout, idle_event);
			after_wait(rc);
			if (rc & WL_TIMEOUT)
			{
				pgstat_report_stat(true);
				timeout = 0;
			}
		}
		pg_atomic_fetch_sub_u32(&order_pool->nidle, 1);
	}

	if (*eager != NULL)
	{
		pg_atomic_write_u32(&my_slot->eager, 1);
		order_set_state(WORKER_APPLYING);
		pass_on();
		looked_at = GetCurrentTimestamp();
		session_waits_since = 0;
		return 0;
	}

	pg_read_barrier();
	for (Csn c = csn; c <= *last; c++)
		pg_atomic_write_u32(&pool_txn(order_pool, c)->worker, my_slot_no + 1);
	pg_atomic_write_u64(&my_slot->last_csn, *last);
	pg_atomic_write_u64(&my_slot->csn, csn);
	order_set_state(WORKER_APPLYING);
	pass_on();
	return csn;
}

bool
order_at_turn(Csn csn)
{
	if (pg_atomic_read_u64(&order_pool->committed) < csn - 1)
		return false;
	pg_read_barrier();
	return true;
}

Csn
order_group_before(Csn csn)
{
	int			n = pg_atomic_read_u32(&order_pool->nworkers);

	for (int i = 0; i < n; i++)
	{
		WorkerSlot *slot = &Shared->workers[order_pool->workers[i]];

		if (pg_atomic_read_u64(&slot->last_csn) == csn - 1)
		{
			Csn			first = pg_atomic_read_u64(&slot->csn);

			if (first != 0 && first < csn)
				return first;
		}
	}
	return csn - 1;
}

/* Processes already looked at in a search. */
typedef struct Visited
{
	int			n;
	int			pids[MAX_VISITED];
} Visited;

/* Does pid wait, by lock edges, for a lock of this process? */
static bool
waits_for_me(int pid, Visited *visited)
{
	ArrayType  *array;
	int32	   *blockers;
	int			n;

	for (int i = 0; i < visited->n; i++)
		if (visited->pids[i] == pid)
			return false;
	if (visited->n == MAX_VISITED)
		return false;
	visited->pids[visited->n++] = pid;

	array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
												   Int32GetDatum(pid)));
	n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	blockers = (int32 *) ARR_DATA_PTR(array);
	for (int i = 0; i < n; i++)
	{
		if (blockers[i] == MyProcPid)
			return true;
		/* 0 is a prepared transaction; see above. */
		if (blockers[i] != 0 && waits_for_me(blockers[i], visited))
			return true;
	}
	return false;
}

/*
 * Does a worker with an earlier CSN wait for a lock of this one?  Then notes
 * the table that it changes.
 */
static bool
earlier_waits_for_me(Csn csn)
{
	Csn			first = pg_atomic_read_u64(&order_pool->committed) + 1;
	Visited    *visited = NULL;
	MemoryContext mcxt = NULL;
	MemoryContext oldcxt = CurrentMemoryContext;
	bool		found = false;

	for (Csn c = first; c < csn && !found; c++)
	{
		uint32		worker = pg_atomic_read_u32(&pool_txn(order_pool, c)->worker);
		WorkerSlot *slot;
		PGPROC	   *proc;

		if (worker == 0)
			continue;
		slot = &Shared->workers[worker - 1];
		if (slot->procno < 0)
			continue;
		/* One that began it early keeps it, and need not know that it has a CSN. */
		if ((pool_txn(order_pool, c)->flags & PTXN_EAGER) == 0 &&
			(pg_atomic_read_u64(&slot->csn) > c ||
			 pg_atomic_read_u64(&slot->last_csn) < c))
			continue;

		/* Looking at the lock table is dear: only if it waits for a lock. */
		proc = &ProcGlobal->allProcs[slot->procno];
		if ((*(volatile uint32 *) &proc->wait_event_info & 0xFF000000) != PG_WAIT_LOCK)
			continue;

		if (mcxt == NULL)
		{
			mcxt = AllocSetContextCreate(oldcxt, "pgparrep wait graph",
										 ALLOCSET_SMALL_SIZES);
			MemoryContextSwitchTo(mcxt);
			visited = palloc(sizeof(Visited));
			visited->n = 0;
		}
		found = waits_for_me(slot->pid, visited);
		if (found)
			yield_table = pg_atomic_read_u32(&slot->table);
	}
	if (mcxt != NULL)
	{
		MemoryContextSwitchTo(oldcxt);
		MemoryContextDelete(mcxt);
	}
	return found;
}

/* What is earlier than the transaction in work has a lower CSN than this. */
Csn
order_bound(void)
{
	Csn			csn = pg_atomic_read_u64(&my_slot->csn);

	return csn != 0 ? csn : pg_atomic_read_u64(&order_pool->handed) + 1;
}

/* Raises an error if a worker with an earlier CSN waits for a lock of this one. */
static void
give_way_to_earlier(void)
{
	LeaderSlot *leader = &Shared->leaders[order_pool->leader_slot];

#ifdef PGPARREP_SABOTAGE_NO_YIELD
	return;
#endif
	if (!earlier_waits_for_me(order_bound()))
		return;
	pg_atomic_fetch_add_u64(&leader->yields, 1);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("remote transaction gives way to an earlier one that waits for its locks")));
}

/* Does a session that is no worker of this pool wait for a lock of ours? */
static bool
session_waits_for_me(void)
{
	MemoryContext mcxt = NULL;
	MemoryContext oldcxt = CurrentMemoryContext;
	bool		found = false;

	for (int i = 0; i < MaxBackends && !found; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		int			pid = proc->pid;
		bool		worker = false;
		int			n = pg_atomic_read_u32(&order_pool->nworkers);
		int32	   *blockers;
		ArrayType  *array;

		if (pid == 0 ||
			(*(volatile uint32 *) &proc->wait_event_info & 0xFF000000) != PG_WAIT_LOCK)
			continue;
		for (int w = 0; w < n && !worker; w++)
			worker = Shared->workers[order_pool->workers[w]].pid == pid;
		if (worker)
			continue;
		if (mcxt == NULL)
		{
			mcxt = AllocSetContextCreate(oldcxt, "pgparrep wait graph",
										 ALLOCSET_SMALL_SIZES);
			MemoryContextSwitchTo(mcxt);
		}
		array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids,
													   Int32GetDatum(pid)));
		blockers = (int32 *) ARR_DATA_PTR(array);
		n = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
		for (int b = 0; b < n; b++)
			found |= (blockers[b] == MyProcPid);
	}
	if (mcxt != NULL)
	{
		MemoryContextSwitchTo(oldcxt);
		MemoryContextDelete(mcxt);
	}
	return found;
}

/* Raises an error if an eager transaction is in the way of others. */
static void
look_who_waits(TimestampTz now)
{
	looked_at = now;
	order_exit_if_stopped();
#ifndef PGPARREP_SABOTAGE_EAGER_IN_THE_WAY
	give_way_to_earlier();
#endif
	if (pg_atomic_read_u64(&my_slot->csn) != 0 || !session_waits_for_me())
		session_waits_since = 0;
	else if (session_waits_since == 0)
		session_waits_since = now;
	else if (TimestampDifferenceExceeds(session_waits_since, now, PATIENCE_MS))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("remote transaction that has not committed gives way to a session that waits for its locks")));
}

static inline bool
has_committed(Csn csn)
{
	return pg_atomic_read_u64(&order_pool->committed) >= csn;
}

static inline uint32
wait_event(WorkerState state)
{
	switch (state)
	{
		case WORKER_WAIT_DEPENDENCY:
			return dependency_event;
		case WORKER_WAIT_TURN:
			return turn_event;
		default:
			return retry_event;
	}
}

void
order_wait(Csn csn, WorkerState state, bool in_transaction)
{
	volatile long timeout = FIRST_CHECK_MS;

#ifdef PGPARREP_SABOTAGE_NO_COMMIT_WAIT
	if (state == WORKER_WAIT_TURN)
		return;
#endif

	for (int i = 0; i < SPINS; i++)
	{
		if (has_committed(csn))
		{
			pg_read_barrier();
			return;
		}
		SPIN_DELAY();
	}

	order_set_state(state);
	pg_atomic_fetch_add_u32(&order_pool->nwaiting, 1);
	pg_atomic_write_u64(&my_slot->wait_csn, csn);
	PG_TRY();
	{
		for (;;)
		{
			int			rc;

			pg_memory_barrier();	/* I3 */
			if (has_committed(csn))
				break;
			rc = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						   timeout, wait_event(state));
			after_wait(rc);
			if (rc & WL_TIMEOUT)
			{
				if (in_transaction)
				{
					if (pg_atomic_read_u32(&my_slot->eager) != 0)
						look_who_waits(GetCurrentTimestamp());
					else
						give_way_to_earlier();
				}
				timeout = Min(timeout * 2, LAST_CHECK_MS);
			}
		}
	}
	PG_FINALLY();
	{
		pg_atomic_write_u64(&my_slot->wait_csn, 0);
		pg_atomic_fetch_sub_u32(&order_pool->nwaiting, 1);
	}
	PG_END_TRY();
	order_set_state(WORKER_APPLYING);
}

/* Eager transactions */

Csn
order_eager_csn(EagerTxn *eager)
{
	Csn			csn = pg_atomic_read_u64(&eager->csn);

	if (csn == 0 || pg_atomic_read_u64(&order_pool->handed) < csn)
		return 0;
	pg_read_barrier();
	return csn;
}

void
order_adopt(Csn csn)
{
	pg_atomic_write_u64(&my_slot->last_csn, csn);
	pg_atomic_write_u64(&my_slot->csn, csn);
}

void
order_eager_look(void)
{
	static int	n = 0;
	TimestampTz now;

	if (++n < LOOK_CHANGES)
		return;
	n = 0;
	now = GetCurrentTimestamp();
	if (TimestampDifferenceExceeds(looked_at, now, LOOK_MS))
		look_who_waits(now);
}

void
order_wait_changes(EagerTxn *eager, uint64 position)
{
	volatile long timeout = FIRST_CHECK_MS;
	TimestampTz began = GetCurrentTimestamp();

	order_set_state(WORKER_WAIT_CHANGES);
	for (;;)
	{
		TimestampTz now;
		int			rc;

		pg_atomic_write_u32(&eager->waiting, 1);
		pg_memory_barrier();	/* announced first; the leader looks last */
		if (pg_atomic_read_u64(&eager->bytes) != position ||
			order_eager_csn(eager) != 0 ||
			EAGER_KIND(pg_atomic_read_u32(&eager->state)) == EAGER_CANCELLED)
			break;
		rc = WaitLatch(MyLatch,
					   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					   timeout, changes_event);
		after_wait(rc);
		now = GetCurrentTimestamp();
		if ((rc & WL_TIMEOUT) == 0 &&
			!TimestampDifferenceExceeds(looked_at, now, LAST_CHECK_MS))
			continue;
		look_who_waits(now);
		if (TimestampDifferenceExceeds(began, now, IDLE_MS))
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("remote transaction that has not committed is idle")));
		timeout = Min(timeout * 2, LAST_CHECK_MS);
	}
	pg_atomic_write_u32(&eager->waiting, 0);
	order_set_state(WORKER_APPLYING);
}

Csn
order_eager_end(EagerTxn *eager)
{
	uint32		state = EAGER_STATE(EAGER_RUNNING, my_slot_no);
	Csn			csn = 0;

	pg_atomic_write_u32(&my_slot->eager, 0);
	if (pg_atomic_compare_exchange_u32(&eager->state, &state,
									   EAGER_STATE(EAGER_GIVEN_UP, my_slot_no)))
		return 0;
	if (EAGER_KIND(state) == EAGER_COMMITTED)
	{
		/* The leader is about to hand it out, or has. */
		while ((csn = order_eager_csn(eager)) == 0)
		{
			order_exit_if_stopped();
			CHECK_FOR_INTERRUPTS();
			pg_usleep(100);
		}
	}
	pg_atomic_write_u32(&eager->state, EAGER_STATE(EAGER_FREE, 0));
	return csn;
}

uint32
order_yield_table(void)
{
	uint32		table = yield_table;

	yield_table = ORDER_NO_YIELD;
	return table;
}

void
order_ungroup(Csn csn)
{
	pg_atomic_write_u64(&my_slot->last_csn, csn);
	pg_atomic_write_u64(&my_slot->csn, csn);
}

void
order_publish(Csn first, Csn last)
{
	Csn			leader_wait;

	/* What the transaction wrote, and local_end, before the new number. */
	pg_write_barrier();
#ifdef PGPARREP_SABOTAGE_NO_COMMIT_WAIT
	{
		uint64		old = pg_atomic_read_u64(&order_pool->committed);

		while (old < last &&
			   !pg_atomic_compare_exchange_u64(&order_pool->committed, &old, last))
			;
	}
#else
	Assert(pg_atomic_read_u64(&order_pool->committed) == first - 1);
	pg_atomic_write_u64(&order_pool->committed, last);
#endif
	pg_memory_barrier();		/* I3 */

	pg_atomic_write_u64(&my_slot->csn, 0);
	if (pg_atomic_read_u32(&order_pool->nwaiting) > 0)
	{
		int			n = pg_atomic_read_u32(&order_pool->nworkers);

		for (int i = 0; i < n; i++)
		{
			WorkerSlot *slot = &Shared->workers[order_pool->workers[i]];
			Csn			wait = pg_atomic_read_u64(&slot->wait_csn);

			if (wait != 0 && wait <= last)
				shared_wake(slot->procno);
		}
	}
	leader_wait = pg_atomic_read_u64(&order_pool->leader_wait_csn);
	if (leader_wait != 0 && leader_wait <= last &&
		pg_atomic_exchange_u64(&order_pool->leader_wait_csn, 0) != 0)
		shared_wake(order_pool->leader_procno);
}

void
order_fail(Csn csn)
{
	pg_atomic_write_u64(&order_pool->failed_csn, csn);
	pg_write_barrier();
	pg_atomic_write_u32(&order_pool->stop, 1);
	shared_wake(order_pool->leader_procno);
}
