/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  The contents of a batch: plans, ready frames and rows, and what formats
 *	  them.
 *
 * Written by the walsender into shared memory, read by the decoder that has
 * claimed the batch, or by the walsender itself.  Both use a Formatter, which
 * keeps the plans it has met.
 *
 * I1.	A batch is complete in itself: each plan that one of its rows needs
 *		stands in front of that row.  So it does not matter which process
 *		formats it, or how often.
 * I2.	A plan in a batch is an immutable version: what changes a relation makes
 *		a plan with another number.
 * I3.	Formatting an item reads no catalog: functions are built-in ones, and
 *		what array functions look up about elements is part of the plan.
 * I4.	The frame that comes out of a row is the one that reader.c would have
 *		made: both call row_write_change.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/tupdesc_details.h"
#include "catalog/pg_type_d.h"
#include "decoder.h"
#include "fstream.h"
#include "utils/array.h"
#include "utils/datum.h"
#include "utils/memutils.h"

/* More versions than this are dropped together; DDL makes them slowly. */
#define MAX_VERSIONS 1000

/* In a plan's blob, one after the other. */
typedef struct BlobHead
{
	Oid			relid;
	int32		natts;
	int32		ncols;
	int32		namelen;		/* with its zero byte */
	char		oldkind;
	bool		has_missing;
} BlobHead;

typedef struct BlobAtt
{
	int16		attlen;
	bool		attbyval;
	char		attalign;
	bool		missing;		/* a value for it follows */
} BlobAtt;

typedef struct BlobCol
{
	int16		att;
	bool		varlena;
	ColumnFormat format;
	Oid			func;			/* COL_OUTPUT, COL_SEND, and arrays */
	Oid			native;			/* COL_NATIVE: the type */
	bool		native_lz4;
	bool		is_array;
	ArrayMetaState elements;	/* without proc */
} BlobCol;

typedef struct FormatterPlan
{
	uint64		version;		/* hash key */
	RelPlan		plan;
} FormatterPlan;

struct Formatter
{
	MemoryContext cxt;			/* of the plans */
	MemoryContext parent;
	HTAB	   *plans;
	FormatterPlan *last;
};

static uint64 last_version = 0;

/*
 * Make the blob of a plan that decoders can format.
 */
void
plan_make_blob(RelPlan *plan)
{
	MemoryContext old = MemoryContextSwitchTo(plan->cxt);
	TupleConstr *constr = plan->desc->constr;
	StringInfoData buf;
	BlobHead	head = {0};
	int			i;

	head.relid = plan->relid;
	head.natts = plan->desc->natts;
	head.ncols = plan->ncols;
	head.namelen = strlen(plan->name) + 1;
	head.oldkind = plan->oldkind;
	head.has_missing = constr != NULL && constr->missing != NULL;

	initStringInfo(&buf);
	appendBinaryStringInfo(&buf, (char *) &head, sizeof(head));

	for (i = 0; i < head.natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(plan->desc, i);
		BlobAtt		ba = {0};

		ba.attlen = att->attlen;
		ba.attbyval = att->attbyval;
		ba.attalign = att->attalign;
		ba.missing = head.has_missing && att->atthasmissing &&
					 constr->missing[i].am_present;
		appendBinaryStringInfo(&buf, (char *) &ba, sizeof(ba));
	}

	for (i = 0; i < head.ncols; i++)
	{
		PlanColumn *col = &plan->cols[i];
		BlobCol		bc = {0};

		bc.att = col->att;
		bc.varlena = col->varlena;
		bc.format = col->format;
		bc.func = col->finfo.fn_oid;
		if (col->format == COL_NATIVE)
		{
			bc.native = col->native->typid;
			bc.native_lz4 = col->native_lz4;
		}
		bc.is_array = col->elements != NULL;
		if (bc.is_array)
			bc.elements = *col->elements;
		appendBinaryStringInfo(&buf, (char *) &bc, sizeof(bc));
	}

	appendBinaryStringInfo(&buf, plan->name, head.namelen);

	for (i = 0; i < head.natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(plan->desc, i);
		AttrMissing *missing;
		uint32		len;

		if (!head.has_missing || !att->atthasmissing || !constr->missing[i].am_present)
			continue;
		missing = &constr->missing[i];
		if (att->attbyval)
		{
			len = sizeof(Datum);
			appendBinaryStringInfo(&buf, (char *) &len, sizeof(len));
			appendBinaryStringInfo(&buf, (char *) &missing->am_value, len);
		}
		else
		{
			len = datumGetSize(missing->am_value, false, att->attlen);
			appendBinaryStringInfo(&buf, (char *) &len, sizeof(len));
			appendBinaryStringInfo(&buf, DatumGetPointer(missing->am_value), len);
		}
	}

	plan->blob = buf.data;
	plan->blob_len = buf.len;
	plan->version = ++last_version;
	plan->in_batch = 0;
	MemoryContextSwitchTo(old);
}

