/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Apply worker: applies one remote transaction after the other.
 *
 * Takes the next transaction in commit order (order.c), reads its changes
 * (txnbuf.c) and applies them (apply.c) in a local transaction that commits
 * when its turn has come.
 *
 * I1	An attempt that did not begin at its turn proves nothing by an error:
 *		an earlier transaction may not have done its part yet.  It is rolled
 *		back without a trace in the log and made again at its turn.
 * I2	An attempt that began at its turn sees exactly what a serial apply would
 *		see.  Its error is the publisher's transaction's own and is reported,
 *		once, unless it says nothing of the data (shared_is_transient): then
 *		the attempt is made again after a pause.
 * I3	The replication origin moves only with a commit, at its turn: its LSN
 *		and time are set after everything that could still be rolled back
 *		(XACT_EVENT_PRE_COMMIT) and cleared before any rollback, since from 16
 *		on a rollback records them as well.
 * I4	On 15 an origin has one owner: whoever's turn it is takes it before its
 *		commit record and gives it up before it makes the commit known.  So the
 *		next one finds it free.
 * I5	A commit is made known in XACT_EVENT_COMMIT: the transaction is visible
 *		by then, and its locks are still held.  An error after that ends the
 *		process; the commit stands.
 * I6	A group of transactions is given up at any trouble and followed by its
 *		members one by one, so that an error has one transaction, and whatever
 *		looks at other rows sees what a serial apply would show.  Within a
 *		group a change has its turn when the group has: all before it are
 *		committed or part of the group, and visible either way.
 * I7	A PREPARE is made known only after the local transaction is prepared and
 *		let go of, since its end may be in the hands of another worker.
 *		Both a PREPARE and an end can be repeated: whether they are done is seen
 *		from the prepared transaction and from the origin.
 * I8	An eager transaction (eager.c) has neither CSN nor end at first.  An
 *		attempt at it is one that began early; where it would have to wait for
 *		its turn before it has got its CSN, it is given up instead.  Whatever
 *		its error says, nobody hears of it.
 * I9	Whatever reads other rows is run in READ COMMITTED and by session
 *		settings that do not depend on the database or role.
 * I10	A transaction of which something is left to table sync has a transaction
 *		id, so that its commit moves the origin even if nothing else of it is
 *		applied.  Its position is reported as flushed; if the origin stayed
 *		behind, the next leader, or the server's own apply, would tell table
 *		sync to end before it.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/resowner.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "apply.h"
#include "compat.h"
#include "guc.h"
#include "order.h"
#include "postpone.h"
#include "serial.h"
#include "test_points.h"
#include "txnbuf.h"
#include "worker.h"

/* Pause before an attempt that failed for a transient reason is repeated. */
#define FIRST_PAUSE_MS 100
#define LAST_PAUSE_MS 5000

/*
 * Versions of relations kept in this process from one transaction to the next.
 * A publisher that changes tables all day makes many; those forgotten are told
 * again when needed.
 */
#define MAX_KNOWN_VERSIONS 256

/*
 * An eager transaction waits for a lock no longer than this: an earlier one may
 * wait for it meanwhile, and it cannot look for that (order.c).
 */
#define EAGER_LOCK_TIMEOUT_MS 1000

static Pool *pool;
static dsa_area *area;
static WorkerSlot *slot;
static TxnReader reader;

/* The transaction in work. */
static Csn	my_csn;				/* first of a group */
static Csn	my_last_csn;		/* last of the group */
static PoolTxn *my_txn;			/* of the group: the one in work */
static bool at_turn;			/* CSN - 1 is known to have committed */
static bool began_at_turn;		/* ... and was so when the attempt began (I2) */
static bool applying;			/* local transaction is for my_txn */
static bool has_baton;			/* I4 */
static bool published;			/* I5 */
static bool left_out;			/* I10 */
static EagerTxn *my_eager;		/* I8; until it has its CSN, my_csn is 0 and my_txn NULL */

/* What apply.c has been told, and not to forget yet. */
static uint32 *known_versions = NULL;
static int	nknown_versions = 0;
static int	maxknown_versions = 0;
static bool subscription_stale = false;

/* Several transactions in work, to be committed in one? */
static inline bool
in_group(void)
{
	return my_csn != my_last_csn;
}

bool
worker_at_turn(void)
{
	if (!at_turn && my_csn != 0)
		at_turn = order_at_turn(my_csn);
	return at_turn;
}

/* What apply.c has to know of the transaction in work. */
static void
describe(ApplyTxn *txn)
{
	if (my_txn == NULL)
	{
		memset(txn, 0, sizeof(*txn));
		txn->remote_xid = my_eager->remote_xid;
		return;
	}
	txn->remote_xid = my_txn->remote_xid;
	txn->commit_lsn = my_txn->commit_lsn;
	txn->end_lsn = my_txn->end_lsn;
	txn->commit_time = my_txn->commit_time;
}

