/*-------------------------------------------------------------------------
 *
 * decoder.c
 *	  A parallel decoder: a background worker that formats batches.
 *
 * It belongs to one walsender, which has put the segment of shared memory
 * there, and has its user, its database and a copy of its settings, so that
 * values look as if the walsender had formatted them.  It claims the oldest
 * batch that nobody has, formats it, and leaves the output in the batch.
 *
 * I1.	A decoder has one batch at most, and batches are claimed in the order of
 *		the stream.  So the oldest unfinished batch is being worked on, waits
 *		for the walsender to take output, or can be claimed by the walsender.
 * I2.	A batch's input stays until the walsender has all of its output.
 *		Whatever goes wrong in here, an error of a value or of this process, ends
 *		in BATCH_FAILED, and the walsender formats the batch itself: it meets
 *		the error again if it lies in the data, and knows whose it is.
 *		Otherwise it ends with the error that the batch has.
 * I3.	Nothing is read from catalogs after the start, no transaction is open
 *		while waiting, and settings are the walsender's: a change of the
 *		configuration files is for it to see; it then starts new decoders.
 * I4.	Only a decoder that is told to leave exits with status 0.  Any other
 *		leaves the reason for the walsender, which ends with it.
 *
 * Wait graph: a decoder waits for the walsender only in ship(), with a piece of
 * output in its batch.  The walsender waits only for the oldest batch, and takes
 * pieces of that one; see ring.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "decoder.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgparrep.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/sinval.h"
#include "test_points.h"
#include "utils/guc.h"
#include "utils/memutils.h"

static DecoderShared *shared = NULL;
static DecoderSlot *me = NULL;
static int	my_number;

/* The batch that we have claimed, or NULL. */
static Batch *claimed_batch = NULL;
static char *claimed_output;
static int	item_at;			/* the item in hand */

/* This decoder is the one whose error stands in shared->exit_error.  (I4) */
static bool exit_is_mine = false;
static emit_log_hook_type outer_log_hook = NULL;

static inline bool
must_leave(void)
{
	return ShutdownRequestPending || pg_atomic_read_u32(&shared->stop) != 0;
}

static void
wake_walsender(void)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&shared->waiting) != 0)
		SetLatch(&shared->walsender->procLatch);
}

static void
set_batch_state(BatchState state)
{
	pg_write_barrier();
	pg_atomic_write_u32(&claimed_batch->state, state);
	wake_walsender();
}

static void
save_text(char *dst, Size size, const char *src)
{
	int			len = 0;

	if (src != NULL)
	{
		len = pg_mbcliplen(src, strlen(src), size - 1);
		memcpy(dst, src, len);
	}
	dst[len] = '\0';
}

static void
save_error(DecoderError *error, const ErrorData *edata)
{
	error->sqlerrcode = edata->sqlerrcode;
	save_text(error->message, sizeof(error->message), edata->message);
	save_text(error->detail, sizeof(error->detail), edata->detail);
	save_text(error->hint, sizeof(error->hint), edata->hint);
	save_text(error->context, sizeof(error->context), edata->context);
}

/*
 * Give up the batch, because of an error with its item failed_at if there is
 * one.  (I2)
 */
static void
fail_batch(int failed_at)
{
	claimed_batch->failed_at = failed_at;
	set_batch_state(BATCH_FAILED);
	claimed_batch = NULL;
}

/*
 * We end by an error: true if it is the one to report.
 */
static bool
claim_exit(void)
{
	uint32		none = EXIT_NONE;

	if (!exit_is_mine)
		exit_is_mine = pg_atomic_compare_exchange_u32(&shared->exit, &none, EXIT_UNSAID);
	return exit_is_mine;
}

/*
 * emit_log_hook: an error that reaches the log is one that ends us, outside of
 * a batch or FATAL.
 */
static void
keep_last_error(ErrorData *edata)
{
	if (edata->elevel >= ERROR && claim_exit())
		save_error(&shared->exit_error, edata);
	if (outer_log_hook != NULL)
		outer_log_hook(edata);
}