static inline void
take(const char **p, void *dst, Size len)
{
	memcpy(dst, *p, len);
	*p += len;
}

/*
 * Make a plan from its blob, in the current memory context.
 */
static void
read_blob(RelPlan *plan, const char *p)
{
	BlobHead	head;
	bool	   *missing;
	int			i;

	memset(plan, 0, sizeof(RelPlan));
	take(&p, &head, sizeof(head));
	plan->cxt = CurrentMemoryContext;
	plan->kind = PLAN_STREAM;
	plan->relid = head.relid;
	plan->oldkind = head.oldkind;
	plan->ncols = head.ncols;
	plan->desc = CreateTemplateTupleDesc(head.natts);
	plan->values = palloc(head.natts * sizeof(Datum));
	plan->nulls = palloc(head.natts * sizeof(bool));
	plan->cols = palloc0(head.natts * sizeof(PlanColumn));
	missing = palloc0(head.natts * sizeof(bool));

	for (i = 0; i < head.natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(plan->desc, i);
		BlobAtt		ba;

		take(&p, &ba, sizeof(ba));
		memset(att, 0, ATTRIBUTE_FIXED_PART_SIZE);
		att->attnum = i + 1;
		att->attlen = ba.attlen;
		att->attbyval = ba.attbyval;
		att->attalign = ba.attalign;
		att->attstorage = TYPSTORAGE_PLAIN;
		att->atthasmissing = missing[i] = ba.missing;
		compat_init_attribute(plan->desc, i);
	}

	for (i = 0; i < head.ncols; i++)
	{
		PlanColumn *col = &plan->cols[i];
		BlobCol		bc;

		take(&p, &bc, sizeof(bc));
		col->att = bc.att;
		col->varlena = bc.varlena;
		col->format = bc.format;
		if (bc.format == COL_NATIVE)
		{
			col->native = native_type(bc.native);
			col->native_lz4 = bc.native_lz4;
		}
		/* arrays have a function in each format, native ones to fall back on */
		if (bc.format != COL_OUTPUT && bc.format != COL_SEND && !bc.is_array)
			continue;

		fmgr_info_cxt(bc.func, &col->finfo, CurrentMemoryContext);
		if (bc.is_array)
		{
			ArrayMetaState *elements = palloc(sizeof(ArrayMetaState));

			*elements = bc.elements;
			fmgr_info_cxt(elements->typiofunc, &elements->proc, CurrentMemoryContext);
			col->finfo.fn_extra = elements;
		}
	}

	plan->name = pstrdup(p);
	p += head.namelen;

	if (head.has_missing)
	{
		TupleConstr *constr = palloc0(sizeof(TupleConstr));

		constr->missing = palloc0(head.natts * sizeof(AttrMissing));
		for (i = 0; i < head.natts; i++)
		{
			uint32		len;

			if (!missing[i])
				continue;
			take(&p, &len, sizeof(len));
			constr->missing[i].am_present = true;
			if (TupleDescAttr(plan->desc, i)->attbyval)
				take(&p, &constr->missing[i].am_value, len);
			else
			{
				char	   *value = palloc(len);

				take(&p, value, len);
				constr->missing[i].am_value = PointerGetDatum(value);
			}
		}
		plan->desc->constr = constr;
	}
}