/* Has the eager transaction in work got its CSN? */
static bool
adopt_csn(void)
{
	Csn			csn = order_eager_csn(my_eager);
	ApplyTxn	txn;

	if (csn == 0)
		return false;
	my_csn = my_last_csn = csn;
	my_txn = pool_txn(pool, csn);
	pg_atomic_write_u64(&slot->commit_lsn, my_txn->commit_lsn);
	order_adopt(csn);
	describe(&txn);
	apply_next(&txn);
	return true;
}

void
worker_wait_turn(void)
{
	if (!at_turn)
	{
		if (my_csn == 0 && !adopt_csn())
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("remote transaction has to wait for its turn before it has committed")));
		order_wait(my_csn - 1, WORKER_WAIT_TURN, true);
		at_turn = true;
	}
}

void
worker_require_alone(void)
{
	postpone_check_none();
	if (!in_group())
		return;
	serial_note_alone(pool, pg_atomic_read_u32(&slot->table), my_csn);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("remote transaction cannot be applied together with others")));
}

void
worker_require_counting(void)
{
	worker_require_alone();
	if (!began_at_turn)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("remote transaction has to be applied again at its turn")));
}

void
worker_out_of_order(void)
{
	serial_note_in_order(pool, pg_atomic_read_u32(&slot->table), my_csn);
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("changes of a remote transaction cannot be applied in another order")));
}

static void
clear_origin(void)
{
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;
}

/* Before the server aborts what is open, in an exit of whatever cause (I3). */
static void
clear_origin_at_exit(int code, Datum arg)
{
	clear_origin();
}

/* At the turn, just before the record that moves the origin. */
static void
set_origin(void)
{
	if (!COMPAT_ORIGIN_SHARED && !has_baton)
	{
		compat_origin_setup(pool->origin, pool->leader_pid);
		has_baton = true;
	}
	/* my_txn is the last of a group by now */
	replorigin_session_origin_lsn = my_txn->end_lsn;
	replorigin_session_origin_timestamp = my_txn->commit_time;
}

static void
give_up_baton(void)
{
	if (has_baton)
	{
		replorigin_session_reset();
		has_baton = false;
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (!applying)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
#ifndef PGPARREP_SABOTAGE_NO_COMMIT_WAIT
			Assert(order_at_turn(my_csn));
#endif
			/* The leader is going: its successor will see to this one. */
			if (pg_atomic_read_u32(&pool->stop) != 0)
				ereport(ERROR,
						(errcode(ERRCODE_ADMIN_SHUTDOWN),
						 errmsg("apply worker is stopping")));
			set_origin();
			XactLastCommitEnd = InvalidXLogRecPtr;
			CRASH_POINT(event == XACT_EVENT_PRE_PREPARE ? "before_prepare" :
						in_group()						? "before_group" :
														  "before_commit");
			break;
		case XACT_EVENT_PREPARE:
			CRASH_POINT("prepare_record_written");
			give_up_baton();
			clear_origin();
			applying = false;
			break;				/* I7: made known by attempt() */
		case XACT_EVENT_COMMIT:
			CRASH_POINT(in_group() ? "group_record_written" : "commit_record_written");
			give_up_baton();
			clear_origin();
			for (Csn csn = my_csn; csn <= my_last_csn; csn++)
				pool_txn(pool, csn)->local_end = Max(pool_txn(pool, csn)->local_end,
													 XactLastCommitEnd);
			applying = false;
			published = true;
			CRASH_POINT("origin_advanced");
			order_publish(my_csn, my_last_csn);
			CRASH_POINT(in_group()							 ? "group_known" :
						my_txn->flags & PTXN_FINISH_PREPARED ? "finish_known" :
															   "commit_known");
			break;
		case XACT_EVENT_ABORT:
#ifdef PGPARREP_SABOTAGE_ROLLBACK_MOVES_ORIGIN
			/* what servers from 16 on do with an origin LSN that is set early */
			if (my_txn != NULL)
			{
				set_origin();
				replorigin_session_advance(my_txn->end_lsn, InvalidXLogRecPtr);
				clear_origin();
			}
#endif
			give_up_baton();
			applying = false;
			break;
		default:
			break;
	}
}

static void
subscription_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_stale = true;
}

