/*-------------------------------------------------------------------------
 *
 * held.c
 *	  Changes that wait for a later record: TOAST chunks and speculative
 *	  insertions.
 *
 * The chunks of a row's out-of-line values are in the WAL before the row, and
 * INSERT .. ON CONFLICT writes a row before it knows whether it may stay.  Both
 * are kept per transaction in a memory context that the next row empties.
 *
 * I1.	Everything held belongs to the row of its transaction that comes next
 *		(to several rows after a multi-insert), so one reset frees all of it.
 * I2.	What is held can be handed back to core at any record, as the changes
 *		that core's own decoding would have queued.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam_xlog.h"
#include "access/htup_details.h"
#include "access/toast_internals.h"
#include "publisher.h"
#include "utils/memutils.h"

#define VALUE_BUCKETS 64		/* most rows have one or two values */

typedef struct HeldChange
{
	struct HeldChange *next;	/* in arrival order */
	struct HeldChange *next_in_value;
	TransactionId xid;			/* of the record */
	CompatFileNode node;
	RepOriginId origin;
	HeapTuple	tup;
	char	   *data;			/* a chunk's bytes, within tup */
	int			len;
} HeldChange;

/* An out-of-line value of which chunks have come. */
typedef struct HeldValue
{
	struct HeldValue *next;		/* of the bucket */
	Oid			id;
	int32		last_seq;
	Size		size;
	HeldChange *first;
	HeldChange *last;
} HeldValue;

struct Held
{
	Publisher  *pub;
	MemoryContext cxt;			/* of all below; reset with each row */
	bool		empty;
	HeldChange *first;			/* chunks */
	HeldChange *last;
	HeldChange *speculative;
	HeldValue **buckets;
	Size		size;
};

/*
 * Make a tuple with datalen bytes behind the fixed header, to be filled in by the
 * caller: in room, if it fits there, else in the current memory context.
 */
HeapTuple
tuple_make(PGAlignedBlock *room, Size datalen)
{
	Size		size = HEAPTUPLESIZE + SizeofHeapTupleHeader + datalen;
	HeapTuple	tup;

	if (room != NULL && size <= sizeof(PGAlignedBlock))
		tup = (HeapTuple) room->data;
	else
		tup = (HeapTuple) palloc(size);
	tup->t_len = datalen + SizeofHeapTupleHeader;
	ItemPointerSetInvalid(&tup->t_self);
	tup->t_tableOid = InvalidOid;
	tup->t_data = (HeapTupleHeader) ((char *) tup + HEAPTUPLESIZE);
	memset(tup->t_data, 0, SizeofHeapTupleHeader);

	return tup;
}

/*
 * Make a tuple from what heap_insert, heap_update and heap_delete log: a short
 * header and the rest, not aligned.
 */
HeapTuple
tuple_from_wal(PGAlignedBlock *room, const char *data, Size len)
{
	xl_heap_header xlhdr;
	HeapTuple	tup;

	Assert(len >= SizeOfHeapHeader);

	memcpy(&xlhdr, data, SizeOfHeapHeader);
	len -= SizeOfHeapHeader;

	tup = tuple_make(room, len);
	memcpy((char *) tup->t_data + SizeofHeapTupleHeader, data + SizeOfHeapHeader, len);
	tup->t_data->t_infomask = xlhdr.t_infomask;
	tup->t_data->t_infomask2 = xlhdr.t_infomask2;
	tup->t_data->t_hoff = xlhdr.t_hoff;

	return tup;
}

static Held *
held_get(Publisher *pub, PubTxn *txn)
{
	Held	   *held = txn->held;

	if (held == NULL)
	{
		held = MemoryContextAllocZero(pub->cxt, sizeof(Held));
		held->cxt = AllocSetContextCreate(pub->cxt, "pgparrep held changes",
										  ALLOCSET_DEFAULT_SIZES);
		held->pub = pub;
		held->empty = true;
		txn->held = held;
	}

	return held;
}

static HeldChange *
hold(Publisher *pub, PubTxn *txn, TransactionId xid, CompatFileNode node,
	 RepOriginId origin, const char *data, Size len)
{
	Held	   *held = held_get(pub, txn);
	MemoryContext old = MemoryContextSwitchTo(held->cxt);
	HeldChange *change;

	change = palloc0(sizeof(HeldChange));
	change->xid = xid;
	change->node = node;
	change->origin = origin;
	change->tup = tuple_from_wal(NULL, data, len);
	MemoryContextSwitchTo(old);

	held->empty = false;
	len += sizeof(HeldChange) + HEAPTUPLESIZE;
	held->size += len;
	pub->held_total += len;

	return change;
}

