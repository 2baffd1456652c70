/*-------------------------------------------------------------------------
 *
 * leader.c
 *	  The leader of a parallel subscription.
 *
 * The server's apply worker becomes the leader when it would start to stream.
 * It receives the publisher's changes in WAL order, keeps each uncommitted
 * transaction in a buffer (txnbuf.c), and at the commit of one gives it the
 * next commit sequence number, finds out which earlier ones it has to wait
 * for (keyplan.c, depend.c) and hands it to the workers (pool.c, order.c).
 * A large one may have been begun by a worker by then (eager.c).
 * It reports progress to the publisher (feedback.c), looks after the tables
 * in initial copy (tables.c), and does whatever else an apply worker does for
 * its subscription between transactions.
 *
 * I1	The leader never waits for the commit of one certain transaction while
 *		it could read, and never stops reading on account of uncommitted work:
 *		the commit may be in what it has not read.  It stops reading only while
 *		committed work fills its bounds, which workers empty without it, or
 *		while it drains the pipeline for table sync or SKIP.
 * I2	While it does not read it reports its status unasked, and its own
 *		timeout does not run.
 * I3	A position is taken for received only when the whole message that
 *		carried it has been taken in.
 * I4	Tables in initial copy are looked after only while nothing is handed out
 *		that has not committed; see tables.c.
 * I5	The transaction that SKIP may be about runs alone.
 * I6	So does the one whose error ended the last leader.  Otherwise each
 *		attempt would apply, and roll back, all that comes after it.
 * I7	Nothing that comes after the end of a prepared transaction begins before
 *		that end is published: it might wait for a lock of the prepared
 *		transaction while it holds one that an earlier transaction needs.  An
 *		eager transaction may have begun, but waits for no lock for long.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "commands/subscriptioncmds.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "postmaster/interrupt.h"
#include "postmaster/walwriter.h"
#include "replication/logicallauncher.h"
#include "replication/logicalworker.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "depend.h"
#include "eager.h"
#include "feedback.h"
#include "fstream.h"
#include "guc.h"
#include "interface.h"
#include "keyplan.h"
#include "leader.h"
#include "native.h"
#include "pool.h"
#include "serial.h"
#include "startpoint.h"
#include "streamrel.h"
#include "tables.h"
#include "takeover.h"
#include "test_points.h"
#include "trace.h"
#include "txnbuf.h"

/* Buckets of the key table: 4 MB, 262,144 keys in flight. */
#define KEY_TABLE_BUCKETS 65536

/* Messages taken in, and time spent on them, before the leader looks at anything else. */
#define MESSAGES_AT_A_TIME 256
#define MESSAGES_MS 100

/* Longest sleep, as the server's apply worker has it. */
#define NAPTIME_MS 1000

/*
 * ... and while transactions are being applied: the publisher hears of commits
 * that often, or when all have been made.
 */
#define BUSY_NAPTIME_MS 20

/* How often to report while not reading. */
#define PAUSED_REPORT_MS 500

/* How often to try to start workers that could not be started. */
#define START_WORKERS_MS 5000

static WalReceiverConn *conn;
static Pool *pool;
static dsa_area *area;
static LeaderSlot *slot;
static DependTable *depend;
static MemoryContext message_mcxt;

static int	worker_number;
static XLogRecPtr start_position;	/* of the stream */
static XLogRecPtr last_received;	/* see I3 */
static XLogRecPtr last_commit_end;	/* of the last transaction taken in */
static TimestampTz last_message_at;
static bool ping_sent;
static LastLeader *last_leader;
static XLogRecPtr failed_lsn;	/* commit that ended the last leader, or 0 */
static bool publisher_waits;	/* its commits, for what we report as flushed */

/* CSNs: handed out, and seen to have committed. */
static Csn	handed = 0;
static Csn	retired = 0;
static Csn	last_finish = 0;	/* newest end of a prepared transaction (I7) */
static TxnBuffer *in_flight[POOL_RING_SIZE];

/* Set by invalidations. */
static bool subscription_stale = false;

static TimestampTz last_start_at = 0;
static TimestampTz last_stat_at = 0;

static void drain(void);
static void maybe_reread_subscription_here(void);

static MemoryContext tx_caller_mcxt;

void
leader_start_tx(void)
{
	tx_caller_mcxt = CurrentMemoryContext;
	StartTransactionCommand();
}

void
leader_commit_tx(void)
{
	CommitTransactionCommand();
	MemoryContextSwitchTo(tx_caller_mcxt);
}

static void
subscription_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_stale = true;
}

pg_noreturn static void
protocol_violation(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("invalid logical replication message from the publisher"),
			 errdetail("%s", what)));
}

/* Appends a string constant as the replication grammar reads it. */
static void
append_literal(StringInfo buf, const char *value)
{
	appendStringInfoChar(buf, '\'');
	for (; *value; value++)
	{
		if (*value == '\'')
			appendStringInfoChar(buf, '\'');
		appendStringInfoChar(buf, *value);
	}
	appendStringInfoChar(buf, '\'');
}

