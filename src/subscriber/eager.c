/*-------------------------------------------------------------------------
 *
 * eager.c
 *	  Transactions that are applied before their commit: the leader's part.
 *
 * A transaction that is large, and a worker that has nothing to do: the worker
 * applies its changes as they arrive.  At the commit only the rest is left to
 * do.  The buffer of the transaction (txnbuf.c) stays whole all the same, so
 * that the attempt can be given up at any moment, by either side, for any
 * reason: the transaction is then applied from its buffer like any other.
 *
 * To the rules of commit order such an attempt is one that began early
 * (worker.c, I1), only very early: it proves nothing by an error or a missing
 * row, and cannot wait for its turn as long as it has none.  What it wrote
 * before transactions that commit before it were so much as begun, they find
 * locked, and it gives way to them (order.c).
 *
 * Owns Pool.eager, but for what workers write in it.
 *
 * I1	state decides to whom a transaction belongs; it is changed by
 *		compare-and-swap, so that a commit and a worker's giving up cannot both
 *		win.  Once committed, the transaction stays with its worker, which
 *		finishes it at its turn, with another attempt if need be.
 * I2	The leader never waits for a worker here, but for the copying of a
 *		chunk: what is cancelled is forgotten at once.  The worker finds out, and
 *		its entry is free again when it has rolled back.
 * I3	At most half of the workers are taken, so that transactions that have
 *		committed always find one.
 * I4	A change waits for all commits that were handed out when it arrived.
 *		That saves most conflicts, as the table of keys does, and like that it
 *		may be wrong: what the change really has to wait for is a matter of
 *		locks.
 * I5	Begun, and gone on with, are only transactions whose changes any worker
 *		could apply before its turn, to tables that are ready and that no other
 *		relation of the transaction is mapped to.  Not with a TRUNCATE; not with
 *		a change that conflicts with everything; not if a subtransaction with
 *		changes was rolled back; not if it is prepared.  What is known of the
 *		tables must be the same at the commit.
 * I6	While tables are in initial copy, SKIP is in force, or the transaction
 *		whose error ended the last leader is still to come, there are none.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "eager.h"
#include "guc.h"
#include "keyplan.h"
#include "pool.h"
#include "serial.h"
#include "tables.h"

static Pool *pool;
static dsa_area *area;
static TxnBuffer *buffers[POOL_EAGER];	/* NULL: nothing of ours any more */
static int	nbuffers = 0;

void
eager_init(Pool *the_pool, dsa_area *the_area)
{
	pool = the_pool;
	area = the_area;
}

static inline EagerKind
eager_kind(EagerTxn *eager)
{
	return EAGER_KIND(pg_atomic_read_u32(&eager->state));
}

/* The worker may sleep. */
static void
wake(EagerTxn *eager)
{
	uint32		state = pg_atomic_read_u32(&eager->state);

	pg_memory_barrier();		/* see order_wait_changes */
	if (pg_atomic_read_u32(&eager->waiting) != 0)
		shared_wake(Shared->workers[EAGER_SLOT(state)].procno);
}

static void
detach(TxnBuffer *txn)
{
	buffers[txn->eager - pool->eager] = NULL;
	nbuffers--;
	txn->eager = NULL;
}

/* Takes a transaction away from its worker, or back if none has begun it. */
static void
cancel(TxnBuffer *txn)
{
	EagerTxn   *eager = txn->eager;
	uint32		state = pg_atomic_read_u32(&eager->state);

	LWLockAcquire(&eager->lock, LW_EXCLUSIVE);
	for (;;)
	{
		EagerKind	next = EAGER_FREE;

		if (EAGER_KIND(state) == EAGER_RUNNING)
			next = EAGER_CANCELLED;
		if (pg_atomic_compare_exchange_u32(&eager->state, &state,
										   EAGER_STATE(next, EAGER_SLOT(state))))
			break;
	}
	LWLockRelease(&eager->lock);
	if (EAGER_KIND(state) == EAGER_RUNNING)
		wake(eager);
	detach(txn);
}

void
eager_never(TxnBuffer *txn)
{
	if (txn->eager != NULL)
		cancel(txn);
	txn->never_eager = true;
}

void
eager_cancel_all(void)
{
	for (int i = 0; nbuffers > 0 && i < POOL_EAGER; i++)
		if (buffers[i] != NULL)
			cancel(buffers[i]);
}

/*
 * Adds the relations of a transaction that its worker does not know.  False if
 * one is not fit for it (I5); *later then says whether it may be another time.
 */
static bool
add_relations(TxnBuffer *txn, EagerTxn *eager, Csn handed, bool *later)
{
	*later = false;
	while (eager->nrels < txn->nrels)
	{
		RelVersion *rel = txn->rels[eager->nrels];
		TxnRel	   *entry = &eager->rels[eager->nrels];
		DependDomain *domain;

		if (eager->nrels == EAGER_RELS ||
			!tables_apply(rel, txn->xid, &entry->relid, InvalidXLogRecPtr) ||
			!OidIsValid(entry->relid) ||
			(domain = keyplan_domain(rel)) == NULL)
			return false;
		for (int i = 0; i < eager->nrels; i++)
			if (eager->rels[i].relid == entry->relid)
				return false;
		entry->version = rel->version;
		entry->apply = true;
		entry->table = serial_number(domain->number);
		entry->behind = 0;
		entry->len = rel->len;
		entry->body = rel->body;
		if (serial_not_eager(pool, entry->table, handed + 1))
		{
			*later = true;
			return false;
		}
		eager->nrels++;
	}
	return true;
}

