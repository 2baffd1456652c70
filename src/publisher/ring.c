/*-------------------------------------------------------------------------
 *
 * ring.c
 *	  The walsender's side of parallel decoders: the ring of batches.
 *
 * While the reader is behind, rows that decoders can format, and that are costly
 * to format, are not formatted but copied into a batch, and with them, as they
 * are, the frames that have collected in between.  A full batch is published;
 * decoders claim published batches in order; the walsender collects their output,
 * in order, and sends it.  So the stream is, in this order:
 *
 *		sent | batches [tail, head) | the open batch | the sender's own batch
 *
 * and whoever appends to the last of them need not know about the others.  What
 * the walsender formats itself (rows that need catalogs, replays, everything at
 * the end of WAL) simply goes there; sender_flush drains the ring first.
 *
 * I1.	Batches are sent in the order in which they were begun, and what they
 *		make is what the walsender would have made: the stream does not depend
 *		on the number of decoders.
 * I2.	A batch's message has the header position that was covered when the last
 *		item was added; one before its last has the end of the last commit that
 *		is in it: sender.c I1.
 * I3.	The start of the oldest batch bounds keepalives: sender.c I2.
 * I4.	Decoders are optional at any moment.  A batch that is unclaimed when the
 *		walsender needs it, or that a decoder gave up, is formatted here.  Clean
 *		shutdown of the server ends background workers long before walsenders.
 *		A decoder that gave up because of an error which does not come again
 *		here, or ended without being told to, is no case of that: nobody knows
 *		what is wrong with it.  Everything that has gone into the ring is sent,
 *		so that attempts get on, and the walsender ends with the error.
 * I5.	An error of a row shows up when its batch is collected, when the reader
 *		is elsewhere, perhaps beyond the end of the transaction.  It is kept
 *		until that end comes by in the stream: sender_late_error.
 * I6.	The memory of the ring is allocated at the start and is all there is:
 *		when no batch is free the reader collects the oldest first.
 *
 * Wait graph:
 *		walsender -> decoder: for the oldest batch, in collect().
 *		decoder -> walsender: for room for output, if the batch has more than
 *		its output area takes.
 * The walsender never waits for a batch but the oldest and takes its output while
 * it waits, so the only cycle is broken.  A decoder that waits with a younger
 * batch is waited for only when its batch has become the oldest.  While it waits
 * the walsender serves replies, keepalives and interrupts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "decoder.h"
#include "guc.h"
#include "test_points.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgparrep.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/*
 * A batch is published when it has this much: enough to make handing over
 * cheap, little enough to have several in flight soon.
 */
#define BATCH_TARGET (64 * 1024)

/*
 * Size of each area of a batch if memory is not bounded, and the least that
 * makes sense.  A row that does not fit is formatted by the walsender, alone.
 */
#define AREA_SIZE (256 * 1024)
#define MIN_AREA_SIZE (16 * 1024)

/* Batches per decoder, and some for the walsender to fill and to send. */
#define BATCHES_PER_DECODER 2
#define SPARE_BATCHES 2

/*
 * The reader is behind if so much WAL is there already.  With less, handing over
 * would only delay it.
 */
#define BEHIND (64 * 1024)

/* A batch must not wait longer for company while there is little to send. */
#define MAX_OPEN_MS 10

/* Settings of the session that show in values. */
typedef struct Settings
{
	int			date_style;
	int			date_order;
	int			interval_style;
	int			extra_float_digits;
	int			bytea_output;
	int			client_encoding;
	pg_tz	   *timezone;		/* cached for ever by name */
	uint32		monetary;
} Settings;

/*
 * There is one at most, set by ring_start, cleared by ring_shutdown.  It is not
 * part of the Publisher since it has to be shut down when that is gone.
 */
static DecoderShared *shared = NULL;
static dsm_segment *segment = NULL;
static BackgroundWorkerHandle *handles[MAX_PARALLEL_DECODE_NUM];
static int	nhandles = 0;
static MemoryContext ring_cxt = NULL;
static Formatter *formatter;
static Settings settings;

