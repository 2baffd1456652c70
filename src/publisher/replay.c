/*-------------------------------------------------------------------------
 *
 * replay.c
 *	  Queued transactions: core replays them through its own pgoutput, and
 *	  pgoutput's messages become frames.
 *
 * ctx->prepare_write and ctx->write are ours for the whole session; sender.c
 * keeps the walsender's.  ctx->output_plugin_private is pgoutput's, so its
 * callbacks run as if they were the plugin.
 *
 * I1.	Begin, origin and commit messages of pgoutput are dropped: a frame names
 *		its transaction, and pgoutput writes no commit for a transaction of
 *		which it published nothing itself, while the reader may have.
 * I2.	R and Y messages are not passed on when they come but when a row needs
 *		them (bundle_require): the plans may have described the relation
 *		differently since pgoutput did.
 * I3.	Replayed changes belong to the top-level transaction: core has left out
 *		aborted subtransactions.
 * I4.	With two-phase decoding, all that is said of a prepared transaction here
 *		has pgoutput's bytes.  Core replays a transaction that was prepared
 *		before two-phase decoding was on when it commits: its PREPARE then has
 *		positions before those that the client knows.
 * I5.	When pgoutput fails, what came before is sent first, as in
 *		txn_raise_errors.  Not so if sending itself has failed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fstream.h"
#include "port/pg_bswap.h"
#include "publisher.h"
#include "utils/memutils.h"

/* pgoutput's description of a relation, as it sent it last. */
typedef struct ReplayBundle
{
	Oid			relid;			/* hash key */
	Bundle		bundle;
} ReplayBundle;

/* In capture_write, so that an error is not pgoutput's. */
static bool capturing = false;

static void capture_prepare_write(LogicalDecodingContext *ctx, XLogRecPtr lsn,
								  TransactionId xid, bool last_write);
static void capture_write(LogicalDecodingContext *ctx, XLogRecPtr lsn,
						  TransactionId xid, bool last_write);
static void capture_update_progress(LogicalDecodingContext *ctx, XLogRecPtr lsn,
									TransactionId xid, bool skipped);

static uint32
get32(const char *p)
{
	uint32		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh32(v);
}

/*
 * Keep the description in ctx->out, with the types that came before it.
 */
static void
note_relation(Publisher *pub, const char *msg, int len)
{
	Oid			relid = get32(msg + 1);
	ReplayBundle *entry;
	StringInfo	buf = pub->replay_types;
	bool		found;
	int			frame;

	frame = fstream_begin(buf, InvalidTransactionId, FSTREAM_RELATION);
	appendBinaryStringInfo(buf, msg + 1, len - 1);
	fstream_end(buf, frame);

	entry = (ReplayBundle *) hash_search(pub->replay_bundles, &relid, HASH_ENTER, &found);
	if (found)
		pfree(entry->bundle.data);
	entry->bundle.data = MemoryContextAlloc(pub->cxt, buf->len);
	memcpy(entry->bundle.data, buf->data, buf->len);
	entry->bundle.len = buf->len;
	entry->bundle.sent_version = 0;

	resetStringInfo(buf);
}

/*
 * A row of relid follows.
 */
static void
require_relation(Publisher *pub, Oid relid)
{
	ReplayBundle *entry;

	entry = (ReplayBundle *) hash_search(pub->replay_bundles, &relid, HASH_FIND, NULL);
	if (entry == NULL)
		elog(ERROR, "pgoutput sent a change of relation %u without describing it", relid);

	bundle_require(pub, bundle_sent(pub, relid), &entry->bundle);
}

/*
 * Put a message of pgoutput into the batch.
 */
static void
emit_as(Publisher *pub, TransactionId xid, PubTxn *txn, const char *msg, int len)
{
	StringInfo	out = sender_begin(pub, xid, msg[0]);

	appendBinaryStringInfo(out, msg + 1, len - 1);
	sender_end(pub, txn);
}

static void
emit(Publisher *pub, PubTxn *txn, const char *msg, int len)
{
	sender_make_room(pub, len);
	if (txn != NULL && pub->streaming)
		sender_name_subxact(pub, txn, txn->xid);
	emit_as(pub, txn != NULL ? txn->xid : InvalidTransactionId, txn, msg, len);
}

static void
capture_prepare_write(LogicalDecodingContext *ctx, XLogRecPtr lsn,
					  TransactionId xid, bool last_write)
{
	resetStringInfo(ctx->out);
}

