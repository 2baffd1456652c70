/*-------------------------------------------------------------------------
 *
 * reader.c
 *	  Takes changes out of the WAL in the order in which they are written.
 *
 * Core asks the output plugin's filter_by_origin callback about every record
 * that it is about to decode: insert, update, delete, multi-insert, truncate,
 * speculative confirmation, logical message, commit, abort and, with two-phase
 * decoding, prepare, once each, in WAL order, after it has brought the snapshot
 * builder and the reorder buffer's transaction entry up to date.  At that moment
 * ctx->reader holds the record.  The reader formats the change, puts it into the
 * batch and answers "filtered": then core neither queues nor spills nor sorts
 * it.
 *
 * Answering "not filtered" instead leaves the change to core, which replays it
 * at commit under the right snapshot, through pgoutput (replay.c).  That is done
 * with everything that only core can judge, and from there on with the whole
 * transaction.
 *
 * I1.	A transaction is left to core from its first record that lies before the
 *		start point, comes before a consistent snapshot, or finds the top-level
 *		transaction marked as changing catalogs: our snapshot does not see
 *		changes of the transaction itself.
 * I2.	A commit is kept from core only if the transaction is known here and
 *		core has nothing of it.  Core would forget it.
 * I3.	The switch happens only between rows: what is held goes along.
 * I4.	With two-phase decoding a transaction ends here when it is prepared; how
 *		the prepared transaction ends is always core's to tell (replay.c).
 * I5.	Conversion errors stay with the transaction until it commits or is
 *		prepared; no error is raised for work that may yet roll back.
 * I6.	Further records are decoded from within the callback (read_on) only where
 *		core does nothing any more with the present one but return, and only
 *		what is there: never waits for WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam_xlog.h"
#include "access/rmgr.h"
#include "access/xact.h"
#include "access/xlogutils.h"
#include "fstream.h"
#include "guc.h"
#include "libpq/pqformat.h"
#include "publisher.h"
#include "replication/decode.h"
#include "replication/message.h"
#include "replication/origin.h"
#include "utils/memutils.h"

/*
 * Records that are decoded within one turn of the walsender.  Each turn costs it a
 * look at its socket and its clock, as much as decoding a record or two; in return
 * replies of the client are handled before the next.
 */
#define RECORDS_PER_TURN 256

static bool filter_heap(Publisher *pub, XLogReaderState *r);
static bool filter_heap2(Publisher *pub, XLogReaderState *r);
static bool filter_xact(Publisher *pub, XLogReaderState *r, bool unwanted);
static bool filter_message(Publisher *pub, XLogReaderState *r);
static bool leave_to_core(Publisher *pub, XLogReaderState *r);

/* The relation whose row is being formatted, for error messages, or NULL. */
static RelPlan *current_plan = NULL;

/* Where the tuples of the present row lie, unless they are larger. */
static PGAlignedBlock new_room;
static PGAlignedBlock old_room;

/*
 * Errors inside of the filter carry no position otherwise.
 */
static void
reader_error_context(void *arg)
{
	XLogReaderState *r = (XLogReaderState *) arg;

	if (current_plan != NULL)
		errcontext("WAL record at %X/%X, transaction %u, relation \"%s\"",
				   LSN_FORMAT_ARGS(r->ReadRecPtr), XLogRecGetXid(r),
				   current_plan->name);
	else
		errcontext("WAL record at %X/%X, transaction %u",
				   LSN_FORMAT_ARGS(r->ReadRecPtr), XLogRecGetXid(r));
}

/*
 * The present record, of a row that is not left to core, is done: decode the
 * ones behind it that can be had without waiting.  (I6)
 *
 * Core's walsender, when we return, takes its position from the reader, so for it
 * all of them were one record.
 */