static uint64 head;				/* the open batch, or the next to open */
static uint64 tail;				/* the oldest */
static bool is_open;
static uint64 sent_of_tail;		/* bytes of output taken from the oldest */
static StringInfoData assembly; /* a frame that comes in pieces */
static StringInfoData own;		/* output of batches formatted here */
static MemoryContext own_rowcxt;	/* garbage of formatting them */

/*-------------------------------------------------------------------------
 * Start and end
 *-------------------------------------------------------------------------
 */

static void
get_settings(Settings *s)
{
	const char *p;

	memset(s, 0, sizeof(Settings));
	s->date_style = DateStyle;
	s->date_order = DateOrder;
	s->interval_style = IntervalStyle;
	s->extra_float_digits = extra_float_digits;
	s->bytea_output = bytea_output;
	s->client_encoding = pg_get_client_encoding();
	s->timezone = session_timezone;
	/* by name, since the server's header of locales needs those of ICU */
	for (p = GetConfigOption("lc_monetary", true, false); p != NULL && *p != '\0'; p++)
		s->monetary = s->monetary * 31 + (unsigned char) *p;
}

/* Since the decoders have started. */
static bool
settings_changed(void)
{
	Settings	now;

	get_settings(&now);
	return memcmp(&now, &settings, sizeof(Settings)) != 0;
}

static void
at_exit(int code, Datum arg)
{
	ring_shutdown();
}

/*
 * Make the segment and start the decoders that the client asked for, or as many
 * as there are slots for.
 */
void
ring_start(Publisher *pub)
{
	static bool registered = false;
	static uint64 next_seq = 1;

	int			wanted = pub->opts.parallel_decode_num;
	Size		limit = (Size) pub->opts.max_recordbuffer_mb * 1024 * 1024;
	int			nbatches = wanted * BATCHES_PER_DECODER + SPARE_BATCHES;
	Size		area = AREA_SIZE;
	Size		guc_size = EstimateGUCStateSpace();
	Size		at_settings;
	Size		at_areas;
	MemoryContext old;
	BackgroundWorker worker;
	int			i;

	/* 1 means that the walsender does it. */
	if (wanted < 2)
		return;

	if (!registered)
	{
		before_shmem_exit(at_exit, (Datum) 0);
		registered = true;
	}

	if (limit > 0)
	{
		if (limit / (2 * nbatches) < MIN_AREA_SIZE)
			nbatches = wanted + 1;
		area = limit / (2 * nbatches) - BATCH_HEAD_ROOM;
		area = Max(Min(area, AREA_SIZE), MIN_AREA_SIZE);
		area = area / 64 * 64;
	}

	at_settings = MAXALIGN(offsetof(DecoderShared, batches) + nbatches * sizeof(Batch));
	at_areas = MAXALIGN(at_settings + guc_size);
	segment = dsm_create(at_areas + nbatches * (2 * area + BATCH_HEAD_ROOM), 0);
	dsm_pin_mapping(segment);
	shared = (DecoderShared *) dsm_segment_address(segment);

	memset(shared, 0, at_settings);
	shared->magic = DECODER_MAGIC;
	shared->dbid = MyDatabaseId;
	shared->userid = GetSessionUserId();
	shared->walsender = MyProc;
	shared->walsender_pid = MyProcPid;
	shared->slot_name = pub->ctx->slot->data.name;
	shared->nbatches = nbatches;
	shared->in_size = area;
	shared->out_size = area;
	shared->settings = at_settings;
	shared->areas = at_areas;
	pg_atomic_init_u32(&shared->stop, 0);
	pg_atomic_init_u32(&shared->alive, 0);
	pg_atomic_init_u32(&shared->waiting, 0);
	pg_atomic_init_u32(&shared->exit, EXIT_NONE);
	pg_atomic_init_u64(&shared->published, next_seq);
	pg_atomic_init_u64(&shared->claimed, next_seq);
	pg_atomic_init_u64(&shared->collected, next_seq);
	pg_atomic_init_u64(&shared->reader_lsn, 0);
	pg_atomic_init_u64(&shared->own_batches, 0);
	pg_atomic_init_u64(&shared->streamed, 0);
	for (i = 0; i < QUEUE_REASONS; i++)
		pg_atomic_init_u64(&shared->queued[i], 0);
	for (i = 0; i < MAX_PARALLEL_DECODE_NUM; i++)
	{
		pg_atomic_init_u32(&shared->decoders[i].sleeping, 0);
		pg_atomic_init_u32(&shared->decoders[i].state, DECODER_STARTING);
		pg_atomic_init_u64(&shared->decoders[i].batches, 0);
		pg_atomic_init_u64(&shared->decoders[i].bytes, 0);
	}
	for (i = 0; i < nbatches; i++)
		pg_atomic_init_u32(&shared->batches[i].state, BATCH_BUSY);
	SerializeGUCState(guc_size, (char *) shared + at_settings);
	get_settings(&settings);

	/* Numbers go on, so that RelPlan.in_batch never means another ring's. */
	head = tail = next_seq;
	next_seq += (uint64) 1 << 40;
	is_open = false;
	sent_of_tail = 0;

	ring_cxt = AllocSetContextCreate(TopMemoryContext, "pgparrep ring",
									 ALLOCSET_DEFAULT_SIZES);
	own_rowcxt = AllocSetContextCreate(ring_cxt, "pgparrep ring row",
									   ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(ring_cxt);
	formatter = formatter_create(ring_cxt);
	initStringInfo(&assembly);
	initStringInfo(&own);

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_ConsistentState;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	strlcpy(worker.bgw_library_name, PGPARREP_NAME, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "pgparrep_decoder_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, PGPARREP_DECODER_TYPE, BGW_MAXLEN);
	strlcpy(worker.bgw_type, PGPARREP_DECODER_TYPE, BGW_MAXLEN);

	for (nhandles = 0; nhandles < wanted; nhandles++)
	{
		memcpy(worker.bgw_extra, &nhandles, sizeof(nhandles));
		if (!RegisterDynamicBackgroundWorker(&worker, &handles[nhandles]))
			break;
	}
	MemoryContextSwitchTo(old);

	shared->ndecoders = nhandles;
	pub->has_decoders = nhandles > 0;
	if (nhandles < wanted)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("started only %d of %d decoders", nhandles, wanted),
				 errdetail("All %d slots of max_worker_processes are in use.",
						   max_worker_processes),
				 errhint("Increase max_worker_processes or lower parallel-decode-num.")));
	if (nhandles == 0)
		ring_shutdown();
}

