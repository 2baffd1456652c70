/*-------------------------------------------------------------------------
 *
 * sender.c
 *	  Batches frames into CopyData messages and keeps positions honest.
 *
 * Frames collect in one buffer that begins with room for the walsender's
 * message header; a batch costs one call of the walsender's write function.
 *
 * I1.	The position in a message's header (covered) never goes down, and every
 *		commit whose record ends at or before it is in that message or in an
 *		earlier one.  Clients confirm header positions.  With two-phase
 *		decoding the same holds for prepared transactions and their ends.
 * I2.	No keepalive announces a position beyond the start of the first record
 *		whose output is still in the batch (pending_lsn).  The walsender fills
 *		in the end of the last record that it decoded, sent or not, and a
 *		client that has nothing else to wait for confirms it: after a
 *		reconnect, the batched commits would be gone.
 * I3.	The batch is empty before the walsender waits for WAL, so a commit
 *		on an idle server is not delayed.
 *
 * For I2 the public table of communication functions is replaced, for I3 the
 * WAL reader's page_read function; sender_shutdown undoes the former, also
 * from the reset of the decoding context after an error.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "fstream.h"
#include "libpq/libpq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "publisher.h"
#include "replication/walsender_private.h"
#include "test_points.h"
#include "utils/memutils.h"

/*
 * A batch is sent when it has this size.  It saves system calls: some hundred
 * changes fit.  Larger ones save nothing measurable and delay the client.
 */
#define BATCH_SIZE (32 * 1024)

/* Buffers that a huge row has made larger than this are given back. */
#define BATCH_KEEP_SIZE (1024 * 1024)

/*
 * While the reader is behind and finds little to send, a batch must not wait
 * for company for ever.  Checked once per page of WAL.
 */
#define MAX_PENDING_MS 10
#define MAX_PENDING_PAGES 64

/* Pages of WAL between two looks for transactions that a crash has ended. */
#define SWEEP_PAGES 64

/* Set by sender_init, cleared by sender_shutdown. */
static const PQcommMethods *outer_methods = NULL;
static PQcommMethods our_methods;

static int	drain_page_read(XLogReaderState *state, XLogRecPtr page, int reqlen,
							XLogRecPtr target, char *buf);
static void capped_putmessage_noblock(char msgtype, const char *s, size_t len);

/*
 * Only the length of the header matters here: what room it needs.
 */
static void
measure_header(Publisher *pub)
{
	LogicalDecodingContext *ctx = pub->ctx;
	StringInfo	out = ctx->out;

	ctx->out = pub->header;
	pub->prepare_write(ctx, InvalidXLogRecPtr, InvalidTransactionId, false);
	ctx->out = out;

	pub->batch_head = pub->header->len;
}

void
sender_init(Publisher *pub)
{
	MemoryContext old = MemoryContextSwitchTo(pub->cxt);

	pub->batch = makeStringInfo();
	pub->header = makeStringInfo();
	MemoryContextSwitchTo(old);

	if (!pub->streaming)
		return;

	measure_header(pub);
	ring_start(pub);

	pub->page_read = pub->ctx->reader->routine.page_read;
	pub->ctx->reader->routine.page_read = drain_page_read;

	our_methods = *PqCommMethods;
	our_methods.putmessage_noblock = capped_putmessage_noblock;
	outer_methods = PqCommMethods;
	PqCommMethods = &our_methods;
}

/*
 * Must not look at the Publisher: after an error its memory is gone already.
 */
void
sender_shutdown(void)
{
	ring_shutdown();

	if (outer_methods == NULL)
		return;

	if (PqCommMethods == &our_methods)
		PqCommMethods = outer_methods;
	outer_methods = NULL;
}

/*
 * Begin a batch, if none is there.
 */
static void
open_batch(Publisher *pub)
{
	LogicalDecodingContext *ctx = pub->ctx;

	if (pub->batch_head == 0)
		measure_header(pub);
	enlargeStringInfo(pub->batch, BATCH_SIZE);
	pub->batch->len = pub->batch_head;

	pub->pending_lsn = ctx->reader->ReadRecPtr;
	pub->pending_pages = 0;
	pub->pending_since = pub->streaming ? GetCurrentTimestamp() : 0;
}

static inline bool
batch_is_empty(Publisher *pub)
{
	/* Also while only the header's room is there: see sender_cancel. */
	return pub->batch->len == 0;
}

bool
sender_batch_is_empty(Publisher *pub)
{
	return batch_is_empty(pub);
}

/*
 * The batch is full: send it, or put it behind what is with the decoders.
 */