static void
read_on(Publisher *pub, XLogReaderState *r)
{
	LogicalDecodingContext *ctx = pub->ctx;
	ErrorContextCallback *previous = error_context_stack;
	int			i;

	/* An error in there has nothing to do with the callback that we are in. */
	error_context_stack = previous->previous;
	pub->reading_on = true;

	for (i = 1; i < RECORDS_PER_TURN; i++)
	{
		char	   *errm;

		/* what is wrong, if anything is, core meets again */
		if (XLogReadAhead(r, true) == NULL)
			break;
		(void) XLogNextRecord(r, &errm);
		LogicalDecodingProcessRecord(ctx, r);
	}

	pub->reading_on = false;
	error_context_stack = previous;
}

/*
 * The filter_by_origin callback of a client with streaming 'extreme'.
 */
bool
reader_filter(LogicalDecodingContext *ctx, RepOriginId origin_id)
{
	Publisher  *pub = publisher;
	XLogReaderState *r = ctx->reader;
	bool		unwanted;
	bool		filtered;
	bool		is_row;
	ErrorContextCallback errcallback;
	MemoryContext oldcxt;

	unwanted = pub->opts.no_origin && origin_id != InvalidRepOriginId;
	if (!pub->streaming)
		return unwanted;

	errcallback.callback = reader_error_context;
	errcallback.arg = (void *) r;
	errcallback.previous = error_context_stack;
	error_context_stack = &errcallback;
	oldcxt = MemoryContextSwitchTo(pub->rowcxt);

	is_row = XLogRecGetRmid(r) == RM_HEAP_ID || XLogRecGetRmid(r) == RM_HEAP2_ID;
	switch (XLogRecGetRmid(r))
	{
		case RM_HEAP_ID:
			filtered = unwanted || filter_heap(pub, r);
			break;

		case RM_HEAP2_ID:
			filtered = unwanted || filter_heap2(pub, r);
			break;

		case RM_XACT_ID:
			filtered = filter_xact(pub, r, unwanted);
			break;

		case RM_LOGICALMSG_ID:
			filtered = unwanted || filter_message(pub, r);
			break;

		default:
			filtered = unwanted || leave_to_core(pub, r);
			break;
	}

	MemoryContextSwitchTo(oldcxt);
	MemoryContextReset(pub->rowcxt);
	error_context_stack = errcallback.previous;

	if (filtered && is_row && !pub->reading_on)
		read_on(pub, r);

	return filtered;
}

/*
 * Is the record's transaction one that is, or has to be, queued?  Otherwise
 * *txn is its entry.
 */
static bool
must_queue(Publisher *pub, XLogReaderState *r, PubTxn **txn)
{
	SnapBuild  *builder = pub->ctx->snapshot_builder;
	ReorderBufferTXN *top;

	top = txn_core_top(pub, XLogRecGetXid(r));
	if (top == NULL)
	{
		/* Core has made an entry for every xid that it decodes. */
		Assert(false);
		*txn = NULL;
		return true;
	}

	*txn = txn_get(pub, top->xid);
	if (!(*txn)->queued)
	{
		if (SnapBuildCurrentState(builder) < SNAPBUILD_CONSISTENT ||
			SnapBuildXactNeedsSkip(builder, r->ReadRecPtr))
			txn_queue(pub, *txn, r->ReadRecPtr, QUEUE_START);
		else if (rbtxn_has_catalog_changes(top))
			txn_queue(pub, *txn, r->ReadRecPtr, QUEUE_CATALOG);
		else
			return false;
	}

	ring_count_queued((*txn)->reason);
	return true;
}

/*
 * For records of kinds that the reader does not know.
 */
static bool
leave_to_core(Publisher *pub, XLogReaderState *r)
{
	PubTxn	   *txn;

	if (TransactionIdIsValid(XLogRecGetXid(r)) && !must_queue(pub, r, &txn))
		txn_queue(pub, txn, r->ReadRecPtr, QUEUE_OTHER);

	return false;
}

/*
 * Put one row into the batch.
 */