/*
 * End the decoders, without waiting for them.  Whatever is in flight is lost.
 *
 * Must not look at the Publisher: after an error its memory is gone already.
 */
void
ring_shutdown(void)
{
	int			i;

	if (shared == NULL)
		return;

	pg_atomic_write_u32(&shared->stop, 1);
	pg_memory_barrier();
	for (i = 0; i < nhandles; i++)
	{
		/* the latch for one that runs, the rest for one that does not yet */
		if (shared->decoders[i].proc != NULL &&
			pg_atomic_read_u32(&shared->decoders[i].state) != DECODER_GONE)
			SetLatch(&shared->decoders[i].proc->procLatch);
		TerminateBackgroundWorker(handles[i]);
	}
	nhandles = 0;
	shared = NULL;
	dsm_detach(segment);
	segment = NULL;
	MemoryContextDelete(ring_cxt);
	ring_cxt = NULL;
}

/*
 * The walsender has read its configuration again and would format values in
 * another way now: so must the decoders.
 */
static void
restart(Publisher *pub)
{
	int			i;

	ring_drain(pub);
	pg_atomic_write_u32(&shared->stop, 1);
	for (i = 0; i < nhandles; i++)
		TerminateBackgroundWorker(handles[i]);
	/* Their slots of max_worker_processes are needed again. */
	for (i = 0; i < nhandles; i++)
		(void) WaitForBackgroundWorkerShutdown(handles[i]);
	ring_shutdown();
	ring_start(pub);
}

/*-------------------------------------------------------------------------
 * Collecting
 *-------------------------------------------------------------------------
 */

/*
 * Output of the oldest batch has come: send it, or keep it while it ends within
 * a frame.  The position is invalid if more of the batch follows.
 */
