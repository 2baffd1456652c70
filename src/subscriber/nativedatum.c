/*-------------------------------------------------------------------------
 *
 * nativedatum.c
 *	  Native values of a message as datums (leader and workers).
 *
 * I1.	Nothing of a peer's value reaches a function of its type before
 *		native_check.
 * I2.	The message is not changed, and datums may point into it: it has to
 *		stay while they are in use.
 *
 *-------------------------------------------------------------------------
 */
#include "nativedatum.h"

#include "access/htup_details.h"
#include "access/toast_compression.h"
#include "access/tupmacs.h"
#include "common/pg_lzcompress.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/*
 * Decompresses lz4, for which only the server has the library; NULL if the
 * bytes are corrupt.
 */
static char *
decompress_lz4(const char *data, size_t len)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	struct varlena *copy = palloc(len);
	char *volatile result = NULL;

	memcpy(copy, data, len);
	PG_TRY();
	{
		struct varlena *raw = lz4_decompress_datum(copy);

		if (VARSIZE(raw) - VARHDRSZ == VARDATA_COMPRESSED_GET_EXTSIZE(copy))
			result = VARDATA(raw);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_DATA_CORRUPTED)
			PG_RE_THROW();
		MemoryContextSwitchTo(oldcxt);
		FlushErrorState();
	}
	PG_END_TRY();
	pfree(copy);

	return result;
}

/*
 * The content of a compressed value is as long as that, or a fault.
 */
static const char *
check_compressed(const NativeType *type, const char *data, size_t len,
				 NativeValue *value)
{
	static const char fault[] = "A compressed value is corrupt.";
	MemoryContext cxt;
	MemoryContext oldcxt;
	const char *result;
	char	   *raw;

	cxt = AllocSetContextCreate(CurrentMemoryContext, "pgparrep decompression",
								ALLOCSET_SMALL_SIZES);
	oldcxt = MemoryContextSwitchTo(cxt);

	if (value->lz4)
		raw = decompress_lz4(data, len);
	else
	{
		raw = palloc(value->rawlen);
		if (pglz_decompress(value->content, (int32) value->len, raw,
							(int32) value->rawlen, true) != (int32) value->rawlen)
			raw = NULL;
	}
	if (raw == NULL)
		result = fault;
	else
		result = native_content_fault(type, raw, value->rawlen,
									  GetDatabaseEncoding());

	MemoryContextSwitchTo(oldcxt);
	MemoryContextDelete(cxt);

	return result;
}

void
native_check(const NativeType *type, const char *data, size_t len)
{
	NativeValue value;
	const char *fault;

	fault = native_outer_fault(type, data, len, &value);
	if (fault == NULL)
	{
		if (unlikely(value.compressed))
			fault = check_compressed(type, data, len, &value);
		else
			fault = native_content_fault(type, value.content, value.len,
										 GetDatabaseEncoding());
	}

	if (unlikely(fault != NULL))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid value in a message from the publisher"),
				 errdetail_internal("%s", fault)));
}

bool
native_fits(const NativeType *type, int32 typmod, Oid localtype,
			int32 localtypmod)
{
	const NativeType *local;

	if (type->typid == localtype)
		return localtypmod < 0 || localtypmod == typmod;

	/* text, varchar and bpchar without a length differ in name only */
	local = native_type(localtype);
	return native_is_text(type) && local != NULL && native_is_text(local) &&
		   localtypmod < 0;
}

Datum
native_datum(const NativeType *type, const char *data, size_t len)
{
	char	   *copy;

	if (type->byval)
	{
		Datum		aligned = 0;

		memcpy(&aligned, data, len);
		return fetch_att(&aligned, true, type->len);
	}

	/* As stored in a tuple: a short header needs no alignment. */
	if (type->align == 'c' || (type->len < 0 && VARATT_IS_SHORT(data)) ||
		data == (char *) MAXALIGN(data))
		return PointerGetDatum(data);

	copy = palloc(len);
	memcpy(copy, data, len);
	return PointerGetDatum(copy);
}

void
native_output_info(const NativeType *type, FmgrInfo *output, MemoryContext mcxt)
{
	Oid			typoutput;
	bool		is_varlena;

	getTypeOutputInfo(type->typid, &typoutput, &is_varlena);
	fmgr_info_cxt(typoutput, output, mcxt);
}

/*
 * With the settings that a subscriber's connection has on the publisher.
 */
char *
native_text(FmgrInfo *output, Datum datum)
{
	int			save_date_style = DateStyle;
	int			save_interval_style = IntervalStyle;
	int			save_extra_float_digits = extra_float_digits;
	int			save_bytea_output = bytea_output;
	char	   *text;

	PG_TRY();
	{
		DateStyle = USE_ISO_DATES;
		IntervalStyle = INTSTYLE_POSTGRES;
		extra_float_digits = 3;
		bytea_output = BYTEA_OUTPUT_HEX;
		text = OutputFunctionCall(output, datum);
	}
	PG_FINALLY();
	{
		DateStyle = save_date_style;
		IntervalStyle = save_interval_style;
		extra_float_digits = save_extra_float_digits;
		bytea_output = save_bytea_output;
	}
	PG_END_TRY();

	return text;
}