static void
send_row(Publisher *pub, PubTxn *txn, TransactionId xid, RelPlan *plan,
		 char type, HeapTuple newtup, HeapTuple oldtup)
{
	MemoryContext cxt = CurrentMemoryContext;
	Size		size = held_size(txn);
	volatile bool begun = false;

	if (xid != txn->xid)
		txn_note_sub(pub, txn, xid);
	ring_count_streamed();

	if (pub->behind && plan->parallel && (plan->costly || pgparrep_force_decoders))
	{
		bundle_require(pub, plan->sent, &plan->bundle);
		sender_name_subxact(pub, txn, xid);
		if (ring_add_row(pub, txn, xid, plan, type, newtup, oldtup))
			return;
	}

	if (newtup != NULL)
		size += newtup->t_len;
	if (oldtup != NULL)
		size += oldtup->t_len;
	sender_make_room(pub, size);
	bundle_require(pub, plan->sent, &plan->bundle);
	sender_name_subxact(pub, txn, xid);

	current_plan = plan;
	PG_TRY();
	{
		bool		catalog = row_needs_catalog(plan);
		StringInfo	out;

		if (catalog)
			catalog_begin(pub, xid);

		out = sender_begin(pub, txn->xid, type);
		begun = true;
		row_write_change(out, plan, newtup, oldtup, held_value, txn->held);
		sender_end(pub, txn);

		if (catalog)
			catalog_end(pub);
	}
	PG_CATCH();
	{
		current_plan = NULL;
		MemoryContextSwitchTo(cxt);
		if (begun)
			sender_cancel(pub);
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_OPERATOR_INTERVENTION)
		{
			catalog_abandon(pub);
			PG_RE_THROW();
		}
		txn_defer_error(pub, txn, xid);
	}
	PG_END_TRY();
	current_plan = NULL;
}

/*
 * Deal with a row of an ordinary table.  False: core must have it.
 */
static bool
stream_row(Publisher *pub, XLogReaderState *r, PubTxn *txn, CompatFileNode node,
		   char type, HeapTuple newtup, HeapTuple oldtup, bool row_done)
{
	TransactionId xid = XLogRecGetXid(r);
	RelPlan    *plan = plan_lookup(pub, node, xid);
	bool		wanted;

	if (plan == NULL)
	{
		txn_queue(pub, txn, r->ReadRecPtr, QUEUE_OTHER);
		ring_count_queued(QUEUE_OTHER);
		return false;
	}

	if (plan->kind == PLAN_IGNORE_TOAST)
		return true;

	wanted = plan->kind != PLAN_IGNORE &&
			 (type == FSTREAM_INSERT ? plan->pubinsert :
			  type == FSTREAM_UPDATE ? plan->pubupdate :
									   plan->pubdelete);

	if (wanted && plan->kind == PLAN_QUEUE)
	{
		txn_queue(pub, txn, r->ReadRecPtr, QUEUE_RELATION);
		ring_count_queued(QUEUE_RELATION);
		return false;
	}

	if (wanted)
		send_row(pub, txn, xid, plan, type, newtup, oldtup);
	if (row_done)
		held_clear(txn);

	return true;
}

static bool
filter_insert(Publisher *pub, XLogReaderState *r, PubTxn *txn)
{
	xl_heap_insert *xlrec = (xl_heap_insert *) XLogRecGetData(r);
	TransactionId xid = XLogRecGetXid(r);
	CompatFileNode node;
	char	   *data;
	Size		len;

	XLogRecGetBlockTag(r, 0, &node, NULL, NULL);
	data = XLogRecGetBlockData(r, 0, &len);

	if (xlrec->flags & XLH_INSERT_ON_TOAST_RELATION)
	{
		Size		limit = (Size) pub->opts.max_txn_mb * 1024 * 1024;
		Size		total = (Size) pub->opts.max_recordbuffer_mb * 1024 * 1024;

		/* One too many is given to core with this very record. */
		if ((limit > 0 && held_size(txn) + len > limit) ||
			(total > 0 && pub->held_total + len > total))
		{
			txn_queue(pub, txn, r->ReadRecPtr, QUEUE_MEMORY);
			ring_count_queued(QUEUE_MEMORY);
			return false;
		}
		if (xid != txn->xid)
			txn_note_sub(pub, txn, xid);
		if (!held_add_chunk(pub, txn, xid, node, XLogRecGetOrigin(r), data, len))
			txn_queue(pub, txn, r->ReadRecPtr, QUEUE_OTHER);
		return true;
	}

	if (xlrec->flags & XLH_INSERT_IS_SPECULATIVE)
	{
		if (xid != txn->xid)
			txn_note_sub(pub, txn, xid);
		held_set_speculative(pub, txn, xid, node, XLogRecGetOrigin(r), data, len);
		return true;
	}

	return stream_row(pub, r, txn, node, FSTREAM_INSERT,
					  tuple_from_wal(&new_room, data, len), NULL, true);
}