static void
take_output(Publisher *pub, char *data, int len, bool more, XLogRecPtr position)
{
	StringInfoData message;

	sent_of_tail += len;
	if (more || assembly.len > 0)
	{
		if (assembly.len == 0)
			appendStringInfoSpaces(&assembly, pub->batch_head);
		appendBinaryStringInfo(&assembly, data, len);
		if (more)
			return;
		message = assembly;
	}
	else if (len == 0)
		return;
	else
	{
		/* As it lies in shared memory, with the header in front. */
		message.data = data - pub->batch_head;
		message.len = message.maxlen = len + pub->batch_head;
		message.cursor = 0;
	}

	sender_send(pub, &message, position);

	if (assembly.len > 0)
	{
		if (assembly.maxlen > AREA_SIZE * 2)
		{
			pfree(assembly.data);
			assembly.maxlen = 1024;
			assembly.data = MemoryContextAlloc(ring_cxt, assembly.maxlen);
		}
		resetStringInfo(&assembly);
	}
}

static void
row_error_context(void *arg)
{
	BatchItem  *item = (BatchItem *) arg;

	errcontext("WAL record at %X/%X, transaction %u, relation \"%s\"",
			   LSN_FORMAT_ARGS(item->lsn), item->xid,
			   formatter_find(formatter, item->plan_version)->name);
}

/*
 * End with an error of a decoder, in the item if there is one.  (I4)
 */
static void
raise_decoder_error(int decoder, DecoderError *error, BatchItem *item)
{
	bool		is_row = item != NULL && item->kind == ITEM_ROW;

	/* The record being read has nothing to do with it. */
	error_context_stack = NULL;

	ereport(ERROR,
			(errcode(error->sqlerrcode != 0 ? error->sqlerrcode : ERRCODE_INTERNAL_ERROR),
			 error->message[0] != '\0' ?
				 errmsg_internal("%s", error->message) :
				 errmsg("pgparrep decoder ended unexpectedly"),
			 error->detail[0] != '\0' ? errdetail_internal("%s", error->detail) : 0,
			 error->hint[0] != '\0' ? errhint("%s", error->hint) : 0,
			 error->context[0] != '\0' ? (errcontext("%s", error->context)) : 0,
			 is_row ? (errcontext("WAL record at %X/%X, transaction %u, relation \"%s\"",
								  LSN_FORMAT_ARGS(item->lsn), item->xid,
								  formatter_find(formatter, item->plan_version)->name)) :
					  (errcontext("walsender at WAL position %X/%X",
								  LSN_FORMAT_ARGS((XLogRecPtr) pg_atomic_read_u64(&shared->reader_lsn)))),
			 errcontext("pgparrep decoder %d of %d (PID %d)",
						decoder + 1, shared->ndecoders, shared->decoders[decoder].pid)));
}

/*
 * Format one row here.  An error is for the end of its transaction: false.  (I5)
 */
static bool
format_row_here(Publisher *pub, BatchItem *item)
{
	ErrorContextCallback errcallback;
	ErrorContextCallback *previous = error_context_stack;
	MemoryContext old = MemoryContextSwitchTo(own_rowcxt);
	int			len = own.len;
	volatile bool good = true;

	/* The record being read has nothing to do with it. */
	errcallback.callback = row_error_context;
	errcallback.arg = item;
	errcallback.previous = NULL;
	error_context_stack = &errcallback;

	PG_TRY();
	{
		(void) formatter_row(formatter, item, &own);
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();
		own.len = len;
		sender_late_error(pub, item->topxid, item->xid);
		good = false;
	}
	PG_END_TRY();

	error_context_stack = previous;
	MemoryContextSwitchTo(old);
	MemoryContextReset(own_rowcxt);

	return good;
}

/*
 * Format the oldest batch here, but for the output that a decoder had made
 * before it gave up, perhaps because of an error with the item failed_at.
 */