static void
pass_on(Publisher *pub)
{
	if (pub->behind && ring_oldest() != InvalidXLogRecPtr)
		ring_absorb(pub);
	else
		sender_flush(pub);
}

/*
 * Begin a frame.  The body goes to the StringInfo returned, then comes
 * sender_end.
 */
StringInfo
sender_begin(Publisher *pub, TransactionId xid, char type)
{
	if (batch_is_empty(pub))
		open_batch(pub);
	pub->frame = fstream_begin(pub->batch, xid, type);
	pub->uncovered = true;

	return pub->batch;
}

/*
 * Finish the frame, on behalf of txn if it has one.
 */
void
sender_end(Publisher *pub, PubTxn *txn)
{
	fstream_end(pub->batch, pub->frame);

	if (txn != NULL)
	{
		txn->sent = true;
		txn->bytes += pub->batch->len - pub->frame;
	}
	if (!pub->streaming)
		sender_flush(pub);
}

/*
 * Take back a frame that sender_begin began.
 */
void
sender_cancel(Publisher *pub)
{
	pub->batch->len = pub->frame;
	if (pub->batch->len <= pub->batch_head)
		pub->batch->len = 0;
	pub->batch->data[pub->batch->len] = '\0';
}

/*
 * Append complete frames.
 */
void
sender_raw(Publisher *pub, const char *data, int len)
{
	if (batch_is_empty(pub))
		open_batch(pub);
	appendBinaryStringInfo(pub->batch, data, len);
	pub->uncovered = true;
	if (!pub->streaming)
		sender_flush(pub);
}

/*
 * The next change of txn is one of xid, itself or a subtransaction.
 */
void
sender_name_subxact(Publisher *pub, PubTxn *txn, TransactionId xid)
{
	if (txn->cur_subxid == xid)
		return;

	if (batch_is_empty(pub))
		open_batch(pub);
	fstream_put_subxact(pub->batch, txn->xid, xid);
	pub->uncovered = true;
	txn->cur_subxid = xid;
	txn->sent = true;
}

void
sender_abort(Publisher *pub, TransactionId topxid, TransactionId subxid,
			 XLogRecPtr lsn, TimestampTz time)
{
	if (batch_is_empty(pub))
		open_batch(pub);
	fstream_put_abort(pub->batch, topxid, subxid, lsn, time);
	pub->uncovered = true;
}

/*
 * Before the first commit that waits for the client, or no longer does.
 */
void
sender_tell_sync(Publisher *pub)
{
	bool		sync;

	if (!pub->opts.report_sync || !pub->streaming)
		return;
	sync = MyWalSnd->sync_standby_priority > 0;
	if (sync == pub->told_sync)
		return;

	if (batch_is_empty(pub))
		open_batch(pub);
	fstream_put_sync(pub->batch, sync);
	pub->uncovered = true;
	pub->told_sync = sync;
}

void
sender_commit(Publisher *pub, TransactionId xid, XLogRecPtr commit_lsn,
			  XLogRecPtr end_lsn, TimestampTz time)
{
	sender_tell_sync(pub);
	if (batch_is_empty(pub))
		open_batch(pub);
	fstream_put_commit(pub->batch, xid, commit_lsn, end_lsn, time);
	pub->uncovered = true;
	sender_covered(pub, end_lsn);
}

void
sender_prepare(Publisher *pub, TransactionId xid, XLogRecPtr prepare_lsn,
			   XLogRecPtr end_lsn, TimestampTz time, const char *gid)
{
	gid = pg_server_to_client(gid, strlen(gid));
	sender_tell_sync(pub);
	if (batch_is_empty(pub))
		open_batch(pub);
	fstream_put_prepare(pub->batch, xid, FSTREAM_BEGIN_PREPARE, prepare_lsn, end_lsn, time, gid);
	fstream_put_prepare(pub->batch, xid, FSTREAM_PREPARE, prepare_lsn, end_lsn, time, gid);
	pub->uncovered = true;
	sender_covered(pub, end_lsn);
}

/*
 * About len bytes are to come.  A StringInfo is limited to 1 GB, and a row
 * that the server itself can send must not fail because of its neighbours.
 * This also flushes full batches between the changes of one replay or record.
 */
void
sender_make_room(Publisher *pub, Size len)
{
	if (!batch_is_empty(pub) && pub->batch->len + len > BATCH_SIZE)
		pass_on(pub);
}

/*
 * Everything up to lsn is in the batch or sent.
 *
 * Records that had no output do not move the position of the batch: a client
 * that stops at a position drops messages beyond it, and would lose what such
 * records came after.
 */