static void
formatter_reset(Formatter *fmt)
{
	HASHCTL		ctl = {0};

	if (fmt->cxt != NULL)
		MemoryContextDelete(fmt->cxt);
	fmt->cxt = AllocSetContextCreate(fmt->parent, "pgparrep formatter",
									 ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(FormatterPlan);
	ctl.hcxt = fmt->cxt;
	fmt->plans = hash_create("pgparrep plan versions", 64, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	fmt->last = NULL;
}

Formatter *
formatter_create(MemoryContext parent)
{
	Formatter  *fmt = MemoryContextAllocZero(parent, sizeof(Formatter));

	fmt->parent = parent;
	formatter_reset(fmt);

	return fmt;
}

/*
 * Take in a plan, if it is a new one.
 */
void
formatter_plan(Formatter *fmt, BatchItem *item)
{
	FormatterPlan *entry;
	MemoryContext old;
	RelPlan		plan;

	if (hash_search(fmt->plans, &item->plan_version, HASH_FIND, NULL) != NULL)
		return;

	/* Its batch needs what stands behind it only: I1. */
	if (hash_get_num_entries(fmt->plans) >= MAX_VERSIONS)
		formatter_reset(fmt);

	/* An entry is made last, so that an error leaves none that is half done. */
	old = MemoryContextSwitchTo(fmt->cxt);
	read_blob(&plan, (char *) item + BATCH_ITEM_SIZE);
	MemoryContextSwitchTo(old);
	entry = (FormatterPlan *) hash_search(fmt->plans, &item->plan_version, HASH_ENTER, NULL);
	entry->plan = plan;
}

RelPlan *
formatter_find(Formatter *fmt, uint64 version)
{
	if (fmt->last == NULL || fmt->last->version != version)
	{
		fmt->last = (FormatterPlan *) hash_search(fmt->plans, &version, HASH_FIND, NULL);
		if (fmt->last == NULL)
			elog(ERROR, "batch has a row without its relation plan");
	}

	return &fmt->last->plan;
}

/*
 * Find the value of a pointer behind a row; see held_copy_values.
 */
static struct varlena *
item_value(void *arg, struct varlena *pointer)
{
	BatchItem  *item = (BatchItem *) arg;
	struct varatt_external toast_pointer;
	char	   *p;
	int			i;

	VARATT_EXTERNAL_GET_POINTER(toast_pointer, pointer);

	p = (char *) item + BATCH_ITEM_SIZE + MAXALIGN(item->newlen) + MAXALIGN(item->oldlen);
	for (i = 0; i < item->nvalues; i++)
	{
		uint32		head[2];
		struct varlena *value;

		memcpy(head, p, HELD_VALUE_HEADER);
		value = (struct varlena *) (p + HELD_VALUE_HEADER);
		p += MAXALIGN(HELD_VALUE_HEADER + VARHDRSZ + head[1]);
		if (head[0] != toast_pointer.va_valueid)
			continue;

		if (head[1] != VARATT_EXTERNAL_GET_EXTSIZE(toast_pointer))
			elog(ERROR, "got %zu bytes of toast value %u instead of %zu",
				 (Size) head[1], head[0],
				 (Size) VARATT_EXTERNAL_GET_EXTSIZE(toast_pointer));
		if (VARATT_EXTERNAL_IS_COMPRESSED(toast_pointer))
			SET_VARSIZE_COMPRESSED(value, head[1] + VARHDRSZ);
		else
			SET_VARSIZE(value, head[1] + VARHDRSZ);
		return value;
	}

	return NULL;
}

static inline void
set_tuple(HeapTuple tup, char *data, uint32 len)
{
	tup->t_len = len;
	ItemPointerSetInvalid(&tup->t_self);
	tup->t_tableOid = InvalidOid;
	tup->t_data = (HeapTupleHeader) data;
}

/*
 * Append the frame of a row.  Leaves garbage in the current memory context.
 */
RelPlan *
formatter_row(Formatter *fmt, BatchItem *item, StringInfo out)
{
	RelPlan    *plan = formatter_find(fmt, item->plan_version);
	HeapTupleData newtup;
	HeapTupleData oldtup;
	char	   *p = (char *) item + BATCH_ITEM_SIZE;
	int			frame;

	if (item->newlen > 0)
		set_tuple(&newtup, p, item->newlen);
	if (item->oldlen > 0)
		set_tuple(&oldtup, p + MAXALIGN(item->newlen), item->oldlen);

	frame = fstream_begin(out, item->topxid, item->type);
	row_write_change(out, plan,
					 item->newlen > 0 ? &newtup : NULL,
					 item->oldlen > 0 ? &oldtup : NULL,
					 item->nvalues > 0 ? item_value : NULL, item);
	fstream_end(out, frame);

	return plan;
}

Size
batch_plan_size(RelPlan *plan)
{
	return BATCH_ITEM_SIZE + MAXALIGN(plan->blob_len);
}

void
batch_put_plan(char *dst, RelPlan *plan)
{
	BatchItem  *item = (BatchItem *) dst;

	item->kind = ITEM_PLAN;
	item->size = batch_plan_size(plan);
	item->len = plan->blob_len;
	item->plan_version = plan->version;
	memcpy(dst + BATCH_ITEM_SIZE, plan->blob, plan->blob_len);
}

Size
batch_frames_size(Size len)
{
	return BATCH_ITEM_SIZE + MAXALIGN(len);
}

void
batch_put_frames(char *dst, const char *data, Size len)
{
	BatchItem  *item = (BatchItem *) dst;

	item->kind = ITEM_FRAMES;
	item->size = batch_frames_size(len);
	item->len = len;
	memcpy(dst + BATCH_ITEM_SIZE, data, len);
}

Size
batch_row_size(HeapTuple newtup, HeapTuple oldtup, Held *held)
{
	int			nvalues;

	return BATCH_ITEM_SIZE +
		   (newtup != NULL ? MAXALIGN(newtup->t_len) : 0) +
		   (oldtup != NULL ? MAXALIGN(oldtup->t_len) : 0) +
		   (newtup != NULL ? held_values_size(held, &nvalues) : 0);
}

void
batch_put_row(char *dst, RelPlan *plan, TransactionId topxid, TransactionId xid,
			  XLogRecPtr lsn, char type, HeapTuple newtup, HeapTuple oldtup,
			  Held *held)
{
	BatchItem  *item = (BatchItem *) dst;
	int			nvalues = 0;

	item->kind = ITEM_ROW;
	item->size = batch_row_size(newtup, oldtup, held);
	item->len = item->size - BATCH_ITEM_SIZE;
	item->plan_version = plan->version;
	item->type = type;
	item->topxid = topxid;
	item->xid = xid;
	item->lsn = lsn;
	item->newlen = newtup != NULL ? newtup->t_len : 0;
	item->oldlen = oldtup != NULL ? oldtup->t_len : 0;
	dst += BATCH_ITEM_SIZE;

	if (newtup != NULL)
		memcpy(dst, newtup->t_data, newtup->t_len);
	dst += MAXALIGN(item->newlen);
	if (oldtup != NULL)
		memcpy(dst, oldtup->t_data, oldtup->t_len);
	dst += MAXALIGN(item->oldlen);
	if (newtup != NULL)
	{
		(void) held_values_size(held, &nvalues);
		held_copy_values(held, dst);
	}
	item->nvalues = nvalues;
}