static void
format_here(Publisher *pub, Batch *batch, int failed_at)
{
	char	   *p = batch_input(shared, tail);
	BatchItem  *unexplained = NULL;
	char	   *end = p + batch->in_len;
	uint64		skip = sent_of_tail;

	/* What we make has to fit behind what the client has already. */
	if (skip > 0 && settings_changed())
		ereport(ERROR,
				(errcode(ERRCODE_OPERATOR_INTERVENTION),
				 errmsg("form of values has changed while a decoder was leaving"),
				 errdetail("Some of its last batch has been sent in the form of before.")));

	pg_atomic_fetch_add_u64(&shared->own_batches, 1);

	resetStringInfo(&own);
	appendStringInfoSpaces(&own, pub->batch_head);
	while (p < end)
	{
		BatchItem  *item = (BatchItem *) p;
		bool		failed = p - batch_input(shared, tail) == failed_at;

		p += item->size;
		switch (item->kind)
		{
			case ITEM_PLAN:
				formatter_plan(formatter, item);
				break;

			case ITEM_FRAMES:
				appendBinaryStringInfo(&own, (char *) item + BATCH_ITEM_SIZE, item->len);
				break;

			case ITEM_ROW:
				if (!format_row_here(pub, item))
					failed = false;
				break;
		}
		if (failed)
			unexplained = item;

		if (p == end || own.len > AREA_SIZE)
		{
			uint64		len = own.len - pub->batch_head;
			uint64		known = Min(skip, len);

			skip -= known;
			/* What lies before a frame that has come in part is with the client. */
			if (skip == 0)
				take_output(pub, own.data + pub->batch_head + known, len - known, false,
							p == end ? batch->covered : InvalidXLogRecPtr);
			resetStringInfo(&own);
			appendStringInfoSpaces(&own, pub->batch_head);
		}
	}

	if (own.maxlen > AREA_SIZE * 4)
	{
		pfree(own.data);
		own.maxlen = 1024;
		own.data = MemoryContextAlloc(ring_cxt, own.maxlen);
		resetStringInfo(&own);
	}

	/* I4 */
	if (unexplained != NULL)
		raise_decoder_error(batch->decoder, &batch->error, unexplained);
}

/*
 * Sleep until the oldest batch gets on.
 */
static void
wait_for_decoder(Publisher *pub, Batch *batch, BatchState seen)
{
	LogicalDecodingContext *ctx = pub->ctx;
	bool		end_xact = ctx->end_xact;

	pg_atomic_write_u32(&shared->waiting, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u32(&batch->state) == seen)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 1000L, compat_wait_event("PgparrepWaitForDecoder"));
		ResetLatch(MyLatch);
	}
	pg_atomic_write_u32(&shared->waiting, 0);

	CHECK_FOR_INTERRUPTS();

	/* Replies and keepalives, when it is time for them. */
	ctx->end_xact = false;
	pub->update_progress(ctx, pub->sent_position, InvalidTransactionId, false);
	ctx->end_xact = end_xact;
}

/*
 * Wake a decoder, if any sleeps.
 */
static void
wake_decoder(void)
{
	int			i;

	for (i = 0; i < nhandles; i++)
	{
		DecoderSlot *decoder = &shared->decoders[i];

		if (pg_atomic_read_u32(&decoder->sleeping) != 0 &&
			pg_atomic_exchange_u32(&decoder->sleeping, 0) != 0)
		{
			SetLatch(&decoder->proc->procLatch);
			break;
		}
	}
}

/*
 * Decoders that look for another batch without being woken.
 */
static int
count_awake(void)
{
	int			awake = 0;
	int			i;

	for (i = 0; i < nhandles; i++)
	{
		DecoderSlot *decoder = &shared->decoders[i];
		uint32		state = pg_atomic_read_u32(&decoder->state);

		if ((state == DECODER_IDLE || state == DECODER_WORKING) &&
			pg_atomic_read_u32(&decoder->sleeping) == 0)
			awake++;
	}

	return awake;
}

/*
 * May the walsender format a batch that a decoder could still claim?
 */
static inline bool
may_claim(void)
{
	return !pgparrep_force_decoders || pg_atomic_read_u32(&shared->alive) == 0;
}

/*
 * Collect the oldest batch.  Without wait, returns false if it is not finished.
 */