static bool
filter_update(Publisher *pub, XLogReaderState *r, PubTxn *txn)
{
	xl_heap_update *xlrec = (xl_heap_update *) XLogRecGetData(r);
	CompatFileNode node;
	HeapTuple	newtup;
	HeapTuple	oldtup = NULL;
	char	   *data;
	Size		len;

	/* A catalog's: not even core could say which one. */
	if ((xlrec->flags & XLH_UPDATE_CONTAINS_NEW_TUPLE) == 0)
		return true;

	XLogRecGetBlockTag(r, 0, &node, NULL, NULL);
	data = XLogRecGetBlockData(r, 0, &len);
	newtup = tuple_from_wal(&new_room, data, len);

	if (xlrec->flags & XLH_UPDATE_CONTAINS_OLD)
		oldtup = tuple_from_wal(&old_room,
								XLogRecGetData(r) + SizeOfHeapUpdate,
								XLogRecGetDataLen(r) - SizeOfHeapUpdate);

	return stream_row(pub, r, txn, node, FSTREAM_UPDATE, newtup, oldtup, true);
}

static bool
filter_delete(Publisher *pub, XLogReaderState *r, PubTxn *txn)
{
	xl_heap_delete *xlrec = (xl_heap_delete *) XLogRecGetData(r);
	CompatFileNode node;
	HeapTuple	oldtup;

	/*
	 * The end of a speculative insertion.  One comes for the row and then one
	 * for each of its chunks, which find nothing.
	 */
	if (xlrec->flags & XLH_DELETE_IS_SUPER)
	{
		if (held_speculative(txn) != NULL)
			held_clear(txn);
		return true;
	}

	/* A catalog's, a TOAST chunk's, or no replica identity: never sent. */
	if ((xlrec->flags & XLH_DELETE_CONTAINS_OLD) == 0)
		return true;

	XLogRecGetBlockTag(r, 0, &node, NULL, NULL);
	oldtup = tuple_from_wal(&old_room,
							XLogRecGetData(r) + SizeOfHeapDelete,
							XLogRecGetDataLen(r) - SizeOfHeapDelete);

	return stream_row(pub, r, txn, node, FSTREAM_DELETE, NULL, oldtup, true);
}

/*
 * The speculative insertion may stay.
 */
static bool
filter_confirm(Publisher *pub, XLogReaderState *r, PubTxn *txn)
{
	HeapTuple	tup = held_speculative(txn);
	CompatFileNode node;

	/* Filtered by origin, or of a relation that is not decoded. */
	if (tup == NULL)
		return true;

	XLogRecGetBlockTag(r, 0, &node, NULL, NULL);

	return stream_row(pub, r, txn, node, FSTREAM_INSERT, tup, NULL, true);
}

static bool
filter_heap(Publisher *pub, XLogReaderState *r)
{
	PubTxn	   *txn;

	if (must_queue(pub, r, &txn))
		return false;

	switch (XLogRecGetInfo(r) & XLOG_HEAP_OPMASK)
	{
		case XLOG_HEAP_INSERT:
			if (!filter_insert(pub, r, txn))
				return false;
			break;

		case XLOG_HEAP_UPDATE:
		case XLOG_HEAP_HOT_UPDATE:
			if (!filter_update(pub, r, txn))
				return false;
			break;

		case XLOG_HEAP_DELETE:
			if (!filter_delete(pub, r, txn))
				return false;
			break;

		case XLOG_HEAP_CONFIRM:
			if (!filter_confirm(pub, r, txn))
				return false;
			break;

		default:

			/*
			 * XLOG_HEAP_TRUNCATE: a truncation changes pg_class, so the
			 * transaction is queued already, but for one of an empty
			 * partitioned table.
			 */
			return leave_to_core(pub, r);
	}

	sender_covered(pub, r->EndRecPtr);
	return true;
}