static void
start_streaming(const WalRcvStreamOptions *options)
{
	StringInfoData cmd;
	StringInfoData names;
	ListCell   *lc;
	WalRcvExecResult *res;
	bool		first = true;
	bool		two_phase;

	/*
	 * When two_phase is pending and all tables are ready, it is to be turned
	 * on.  Where it is on, the slot has it, but for a copied one; that too
	 * leaves nothing prepared behind, since a PREPARE that comes again is
	 * recognized.
	 */
	two_phase = options->proto.logical.twophase ||
				MySubscription->twophasestate == LOGICALREP_TWOPHASE_STATE_ENABLED;

	initStringInfo(&names);
	foreach(lc, options->proto.logical.publication_names)
	{
		const char *name = strVal(lfirst(lc));

		if (!first)
			appendStringInfoChar(&names, ',');
		first = false;
		appendStringInfoChar(&names, '"');
		for (; *name; name++)
		{
			if (*name == '"')
				appendStringInfoChar(&names, '"');
			appendStringInfoChar(&names, *name);
		}
		appendStringInfoChar(&names, '"');
	}

	initStringInfo(&cmd);
	appendStringInfo(&cmd, "START_REPLICATION SLOT \"%s\" LOGICAL %X/%X (proto_version '%u', streaming 'extreme'",
					 options->slotname, LSN_FORMAT_ARGS(start_position),
					 options->proto.logical.proto_version);
	compat_append_origin_option(&cmd, options, walrcv_server_version(conn));
	if (two_phase)
		appendStringInfoString(&cmd, ", two_phase 'on'");
	appendStringInfoString(&cmd, ", publication_names ");
	append_literal(&cmd, names.data);
	if (options->proto.logical.binary ||
		pgparrep_tuple_format == TUPLE_FORMAT_BINARY)
		appendStringInfoString(&cmd, ", binary 'true'");
	else if (pgparrep_tuple_format == TUPLE_FORMAT_AUTO)
	{
		appendStringInfoString(&cmd, ", \"native-signature\" ");
		append_literal(&cmd, pgparrep_native_signature[0] != '\0' ?
								 pgparrep_native_signature :
								 native_signature(GetDatabaseEncoding()));
	}
	appendStringInfo(&cmd, ", \"parallel-decode-num\" '%d'", pgparrep_parallel_decode_num);
	appendStringInfo(&cmd, ", \"max-recordbuffer-in-memory\" '%d'", pgparrep_decode_buffer);
	appendStringInfo(&cmd, ", \"max-txn-in-memory\" '%d'", pgparrep_decode_txn_buffer);
	appendStringInfoString(&cmd, ", \"report-sync\" 'true')");

	res = walrcv_exec(conn, cmd.data, 0, NULL);
	if (res->status != WALRCV_OK_COPY_BOTH)
	{
		const char *hint = takeover_publisher_hint(res);

		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("could not start WAL streaming: %s",
						res->err ? res->err : "unexpected result"),
				 hint ? errhint("%s", hint) : 0));
	}
	walrcv_clear_result(res);
	pfree(cmd.data);
	pfree(names.data);

	if (options->proto.logical.twophase)
	{
		leader_start_tx();
		PushActiveSnapshot(GetTransactionSnapshot());
		UpdateTwoPhaseState(MySubscription->oid, LOGICALREP_TWOPHASE_STATE_ENABLED);
		PopActiveSnapshot();
		leader_commit_tx();
		MySubscription->twophasestate = LOGICALREP_TWOPHASE_STATE_ENABLED;
	}
}

/* Progress */

/* Nothing handed out that has not committed? */
static inline bool
pipeline_empty(void)
{
	return pg_atomic_read_u64(&pool->committed) == handed && retired == handed;
}

/* Takes note of the transactions that have committed since the last call. */
static void
retire(void)
{
	Csn			committed = pg_atomic_read_u64(&pool->committed);

	if (retired == committed)
		return;
	pg_read_barrier();
	while (retired < committed)
	{
		PoolTxn    *ptxn = pool_txn(pool, ++retired);
		TxnBuffer **txn = &in_flight[retired & (POOL_RING_SIZE - 1)];

		feedback_committed(ptxn->end_lsn, ptxn->local_end);
		if (ptxn->nrels > POOL_FEW_RELS)
			dsa_free(area, ptxn->rels);
		if (*txn != NULL)
			txnbuf_release(*txn);
		*txn = NULL;
	}
}

static void
report_statistics(void)
{
	uint64		in_progress = txnbuf_in_progress();
	uint64		spilled = txnbuf_spilled();

	pg_atomic_write_u64(&slot->received_lsn, last_received);
	pg_atomic_write_u64(&slot->applied_lsn, feedback_applied());
	pg_atomic_write_u64(&slot->flushed_lsn, feedback_flushed());
	pg_atomic_write_u64(&slot->in_progress, in_progress);
	pg_atomic_write_u64(&slot->spilled, spilled);
	pg_atomic_write_u64(&slot->cached, in_progress - spilled);
	pg_atomic_write_u64(&slot->waiting, handed - retired);
	pg_atomic_write_u64(&slot->transactions, retired);
}