void
sender_covered(Publisher *pub, XLogRecPtr lsn)
{
	if (!pub->uncovered)
		return;

	Assert(lsn >= pub->covered);
	pub->covered = lsn;
	pub->uncovered = false;

	if (!pub->streaming)
		sender_flush(pub);
	else if (pub->batch->len >= BATCH_SIZE)
		pass_on(pub);
}

/*
 * Forget the errors of xid, or with InvalidTransactionId of all of topxid.
 */
static void
forget_late_errors(Publisher *pub, TransactionId topxid, TransactionId xid)
{
	LateError **link = &pub->late_errors;

	while (*link != NULL)
	{
		LateError  *error = *link;

		if (error->topxid != topxid ||
			(TransactionIdIsValid(xid) && error->xid != xid))
		{
			link = &error->next;
			continue;
		}
		*link = error->next;
		FreeErrorData(error->edata);
		pfree(error);
	}
}

/*
 * Keep the error being handled, of a row that has been taken out of its batch,
 * until the end of the (sub)transaction comes by.  Clears it.
 */
void
sender_late_error(Publisher *pub, TransactionId topxid, TransactionId xid)
{
	LateError **tail = &pub->late_errors;
	MemoryContext old = MemoryContextSwitchTo(pub->cxt);

	/* One per (sub)transaction will do: only the first is raised. */
	while (*tail != NULL && (*tail)->xid != xid)
		tail = &(*tail)->next;
	if (*tail == NULL)
	{
		LateError  *error = palloc(sizeof(LateError));

		error->next = NULL;
		error->topxid = topxid;
		error->xid = xid;
		error->edata = CopyErrorData();
		*tail = error;
	}
	MemoryContextSwitchTo(old);
	FlushErrorState();
}

/*
 * Header position of a message of which only its own commits, prepared
 * transactions and ends of such are known to be covered.  (I1)
 */
static XLogRecPtr
position_within(Publisher *pub, StringInfo message)
{
	XLogRecPtr	position = pub->sent_position;
	FStreamReader reader;
	FStreamFrame frame;
	FStreamCommit commit;
	FStreamPrepared prepared;

	fstream_reader_init(&reader, message->data + pub->batch_head,
						message->len - pub->batch_head);
	while (fstream_next(&reader, &frame) == FSTREAM_OK)
	{
		if (frame.type == FSTREAM_COMMIT && fstream_get_commit(&frame, &commit))
			position = commit.end_lsn;
		else if ((frame.type == FSTREAM_PREPARE ||
				  frame.type == FSTREAM_COMMIT_PREPARED ||
				  frame.type == FSTREAM_ROLLBACK_PREPARED) &&
				 fstream_get_prepared(&frame, &prepared))
			position = Max(position, prepared.end_lsn); /* P may come late */
	}

	return position;
}

static void
write_message(Publisher *pub, StringInfo message, XLogRecPtr lsn)
{
	LogicalDecodingContext *ctx = pub->ctx;
	StringInfo	out = ctx->out;
	TransactionId xid = pub->streaming ? InvalidTransactionId : ctx->write_xid;

	if (pub->streaming && lsn == InvalidXLogRecPtr)
		lsn = position_within(pub, message);

	ctx->out = pub->header;
	pub->prepare_write(ctx, lsn, xid, true);
	Assert(pub->header->len == pub->batch_head);
	memcpy(message->data, pub->header->data, pub->batch_head);

	CRASH_POINT("before_send");
	ctx->out = message;
	pub->write(ctx, lsn, xid, true);
	ctx->out = out;
	CRASH_POINT("sent");
	pub->sent_position = lsn;
}

/*
 * There are errors of rows that have been left out: is the end of their work in
 * this message?  If it commits, what comes before the commit is sent, and the
 * error raised.
 */
static void
check_ends(Publisher *pub, StringInfo message)
{
	FStreamReader reader;
	FStreamFrame frame;
	FStreamAbort abort;
	LateError  *error;
	Size		pos = 0;

	fstream_reader_init(&reader, message->data + pub->batch_head,
						message->len - pub->batch_head);
	while (pub->late_errors != NULL && fstream_next(&reader, &frame) == FSTREAM_OK)
	{
		if (frame.type == FSTREAM_ABORT && fstream_get_abort(&frame, &abort))
			forget_late_errors(pub, frame.xid, abort.subxid == frame.xid ? InvalidTransactionId : abort.subxid);
		else if (frame.type == FSTREAM_COMMIT || frame.type == FSTREAM_PREPARE)
		{
			for (error = pub->late_errors; error != NULL; error = error->next)
			{
				if (error->topxid != frame.xid)
					continue;
				if (pos > 0)
				{
					message->len = pub->batch_head + pos;
					write_message(pub, message, InvalidXLogRecPtr);
				}
				ReThrowError(error->edata);
			}
		}
		pos = reader.pos;
	}
}