static void
capture_write(LogicalDecodingContext *ctx, XLogRecPtr lsn, TransactionId xid,
			  bool last_write)
{
	Publisher  *pub = publisher;
	const char *msg = ctx->out->data;
	int			len = ctx->out->len;
	int			frame;

	if (len == 0)
		return;					/* the origin of a dropped origin */

	capturing = true;
	switch (msg[0])
	{
		case 'B':
		case 'O':
		case 'C':
			break;

		case FSTREAM_PREPARE:
		case FSTREAM_COMMIT_PREPARED:
		case FSTREAM_ROLLBACK_PREPARED:
			sender_tell_sync(pub);
			/* FALLTHROUGH */

		case FSTREAM_BEGIN_PREPARE:
			sender_make_room(pub, len);
			emit_as(pub, xid, NULL, msg, len);
			break;

		case FSTREAM_TYPE:
			frame = fstream_begin(pub->replay_types, InvalidTransactionId, FSTREAM_TYPE);
			appendBinaryStringInfo(pub->replay_types, msg + 1, len - 1);
			fstream_end(pub->replay_types, frame);
			break;

		case FSTREAM_RELATION:
			note_relation(pub, msg, len);
			break;

		case FSTREAM_INSERT:
		case FSTREAM_UPDATE:
		case FSTREAM_DELETE:
			require_relation(pub, get32(msg + 1));
			emit(pub, pub->replay_txn, msg, len);
			break;

		case FSTREAM_TRUNCATE:
			{
				int			nrelids = get32(msg + 1);
				int			i;

				for (i = 0; i < nrelids; i++)
					require_relation(pub, get32(msg + 6 + 4 * i));
				emit(pub, pub->replay_txn, msg, len);
				break;
			}

		case FSTREAM_MESSAGE:
			/* flags say whether it is transactional */
			emit(pub, (msg[1] & 1) != 0 ? pub->replay_txn : NULL, msg, len);
			break;

		default:
			elog(ERROR, "unexpected message type \"%c\" of pgoutput", msg[0]);
	}
	capturing = false;
}

/*
 * Core and pgoutput report progress while they replay.  Whether a transaction
 * was skipped is known only at its end.
 */
static void
capture_update_progress(LogicalDecodingContext *ctx, XLogRecPtr lsn,
						TransactionId xid, bool skipped)
{
	Publisher  *pub = publisher;

	if (!pub->in_delegated_end)
		pub->update_progress(ctx, lsn, xid, false);
}

static void
begin(Publisher *pub, ReorderBufferTXN *txn)
{
	/*
	 * What decoders have yet to say is raised here if it is an error, and so is
	 * an error of theirs whose commit is in the batch.  Between the out-of-line
	 * chunks of a subtransaction and the end of their row, core's cleanup after
	 * an error reads memory that it has freed.
	 */
	ring_drain(pub);
	if (pub->late_errors != NULL)
		sender_flush(pub);

	/* Unknown here if it made catalog changes only, or in SQL functions. */
	pub->replay_txn = txn_get(pub, txn->xid);
	pub->replay_txn->queued = true;
	plan_begin_replay(pub->replay_txn->unlocked_epoch);
}

static void
replay_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	begin(publisher, txn);
	publisher->pgoutput.begin_cb(ctx, txn);
}

/*
 * Row filters and output functions may fail, and will at each attempt.  (I5)
 */
static void
replay_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			  Relation relation, ReorderBufferChange *change)
{
	Publisher  *pub = publisher;
	MemoryContext cxt = CurrentMemoryContext;

	capturing = false;
	PG_TRY();
	{
		pub->pgoutput.change_cb(ctx, txn, relation, change);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		if (capturing || !pub->streaming ||
			ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();

		MemoryContextSwitchTo(cxt);
		edata = CopyErrorData();
		FlushErrorState();
		sender_flush(pub);
		ReThrowError(edata);
	}
	PG_END_TRY();
}

static void
replay_truncate(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
				int nrelations, Relation relations[], ReorderBufferChange *change)
{
	publisher->pgoutput.truncate_cb(ctx, txn, nrelations, relations, change);
}

static void
replay_message(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			   XLogRecPtr lsn, bool transactional, const char *prefix,
			   Size size, const char *message)
{
	publisher->pgoutput.message_cb(ctx, txn, lsn, transactional, prefix, size, message);
}

static void
replay_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			  XLogRecPtr commit_lsn)
{
	Publisher  *pub = publisher;
	PubTxn	   *pubtxn = pub->replay_txn;
	bool		sent = pubtxn->sent;

	/* Its output is dropped, but it has memory to free. */
	pub->in_delegated_end = true;
	pub->pgoutput.commit_cb(ctx, txn, commit_lsn);
	pub->in_delegated_end = false;

	if (sent)
		sender_commit(pub, txn->xid, commit_lsn, txn->end_lsn,
					  txn->xact_time.commit_time);
	if (pub->update_progress != NULL)
		pub->update_progress(ctx, txn->end_lsn, txn->xid, !sent);

	pub->replay_txn = NULL;
	txn_end(pub, pubtxn);
}

