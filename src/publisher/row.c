/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Formats tuples as pgoutput does, from a plan made beforehand.
 *
 * I1.	The bytes are those of the server's logicalrep_write_tuple for the same
 *		tuple, relation and session settings.  The formats other than COL_OUTPUT
 *		and COL_SEND short-cut an output function whose result they reproduce.
 *		COL_NATIVE is not of the server's; native.h has its rules.
 * I2.	No catalog is read unless row_needs_catalog said so beforehand.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/toast_internals.h"
#include "access/tupmacs.h"
#include "fmgr.h"
#include "fstream.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "publisher.h"
#include "utils/builtins.h"

/* kind, length and the digits of any integer */
#define MAX_INT_COLUMN (1 + 4 + MAXINT8LEN + 1)

/*
 * Must the next row be formatted with catalogs at hand?
 */
bool
row_needs_catalog(RelPlan *plan)
{
	if (plan->needs_catalog)
		return true;

	if (plan->cold)
	{
		int			i;

		/* Array output functions keep what they have looked up. */
		for (i = 0; i < plan->ncols; i++)
		{
			if (plan->cols[i].warms_up && plan->cols[i].finfo.fn_extra == NULL)
				return true;
		}
		plan->cold = false;
	}

	return false;
}

static inline char *
put_length(char *p, uint32 len)
{
	len = pg_hton32(len);
	memcpy(p, &len, sizeof(len));
	return p + sizeof(len);
}

/*
 * Append kind, length and bytes of a column.
 */
static void
append_column(StringInfo out, char kind, const char *data, Size len)
{
	char	   *p;

	enlargeStringInfo(out, 5 + (int) len);
	p = out->data + out->len;
	*p++ = kind;
	p = put_length(p, len);
	memcpy(p, data, len);
	out->len += 5 + (int) len;
}

/*
 * Append text, converted to what the client wants.
 */
static void
append_text(StringInfo out, const char *data, Size len)
{
	int			client = pg_get_client_encoding();

	/* The cases in which pg_server_to_client hands back its input unseen. */
	if (client != GetDatabaseEncoding() && client != PG_SQL_ASCII && len > 0)
	{
		char	   *converted = pg_server_to_client(data, (int) len);

		if (converted != data)
		{
			data = converted;
			len = strlen(converted);
		}
	}

	append_column(out, FSTREAM_COL_TEXT, data, len);
}

static void
append_int(StringInfo out, PlanColumn *col, Datum value)
{
	char	   *p;
	int			len;

	enlargeStringInfo(out, MAX_INT_COLUMN);
	p = out->data + out->len;
	*p = FSTREAM_COL_TEXT;
	switch (col->format)
	{
		case COL_INT2:
			len = pg_itoa(DatumGetInt16(value), p + 5);
			break;
		case COL_INT4:
			len = pg_ltoa(DatumGetInt32(value), p + 5);
			break;
		case COL_INT8:
			len = pg_lltoa(DatumGetInt64(value), p + 5);
			break;
		default:
			len = pg_ultoa_n(DatumGetObjectId(value), p + 5);
			break;
	}
	put_length(p + 1, len);
	out->len += 5 + len;
}

/*
 * Append a value as it is stored, unless the client could not read that: then
 * as it could be stored, or as text.
 */