/* Options that do not restart the leader: as they stand at each transaction. */
static void
reread_subscription(void)
{
	MemoryContext oldcxt;
	Subscription *sub;

	AcceptInvalidationMessages();
	if (!subscription_stale && MySubscription != NULL)
		return;
	subscription_stale = false;
	oldcxt = MemoryContextSwitchTo(ApplyContext);
	sub = GetSubscription(pool->subid, true);
	MemoryContextSwitchTo(oldcxt);
	if (sub == NULL)
		proc_exit(0);			/* being dropped; the leader ends as well */
	if (MySubscription != NULL)
		FreeSubscription(MySubscription);
	MySubscription = sub;

	/*
	 * Never wait for a flush in the chain of commits.  Only remote_apply has
	 * to be in the commit record itself.
	 */
	SetConfigOption("synchronous_commit",
					strcmp(sub->synccommit, "remote_apply") == 0 ?
						"remote_apply" :
						"off",
					PGC_BACKEND, PGC_S_OVERRIDE);
}

/*
 * Resets the position of ALTER SUBSCRIPTION ... SKIP, in the transaction that
 * it was, or was not, about.
 */
static void
clear_skip_lsn(void)
{
	XLogRecPtr	skiplsn = MySubscription->skiplsn;
	Relation	rel;
	HeapTuple	tup;

	PushActiveSnapshot(GetTransactionSnapshot());

	/*
	 * The transaction before may have done the same a moment ago: its commit
	 * is known before its invalidations, which come before it releases locks.
	 * So take one that it must have released.
	 */
	LockSharedObject(SubscriptionRelationId, pool->subid, 0,
					 ShareUpdateExclusiveLock);
	rel = table_open(SubscriptionRelationId, RowExclusiveLock);
	tup = SearchSysCacheCopy1(SUBSCRIPTIONOID, ObjectIdGetDatum(pool->subid));
	if (!HeapTupleIsValid(tup))
		elog(ERROR, "subscription \"%s\" does not exist", MySubscription->name);

	/* Set anew meanwhile: that is for another transaction. */
	if (((Form_pg_subscription) GETSTRUCT(tup))->subskiplsn == skiplsn)
	{
		bool		nulls[Natts_pg_subscription] = {0};
		bool		replaces[Natts_pg_subscription] = {0};
		Datum		values[Natts_pg_subscription] = {0};

		values[Anum_pg_subscription_subskiplsn - 1] = LSNGetDatum(InvalidXLogRecPtr);
		replaces[Anum_pg_subscription_subskiplsn - 1] = true;
		tup = heap_modify_tuple(tup, RelationGetDescr(rel), values, nulls, replaces);
		CatalogTupleUpdate(rel, &tup->t_self, tup);
		if (skiplsn != my_txn->commit_lsn)
			ereport(WARNING,
					(errmsg("skip-LSN of subscription \"%s\" cleared",
							MySubscription->name),
					 errdetail("Remote transaction's finish WAL location (LSN) %X/%X did not match skip-LSN %X/%X.",
							   LSN_FORMAT_ARGS(my_txn->commit_lsn),
							   LSN_FORMAT_ARGS(skiplsn))));
	}
	heap_freetuple(tup);
	table_close(rel, NoLock);
	PopActiveSnapshot();
}

/* Tells apply.c a version that the transaction uses. */
static void
define_relation(const TxnRel *rel, const char *body)
{
	/* Room first: one that is known and not in the list stays for ever. */
	if (nknown_versions == maxknown_versions)
	{
		int			n = Max(MAX_KNOWN_VERSIONS, 2 * maxknown_versions);

		if (known_versions == NULL)
			known_versions = MemoryContextAlloc(TopMemoryContext,
												n * sizeof(uint32));
		else
			known_versions = repalloc(known_versions, n * sizeof(uint32));
		maxknown_versions = n;
	}
	apply_define_relation(rel->version, body, rel->len);
	known_versions[nknown_versions++] = rel->version;
}

static void
define_relations(const TxnRel *rels)
{
	for (int i = 0; i < my_txn->nrels; i++)
		if (rels[i].apply && !apply_knows_relation(rels[i].version))
			define_relation(&rels[i], dsa_get_address(area, rels[i].body));
}

static void
forget_relations(void)
{
	while (nknown_versions > 0)
		apply_forget_relation(known_versions[--nknown_versions]);
}

static inline const TxnRel *
find_relation(const TxnRel *rels, uint32 version)
{
	for (int i = 0; i < my_txn->nrels; i++)
		if (rels[i].version == version)
			return &rels[i];
	return NULL;
}

/* Before a change of another table than the last change's: see serial.c. */
static void
begin_table(Csn csn, const TxnRel *rel)
{
	pg_atomic_write_u32(&slot->table, rel->table);
	if (at_turn)
		return;
	if (serial_applies(pool, POOL_EVERY_TABLE, csn))
		worker_wait_turn();
	else if (rel->behind != 0 && csn - rel->behind < my_csn &&
			 serial_applies(pool, rel->table, csn))
		order_wait(csn - rel->behind, WORKER_WAIT_DEPENDENCY, true);
}