/*
 * A row of a TOAST table: (chunk_id oid, chunk_seq int4, chunk_data bytea).
 *
 * Returns false if it does not look as it should.  It is held all the same, so
 * that it can be handed back: core judges, and only if the transaction commits.
 */
bool
held_add_chunk(Publisher *pub, PubTxn *txn, TransactionId xid,
			   CompatFileNode node, RepOriginId origin,
			   const char *data, Size len)
{
	HeldChange *change = hold(pub, txn, xid, node, origin, data, len);
	Held	   *held = txn->held;
	HeldValue  *value;
	HeldValue **bucket;
	char	   *p;
	char	   *end;
	Oid			id;
	int32		seq;

	if (held->first == NULL)
		held->first = change;
	else
		held->last->next = change;
	held->last = change;

	p = (char *) change->tup->t_data + change->tup->t_data->t_hoff;
	end = (char *) change->tup->t_data + change->tup->t_len;
	if (change->tup->t_data->t_hoff < SizeofHeapTupleHeader ||
		end - p < (int) (sizeof(Oid) + sizeof(int32) + 1) ||
		(change->tup->t_data->t_infomask & HEAP_HASNULL) != 0)
		return false;
	memcpy(&id, p, sizeof(Oid));
	memcpy(&seq, p + sizeof(Oid), sizeof(int32));
	p += sizeof(Oid) + sizeof(int32);

	if (VARATT_IS_SHORT(p))
	{
		change->data = VARDATA_SHORT(p);
		change->len = VARSIZE_SHORT(p) - VARHDRSZ_SHORT;
	}
	else if (!VARATT_IS_EXTENDED(p))
	{
		change->data = VARDATA(p);
		change->len = VARSIZE(p) - VARHDRSZ;
	}
	else
		return false;
	if (change->len < 0 || change->len > end - change->data)
		return false;

	if (held->buckets == NULL)
		held->buckets = MemoryContextAllocZero(held->cxt,
											   VALUE_BUCKETS * sizeof(HeldValue *));
	bucket = &held->buckets[id % VALUE_BUCKETS];
	for (value = *bucket; value != NULL; value = value->next)
	{
		if (value->id == id)
			break;
	}
	if (value == NULL)
	{
		value = MemoryContextAllocZero(held->cxt, sizeof(HeldValue));
		value->id = id;
		value->last_seq = -1;
		value->next = *bucket;
		*bucket = value;
	}

	if (seq != value->last_seq + 1)
		return false;

	value->last_seq = seq;
	value->size += change->len;
	if (value->first == NULL)
		value->first = change;
	else
		value->last->next_in_value = change;
	value->last = change;

	return true;
}

/*
 * A row that only counts once it is confirmed.  One that is still there was
 * not and is dropped.
 */
void
held_set_speculative(Publisher *pub, PubTxn *txn, TransactionId xid,
					 CompatFileNode node, RepOriginId origin,
					 const char *data, Size len)
{
	HeldChange *change = hold(pub, txn, xid, node, origin, data, len);

	txn->held->speculative = change;
}

HeapTuple
held_speculative(PubTxn *txn)
{
	if (txn->held == NULL || txn->held->speculative == NULL)
		return NULL;

	return txn->held->speculative->tup;
}

/*
 * The value that an on-disk TOAST pointer stands for, put together in the
 * current memory context, or NULL if its chunks have not come: then the value
 * is one that the change left as it was.
 */
struct varlena *
held_value(void *arg, struct varlena *pointer)
{
	Held	   *held = (Held *) arg;
	struct varatt_external toast_pointer;
	HeldValue  *value;
	HeldChange *chunk;
	struct varlena *result;
	char	   *p;

	if (held == NULL || held->buckets == NULL)
		return NULL;

	VARATT_EXTERNAL_GET_POINTER(toast_pointer, pointer);

	for (value = held->buckets[toast_pointer.va_valueid % VALUE_BUCKETS];
		 value != NULL;
		 value = value->next)
	{
		if (value->id == toast_pointer.va_valueid)
			break;
	}
	if (value == NULL)
		return NULL;

	if (value->size != VARATT_EXTERNAL_GET_EXTSIZE(toast_pointer))
		elog(ERROR, "got %zu bytes of toast value %u instead of %zu",
			 value->size, value->id,
			 (Size) VARATT_EXTERNAL_GET_EXTSIZE(toast_pointer));

	result = palloc(value->size + VARHDRSZ);
	p = VARDATA(result);
	for (chunk = value->first; chunk != NULL; chunk = chunk->next_in_value)
	{
		memcpy(p, chunk->data, chunk->len);
		p += chunk->len;
	}

	if (VARATT_EXTERNAL_IS_COMPRESSED(toast_pointer))
		SET_VARSIZE_COMPRESSED(result, value->size + VARHDRSZ);
	else
		SET_VARSIZE(result, value->size + VARHDRSZ);

	return result;
}