/*
 * before_shmem_exit callback.  (I4)
 */
static void
leave(int code, Datum arg)
{
	if (claimed_batch != NULL)
		fail_batch(NO_ITEM);
	if (code != 0 && claim_exit())
	{
		shared->exit_decoder = my_number;
		pg_write_barrier();
		pg_atomic_write_u32(&shared->exit, EXIT_SAID);
	}
	if (pg_atomic_exchange_u32(&me->state, DECODER_GONE) != DECODER_STARTING)
		pg_atomic_fetch_sub_u32(&shared->alive, 1);
	pg_atomic_write_u32(&me->sleeping, 0);
	wake_walsender();
}

static void
sleep_until_woken(void)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, -1,
					 compat_wait_event("PgparrepDecoder"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Hand over what is in out, in pieces if it is more than the batch's output
 * area takes.  A piece that is not the batch's last has to be taken before the
 * next; false if we have to leave meanwhile.
 */
static bool
ship(StringInfo out, bool last)
{
	int			pos = 0;

	do
	{
		int			len = Min(out->len - pos, (int) shared->out_size);
		bool		final = last && pos + len == out->len;

		memcpy(claimed_output, out->data + pos, len);
		pos += len;
		claimed_batch->out_len = len;
		claimed_batch->out_more = pos < out->len;
		pg_atomic_fetch_add_u64(&me->bytes, len);
		set_batch_state(final ? BATCH_DONE : BATCH_PIECE);
		if (final)
			break;

		pg_atomic_write_u32(&me->state, DECODER_WAITING);
		while (pg_atomic_read_u32(&claimed_batch->state) != BATCH_TAKEN)
		{
			if (must_leave())
				return false;
			sleep_until_woken();
		}
		pg_atomic_write_u32(&me->state, DECODER_WORKING);
	} while (pos < out->len);

	resetStringInfo(out);
	return true;
}

/*
 * Format the batch seq.  False if we have to leave meanwhile.
 */
static bool
do_batch(Formatter *fmt, uint64 seq, StringInfo out, MemoryContext rowcxt)
{
	char	   *p = batch_input(shared, seq);
	char	   *end = p + claimed_batch->in_len;

	resetStringInfo(out);
	while (p < end)
	{
		BatchItem  *item = (BatchItem *) p;

		item_at = p - batch_input(shared, seq);
		p += item->size;
		switch (item->kind)
		{
			case ITEM_PLAN:
				formatter_plan(fmt, item);
				break;

			case ITEM_FRAMES:
				appendBinaryStringInfo(out, (char *) item + BATCH_ITEM_SIZE, item->len);
				break;

			case ITEM_ROW:
				(void) formatter_row(fmt, item, out);
				MemoryContextReset(rowcxt);
				break;
		}

		/*
		 * Well before it is full, so that pieces rarely end within a frame: such
		 * ones have to be put together.
		 */
		if (out->len > shared->out_size / 2 && p < end && !ship(out, false))
			return false;
		if (must_leave())
			return false;
		CHECK_FOR_INTERRUPTS();
	}

	CRASH_POINT("batch_decoded");
	return ship(out, true);
}

/*
 * The same, and an error gives the batch up.  (I2)
 */
static bool
try_batch(Formatter *fmt, uint64 seq, StringInfo out, MemoryContext rowcxt)
{
	volatile bool go_on = true;

	PG_TRY();
	{
		go_on = do_batch(fmt, seq, out, rowcxt);
		if (go_on)
			claimed_batch = NULL;
	}
	PG_CATCH();
	{
		/* It is no error yet: the work may be rolled back. */
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(rowcxt);
		MemoryContextReset(rowcxt);
		save_error(&claimed_batch->error, CopyErrorData());
		FlushErrorState();
		AbortOutOfAnyTransaction();
		MemoryContextSwitchTo(rowcxt);
		MemoryContextReset(rowcxt);
		fail_batch(item_at);
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	return go_on;
}

static bool
claim(uint64 *seq)
{
	uint64		next = pg_atomic_read_u64(&shared->claimed);

	while (next < pg_atomic_read_u64(&shared->published))
	{
		if (pg_atomic_compare_exchange_u64(&shared->claimed, &next, next + 1))
		{
			*seq = next;
			return true;
		}
	}

	return false;
}

static void
work(void)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext, "pgparrep decoder",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext rowcxt = AllocSetContextCreate(cxt, "pgparrep decoder row",
												 ALLOCSET_DEFAULT_SIZES);
	Formatter  *fmt;
	StringInfoData out;

	MemoryContextSwitchTo(cxt);
	fmt = formatter_create(cxt);
	initStringInfo(&out);
	MemoryContextSwitchTo(rowcxt);

	while (!must_leave())
	{
		uint64		seq;
		bool		go_on;

		if (!claim(&seq))
		{
			pg_atomic_write_u32(&me->state, DECODER_IDLE);
			pg_atomic_write_u32(&me->sleeping, 1);
			pg_memory_barrier();
			if (pg_atomic_read_u64(&shared->claimed) <
					pg_atomic_read_u64(&shared->published) ||
				must_leave())
			{
				pg_atomic_write_u32(&me->sleeping, 0);
				continue;
			}
			sleep_until_woken();
			pg_atomic_write_u32(&me->sleeping, 0);
			/* nobody else does it for a process without a client */
			if (catchupInterruptPending)
				ProcessCatchupInterrupt();
			continue;
		}

		claimed_batch = batch_of(shared, seq);
		claimed_output = batch_output(shared, seq);
		claimed_batch->decoder = my_number;
		pg_atomic_write_u32(&me->state, DECODER_WORKING);
		go_on = try_batch(fmt, seq, &out, rowcxt);
		pg_atomic_fetch_add_u64(&me->batches, 1);

		/* A huge row has made it large. */
		if (out.maxlen > 1024 * 1024)
		{
			pfree(out.data);
			MemoryContextSwitchTo(cxt);
			initStringInfo(&out);
			MemoryContextSwitchTo(rowcxt);
		}
		if (!go_on)
			break;
	}
}

void
pgparrep_decoder_main(Datum arg)
{
	dsm_segment *seg;
	char		name[NAMEDATALEN];

	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	seg = dsm_attach(DatumGetUInt32(arg));
	if (seg == NULL)
		proc_exit(0);			/* the walsender is gone */
	shared = (DecoderShared *) dsm_segment_address(seg);
	if (shared->magic != DECODER_MAGIC)
		elog(ERROR, "invalid segment of a pgparrep publisher");

	memcpy(&my_number, MyBgworkerEntry->bgw_extra, sizeof(my_number));
	me = &shared->decoders[my_number];
	me->proc = MyProc;
	me->pid = MyProcPid;
	before_shmem_exit(leave, (Datum) 0);
	outer_log_hook = emit_log_hook;
	emit_log_hook = keep_last_error;

	BackgroundWorkerInitializeConnectionByOid(shared->dbid, shared->userid,
											  COMPAT_DECODER_CONNECT_FLAGS);

	/* As a parallel worker does; only that we do use the client's encoding. */
	StartTransactionCommand();
	InitializingParallelWorker = true;
	RestoreGUCState((char *) shared + shared->settings);
	InitializingParallelWorker = false;
	CommitTransactionCommand();

	/* Where pgparrep.stat_decoder finds the segment. */
	snprintf(name, sizeof(name), "%s %u", PGPARREP_DECODER_TYPE, DatumGetUInt32(arg));
	SetConfigOption("application_name", name, PGC_USERSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, NULL);

	pg_atomic_write_u32(&me->state, DECODER_IDLE);
	pg_atomic_fetch_add_u32(&shared->alive, 1);

	work();
	proc_exit(0);
}