/* After an error that was reported. */
pg_noreturn static void
disable_and_exit(void)
{
	leader_start_tx();
	PushActiveSnapshot(GetTransactionSnapshot());
	DisableSubscription(MySubscription->oid);
	PopActiveSnapshot();
	leader_commit_tx();
	ereport(LOG,
			(errmsg("subscription \"%s\" has been disabled because of an error",
					MySubscription->name)));
	proc_exit(0);
}

/* A worker's error counts, or a worker is gone: this leader has to end. */
static void
check_workers(bool look)
{
	if (pg_atomic_read_u64(&pool->failed_csn) != 0)
	{
		Subscription *sub;
		bool		disable;

		/* The worker has reported the error itself, once. */
		last_leader->failed = pool_txn(pool, pg_atomic_read_u64(&pool->failed_csn))->commit_lsn;
		pool_stop();
		retire();
		pgstat_report_subscription_error(MySubscription->oid, true);

		/* As the subscription says now, not when it was last read. */
		leader_start_tx();
		sub = GetSubscription(MySubscription->oid, true);
		disable = sub != NULL && sub->disableonerr;
		leader_commit_tx();
		if (disable)
			disable_and_exit();
		proc_exit(1);
	}
	if (look && pool_lost_worker())
	{
		if (pg_atomic_read_u64(&pool->failed_csn) != 0)
		{
			check_workers(false);
			return;
		}
		ereport(LOG,
				(errmsg("leader of subscription \"%s\" will restart because an apply worker ended",
						MySubscription->name)));
		proc_exit(1);
	}
}

/*
 * Sleeps until a CSN has committed, the socket has data (if read), or a time
 * has passed.  A wake-up for each commit would cost more than what it tells.
 */