static bool
uses_table(uint32 table)
{
	for (Csn csn = my_csn; csn <= my_last_csn; csn++)
	{
		PoolTxn    *txn = pool_txn(pool, csn);
		const TxnRel *rels = pool_txn_rels(txn, area);

		for (int i = 0; i < txn->nrels; i++)
			if (rels[i].table == table)
				return true;
	}
	return false;
}

/*
 * An attempt that did not begin at its turn has come to nothing.  Has it to do
 * with a table?  Where an earlier transaction waits for a lock of ours, it is
 * the table that the other one changes, and else the one that we do.
 */
static void
note_trouble(int sqlstate)
{
	uint32		table = order_yield_table();

	if (my_eager != NULL)
	{
		/* Taken away, cancelled, or idle: nothing to learn from. */
		if (EAGER_KIND(pg_atomic_read_u32(&my_eager->state)) != EAGER_CANCELLED &&
			(table != ORDER_NO_YIELD || !shared_is_transient(sqlstate) ||
			 sqlstate == ERRCODE_T_R_SERIALIZATION_FAILURE ||
			 sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
			 sqlstate == ERRCODE_LOCK_NOT_AVAILABLE))
			serial_note_eager(pool, pg_atomic_read_u32(&slot->table), order_bound());
		if (my_csn == 0)
			return;
	}
	if (table == ORDER_NO_YIELD)
	{
		/* Of these, only deadlocks and lock timeouts. */
		if (shared_is_transient(sqlstate) &&
			sqlstate != ERRCODE_T_R_DEADLOCK_DETECTED &&
			sqlstate != ERRCODE_LOCK_NOT_AVAILABLE)
			return;
		table = pg_atomic_read_u32(&slot->table);
	}
	else if (!uses_table(table))
		table = POOL_EVERY_TABLE;
	serial_note_trouble(pool, table, my_csn);
}

/* Does a change depend on a transaction that has not committed? */
static inline bool
has_to_wait(const ChangeRec *rec)
{
	/* a CSN of the group itself needs no wait */
	return rec->wait_csn != 0 && rec->wait_csn < my_csn && !at_turn &&
		   !order_at_turn(rec->wait_csn + 1);
}

/*
 * May a change be applied after later ones (postpone.c)?  Those of a table that
 * is serial are in need of their order.
 */
static inline bool
may_postpone(const ChangeRec *rec, uint32 table, Csn csn)
{
	return pgparrep_postpone_changes && rec != NULL && !at_turn &&
		   rec->conflict == CONFLICT_KEYS &&
		   !serial_in_order(pool, table, csn);
}

/*
 * Makes up for what is postponed; returns how many changes that were.  What waits
 * for the group right before, which commits as one, is left to the end: only that
 * little has to be done one after the other.
 */
static uint64
apply_postponed(void)
{
	const ChangeRec *resume = reader.stored;
	uint64		applied = 0;

	while (postponed.n > 0)
	{
		Csn			before = order_group_before(my_csn);
		Csn			newest = 0;
		Csn			wait = 0;

		apply_flush();			/* so that what it stores is from before */
		postpone_begin();
		for (int i = 0; i < postponed.n; i++)
		{
			Postponed  *item = &postponed.item[i];

			CHECK_FOR_INTERRUPTS();
			if (has_to_wait(item->rec) || postpone_touched(item->rec))
			{
				newest = Max(newest, item->rec->wait_csn);
				if (item->rec->wait_csn < before)
					wait = Max(wait, item->rec->wait_csn);
				postpone_keep(i);
				continue;
			}
			begin_table(item->csn, item->rel);
			apply_expect_relation(item->rel->version, item->rel->relid);
			txnread_again(&reader, item->rec);
			postponed.current = i;
			apply_change(reader.rec.version, reader.rec.type, reader.body,
						 reader.rec.len);
			applied++;
		}
		apply_flush();			/* while a conflict is still known for what it is */
		postpone_end();
		if (postponed.n > 0)
			order_wait(order_at_turn(wait + 1) ? Min(newest, my_csn - 1) : wait,
					   WORKER_WAIT_DEPENDENCY, true);
	}
	if (applied > 0)
	{
		postpone_reset();
		pg_atomic_fetch_add_u64(&slot->postponed, applied);
		if (resume != NULL)
			txnread_again(&reader, resume);
	}
	return applied;
}