static void
replay_begin_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	begin(publisher, txn);
	publisher->pgoutput.begin_prepare_cb(ctx, txn);
}

/*
 * A message that ends something is in the batch; it ends at txn->end_lsn.
 */
static void
told_end(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	Publisher  *pub = publisher;

	sender_covered(pub, Max(pub->covered, txn->end_lsn));	/* I4 */
	if (pub->update_progress != NULL)
		pub->update_progress(ctx, txn->end_lsn, txn->xid, false);
}

static void
replay_prepare(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			   XLogRecPtr prepare_lsn)
{
	Publisher  *pub = publisher;

	pub->in_delegated_end = true;
	pub->pgoutput.prepare_cb(ctx, txn, prepare_lsn);
	pub->in_delegated_end = false;
	told_end(ctx, txn);

	txn_end(pub, pub->replay_txn);
	pub->replay_txn = NULL;
}

static void
replay_commit_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
					   XLogRecPtr commit_lsn)
{
	Publisher  *pub = publisher;

	pub->in_delegated_end = true;
	pub->pgoutput.commit_prepared_cb(ctx, txn, commit_lsn);
	pub->in_delegated_end = false;
	told_end(ctx, txn);
}

static void
replay_rollback_prepared(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
						 XLogRecPtr prepare_end_lsn, TimestampTz prepare_time)
{
	Publisher  *pub = publisher;

	pub->in_delegated_end = true;
	pub->pgoutput.rollback_prepared_cb(ctx, txn, prepare_end_lsn, prepare_time);
	pub->in_delegated_end = false;
	told_end(ctx, txn);
}

static void
replay_shutdown(LogicalDecodingContext *ctx)
{
	Publisher  *pub = publisher;

	/* Nothing can be written any more; the batch is empty or unwanted. */
	if (pub != NULL && pub->pgoutput.shutdown_cb != NULL)
		pub->pgoutput.shutdown_cb(ctx);
	sender_shutdown();
	plan_shutdown();
	publisher = NULL;
}

/*
 * Take over the context, after pgoutput's startup and sender_init.
 */
void
replay_init(Publisher *pub)
{
	LogicalDecodingContext *ctx = pub->ctx;
	OutputPluginCallbacks *cb = &ctx->callbacks;
	HASHCTL		ctl = {0};
	MemoryContext old = MemoryContextSwitchTo(pub->cxt);

	pub->replay_types = makeStringInfo();
	MemoryContextSwitchTo(old);

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(ReplayBundle);
	ctl.hcxt = pub->cxt;
	pub->replay_bundles = hash_create("pgparrep replay descriptions", 128, &ctl,
									  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	ctx->prepare_write = capture_prepare_write;
	ctx->write = capture_write;
	if (pub->update_progress != NULL)
		ctx->update_progress = capture_update_progress;

	/*
	 * No streaming by core: it would take queued transactions apart.  Whether
	 * there is two-phase decoding is decided by core, from the slot and what
	 * pgoutput made of the option.
	 */
	memset(cb, 0, sizeof(OutputPluginCallbacks));
	cb->begin_cb = replay_begin;
	cb->change_cb = replay_change;
	cb->truncate_cb = replay_truncate;
	cb->commit_cb = replay_commit;
	cb->message_cb = replay_message;
	cb->begin_prepare_cb = replay_begin_prepare;
	cb->prepare_cb = replay_prepare;
	cb->commit_prepared_cb = replay_commit_prepared;
	cb->rollback_prepared_cb = replay_rollback_prepared;
	cb->filter_by_origin_cb = reader_filter;
	cb->shutdown_cb = replay_shutdown;
	ctx->streaming = false;
}