static void
nap(Csn csn, bool read, pgsocket fd, long timeout)
{
	int			events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
	int			rc;

	pg_atomic_write_u64(&pool->leader_wait_csn, csn);
	pg_memory_barrier();
	if (retired < csn && pg_atomic_read_u64(&pool->committed) >= csn)
		timeout = 0;
	if (read && fd != PGINVALID_SOCKET)
		rc = WaitLatchOrSocket(MyLatch, events | WL_SOCKET_READABLE, fd,
							   timeout, WAIT_EVENT_LOGICAL_APPLY_MAIN);
	else
		rc = WaitLatch(MyLatch, events, timeout, WAIT_EVENT_LOGICAL_APPLY_MAIN);
	pg_atomic_write_u64(&pool->leader_wait_csn, 0);

	if (rc & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	retire();
	check_workers((rc & WL_LATCH_SET) != 0 || (rc & WL_TIMEOUT) != 0);
}

/* A wait without reading (I2), until done() and a CSN has committed. */
static void
pause_until(bool (*done)(void), Csn csn)
{
	TimestampTz last = GetCurrentTimestamp();

	retire();
	while (!done() || retired < csn)
	{
		TimestampTz now;

		nap(csn, false, PGINVALID_SOCKET, 100);
		now = GetCurrentTimestamp();
		if (TimestampDifferenceExceeds(last, now, PAUSED_REPORT_MS))
		{
			feedback_send(last_received, false, true, false);
			report_statistics();
			last = now;

			/* The wait may be for a lock, the subscription disabled meanwhile. */
			AcceptInvalidationMessages();
			maybe_reread_subscription_here();
		}
		last_message_at = now;
	}
}

static bool
has_room(void)
{
	return handed - retired < POOL_RING_SIZE - 1 &&
		   (txnbuf_committed_bytes() < (Size) pgparrep_apply_buffer * 1024 / 2 ||
			handed == retired);
}

static void
drain(void)
{
	pause_until(pipeline_empty, handed);
}

/* Taking in */

/*
 * Fills in what each change of a transaction has to wait for.  Changes in a
 * file cannot be marked any more: their transaction waits as a whole.
 */
static void
set_dependencies(TxnBuffer *txn, PoolTxn *ptxn, Csn csn)
{
	TxnRel	   *rels = pool_txn_rels(ptxn, area);

	ptxn->wait_csn = 0;
	depend_begin(depend, csn, pg_atomic_read_u64(&pool->committed));
	for (int i = 0; i < txn->nrels; i++)
	{
		DependDomain *domain = keyplan_domain(txn->rels[i]);
		Csn			last = domain ? depend_touch(depend, domain) : csn - 1;

		rels[i].table = serial_number(domain ? domain->number : 0);
		rels[i].behind = last > 0 ? csn - last : 0;
	}
	if (txn->file == 0)
	{
		uint32		version = 0;
		RelVersion *rel = NULL;

		for (dsa_pointer p = txn->first; DsaPointerIsValid(p);)
		{
			Chunk	   *chunk = dsa_get_address(area, p);

			for (uint32 offset = 0; offset < chunk->used;)
			{
				ChangeRec  *rec = (ChangeRec *) (chunk->data + offset);
				Conflict	conflict = rec->conflict;
				DependDomain *domain = NULL;
				Csn			wait;

				if (rec->version != 0)
				{
					if (rec->version != version)
					{
						version = rec->version;
						rel = streamrel_version(version);
					}
					domain = keyplan_domain(rel);
				}
				if (domain == NULL)
					conflict = CONFLICT_ALL;
				if (conflict == CONFLICT_ALL)
					ptxn->flags |= PTXN_ALONE;
				wait = depend_change(depend, domain, (DependKind) conflict,
									 rec->nkeys, change_keys(rec));
				/* not while it is read */
				if ((ptxn->flags & PTXN_EAGER) == 0)
					rec->wait_csn = pgparrep_key_table ? wait : 0;
				offset += rec->size;
			}
			p = chunk->next;
		}
	}
	else
	{
		Csn			wait = 0;

		for (int i = 0; i < txn->nkeys; i++)
		{
			SpillKey   *key = &txn->keys[i];
			DependDomain *domain = NULL;
			Conflict	conflict = key->conflict;
			Csn			w;

			if (key->version != 0)
				domain = keyplan_domain(streamrel_version(key->version));
			if (domain == NULL)
				conflict = CONFLICT_ALL;
			w = depend_change(depend, domain, (DependKind) conflict,
							  key->key != 0 ? 1 : 0, &key->key);
			wait = Max(wait, w);
		}
		for (int i = 0; txn->all_tables && i < txn->nrels; i++)
		{
			DependDomain *domain = keyplan_domain(txn->rels[i]);
			Csn			w = depend_change(depend, domain,
								  domain ? DEPEND_TABLE : DEPEND_ALL,
								  0, NULL);

			wait = Max(wait, w);
		}
		if (pgparrep_key_table)
			ptxn->wait_csn = wait;
	}
	depend_end(depend);
}

/*
 * Names the relations that a transaction uses, and which of them to skip.  Is
 * there one to apply, or to leave to table sync?
 */
static bool
set_relations(TxnBuffer *txn, PoolTxn *ptxn)
{
	TxnRel	   *rels;
	bool		any = false;

	ptxn->nrels = txn->nrels;
	if (txn->nrels > POOL_FEW_RELS)
		ptxn->rels = dsa_allocate(area, sizeof(TxnRel) * txn->nrels);
	rels = pool_txn_rels(ptxn, area);
	for (int i = 0; i < txn->nrels; i++)
	{
		RelVersion *rel = txn->rels[i];

		rels[i].version = rel->version;
		rels[i].len = rel->len;
		rels[i].body = rel->body;
		rels[i].apply = tables_apply(rel, txn->xid, &rels[i].relid, ptxn->commit_lsn);
		rels[i].left = !rels[i].apply && rel->state != SUBREL_STATE_UNKNOWN;
		any |= rels[i].apply || rels[i].left;
	}
	return any;
}

/*
 * Should a worker that runs out of work flush its commits at once, or leave
 * that to the WAL writer?
 */
static void
set_flush_when_idle(void)
{
	pg_atomic_write_u32(&pool->flush_when_idle,
						publisher_waits ||
							synchronous_commit > SYNCHRONOUS_COMMIT_OFF);
}

/* Reads the subscription again, if it may have changed. */
static void
maybe_reread_subscription_here(void)
{
	Subscription *sub;
	MemoryContext oldcxt;
	bool		renumbered;

	renumbered = takeover_subscription_changed();
	if (!subscription_stale && !renumbered)
		return;
	subscription_stale = false;

	leader_start_tx();
	oldcxt = MemoryContextSwitchTo(ApplyContext);
	sub = GetSubscription(MyLogicalRepWorker->subid, true);
	MemoryContextSwitchTo(oldcxt);

	if (sub == NULL || !sub->enabled)
	{
		ereport(LOG,
				(errmsg("logical replication apply worker for subscription \"%s\" will stop because the subscription was %s",
						MySubscription->name, sub ? "disabled" : "removed")));
		proc_exit(0);
	}
	if (strcmp(sub->conninfo, MySubscription->conninfo) != 0 ||
		strcmp(sub->name, MySubscription->name) != 0 ||
		strcmp(sub->slotname, MySubscription->slotname) != 0 ||
		sub->binary != MySubscription->binary ||
		sub->owner != MySubscription->owner ||
		!equal(sub->publications, MySubscription->publications) ||
		compat_subscription_differs(sub, MySubscription) ||
		pgparrep_worker_number(sub->oid, NULL) != worker_number)
	{
		ereport(LOG,
				(errmsg("logical replication apply worker for subscription \"%s\" will restart because of a parameter change",
						MySubscription->name)));
		compat_forget_worker_start_time(sub->oid);
		proc_exit(0);
	}
	leader_commit_tx();

	FreeSubscription(MySubscription);
	MySubscription = sub;
	SetConfigOption("synchronous_commit", sub->synccommit,
					PGC_BACKEND, PGC_S_OVERRIDE);
	set_flush_when_idle();
}

/*
 * Gives what the publisher has finished its place in the commit order: a
 * transaction, or the end of a prepared one, which has no buffer.
 */
static void
hand_out(TransactionId xid, TxnBuffer *txn, uint32 flags,
		 const FStreamPrepared *data)
{
	XLogRecPtr	commit_lsn;
	PoolTxn    *ptxn;
	Csn			csn;
	bool		alone = false;

	/* What errors and SKIP name it by; of a rollback only the end is known. */
	commit_lsn = (flags & PTXN_ROLLBACK_PREPARED) ? data->end_lsn : data->lsn;
	last_commit_end = Max(last_commit_end, data->end_lsn);

	AcceptInvalidationMessages();
	retire();
	if (!has_room())
		pause_until(has_room, retired + (handed - retired + 3) / 4);

	maybe_reread_subscription_here();
	if (!XLogRecPtrIsInvalid(MySubscription->skiplsn))
	{
		alone = true;			/* I5 */
		eager_cancel_all();
		drain();
	}

	/* I6 */
	if (!XLogRecPtrIsInvalid(failed_lsn) && commit_lsn >= failed_lsn)
	{
		alone = true;
		drain();
		failed_lsn = InvalidXLogRecPtr;
	}

	csn = handed + 1;
	ptxn = pool_txn(pool, csn);
	ptxn->remote_xid = xid;
	ptxn->commit_lsn = commit_lsn;
	ptxn->end_lsn = data->end_lsn;
	ptxn->commit_time = data->time;
	ptxn->prepare_end_lsn = data->prepare_end_lsn;
	ptxn->prepare_time = data->prepare_time;
	ptxn->flags = flags;
	ptxn->local_end = InvalidXLogRecPtr;
	pg_atomic_write_u32(&ptxn->worker, 0);
	if (txn != NULL)
	{
		bool		any = set_relations(txn, ptxn) && txn->nchanges > 0;
		bool		begun = eager_commit(txn, ptxn);

		/* A prepared transaction is needed for its end, empty or not. */
		if (!any && (flags & PTXN_PREPARE) == 0)
			ptxn->flags |= PTXN_EMPTY;
		txnbuf_commit(txn, ptxn);
		set_dependencies(txn, ptxn, csn);
		if (unlikely(pgparrep_trace))
			trace_transaction(ptxn, txn, area);
		if (begun)
			eager_complete(txn, csn);
#ifndef PGPARREP_SABOTAGE_NO_FINISH_WAIT
		ptxn->wait_csn = Max(ptxn->wait_csn, last_finish);	/* I7 */
#endif
	}
	else
	{
		ptxn->nrels = 0;
		ptxn->chunks = InvalidDsaPointer;
		ptxn->file = 0;
		ptxn->nchanges = 0;
		ptxn->wait_csn = 0;
		last_finish = csn;
	}
	if ((ptxn->flags & PTXN_EMPTY) == 0 &&
		!XLogRecPtrIsInvalid(MySubscription->skiplsn))
		ptxn->flags |= PTXN_SKIPLSN;
	in_flight[csn & (POOL_RING_SIZE - 1)] = txn;

	CRASH_POINT("before_hand_out");
	handed = csn;
	pg_write_barrier();
	pg_atomic_write_u64(&pool->handed, csn);
	if (ptxn->flags & PTXN_EAGER)
	{
		uint64		claimed = csn - 1;

		/* So that nobody need look at it, if it is the next one. */
		(void) pg_atomic_compare_exchange_u64(&pool->claimed, &claimed, csn);
		shared_wake(Shared->workers[pg_atomic_read_u32(&ptxn->worker) - 1].procno);
	}
	else
		pool_wake_idle(1);
	CRASH_POINT("handed_out");

	if (alone)
	{
		/* It has cleared the position, unless there was nothing to apply. */
		drain();
		last_leader->failed = InvalidXLogRecPtr;
		AcceptInvalidationMessages();
		maybe_reread_subscription_here();
	}
}

/* A transaction has committed on the publisher. */
static void
commit(TransactionId xid, const FStreamCommit *data)
{
	TxnBuffer  *txn = txnbuf_get(xid, false);
	FStreamPrepared end = {
		.lsn = data->commit_lsn,
		.end_lsn = data->end_lsn,
		.time = data->commit_time};

	/*
	 * Applied in an earlier life, of which the publisher did not hear: it
	 * goes by what the slot says where that is older than what we asked for.
	 */
	if (data->end_lsn <= last_commit_end)
	{
		if (txn != NULL)
			txnbuf_drop(txn);
		return;
	}
	last_commit_end = data->end_lsn;

	/* All of it was rolled back, or it was empty to begin with. */
	if (txn != NULL)
		hand_out(xid, txn, 0, &end);
}

static void
take_truncate(TransactionId xid, const FStreamFrame *frame)
{
	TxnBuffer  *txn = txnbuf_get(xid, true);
	TruncateBody *body;
	uint32		nrels;
	uint32		n;
	RelVersion **rels;

	if (frame->len < 5)
		protocol_violation("A truncate ends early.");
	memcpy(&n, frame->body, sizeof(n));
	nrels = pg_ntoh32(n);
	if (frame->len != 5 + (size_t) nrels * sizeof(uint32))
		protocol_violation("A truncate has the wrong length for its number of relations.");

	eager_never(txn);
	rels = palloc(sizeof(RelVersion *) * nrels);
	for (uint32 i = 0; i < nrels; i++)
	{
		memcpy(&n, frame->body + 5 + i * sizeof(uint32), sizeof(n));
		rels[i] = streamrel_lookup(pg_ntoh32(n));
		if (rels[i] == NULL)
			protocol_violation("A truncate names a relation that was not announced.");
		txnbuf_pin_relation(txn, rels[i]);
	}

	body = (TruncateBody *) txnbuf_append(txn, FSTREAM_TRUNCATE, 0,
										  CONFLICT_ALL, 0, NULL,
										  offsetof(TruncateBody, versions) +
											  nrels * sizeof(uint32),
										  0);
	body->flags = (uint8) frame->body[4];
	body->nrels = nrels;
	for (uint32 i = 0; i < nrels; i++)
		body->versions[i] = rels[i]->version;
	txnbuf_enforce_limits(txn);
}

/* eager.c, I6 */
static bool
may_begin_early(void)
{
	return XLogRecPtrIsInvalid(MySubscription->skiplsn) &&
		   XLogRecPtrIsInvalid(failed_lsn) && !tables_in_copy();
}

static void
take_change(TransactionId xid, const FStreamFrame *frame)
{
	TxnBuffer  *txn;
	FStreamRow	row;
	RelVersion *rel;
	Conflict	conflict;
	uint64		keys[KEYPLAN_MAX_KEYS];
	int			nkeys;
	char	   *body;

#ifdef PGPARREP_SABOTAGE_DROP_MESSAGE
	static int	taken = 0;

	if (++taken % 100000 == 0)
		return;
#endif

	if (!fstream_get_row(frame, &row))
		protocol_violation("A change of a row is malformed.");
	rel = streamrel_lookup(row.relid);
	if (rel == NULL)
		protocol_violation("A change names a relation that was not announced.");

	conflict = keyplan_change(rel, xid, frame->type, &row, &nkeys, keys);
	txn = txnbuf_get(xid, true);
	txnbuf_pin_relation(txn, rel);
	body = txnbuf_append(txn, frame->type, rel->version, conflict,
						 nkeys, keys, frame->len,
						 pgparrep_key_table ? handed : 0);
	memcpy(body, frame->body, frame->len);
	eager_change(txn, conflict, handed, may_begin_early());
	txnbuf_enforce_limits(txn);
}

static void
take_frame(const FStreamFrame *frame)
{
	TransactionId xid = frame->xid;
	FStreamCommit commit_data;
	FStreamAbort abort_data;
	FStreamPrepared prepared;
	TxnBuffer  *txn;
	uint32		subxid;

	switch (frame->type)
	{
		case FSTREAM_INSERT:
		case FSTREAM_UPDATE:
		case FSTREAM_DELETE:
			take_change(xid, frame);
			break;
		case FSTREAM_TRUNCATE:
			take_truncate(xid, frame);
			break;
		case FSTREAM_RELATION:
			(void) streamrel_define(frame->body, frame->len);
			break;
		case FSTREAM_TYPE:
			/* Only says the name of a type; columns map by name alone. */
			break;
		case FSTREAM_SYNC:
			if (!fstream_get_sync(frame, &publisher_waits))
				protocol_violation("A synchronous state is malformed.");
			set_flush_when_idle();
			break;
		case FSTREAM_MESSAGE:
			/* Not asked for, and nothing to apply. */
			break;
		case FSTREAM_COMMIT:
			if (!fstream_get_commit(frame, &commit_data))
				protocol_violation("A commit is malformed.");
			commit(xid, &commit_data);
			break;
		case FSTREAM_BEGIN_PREPARE:
			/* The PREPARE says it all again. */
			break;
		case FSTREAM_PREPARE:
		case FSTREAM_COMMIT_PREPARED:
		case FSTREAM_ROLLBACK_PREPARED:
			if (!fstream_get_prepared(frame, &prepared))
				protocol_violation("A message of two-phase commit is malformed.");

			/*
			 * Not dropped for its position, as a commit would be: a PREPARE
			 * from before two_phase was on comes late.  The worker finds out.
			 */
			if (frame->type == FSTREAM_PREPARE)
			{
				txn = txnbuf_get(xid, true);
				eager_never(txn);
				hand_out(xid, txn, PTXN_PREPARE, &prepared);
			}
			else if (frame->type == FSTREAM_COMMIT_PREPARED)
				hand_out(xid, NULL, PTXN_COMMIT_PREPARED, &prepared);
			else
				hand_out(xid, NULL, PTXN_ROLLBACK_PREPARED, &prepared);
			break;
		case FSTREAM_SUBXACT:
			if (!fstream_get_subxact(frame, &subxid))
				protocol_violation("The start of a subtransaction is malformed.");
			txnbuf_subxact(txnbuf_get(xid, true), subxid);
			break;
		case FSTREAM_ABORT:
			if (!fstream_get_abort(frame, &abort_data))
				protocol_violation("An abort is malformed.");
			txn = txnbuf_get(xid, false);
			if (txn == NULL)
				break;
			if (abort_data.subxid == xid)
				txnbuf_drop(txn);
			else
				txnbuf_abort_subxact(txn, abort_data.subxid);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("invalid logical replication message from the publisher"),
					 errdetail("Message type \"%c\" (%d) is unknown.",
							   frame->type, (unsigned char) frame->type)));
	}
}

