/*-------------------------------------------------------------------------
 *
 * tuple.c
 *	  Reading tuples from messages and turning them into rows.
 *
 * A message is read where it lies.  Only after all of it has been read are
 * its values terminated by a zero byte, since that byte is the first one of
 * the column after.
 *
 * Invariants:
 *
 * I1. Nothing outside the message is read or written, whatever it says.
 * I2. Conversion does not change the message: a change can be converted
 *	   again after a concurrent change of the local row.  Datums may lie in
 *	   it.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "executor/executor.h"
#include "lib/stringinfo.h"
#include "port/pg_bswap.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "fstream.h"
#include "nativedatum.h"

/* A position in a message. */
typedef struct Reader
{
	char	   *pos;
	char	   *end;
} Reader;

static void bad_message(const char *detail);
static void read_tuple(Reader *r, RemoteRel *remote, RemoteTuple *tuple);
static Datum convert_text(RelMap *map, MappedColumn *col, RemoteColumn *value);
static Datum convert_native(RelMap *map, MappedColumn *col, RemoteColumn *value);
static Datum convert_binary(RelMap *map, MappedColumn *col,
							RemoteColumn *value);

static void
bad_message(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("invalid message from the publisher"),
			 errdetail_internal("%s", detail)));
}

static inline void
need(Reader *r, int n)
{
	if (unlikely(r->end - r->pos < n))
		bad_message("The message ends too early.");
}

static inline char
read_byte(Reader *r)
{
	need(r, 1);
	return *r->pos++;
}

static inline uint32
read_int32(Reader *r)
{
	uint32		n;

	need(r, 4);
	memcpy(&n, r->pos, 4);
	r->pos += 4;
	return pg_ntoh32(n);
}

static inline uint16
read_int16(Reader *r)
{
	uint16		n;

	need(r, 2);
	memcpy(&n, r->pos, 2);
	r->pos += 2;
	return pg_ntoh16(n);
}

static void
read_tuple(Reader *r, RemoteRel *remote, RemoteTuple *tuple)
{
	int			natts = read_int16(r);

	if (unlikely(natts != remote->rel->natts))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid message from the publisher"),
				 errdetail("A row has %d columns, its relation %d.",
						   natts, remote->rel->natts)));

	tuple->has_unchanged = false;

	for (int i = 0; i < natts; i++)
	{
		RemoteColumn *col = &tuple->cols[i];

		col->kind = read_byte(r);
		switch (col->kind)
		{
			case LOGICALREP_COLUMN_NULL:
				break;

			case LOGICALREP_COLUMN_UNCHANGED:
				tuple->has_unchanged = true;
				break;

			case LOGICALREP_COLUMN_TEXT:
			case LOGICALREP_COLUMN_BINARY:
			case FSTREAM_COL_NATIVE:
				{
					uint32		len = read_int32(r);

					if (unlikely(len > (size_t) (r->end - r->pos)))
						bad_message("A value is longer than the message.");
					col->len = len;
					col->data = r->pos;
					r->pos += len;
					break;
				}

			default:
				ereport(ERROR,
						(errcode(ERRCODE_PROTOCOL_VIOLATION),
						 errmsg("invalid message from the publisher"),
						 errdetail("Column kind %d is unknown.", col->kind)));
		}
	}
}

static inline void
terminate_values(RemoteRel *remote, RemoteTuple *tuple)
{
	for (int i = 0; i < remote->rel->natts; i++)
	{
		RemoteColumn *col = &tuple->cols[i];

		if (col->kind == LOGICALREP_COLUMN_TEXT ||
			col->kind == LOGICALREP_COLUMN_BINARY)
			col->data[col->len] = '\0';
	}
}

/*
 * Reads an insert, update or delete into remote->newtup and oldtup.
 */
void
tuple_parse(RemoteRel *remote, char type, char *body, int len, bool *has_old)
{
	Reader		r = {body, body + len};
	Oid			remoteid = read_int32(&r);
	char		part = read_byte(&r);
	bool		has_new = false;

	*has_old = false;

	if (unlikely(remoteid != remote->rel->remoteid))
		bad_message("The message is for another relation than its description.");

	if (type != LOGICAL_REP_MSG_INSERT && (part == 'K' || part == 'O'))
	{
		read_tuple(&r, remote, &remote->oldtup);
		*has_old = true;
		if (type == LOGICAL_REP_MSG_UPDATE)
			part = read_byte(&r);
	}

	if (type == LOGICAL_REP_MSG_DELETE)
	{
		if (unlikely(!*has_old))
			bad_message("A delete has no old row.");
	}
	else
	{
		if (unlikely(part != 'N'))
			bad_message("An insert or update has no new row.");
		read_tuple(&r, remote, &remote->newtup);
		has_new = true;
	}

	if (unlikely(r.pos != r.end))
		bad_message("The message has bytes after its end.");

	if (*has_old)
		terminate_values(remote, &remote->oldtup);
	if (has_new)
		terminate_values(remote, &remote->newtup);
}

static Datum
convert_text(RelMap *map, MappedColumn *col, RemoteColumn *value)
{
	if (unlikely(!OidIsValid(col->in.fn_oid)))
	{
		Oid			typinput;

		getTypeInputInfo(col->typid, &typinput, &col->typioparam);
		fmgr_info_cxt(typinput, &col->in, map->cxt);
	}

	return InputFunctionCall(&col->in, value->data, col->typioparam,
							 col->typmod);
}