static bool
collect(Publisher *pub, bool wait)
{
	Batch	   *batch = batch_of(shared, tail);
	char	   *output = batch_output(shared, tail);
	bool		done = false;

	Assert(tail < head);

	while (!done)
	{
		uint32		state = pg_atomic_read_u32(&batch->state);
		uint64		unclaimed = tail;

		pg_memory_barrier();
		switch ((BatchState) state)
		{
			case BATCH_DONE:
				take_output(pub, output, batch->out_len, false, batch->covered);
				done = true;
				break;

			case BATCH_PIECE:
				take_output(pub, output, batch->out_len, batch->out_more,
							InvalidXLogRecPtr);
				/* it may have given up meanwhile */
				if (pg_atomic_compare_exchange_u32(&batch->state, &state, BATCH_TAKEN))
					SetLatch(&shared->decoders[batch->decoder].proc->procLatch);
				break;

			case BATCH_FAILED:
				format_here(pub, batch, batch->failed_at);
				done = true;
				break;

			case BATCH_BUSY:
			case BATCH_TAKEN:
				if (!wait)
					return false;
				if (may_claim() &&
					pg_atomic_compare_exchange_u64(&shared->claimed, &unclaimed, tail + 1))
				{
					format_here(pub, batch, NO_ITEM);
					done = true;
				}
				else
				{
					/* the one that was awake when it was published may have left */
					if (pg_atomic_read_u64(&shared->claimed) <= tail)
						wake_decoder();
					wait_for_decoder(pub, batch, (BatchState) state);
				}
				break;
		}
	}

	tail++;
	sent_of_tail = 0;
	pg_atomic_write_u64(&shared->collected, tail);

	return true;
}

/*-------------------------------------------------------------------------
 * Filling
 *-------------------------------------------------------------------------
 */

/*
 * Let the decoders have the open batch.
 */
static void
publish(Publisher *pub)
{
	Assert(is_open);

	CRASH_POINT("before_batch");
	is_open = false;
	head++;
	pg_memory_barrier();
	pg_atomic_write_u64(&shared->published, head);
	pg_memory_barrier();
	CRASH_POINT("batch_handed_over");

	/*
	 * Waking one costs more than copying the rows of a batch: only if those that
	 * are awake have more than one batch each to come.
	 */
	if (head - pg_atomic_read_u64(&shared->claimed) > count_awake())
		wake_decoder();

	while (tail < head && collect(pub, false))
		;
}

static void
open_batch(Publisher *pub, XLogRecPtr first_lsn, TimestampTz since)
{
	Batch	   *batch;

	Assert(!is_open);

	/* I6 */
	while (head - tail >= shared->nbatches)
		(void) collect(pub, true);

	batch = batch_of(shared, head);
	pg_atomic_write_u32(&batch->state, BATCH_BUSY);
	batch->in_len = 0;
	batch->out_len = 0;
	batch->first_lsn = first_lsn;
	batch->covered = pub->covered;
	batch->since = since;
	is_open = true;
}

/*
 * Make room for an item of size bytes in the open batch, which may be a new one.
 */
static char *
room_for(Publisher *pub, Size size, XLogRecPtr lsn, TimestampTz since)
{
	if (is_open && batch_of(shared, head)->in_len + size > shared->in_size)
		publish(pub);
	if (!is_open)
		open_batch(pub, lsn, since != 0 ? since : GetCurrentTimestamp());

	return batch_input(shared, head) + batch_of(shared, head)->in_len;
}

static void
added(Publisher *pub, Size size)
{
	Batch	   *batch = batch_of(shared, head);

	batch->in_len += size;
	batch->covered = pub->covered;
	if (batch->in_len >= BATCH_TARGET || batch->in_len >= shared->in_size / 4 * 3)
		publish(pub);
}

/*
 * Move the sender's batch into the ring, or send everything if that cannot be.
 */
void
ring_absorb(Publisher *pub)
{
	Size		len;
	Size		size;

	if (sender_batch_is_empty(pub))
		return;

	len = pub->batch->len - pub->batch_head;
	size = batch_frames_size(len);
	if (shared == NULL || size > shared->in_size)
	{
		sender_flush(pub);
		return;
	}

	batch_put_frames(room_for(pub, size, pub->pending_lsn, pub->pending_since),
					 pub->batch->data + pub->batch_head, len);
	sender_reset_batch(pub);
	added(pub, size);
}

/*
 * Have a row formatted by a decoder.  False: it has to be done here.
 */