/* One CopyData message from the publisher. */
static void
take_message(char *buf, int len)
{
	StringInfoData s;
	XLogRecPtr	start_lsn;
	XLogRecPtr	end_lsn;
	TimestampTz send_time;
	int			type;

	s.data = buf;
	s.len = len;
	s.cursor = 0;
	s.maxlen = -1;

	type = pq_getmsgbyte(&s);
	if (type == 'w')
	{
		FStreamReader reader;
		FStreamFrame frame;
		FStreamResult result;

		start_lsn = pq_getmsgint64(&s);
		end_lsn = pq_getmsgint64(&s);
		send_time = pq_getmsgint64(&s);

		fstream_reader_init(&reader, s.data + s.cursor, s.len - s.cursor);
		while ((result = fstream_next(&reader, &frame)) == FSTREAM_OK)
			take_frame(&frame);
		if (result == FSTREAM_FAULT)
			protocol_violation(reader.fault);
		last_received = Max(last_received, Max(start_lsn, end_lsn));
		end_lsn = last_received;
	}
	else if (type == 'k')
	{
		bool		reply_requested;

		end_lsn = pq_getmsgint64(&s);
		send_time = pq_getmsgint64(&s);
		reply_requested = pq_getmsgbyte(&s);
		last_received = Max(last_received, end_lsn);
		retire();
		feedback_send(last_received, pipeline_empty(), reply_requested, false);
		MyLogicalRepWorker->reply_lsn = end_lsn;
		MyLogicalRepWorker->reply_time = send_time;
	}
	else
		protocol_violation("A message is neither data nor a keepalive.");

	MyLogicalRepWorker->last_lsn = end_lsn;
	MyLogicalRepWorker->last_send_time = send_time;
	MyLogicalRepWorker->last_recv_time = last_message_at;
}