/* Applies the changes, but for what it postpones; returns how many there were. */
static uint64
apply_changes(Csn csn)
{
	const TxnRel *rels = pool_txn_rels(my_txn, area);
	const TxnRel *rel = NULL;
	uint32		last_version = 0;
	bool		in_table = false;
	bool		any = false;
	uint64		n = 0;

	for (int i = 0; i < my_txn->nrels; i++)
	{
		any |= rels[i].apply;
		left_out |= rels[i].left;
	}
	if (!any)
		return 0;

	define_relations(rels);
	txnread_begin(&reader, pool, area, my_txn);
	if (my_txn->wait_csn != 0)
		order_wait(my_txn->wait_csn, WORKER_WAIT_DEPENDENCY, true);

	while (txnread_next(&reader))
	{
		ChangeRec  *rec = &reader.rec;

		CHECK_FOR_INTERRUPTS();
		if (rec->version != last_version)
		{
			last_version = rec->version;
			rel = (rec->type == 'T') ? NULL : find_relation(rels, rec->version);
			in_table = false;
		}
		if (rec->type != 'T' && (rel == NULL || !rel->apply))
			continue;

		if (rel != NULL && may_postpone(reader.stored, rel->table, csn))
		{
			if (has_to_wait(rec) || postpone_touched(reader.stored))
			{
				if (postpone_add(reader.stored, rel, csn))
					continue;
				n += apply_postponed();
				in_table = false;
			}
		}
		else if (postponed.n > 0)
		{
			n += apply_postponed();
			in_table = false;
		}

		if (has_to_wait(rec))
			order_wait(rec->wait_csn, WORKER_WAIT_DEPENDENCY, true);
		if (rec->type == 'T')
		{
			TruncateBody *body = (TruncateBody *) reader.body;
			uint32		nrels = 0;

			for (uint32 i = 0; i < body->nrels; i++)
			{
				const TxnRel *truncated = find_relation(rels, body->versions[i]);

				if (truncated == NULL || !truncated->apply)
					continue;
				begin_table(csn, truncated);
				apply_expect_relation(truncated->version, truncated->relid);
				body->versions[nrels++] = body->versions[i];
			}
			if (nrels > 1)
				pg_atomic_write_u32(&slot->table, POOL_EVERY_TABLE);
			if (nrels > 0)
				apply_truncate(nrels, body->versions, body->flags);
		}
		else
		{
			if (!in_table)
			{
				begin_table(csn, rel);
				apply_expect_relation(rel->version, rel->relid);
				in_table = true;
			}
			apply_change(rec->version, rec->type, reader.body, rec->len);
		}
		n++;
	}
	txnread_end(&reader);
	return n;
}

/*
 * The same for an eager transaction, as its changes arrive.  Returns when they
 * are all applied, and it has its CSN.
 */
static uint64
apply_eager_changes(void)
{
	EagerTxn   *eager = my_eager;
	const TxnRel *rel = NULL;
	uint64		n = 0;

	if (LockTimeout == 0 || LockTimeout > EAGER_LOCK_TIMEOUT_MS)
		(void) set_config_option("lock_timeout",
								 CppAsString2(EAGER_LOCK_TIMEOUT_MS),
								 PGC_SUSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
								 true, 0, false);
	txnread_begin_eager(&reader, pool, area, eager);
	for (;;)
	{
		ChangeRec  *rec = &reader.rec;
		bool		complete = my_csn != 0;

		CHECK_FOR_INTERRUPTS();
		if (!txnread_next(&reader))
		{
			if (complete)
				break;
			if (!adopt_csn())
				order_wait_changes(eager, reader.position);
			continue;
		}
		order_eager_look();
		if (rec->wait_csn != 0 && !at_turn)
			order_wait(rec->wait_csn, WORKER_WAIT_DEPENDENCY, true);

		if (rel == NULL || rel->version != rec->version)
		{
			rel = NULL;
			for (int i = 0; i < eager->nrels; i++)
				if (eager->rels[i].version == rec->version)
					rel = &eager->rels[i];
			if (rel == NULL)
				elog(ERROR, "relation of an eager transaction is not known");
			pg_atomic_write_u32(&slot->table, rel->table);
			if (my_csn == 0 && serial_not_eager(pool, rel->table, order_bound()))
				ereport(ERROR,
						(errcode(ERRCODE_QUERY_CANCELED),
						 errmsg("table is not changed before the commit for a while")));
			if (!apply_knows_relation(rel->version))
			{
				char	   *body = txnread_relation(&reader, rel);

				define_relation(rel, body);
				pfree(body);
			}
			apply_expect_relation(rel->version, rel->relid);
		}
		apply_change(rec->version, rec->type, reader.body, rec->len);
		n++;
	}
	txnread_end(&reader);
	return n;
}

/*
 * The server's name for the local prepared transaction, so that its own apply
 * worker can take over in between, and its commands know that there is one.
 */
static const char *
local_gid(void)
{
	static char gid[GIDSIZE];

	snprintf(gid, sizeof(gid), "pg_gid_%u_%u", pool->subid, my_txn->remote_xid);
	return gid;
}