/* Is a worker free, beyond those that are kept for other transactions (I3)? */
static EagerTxn *
find_free(void)
{
	EagerTxn   *result = NULL;
	int			busy = 0;
	int			offered = 0;

	if (pg_atomic_read_u32(&pool->nidle) == 0 ||
		pg_atomic_read_u64(&pool->claimed) < pg_atomic_read_u64(&pool->handed))
		return NULL;
	for (int i = 0; i < POOL_EAGER; i++)
	{
		EagerTxn   *eager = &pool->eager[i];

		switch (eager_kind(eager))
		{
			case EAGER_FREE:
				result = eager;
				break;
			case EAGER_OFFERED:
				offered++;
				busy++;
				break;
			case EAGER_GIVEN_UP:
				/* its transaction has not come by since */
				eager_never(buffers[i]);
				result = eager;
				break;
			default:
				busy++;
				break;
		}
	}
	if (busy >= pg_atomic_read_u32(&pool->nworkers) / 2 ||
		offered >= pg_atomic_read_u32(&pool->nidle))
		return NULL;
	return result;
}

static void
begin(TxnBuffer *txn, Csn handed)
{
	EagerTxn   *eager = find_free();
	bool		later;

	if (eager == NULL)
		return;
	eager->remote_xid = txn->xid;
	eager->nrels = 0;
	if (!add_relations(txn, eager, handed, &later))
	{
		txn->never_eager = !later;
		return;
	}
	eager->file = txn->file;
	eager->file_bytes = txn->file_bytes;
	eager->first = txn->first;
	pg_atomic_write_u64(&eager->bytes, txn->bytes);
	pg_atomic_write_u64(&eager->csn, 0);
	pg_atomic_write_u32(&eager->waiting, 0);
	txn->eager = eager;
	buffers[eager - pool->eager] = txn;
	nbuffers++;
	pg_write_barrier();
	pg_atomic_write_u32(&eager->state, EAGER_STATE(EAGER_OFFERED, 0));
	pool_wake_idle(1);
}

void
eager_change(TxnBuffer *txn, Conflict conflict, Csn handed, bool may_begin)
{
	bool		later;

	if (txn->never_eager)
		return;
	if (conflict == CONFLICT_ALL)
		eager_never(txn);
	else if (txn->eager != NULL)
	{
		if (eager_kind(txn->eager) == EAGER_GIVEN_UP ||
			!add_relations(txn, txn->eager, handed, &later))
			eager_never(txn);
	}
	else if (may_begin && pgparrep_eager_threshold >= 0 &&
			 txn->nchanges >= pgparrep_eager_threshold)
		begin(txn, handed);
}

void
eager_announce(void)
{
	for (int i = 0; nbuffers > 0 && i < POOL_EAGER; i++)
	{
		TxnBuffer  *txn = buffers[i];
		EagerTxn   *eager = &pool->eager[i];

		if (txn == NULL)
			continue;
		if (pg_atomic_read_u64(&eager->bytes) != txn->bytes)
		{
			eager->first = txn->first;
			pg_write_barrier();
			pg_atomic_write_u64(&eager->bytes, txn->bytes);
			wake(eager);
		}
		/* The worker that was to begin it may have found something else. */
		if (eager_kind(eager) == EAGER_OFFERED)
			pool_wake_idle(1);
	}
}

void
eager_spilled(TxnBuffer *txn)
{
	EagerTxn   *eager = txn->eager;

	LWLockAcquire(&eager->lock, LW_EXCLUSIVE);
	eager->file = txn->file;
	eager->file_bytes = txn->file_bytes;
	eager->first = InvalidDsaPointer;
	eager->generation++;
	LWLockRelease(&eager->lock);
}

/* Does a worker apply the transaction as it would have to be by now (I5)? */
static bool
same_relations(EagerTxn *eager, PoolTxn *ptxn)
{
	const TxnRel *rels = pool_txn_rels(ptxn, area);

	if (eager->nrels != ptxn->nrels)
		return false;
	for (int i = 0; i < ptxn->nrels; i++)
		if (rels[i].version != eager->rels[i].version || !rels[i].apply ||
			rels[i].relid != eager->rels[i].relid)
			return false;
	return true;
}

bool
eager_commit(TxnBuffer *txn, PoolTxn *ptxn)
{
	EagerTxn   *eager = txn->eager;
	uint32		state;

	if (eager == NULL)
		return false;
	state = pg_atomic_read_u32(&eager->state);
	if (EAGER_KIND(state) == EAGER_RUNNING && same_relations(eager, ptxn) &&
		pg_atomic_compare_exchange_u32(&eager->state, &state,
									   EAGER_STATE(EAGER_COMMITTED, EAGER_SLOT(state))))
	{
		ptxn->flags |= PTXN_EAGER;
		pg_atomic_write_u32(&ptxn->worker, EAGER_SLOT(state) + 1);
		return true;
	}
	eager_never(txn);
	return false;
}

void
eager_complete(TxnBuffer *txn, Csn csn)
{
	EagerTxn   *eager = txn->eager;

	eager->first = txn->first;
	pg_write_barrier();
	pg_atomic_write_u64(&eager->bytes, txn->bytes);
	pg_write_barrier();
	pg_atomic_write_u64(&eager->csn, csn);
	detach(txn);
}