/*
 * COPY and other bulk insertions.
 */
static bool
filter_heap2(Publisher *pub, XLogReaderState *r)
{
	xl_heap_multi_insert *xlrec;
	PubTxn	   *txn;
	CompatFileNode node;
	char	   *data;
	Size		len;
	int			i;

	if (must_queue(pub, r, &txn))
		return false;
	if ((XLogRecGetInfo(r) & XLOG_HEAP_OPMASK) != XLOG_HEAP2_MULTI_INSERT)
		return leave_to_core(pub, r);

	xlrec = (xl_heap_multi_insert *) XLogRecGetData(r);
	XLogRecGetBlockTag(r, 0, &node, NULL, NULL);
	data = XLogRecGetBlockData(r, 0, &len);

	for (i = 0; i < xlrec->ntuples; i++)
	{
		xl_multi_insert_tuple *xlhdr;
		HeapTuple	tup;
		bool		last;

		xlhdr = (xl_multi_insert_tuple *) SHORTALIGN(data);
		data = (char *) xlhdr + SizeOfMultiInsertTuple;

		tup = tuple_make(&new_room, xlhdr->datalen);
		memcpy((char *) tup->t_data + SizeofHeapTupleHeader, data, xlhdr->datalen);
		tup->t_data->t_infomask = xlhdr->t_infomask;
		tup->t_data->t_infomask2 = xlhdr->t_infomask2;
		tup->t_data->t_hoff = xlhdr->t_hoff;
		data += xlhdr->datalen;

		/* The chunks of all rows came first. */
		last = i + 1 == xlrec->ntuples &&
			   (xlrec->flags & XLH_INSERT_LAST_IN_MULTI) != 0;

		/*
		 * Only the first row can be refused: no invalidation is executed
		 * within a record, so the plan does not change.
		 */
		if (!stream_row(pub, r, txn, node, FSTREAM_INSERT, tup, NULL, last))
		{
			if (i > 0)
				elog(ERROR, "relation plan changed within a record");
			return false;
		}
	}

	sender_covered(pub, r->EndRecPtr);
	return true;
}

/*
 * Has core's reorder buffer any change of the transaction?
 *
 * Resource managers of extensions queue without asking us.  Entries that are
 * only snapshots and invalidations of others make this true, too; then core
 * replays nothing, which is merely slower.
 */
static bool
core_has_changes(ReorderBufferTXN *top)
{
	dlist_iter	iter;

	if (top->nentries > 0)
		return true;

	dlist_foreach(iter, &top->subtxns)
	{
		if (dlist_container(ReorderBufferTXN, node, iter.cur)->nentries > 0)
			return true;
	}

	return false;
}

/*
 * Report the end of a streamed transaction to the walsender: it tracks lag, and
 * tells a synchronous standby about transactions that it gets nothing of.
 */
static void
report_commit(Publisher *pub, XLogReaderState *r, TransactionId xid, bool skipped)
{
	LogicalDecodingContext *ctx = pub->ctx;

	ctx->end_xact = true;
	pub->update_progress(ctx, r->EndRecPtr, xid, skipped);
	ctx->end_xact = false;
}

/*
 * A transaction with nothing but row locks and the like: core replays nothing
 * of it, a PREPARE neither.
 */
static inline bool
lacks_changes(ReorderBufferTXN *top)
{
	return top == NULL || top->base_snapshot == NULL;
}

/*
 * COMMIT PREPARED or ROLLBACK PREPARED of a transaction that was, or would have
 * been, told when it was prepared.
 */