/*
 * How many workers to have.  While tables are in initial copy some slots are
 * left to their workers, or the copy would never start.
 */
static int
workers_wanted(void)
{
	int			wanted = worker_number;

	if (tables_in_copy())
		wanted = Min(wanted, Max(1, max_worker_processes - 2 -
										max_sync_workers_per_subscription));
	return wanted;
}

/* What an apply worker does between messages. */
static void
housekeeping(void)
{
	TimestampTz now = GetCurrentTimestamp();

	retire();
	check_workers(false);
	feedback_send(last_received, pipeline_empty(), false, false);
	report_statistics();

	AcceptInvalidationMessages();
	maybe_reread_subscription_here();
	eager_announce();
	if (tables_due(pipeline_empty()))
	{
		if (tables_in_copy())
			eager_cancel_all();
		drain();
		tables_sync(last_received);
	}

	if (pg_atomic_read_u32(&pool->nworkers) < workers_wanted() &&
		TimestampDifferenceExceeds(last_start_at, now, START_WORKERS_MS))
	{
		last_start_at = now;
		(void) pool_start_workers(workers_wanted());
	}

	/* Forced, since its own pace goes by transactions, of which we have few. */
	if (TimestampDifferenceExceeds(last_stat_at, now, 1000))
	{
		last_stat_at = now;
		pgstat_report_stat(true);
	}

	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Nothing came for a while: is the publisher still there? */
static void
check_timeout(void)
{
	bool		ping = false;
	TimestampTz now = GetCurrentTimestamp();

	if (wal_receiver_timeout > 0)
	{
		if (now >= TimestampTzPlusMilliseconds(last_message_at, wal_receiver_timeout))
			ereport(ERROR,
					(errcode(ERRCODE_CONNECTION_FAILURE),
					 errmsg("terminating logical replication worker due to timeout")));
		if (!ping_sent &&
			now >= TimestampTzPlusMilliseconds(last_message_at, wal_receiver_timeout / 2))
			ping = ping_sent = true;
	}
	feedback_send(last_received, pipeline_empty(), ping, ping);
}

pg_noreturn static void
leader_loop(void)
{
	last_message_at = GetCurrentTimestamp();
	for (;;)
	{
		pgsocket	fd = PGINVALID_SOCKET;
		char	   *buf;
		int			len = 0;
		int			n;
		TimestampTz began = 0;

		CHECK_FOR_INTERRUPTS();
		for (n = 0; n < MESSAGES_AT_A_TIME; n++)
		{
			len = walrcv_receive(conn, &buf, &fd);
			if (len <= 0)
				break;
			if (n == 0)
				began = last_message_at = GetCurrentTimestamp();
			ping_sent = false;
			MemoryContextSwitchTo(message_mcxt);
			take_message(buf, len);
			MemoryContextReset(message_mcxt);
			CHECK_FOR_INTERRUPTS();

			/* Time that we need, on a slow disk say, is no silence of the publisher. */
			last_message_at = GetCurrentTimestamp();
			if (TimestampDifferenceExceeds(began, last_message_at, MESSAGES_MS))
			{
				n = MESSAGES_AT_A_TIME;
				break;
			}
		}
		MemoryContextSwitchTo(message_mcxt);
		if (len < 0)
		{
			/* Nobody is there to hear of what is still to be applied. */
			ereport(LOG,
					(errmsg("data stream from publisher has ended")));
			proc_exit(0);
		}
		housekeeping();
		MemoryContextReset(message_mcxt);
		if (n == MESSAGES_AT_A_TIME)
			continue;

		{
			TimestampTz before = GetCurrentTimestamp();
			long		timeout = handed > retired		? BUSY_NAPTIME_MS :
						   feedback_unflushed() ? WalWriterDelay :
												  NAPTIME_MS;

			nap(handed, true, fd, timeout);
			if (TimestampDifferenceExceeds(before, GetCurrentTimestamp(), timeout))
				check_timeout();
		}
	}
}

void
pgparrep_leader_main(WalReceiverConn *connection,
					 const WalRcvStreamOptions *options)
{
	RepOriginId origin = replorigin_session_origin;
	char		origin_name[NAMEDATALEN];
	volatile bool must_disable = false; /* whatever the subscription says */
	volatile bool streaming = false;

	conn = connection;
	snprintf(origin_name, sizeof(origin_name), "pg_%u", MySubscription->oid);

	leader_start_tx();
	worker_number = pgparrep_worker_number(MySubscription->oid, NULL);
	leader_commit_tx();

	/*
	 * Again, since the server has read it: by now no worker of an earlier
	 * leader can move it any more (pool.c, I1).  Flush up to there: we report
	 * that position as flushed, but what an earlier leader's workers committed
	 * may be in memory only.
	 */
	start_position = replorigin_session_get_progress(true);
	last_received = last_commit_end = start_position;

	/*
	 * The workers record the progress.  On 15 the origin has one owner, which
	 * must not be us; from 16 on they share it with us.  Our own commits carry
	 * no origin either way, and on 15 must not: they would advance an origin
	 * that is not set up.
	 */
	if (!COMPAT_ORIGIN_SHARED)
		replorigin_session_reset();
	replorigin_session_origin = InvalidRepOriginId;
	replorigin_session_origin_lsn = InvalidXLogRecPtr;
	replorigin_session_origin_timestamp = 0;

	MemoryContextSwitchTo(TopMemoryContext);
	message_mcxt = AllocSetContextCreate(TopMemoryContext, "pgparrep messages",
										 ALLOCSET_DEFAULT_SIZES);
	pool = pool_create(origin, origin_name);
	area = pool_area();
	slot = pool_leader_slot();
	last_leader = shared_last_leader(MySubscription->oid);
	failed_lsn = last_leader->failed;
	set_flush_when_idle();
	streamrel_init(area);
	keyplan_init();
	txnbuf_init(pool, area);
	eager_init(pool, area);
	depend = depend_create(KEY_TABLE_BUCKETS);
	feedback_init(conn, start_position, last_leader);
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_callback, (Datum) 0);
	tables_init();

	/*
	 * What the server does around its own loop is out of our reach: an error
	 * has to be counted, and may have to disable the subscription, here.
	 */
	PG_TRY();
	{
		StartPoint	start;

		startpoint_fetch(conn, options->slotname, last_leader, &start);
		must_disable = true;
		startpoint_check(&start, start_position, last_leader);
		must_disable = false;

		/* What the slot has passed does not come again; see tables.c, I1. */
		last_received = Max(start_position, last_leader->flushed);
		while (tables_end_copies())
			maybe_reread_subscription_here();

		last_start_at = GetCurrentTimestamp();
		(void) pool_start_workers(workers_wanted());

		start_streaming(options);
		streaming = true;
		ereport(LOG,
				(errmsg("subscription \"%s\" is applied in parallel by %d workers",
						MySubscription->name,
						(int) pg_atomic_read_u32(&pool->nworkers))));
		pgstat_report_activity(STATE_IDLE, NULL);
		leader_loop();
	}
	PG_CATCH();
	{
		/* As the server, which does not look at errors before the stream. */
		if (!must_disable &&
			(!streaming || !MySubscription->disableonerr ||
			 shared_is_transient(geterrcode())))
		{
			AbortOutOfAnyTransaction();
			pgstat_report_subscription_error(MySubscription->oid, true);
			PG_RE_THROW();
		}

		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortOutOfAnyTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		pool_stop();
		pgstat_report_subscription_error(MySubscription->oid, true);
		disable_and_exit();
	}
	PG_END_TRY();
	pg_unreachable();
}