/* The publisher's message that ends what is in work, for errors. */
static const char *
message_type(void)
{
	if (my_txn->flags & PTXN_PREPARE)
		return "PREPARE";
	if (my_txn->flags & PTXN_COMMIT_PREPARED)
		return "COMMIT PREPARED";
	if (my_txn->flags & PTXN_ROLLBACK_PREPARED)
		return "ROLLBACK PREPARED";
	return "COMMIT";
}

/*
 * Records of prepared transactions are on disk when they are done, but the
 * server does not say where they end.
 */
static void
note_flushed_end(void)
{
	my_txn->local_end = GetFlushRecPtr(NULL);
}

/* Prepares the local transaction. */
static void
prepare(void)
{
	/* Only a transaction block can be prepared. */
	BeginTransactionBlock();
	CommitTransactionCommand();
	(void) PrepareTransactionBlock(local_gid());
	CommitTransactionCommand();
	CRASH_POINT("prepared");
	note_flushed_end();
}

/* Commits or rolls back a local prepared transaction. */
static void
finish_prepared(void)
{
	const char *gid = local_gid();
	bool		commit = (my_txn->flags & PTXN_COMMIT_PREPARED) != 0;
	bool		there;

	/*
	 * A rollback may be of what was prepared before two_phase was on, which
	 * has not been sent.  A commit that is not there is an error, unless it
	 * has been made already.
	 */
	if (commit)
		there = replorigin_get_progress(pool->origin, false) < my_txn->end_lsn;
	else
		there = LookupGXact(gid, my_txn->prepare_end_lsn, my_txn->prepare_time);

	if (there)
	{
		order_exit_if_stopped();
		set_origin();
		CRASH_POINT(commit ? "before_commit_prepared" : "before_rollback_prepared");
		FinishPreparedTransaction(gid, commit);
		CRASH_POINT(commit ? "commit_prepared" : "rollback_prepared");
		note_flushed_end();
	}
}

/*
 * One attempt at the transaction, or the group; false if there has to be
 * another.
 */