static bool
filter_finish_prepared(Publisher *pub, XLogReaderState *r, TransactionId xid,
					   bool unwanted)
{
	PubTxn	   *txn = txn_find(pub, xid);

	/* Prepared before the start point. */
	if (txn != NULL)
	{
		Assert(txn->queued && !txn->sent);
		txn_end(pub, txn);
	}

	/* Before 18 core would tell the end of what it has not told before. */
	return unwanted || lacks_changes(txn_core_top(pub, xid));
}

static bool
filter_commit(Publisher *pub, XLogReaderState *r, bool unwanted)
{
	xl_xact_parsed_commit parsed;
	TransactionId xid;
	TimestampTz time;
	PubTxn	   *txn;
	ReorderBufferTXN *top;

	ParseCommitRecord(XLogRecGetInfo(r), (xl_xact_commit *) XLogRecGetData(r), &parsed);
	xid = TransactionIdIsValid(parsed.twophase_xid) ?
			  parsed.twophase_xid :
			  XLogRecGetXid(r);
	time = (parsed.xinfo & XACT_XINFO_HAS_ORIGIN) != 0 ?
			   parsed.origin_timestamp :
			   parsed.xact_time;

	if (TransactionIdIsValid(parsed.twophase_xid) && pub->ctx->twophase)
		return filter_finish_prepared(pub, r, xid, unwanted);

	txn = txn_find(pub, xid);

	/*
	 * The commit has an origin that the client does not want.  Rows written
	 * before the session took that origin may be with the client already.
	 */
	if (unwanted)
	{
		if (txn != NULL)
			txn_abort(pub, xid, r->EndRecPtr, time);
		sender_covered(pub, r->EndRecPtr);
		return true;
	}

	/* Core finds out itself what it has of an xid unknown here.  (I2) */
	if (txn == NULL)
		return false;

	txn_raise_errors(pub, txn);

	top = txn_core_top(pub, xid);
	if (!txn->queued && top != NULL && core_has_changes(top))
		txn_queue(pub, txn, r->ReadRecPtr, QUEUE_OTHER);
	if (txn->queued)
		return false;			/* goes on in replay.c */

	if (txn->sent)
	{
		sender_commit(pub, xid, r->ReadRecPtr, r->EndRecPtr, time);
		pub->ctx->reorder->totalTxns++;
		pub->ctx->reorder->totalBytes += txn->bytes;
	}
	report_commit(pub, r, xid, !txn->sent);
	txn_end(pub, txn);

	return true;
}

static bool
filter_abort(Publisher *pub, XLogReaderState *r, bool unwanted)
{
	xl_xact_parsed_abort parsed;
	TransactionId xid;
	TimestampTz time;
	int			i;

	ParseAbortRecord(XLogRecGetInfo(r), (xl_xact_abort *) XLogRecGetData(r), &parsed);
	xid = TransactionIdIsValid(parsed.twophase_xid) ?
			  parsed.twophase_xid :
			  XLogRecGetXid(r);
	time = (parsed.xinfo & XACT_XINFO_HAS_ORIGIN) != 0 ?
			   parsed.origin_timestamp :
			   parsed.xact_time;

	if (TransactionIdIsValid(parsed.twophase_xid) && pub->ctx->twophase)
		return filter_finish_prepared(pub, r, xid, unwanted);

	/* The end of a whole transaction covers its subtransactions. */
	if (txn_find(pub, xid) == NULL)
	{
		for (i = 0; i < parsed.nsubxacts; i++)
			txn_abort(pub, parsed.subxacts[i], r->EndRecPtr, time);
	}
	txn_abort(pub, xid, r->EndRecPtr, time);
	sender_covered(pub, r->EndRecPtr);

	/* Core drops what it has, whatever we say. */
	return unwanted;
}

/*
 * PREPARE TRANSACTION; core asks only with two-phase decoding.  For the client
 * the transaction is complete.
 */