/*
 * What held_copy_values needs.
 */
Size
held_values_size(Held *held, int *nvalues)
{
	Size		size = 0;
	HeldValue  *value;
	int			i;

	*nvalues = 0;
	if (held == NULL || held->buckets == NULL)
		return 0;

	for (i = 0; i < VALUE_BUCKETS; i++)
	{
		for (value = held->buckets[i]; value != NULL; value = value->next)
		{
			size += MAXALIGN(HELD_VALUE_HEADER + VARHDRSZ + value->size);
			(*nvalues)++;
		}
	}

	return size;
}

/*
 * Copy all values: for each its id and size, then the bytes behind room for a
 * varlena header.
 */
void
held_copy_values(Held *held, char *dst)
{
	HeldValue  *value;
	HeldChange *chunk;
	int			i;

	if (held == NULL || held->buckets == NULL)
		return;

	for (i = 0; i < VALUE_BUCKETS; i++)
	{
		for (value = held->buckets[i]; value != NULL; value = value->next)
		{
			uint32		head[2] = {value->id, (uint32) value->size};
			char	   *p = dst + HELD_VALUE_HEADER + VARHDRSZ;

			memcpy(dst, head, HELD_VALUE_HEADER);
			for (chunk = value->first; chunk != NULL; chunk = chunk->next_in_value)
			{
				memcpy(p, chunk->data, chunk->len);
				p += chunk->len;
			}
			dst += MAXALIGN(HELD_VALUE_HEADER + VARHDRSZ + value->size);
		}
	}
}

Size
held_size(PubTxn *txn)
{
	return txn->held != NULL ? txn->held->size : 0;
}

/*
 * The row is done.
 */
void
held_clear(PubTxn *txn)
{
	Held	   *held = txn->held;

	if (held == NULL || held->empty)
		return;

	MemoryContextReset(held->cxt);
	held->empty = true;
	held->first = held->last = held->speculative = NULL;
	held->buckets = NULL;
	held->pub->held_total -= held->size;
	held->size = 0;
}

/*
 * The (sub)transaction xid is rolled back.  A row is never in the making in
 * two subtransactions at once, so one owner speaks for all.
 */
void
held_forget_xid(PubTxn *txn, TransactionId xid)
{
	Held	   *held = txn->held;

	if (held == NULL || held->empty)
		return;
	if ((held->last != NULL && held->last->xid == xid) ||
		(held->speculative != NULL && held->speculative->xid == xid))
		held_clear(txn);
}

static void
hand_back(Publisher *pub, HeldChange *held, XLogRecPtr lsn,
		  ReorderBufferChangeType action, bool toast)
{
	ReorderBuffer *rb = pub->ctx->reorder;
	ReorderBufferChange *change = compat_alloc_change(rb);
	HeapTuple	tup;

	change->action = action;
	change->origin_id = held->origin;
	compat_change_node(change) = held->node;
	change->data.tp.clear_toast_afterwards = true;
	change->data.tp.newtuple =
		compat_alloc_tuple(rb, held->tup->t_len - SizeofHeapTupleHeader);

	tup = compat_change_tuple(change->data.tp.newtuple);
	tup->t_len = held->tup->t_len;
	ItemPointerSetInvalid(&tup->t_self);
	tup->t_tableOid = InvalidOid;
	memcpy(tup->t_data, held->tup->t_data, held->tup->t_len);

	ReorderBufferQueueChange(rb, held->xid, lsn, change, toast);
}

/*
 * Give everything to core's reorder buffer.  (I2)
 *
 * With the position of the present record, not their own: core may have queued
 * snapshots for the transaction meanwhile, and positions must not go down.
 */
void
held_hand_back(Publisher *pub, PubTxn *txn, XLogRecPtr lsn)
{
	Held	   *held = txn->held;
	HeldChange *change;

	if (held == NULL || held->empty)
		return;

	for (change = held->first; change != NULL; change = change->next)
		hand_back(pub, change, lsn, REORDER_BUFFER_CHANGE_INSERT, true);
	if (held->speculative != NULL)
		hand_back(pub, held->speculative, lsn,
				  REORDER_BUFFER_CHANGE_INTERNAL_SPEC_INSERT, false);

	held_clear(txn);
}

void
held_free(PubTxn *txn)
{
	if (txn->held == NULL)
		return;

	held_clear(txn);
	MemoryContextDelete(txn->held->cxt);
	pfree(txn->held);
	txn->held = NULL;
}