static bool
attempt(void)
{
	volatile bool done = false;

	published = false;
	began_at_turn = false;
	left_out = false;
	postpone_reset();
	PG_TRY();
	{
		ApplyTxn	txn;
		uint64		n = 0;
		bool		to_prepare;
		bool		clear_skip;

		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		applying = true;
		pg_atomic_write_u32(&slot->table, POOL_EVERY_TABLE);
		reread_subscription();
		at_turn = false;
		began_at_turn = worker_at_turn();

		if (my_eager != NULL)
		{
			describe(&txn);
			apply_begin(&txn);
			n = apply_eager_changes();
			apply_end();
		}
		else
			my_txn = pool_txn(pool, my_csn);
		describe(&txn);
		to_prepare = (my_txn->flags & PTXN_PREPARE) != 0;

		/* It may also have been told to skip this one while it was tried again. */
		clear_skip = !XLogRecPtrIsInvalid(MySubscription->skiplsn) &&
					 ((my_txn->flags & PTXN_SKIPLSN) != 0 ||
					  (!in_group() &&
					   MySubscription->skiplsn == my_txn->commit_lsn));
		if (my_eager != NULL || (my_txn->flags & PTXN_FINISH_PREPARED) != 0)
		{
			/* nothing (more) to apply, so nothing to skip */
		}
		else if (to_prepare &&
				 LookupGXact(local_gid(), my_txn->end_lsn, my_txn->commit_time))
			to_prepare = false; /* done before the connection was lost */
		else if (clear_skip && MySubscription->skiplsn == my_txn->commit_lsn)
		{
			worker_wait_turn();
			ereport(LOG,
					(errmsg("logical replication starts skipping transaction at LSN %X/%X",
							LSN_FORMAT_ARGS(my_txn->commit_lsn))));
			ereport(LOG,
					(errmsg("logical replication completed skipping transaction at LSN %X/%X",
							LSN_FORMAT_ARGS(my_txn->commit_lsn))));
		}
		else
		{
			apply_begin(&txn);
			n = apply_changes(my_csn);
			for (Csn csn = my_csn + 1; csn <= my_last_csn; csn++)
			{
				my_txn = pool_txn(pool, csn);
				describe(&txn);
				apply_next(&txn);
				n += apply_changes(csn);
			}
			n += apply_postponed();
			apply_end();
		}

		/* Not in a callback: deferred triggers come before all callbacks. */
		CRASH_POINT("applied");
		worker_wait_turn();
		order_set_state(WORKER_COMMITTING);
		apply_begin_commit(&txn, message_type());
		if (to_prepare)
			prepare();
		else if (my_txn->flags & PTXN_FINISH_PREPARED)
			finish_prepared();

		if (to_prepare && !clear_skip)
		{
			published = true;
			order_publish(my_csn, my_csn);	/* I7 */
			CRASH_POINT("prepare_known");
		}
		else
		{
			if (to_prepare)
			{
				/* Not in what may be rolled back later. */
				StartTransactionCommand();
				applying = true;
			}
			if (clear_skip)
				clear_skip_lsn();
			if (left_out)
				(void) GetCurrentTransactionId();	/* I10 */
			CommitTransactionCommand();
		}
		apply_end_commit();
		pg_atomic_fetch_add_u64(&slot->changes, n);
		done = true;
	}
	PG_CATCH();
	{
		int			sqlstate;
		bool		counts;

		clear_origin();			/* I3 */
		if (published)
			PG_RE_THROW();		/* I5 */
		sqlstate = geterrcode();
		/* A worker has no connection: this one is about the data. */
		counts = began_at_turn && !in_group() &&
				 (!shared_is_transient(sqlstate) ||
				  sqlstate == ERRCODE_PROTOCOL_VIOLATION);

		HOLD_INTERRUPTS();
		QueryCancelPending = false;
		if (sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED)
			pg_atomic_fetch_add_u64(&Shared->leaders[pool->leader_slot].deadlocks, 1);
		if (!began_at_turn && pg_atomic_read_u32(&pool->stop) == 0)
			note_trouble(sqlstate);
		if (counts)
			EmitErrorReport();
		else if (began_at_turn && !in_group() &&
				 pg_atomic_read_u32(&pool->stop) == 0)
		{
			MemoryContext oldcxt = MemoryContextSwitchTo(ApplyContext);
			ErrorData  *edata = CopyErrorData();

			MemoryContextSwitchTo(oldcxt);
			/* A full disk or table is somebody's to see to; a lock is not. */
			ereport(ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_INSUFFICIENT_RESOURCES ? WARNING : LOG,
					(errcode(edata->sqlerrcode),
					 errmsg("remote transaction %u, finished at %X/%X, will be tried again: %s",
							my_txn->remote_xid,
							LSN_FORMAT_ARGS(my_txn->commit_lsn),
							edata->message),
					 edata->detail ? errdetail_internal("%s", edata->detail) : 0,
					 edata->hint ? errhint("%s", edata->hint) : 0));
			FreeErrorData(edata);
		}
		AbortOutOfAnyTransaction();
		txnread_abort(&reader);
		apply_abort();
		FlushErrorState();
		RESUME_INTERRUPTS();

		if (counts)
		{
			order_fail(my_csn);
			order_set_state(WORKER_STOPPED);
			pgstat_report_stat(true);
			proc_exit(0);
		}
	}
	PG_END_TRY();
	return done;
}

static void
pause_before_retry(long ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	order_set_state(WORKER_WAIT_RETRY);
	for (;;)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

		if (left <= 0 || pg_atomic_read_u32(&pool->stop) != 0)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 left, compat_wait_event("PgparrepRetry"));
		ResetLatch(MyLatch);
		QueryCancelPending = false; /* nothing is open */
		CHECK_FOR_INTERRUPTS();
	}
	order_set_state(WORKER_APPLYING);
}

/* Applies a transaction, or a group; false if a group was given up. */
static bool
apply_transactions(Csn csn, Csn last)
{
	LeaderSlot *leader = &Shared->leaders[pool->leader_slot];
	long		pause = FIRST_PAUSE_MS;
	char		activity[80];

	my_csn = csn;
	my_last_csn = last;
	my_txn = pool_txn(pool, csn);
	pg_atomic_write_u32(&slot->remote_xid, my_txn->remote_xid);
	pg_atomic_write_u64(&slot->commit_lsn, my_txn->commit_lsn);

	if (my_txn->flags & PTXN_EMPTY)
	{
		order_wait(csn - 1, WORKER_WAIT_TURN, false);
		order_publish(csn, csn);
		pg_atomic_fetch_add_u64(&slot->transactions, 1);
		return true;
	}

	/* Nothing to do before its turn, and then the first attempt counts. */
	if (my_txn->flags & PTXN_FINISH_PREPARED)
		order_wait(csn - 1, WORKER_WAIT_TURN, false);

	snprintf(activity, sizeof(activity),
			 "applying remote transaction %u, finished at %X/%X",
			 my_txn->remote_xid, LSN_FORMAT_ARGS(my_txn->commit_lsn));
	pgstat_report_activity(STATE_RUNNING, activity);

	if (nknown_versions > MAX_KNOWN_VERSIONS)
		forget_relations();

	while (!attempt())
	{
		order_exit_if_stopped();
		pg_atomic_fetch_add_u64(&slot->retries, 1);
		pg_atomic_fetch_add_u64(&leader->retries, 1);
		if (csn != last)
			return false;
		if (began_at_turn)
		{
			/* Nothing to wait for but better times. */
			pause_before_retry(pause);
			pause = Min(pause * 2, LAST_PAUSE_MS);
		}
		order_wait(csn - 1, WORKER_WAIT_RETRY, false);
	}
	pg_atomic_fetch_add_u64(&slot->transactions, last - csn + 1);
	pg_atomic_write_u64(&slot->missing, apply_missing_rows());
	pgstat_report_stat(false);
	return true;
}