static bool
filter_prepare(Publisher *pub, XLogReaderState *r, bool unwanted)
{
	xl_xact_parsed_prepare parsed;
	TransactionId xid;
	TimestampTz time;
	PubTxn	   *txn;
	ReorderBufferTXN *top;

	ParsePrepareRecord(XLogRecGetInfo(r), (xl_xact_prepare *) XLogRecGetData(r), &parsed);
	xid = parsed.twophase_xid;
	time = parsed.origin_timestamp != 0 ?
			   parsed.origin_timestamp :
			   parsed.xact_time;

	/* As at a commit. */
	if (unwanted)
	{
		txn_abort(pub, xid, r->EndRecPtr, time);
		sender_covered(pub, r->EndRecPtr);
		return true;
	}

	top = txn_core_top(pub, xid);
	if (lacks_changes(top))
	{
		txn_abort(pub, xid, r->EndRecPtr, time);
		return false;
	}

	/* Any other is told, if only by its name: its end will be, too. */
	txn = txn_get(pub, xid);
	txn_raise_errors(pub, txn);

	if (!txn->queued && core_has_changes(top))
		txn_queue(pub, txn, r->ReadRecPtr, QUEUE_OTHER);
	if (txn->queued)
		return false;			/* goes on in replay.c */

	sender_prepare(pub, xid, r->ReadRecPtr, r->EndRecPtr, time, parsed.twophase_gid);
	pub->ctx->reorder->totalTxns++;
	pub->ctx->reorder->totalBytes += txn->bytes;
	report_commit(pub, r, xid, false);
	txn_end(pub, txn);

	return true;
}

static bool
filter_xact(Publisher *pub, XLogReaderState *r, bool unwanted)
{
	switch (XLogRecGetInfo(r) & XLOG_XACT_OPMASK)
	{
		case XLOG_XACT_COMMIT:
		case XLOG_XACT_COMMIT_PREPARED:
			return filter_commit(pub, r, unwanted);

		case XLOG_XACT_ABORT:
		case XLOG_XACT_ABORT_PREPARED:
			return filter_abort(pub, r, unwanted);

		case XLOG_XACT_PREPARE:
			return filter_prepare(pub, r, unwanted);
	}

	return unwanted;
}

/*
 * pg_logical_emit_message.  Core asks before it has looked at its own state,
 * so that is done here.
 */
static bool
filter_message(Publisher *pub, XLogReaderState *r)
{
	SnapBuild  *builder = pub->ctx->snapshot_builder;
	xl_logical_message *xlrec = (xl_logical_message *) XLogRecGetData(r);
	PubTxn	   *txn = NULL;
	StringInfo	out;

	if (!pub->opts.messages)
		return true;

	if (xlrec->transactional)
	{
		TransactionId xid = XLogRecGetXid(r);

		if (must_queue(pub, r, &txn))
			return false;
		/* The transaction's base snapshot, which core would make now. */
		if (!SnapBuildProcessChange(builder, xid, r->ReadRecPtr))
			return true;
		if (xid != txn->xid)
			txn_note_sub(pub, txn, xid);
		sender_make_room(pub, xlrec->prefix_size + xlrec->message_size);
		sender_name_subxact(pub, txn, xid);
	}
	else
	{
		if (SnapBuildCurrentState(builder) != SNAPBUILD_CONSISTENT ||
			SnapBuildXactNeedsSkip(builder, r->ReadRecPtr))
			return true;
		sender_make_room(pub, xlrec->prefix_size + xlrec->message_size);
	}

	out = sender_begin(pub, txn != NULL ? txn->xid : InvalidTransactionId,
					   FSTREAM_MESSAGE);
	pq_sendint8(out, txn != NULL ? 1 : 0);	/* flags: transactional */
	pq_sendint64(out, r->EndRecPtr);
	pq_sendstring(out, xlrec->message);
	pq_sendint32(out, xlrec->message_size);
	pq_sendbytes(out, xlrec->message + xlrec->prefix_size, xlrec->message_size);
	sender_end(pub, txn);
	sender_covered(pub, r->EndRecPtr);

	return true;
}