/*
 * Hand a message, of complete frames behind room for the header, to the
 * walsender (or to the SQL function).  Without a position, it is that of the last
 * commit in the message, or of the message before.
 */
void
sender_send(Publisher *pub, StringInfo message, XLogRecPtr lsn)
{
	if (pub->late_errors != NULL)
		check_ends(pub, message);
	write_message(pub, message, lsn);
}

/*
 * Send the batch, after everything that is with decoders.
 */
void
sender_flush(Publisher *pub)
{
	ring_drain(pub);
	if (batch_is_empty(pub))
		return;

	sender_send(pub, pub->batch,
				pub->streaming ? pub->covered : pub->ctx->write_location);
	sender_reset_batch(pub);
}

/*
 * The batch's contents have gone elsewhere.
 */
void
sender_reset_batch(Publisher *pub)
{
	if (pub->batch->maxlen > BATCH_KEEP_SIZE)
	{
		pfree(pub->batch->data);
		pub->batch->data = MemoryContextAlloc(pub->cxt, BATCH_SIZE);
		pub->batch->maxlen = BATCH_SIZE;
	}
	resetStringInfo(pub->batch);
}

/*
 * Wraps the walsender's page_read, which waits until the WAL asked for is
 * there.  (I3)
 *
 * reader->record is not set in here.
 */
static int
drain_page_read(XLogReaderState *state, XLogRecPtr page, int reqlen,
				XLogRecPtr target, char *buf)
{
	Publisher  *pub = publisher;
	XLogRecPtr	need = page + reqlen;

	if (++pub->pages_to_sweep >= SWEEP_PAGES)
	{
		pub->pages_to_sweep = 0;
		txn_sweep(pub);
	}

	if (need > pub->known_flush)
		pub->known_flush = RecoveryInProgress() ?
							   GetXLogReplayRecPtr(NULL) :
							   GetFlushRecPtr(NULL);

	/*
	 * Reading on must not wait.  It gets whole pages only: the WAL reader does not
	 * look for this answer once it has a page's beginning.
	 */
	if (state->nonblocking &&
		(page + XLOG_BLCKSZ > pub->known_flush ||
		 compat_slot_waits_for_standbys(pub->ctx->slot)))
		return XLREAD_WOULDBLOCK;

	if (need > pub->known_flush || compat_slot_waits_for_standbys(pub->ctx->slot))
		sender_flush(pub);
	else if (!batch_is_empty(pub) &&
			 (++pub->pending_pages >= MAX_PENDING_PAGES ||
			  TimestampDifferenceExceeds(pub->pending_since,
										 GetCurrentTimestamp(), MAX_PENDING_MS)))
		pass_on(pub);
	ring_poll(pub, true);
	ring_note_page(pub, page);

	/* Streamed commits do not report statistics one by one. */
	if (need > pub->known_flush)
		UpdateDecodingStats(pub->ctx);

	return pub->page_read(state, page, reqlen, target, buf);
}

/*
 * Sends a message to the client, with the position of a keepalive capped.
 * (I2)
 */
static void
capped_putmessage_noblock(char msgtype, const char *s, size_t len)
{
	Publisher  *pub = publisher;
	char		copy[1 + 8 + 8 + 1];
	uint64		lsn;
	XLogRecPtr	pending = InvalidXLogRecPtr;

#ifdef PGPARREP_SABOTAGE_UNCAPPED_KEEPALIVE
	pub = NULL;
#endif
	/* After an error another stream may come before ours is cleaned up. */
	if (msgtype == 'd' && len == sizeof(copy) && s[0] == 'k' && pub != NULL &&
		MyReplicationSlot == pub->ctx->slot)
	{
		pending = ring_oldest();
		if (pending == InvalidXLogRecPtr && !batch_is_empty(pub))
			pending = pub->pending_lsn;
	}

	if (pending != InvalidXLogRecPtr)
	{
		memcpy(&lsn, s + 1, sizeof(lsn));
		lsn = pg_ntoh64(lsn);
		if (lsn > pending)
		{
			lsn = pg_hton64(pending);
			memcpy(copy, s, len);
			memcpy(copy + 1, &lsn, sizeof(lsn));
			s = copy;
		}
	}

	outer_methods->putmessage_noblock(msgtype, s, len);
}