/* Applies a transaction before its commit, or not if that does not work. */
static void
apply_eager(EagerTxn *eager)
{
	LeaderSlot *leader = &Shared->leaders[pool->leader_slot];
	char		activity[80];
	bool		done;
	Csn			csn;

	my_eager = eager;
	my_csn = my_last_csn = 0;
	my_txn = NULL;
	pg_atomic_write_u32(&slot->remote_xid, eager->remote_xid);
	pg_atomic_write_u64(&slot->commit_lsn, InvalidXLogRecPtr);
	pg_atomic_fetch_add_u64(&leader->eager, 1);
	snprintf(activity, sizeof(activity),
			 "applying remote transaction %u, not yet committed",
			 eager->remote_xid);
	pgstat_report_activity(STATE_RUNNING, activity);
	if (nknown_versions > MAX_KNOWN_VERSIONS)
		forget_relations();

	done = attempt();
	csn = order_eager_end(eager);
	my_eager = NULL;
	if (done)
	{
		pg_atomic_fetch_add_u64(&slot->transactions, 1);
		pg_atomic_write_u64(&slot->missing, apply_missing_rows());
		pgstat_report_stat(false);
		return;
	}
	pg_atomic_fetch_add_u64(&leader->eager_rolled_back, 1);
	order_exit_if_stopped();
	if (csn == 0)
		return;

	/* It has committed meanwhile: nobody else will apply it (eager.c, I1). */
	order_adopt(csn);
	pg_atomic_fetch_add_u64(&slot->retries, 1);
	pg_atomic_fetch_add_u64(&leader->retries, 1);
	order_wait(csn - 1, WORKER_WAIT_RETRY, false);
	(void) apply_transactions(csn, csn);
}

/* Attaches to the pool; exits if the leader is gone already. */
static void
attach(void)
{
	WorkerStart start;
	dsm_segment *segment;

	memcpy(&start, MyBgworkerEntry->bgw_extra, sizeof(start));

	CurrentResourceOwner = NULL;	/* segments live as long as the process */
	segment = dsm_attach(start.pool);
	if (segment == NULL)
		proc_exit(0);
	dsm_pin_mapping(segment);
	pool = dsm_segment_address(segment);
	slot = &Shared->workers[start.slot];
	if (slot->generation != start.generation ||
		pg_atomic_read_u32(&pool->stop) != 0)
		proc_exit(0);
	area = dsa_attach(pool->dsa);
	dsa_pin_mapping(area);
	slot->pid = MyProcPid;
	slot->procno = compat_my_procno();
	order_init(pool, start.slot);
}

void
pgparrep_apply_worker_main(Datum main_arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	attach();

	/* As the server's apply worker. */
	SetConfigOption("session_replication_role", "replica",
					PGC_SUSET, PGC_S_OVERRIDE);
	BackgroundWorkerInitializeConnectionByOid(pool->dbid, pool->userid, 0);
	SetConfigOption("search_path", "", PGC_SUSET, PGC_S_OVERRIDE);

	/* I9 */
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_deferrable", "off",
					PGC_SUSET, PGC_S_OVERRIDE);
	compat_no_transaction_timeout();

	ApplyContext = AllocSetContextCreate(TopMemoryContext, "ApplyContext",
										 ALLOCSET_DEFAULT_SIZES);
	RegisterXactCallback(xact_callback, NULL);
	before_shmem_exit(clear_origin_at_exit, (Datum) 0);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_callback, (Datum) 0);

	StartTransactionCommand();
	reread_subscription();
	if (COMPAT_ORIGIN_SHARED)
		compat_origin_setup(pool->origin, pool->leader_pid);
	replorigin_session_origin = pool->origin;
	CommitTransactionCommand();
	apply_init(pool->origin_name);

	for (;;)
	{
		EagerTxn   *eager;
		Csn			last;
		Csn			first = order_claim(&last, &eager);

		if (eager != NULL)
			apply_eager(eager);
		else if (!apply_transactions(first, last))
		{
			for (Csn csn = first; csn <= last; csn++)
			{
				order_ungroup(csn);
				(void) apply_transactions(csn, csn);
			}
		}
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
}