bool
ring_add_row(Publisher *pub, PubTxn *txn, TransactionId xid, RelPlan *plan,
			 char type, HeapTuple newtup, HeapTuple oldtup)
{
	Size		row;
	Size		size;
	char	   *p;

	if (shared == NULL)
		return false;

	if (plan->blob == NULL)
		plan_make_blob(plan);
	row = batch_row_size(newtup, oldtup, txn->held);
	if (row + batch_plan_size(plan) > shared->in_size)
		return false;

	ring_absorb(pub);

	/* As if the plan were not there yet, so that one call makes room for both. */
	size = row + batch_plan_size(plan);
	p = room_for(pub, size, pub->ctx->reader->ReadRecPtr, 0);
	if (plan->in_batch != head + 1)
	{
		batch_put_plan(p, plan);
		p += batch_plan_size(plan);
		plan->in_batch = head + 1;
	}
	else
		size = row;
	batch_put_row(p, plan, txn->xid, xid, pub->ctx->reader->ReadRecPtr, type,
				  newtup, oldtup, txn->held);

	txn->sent = true;
	txn->bytes += row;
	pub->uncovered = true;
	added(pub, size);

	return true;
}

/*
 * Send what is finished.  With publish, an open batch that has waited for long
 * goes to the decoders.
 */
void
ring_poll(Publisher *pub, bool publish_old)
{
	if (shared == NULL)
		return;

	if (publish_old && is_open &&
		TimestampDifferenceExceeds(batch_of(shared, head)->since,
								   GetCurrentTimestamp(), MAX_OPEN_MS))
	{
		ring_absorb(pub);
		if (is_open)
			publish(pub);
	}
	while (tail < head && collect(pub, false))
		;
}

/*
 * Send everything that is in the ring.
 */
void
ring_drain(Publisher *pub)
{
	if (shared == NULL)
		return;

	if (is_open)
		publish(pub);
	while (tail < head)
		(void) collect(pub, true);
}

/*
 * Start of the first record in the ring, or invalid if it is empty.
 */
XLogRecPtr
ring_oldest(void)
{
	if (shared == NULL || (tail == head && !is_open))
		return InvalidXLogRecPtr;

	return batch_of(shared, tail)->first_lsn;
}

/*
 * For tests: wait until a decoder is ready.  False if none will be.
 */
static bool
wait_for_first(void)
{
	pid_t		pid;
	int			gone;
	int			i;

	while (pg_atomic_read_u32(&shared->alive) == 0)
	{
		for (i = gone = 0; i < nhandles; i++)
		{
			if (GetBackgroundWorkerPid(handles[i], &pid) == BGWH_STOPPED)
				gone++;
		}
		if (gone == nhandles)
			return false;

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, compat_wait_event("PgparrepWaitForDecoder"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}

	return true;
}

/*
 * The reader wants a page: is it behind?  And would values look as before?
 */
void
ring_note_page(Publisher *pub, XLogRecPtr page)
{
	pub->behind = false;
	if (shared == NULL)
		return;

	if (settings_changed())
	{
		restart(pub);
		if (shared == NULL)
			return;
	}

	pg_atomic_write_u64(&shared->reader_lsn, page);
	if (pgparrep_force_decoders)
		pub->behind = wait_for_first();

	/* I4: one has ended as it should not */
	if (pg_atomic_read_u32(&shared->exit) == EXIT_SAID)
	{
		pg_read_barrier();
		sender_flush(pub);
		raise_decoder_error(shared->exit_decoder, &shared->exit_error, NULL);
	}
	if (pgparrep_force_decoders || pg_atomic_read_u32(&shared->alive) == 0)
		return;

	if (page + BEHIND > pub->known_flush)
		pub->known_flush = RecoveryInProgress() ?
							   GetXLogReplayRecPtr(NULL) :
							   GetFlushRecPtr(NULL);
	pub->behind = page + BEHIND <= pub->known_flush;
}

void
ring_count_streamed(void)
{
	if (shared != NULL)
		pg_atomic_write_u64(&shared->streamed,
							pg_atomic_read_u64(&shared->streamed) + 1);
}

void
ring_count_queued(QueueReason reason)
{
	if (shared != NULL)
		pg_atomic_write_u64(&shared->queued[reason],
							pg_atomic_read_u64(&shared->queued[reason]) + 1);
}