static void
append_native(StringInfo out, PlanColumn *col, Datum value)
{
	const NativeType *type = col->native;
	NativeValue v;
	char	   *data;
	char	   *plain;

	if (type->byval)
	{
		union
		{
			Datum		align;
			char		bytes[sizeof(Datum)];
		} stored;

		store_att_byval(stored.bytes, value, type->len);
		append_column(out, FSTREAM_COL_NATIVE, stored.bytes, type->len);
		return;
	}

	data = DatumGetPointer(value);
	if (type->len > 0)
	{
		append_column(out, FSTREAM_COL_NATIVE, data, type->len);
		return;
	}

	plain = data;
	if (VARATT_IS_COMPRESSED(data))
	{
		bool		readable = col->native_lz4 ||
						TOAST_COMPRESS_METHOD(data) != TOAST_LZ4_COMPRESSION_ID;

		if (!readable || type->check == NATIVE_ARRAY)
			plain = (char *) PG_DETOAST_DATUM(value);
		if (!readable)
			data = plain;
	}

	/* Extensions may put arrays together in ways that the client rejects. */
	if (type->check == NATIVE_ARRAY &&
		(native_outer_fault(type, plain, VARSIZE_ANY(plain), &v) != NULL ||
		 native_content_fault(type, v.content, v.len, GetDatabaseEncoding()) != NULL))
	{
		char	   *text = OutputFunctionCall(&col->finfo, PointerGetDatum(plain));

		append_text(out, text, strlen(text));
		return;
	}

	append_column(out, FSTREAM_COL_NATIVE, data, VARSIZE_ANY(data));
}

static void
append_value(StringInfo out, PlanColumn *col, Datum value)
{
	switch (col->format)
	{
		case COL_BOOL:
			append_column(out, FSTREAM_COL_TEXT, DatumGetBool(value) ? "t" : "f", 1);
			break;

		case COL_INT2:
		case COL_INT4:
		case COL_INT8:
		case COL_OID:
			append_int(out, col, value);
			break;

		case COL_VARTEXT:
			{
				struct varlena *v = PG_DETOAST_DATUM_PACKED(value);

				append_text(out, VARDATA_ANY(v), VARSIZE_ANY_EXHDR(v));
				break;
			}

		case COL_OUTPUT:
			{
				char	   *text = OutputFunctionCall(&col->finfo, value);

				append_text(out, text, strlen(text));
				break;
			}

		case COL_SEND:
			{
				bytea	   *bytes = SendFunctionCall(&col->finfo, value);

				append_column(out, FSTREAM_COL_BINARY, VARDATA(bytes),
							  VARSIZE(bytes) - VARHDRSZ);
				break;
			}

		case COL_NATIVE:
			append_native(out, col, value);
			break;
	}
}

/*
 * Append a tuple; out-of-line values come from lookup, if it has any.
 */
static void
write_tuple(StringInfo out, RelPlan *plan, HeapTuple tuple, ValueLookup lookup,
			void *arg)
{
	uint16		ncols = pg_hton16((uint16) plan->ncols);
	int			i;

	heap_deform_tuple(tuple, plan->desc, plan->values, plan->nulls);

	appendBinaryStringInfo(out, (char *) &ncols, sizeof(ncols));

	for (i = 0; i < plan->ncols; i++)
	{
		PlanColumn *col = &plan->cols[i];
		Datum		value;

		if (plan->nulls[col->att])
		{
			appendStringInfoCharMacro(out, FSTREAM_COL_NULL);
			continue;
		}

		value = plan->values[col->att];
		if (col->varlena && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value)))
		{
			struct varlena *v = NULL;

			if (lookup != NULL)
				v = lookup(arg, (struct varlena *) DatumGetPointer(value));
			if (v == NULL)
			{
				appendStringInfoCharMacro(out, FSTREAM_COL_UNCHANGED);
				continue;
			}
			value = PointerGetDatum(v);
		}

		append_value(out, col, value);
	}
}

/*
 * Append the body of an I, U or D.
 *
 * Leaves garbage in the current memory context.
 */
void
row_write_change(StringInfo out, RelPlan *plan, HeapTuple newtup,
				 HeapTuple oldtup, ValueLookup lookup, void *arg)
{
	pq_sendint32(out, plan->relid);
	if (oldtup != NULL)
	{
		/* Out-of-line values of old tuples are inlined before they are logged. */
		pq_sendbyte(out, plan->oldkind);
		write_tuple(out, plan, oldtup, NULL, NULL);
	}
	if (newtup != NULL)
	{
		pq_sendbyte(out, 'N');
		write_tuple(out, plan, newtup, lookup, arg);
	}
}