static Datum
convert_binary(RelMap *map, MappedColumn *col, RemoteColumn *value)
{
	StringInfoData buf;
	Datum		datum;

	if (unlikely(!OidIsValid(col->receive.fn_oid)))
	{
		Oid			typreceive;

		getTypeBinaryInputInfo(col->typid, &typreceive, &col->typioparam);
		fmgr_info_cxt(typreceive, &col->receive, map->cxt);
	}

	buf.data = value->data;
	buf.len = value->len;
	buf.maxlen = value->len + 1;
	buf.cursor = 0;

	datum = ReceiveFunctionCall(&col->receive, &buf, col->typioparam,
								col->typmod);

	if (buf.cursor != buf.len)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_BINARY_REPRESENTATION),
				 errmsg("incorrect binary data format in logical replication column %d",
						col->remote + 1)));

	return datum;
}

/*
 * As it is where the column is of the publisher's type, else by way of text.
 */
static Datum
convert_native(RelMap *map, MappedColumn *col, RemoteColumn *value)
{
	Datum		datum;
	RemoteColumn text;

	if (unlikely(col->native == NULL))
		bad_message("A value came in native form whose type has none.");

	native_check(col->native, value->data, value->len);
	datum = native_datum(col->native, value->data, value->len);
	if (likely(col->as_is))
		return datum;

	if (unlikely(!OidIsValid(col->out.fn_oid)))
		native_output_info(col->native, &col->out, map->cxt);
	text.kind = LOGICALREP_COLUMN_TEXT;
	text.data = native_text(&col->out, datum);
	text.len = strlen(text.data);

	return convert_text(map, col, &text);
}

/*
 * Fills slot with a tuple of a message.  What the message does not say is
 * NULL.
 */
void
tuple_store(RelMap *map, RemoteTuple *tuple, TupleTableSlot *slot)
{
	Assert(slot->tts_tupleDescriptor->natts == map->natts);

	ExecClearTuple(slot);
	memset(slot->tts_values, 0, sizeof(Datum) * map->natts);
	memset(slot->tts_isnull, true, sizeof(bool) * map->natts);

	for (int c = 0; c < map->ncols; c++)
	{
		MappedColumn *col = &map->cols[c];
		RemoteColumn *value = &tuple->cols[col->remote];

		if (value->kind == LOGICALREP_COLUMN_TEXT)
		{
			apply_set_column(col->remote);
			slot->tts_values[col->local] = convert_text(map, col, value);
			slot->tts_isnull[col->local] = false;
		}
		else if (value->kind == LOGICALREP_COLUMN_BINARY)
		{
			apply_set_column(col->remote);
			slot->tts_values[col->local] = convert_binary(map, col, value);
			slot->tts_isnull[col->local] = false;
		}
		else if (value->kind == FSTREAM_COL_NATIVE)
		{
			apply_set_column(col->remote);
			slot->tts_values[col->local] = convert_native(map, col, value);
			slot->tts_isnull[col->local] = false;
		}
	}
	apply_set_column(-1);

	ExecStoreVirtualTuple(slot);
}

/* Computes the columns of a new row that the publisher does not have. */
void
tuple_fill_defaults(Target *target, TupleTableSlot *slot)
{
	RelMap	   *map = target->map;
	ExprContext *econtext;

	if (map->ndefaults == 0)
		return;

	econtext = GetPerTupleExprContext(target->estate);

	if (target->defaults == NULL)
	{
		MemoryContext oldcxt = MemoryContextSwitchTo(target->estate->es_query_cxt);

		target->defaults = palloc(sizeof(ExprState *) * map->ndefaults);
		for (int d = 0; d < map->ndefaults; d++)
			target->defaults[d] = ExecInitExpr(map->defaults[d].expr, NULL);
		MemoryContextSwitchTo(oldcxt);
	}

	for (int d = 0; d < map->ndefaults; d++)
	{
		int			local = map->defaults[d].local;

		slot->tts_values[local] = ExecEvalExpr(target->defaults[d], econtext,
											   &slot->tts_isnull[local]);
	}
}

/*
 * Fills slot with the local row as the update leaves it: columns that were
 * sent come from remoteslot, which tuple_store has filled from tuple, all
 * others from localslot.  Values are shared with both.
 */
void
tuple_merge(RelMap *map, RemoteTuple *tuple, TupleTableSlot *remoteslot,
			TupleTableSlot *localslot, TupleTableSlot *slot)
{
	ExecClearTuple(slot);

	if (tuple->has_unchanged || map->ncols < map->natts)
	{
		slot_getallattrs(localslot);
		memcpy(slot->tts_values, localslot->tts_values,
			   sizeof(Datum) * map->natts);
		memcpy(slot->tts_isnull, localslot->tts_isnull,
			   sizeof(bool) * map->natts);
	}

	for (int c = 0; c < map->ncols; c++)
	{
		MappedColumn *col = &map->cols[c];

		if (tuple->cols[col->remote].kind != LOGICALREP_COLUMN_UNCHANGED)
		{
			slot->tts_values[col->local] = remoteslot->tts_values[col->local];
			slot->tts_isnull[col->local] = remoteslot->tts_isnull[col->local];
		}
	}

	ExecStoreVirtualTuple(slot);
}

/*
 * The columns that an update sets, for triggers on columns and for the hint
 * which indexes did not change.
 */
Bitmapset *
tuple_updated_columns(RelMap *map, RemoteTuple *tuple)
{
	Bitmapset  *updated = NULL;

	if (!tuple->has_unchanged)
		return map->all_updated;

	for (int c = 0; c < map->ncols; c++)
	{
		MappedColumn *col = &map->cols[c];

		if (tuple->cols[col->remote].kind != LOGICALREP_COLUMN_UNCHANGED)
			updated = bms_add_member(updated, col->local + 1 -
												  FirstLowInvalidHeapAttributeNumber);
	}

	return updated;
}
