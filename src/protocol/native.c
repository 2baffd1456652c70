/*-------------------------------------------------------------------------
 *
 * native.c
 *	  Native values: which types, between which servers, and what is sound.
 *
 * Pure functions of their arguments.  The checks work on bytes that a hostile
 * peer may have made up:
 *
 * I1.	No byte outside of [data, data + len) is looked at, and nothing is
 *		assumed about the alignment of data.
 * I2.	What passes native_outer_fault and native_content_fault can be given
 *		to any function of its type as if this server had stored it: no length
 *		inside of it leads out of it.
 * I3.	The list has pinned base types only, whose stored form has not changed
 *		since PostgreSQL 14 and names no object of a database; and of those
 *		only types that can be checked for less than their input function
 *		costs.  So no json and no jsonb.
 * I4.	A change of the list or of what a value looks like on the wire needs a
 *		new NATIVE_RULES.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include <sys/socket.h>

#include "access/htup_details.h"
#include "access/toast_compression.h"
#include "catalog/pg_type_d.h"
#include "common/int.h"
#include "datatype/timestamp.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/date.h"
#include "utils/inet.h"
#include "utils/memutils.h"

#include "native.h"

/* Version of the list below and of the form of values. */
#define NATIVE_RULES 1

/*
 * No algorithm makes more than so many bytes out of one: pglz up to 87, lz4 up
 * to 255.  More is a peer that wants us to allocate memory.
 */
#define MAX_EXPANSION 256

/* Of the stored numeric; numeric.c keeps these to itself. */
#define NUMERIC_KIND_MASK 0xC000
#define NUMERIC_KIND_NEGATIVE 0x4000
#define NUMERIC_KIND_SHORT 0x8000
#define NUMERIC_KIND_SPECIAL 0xC000
#define NUMERIC_IS_NAN 0xC000
#define NUMERIC_IS_PINF 0xD000
#define NUMERIC_IS_NINF 0xF000
#define NUMERIC_SHORT_NEGATIVE 0x2000
#define NUMERIC_SHORT_WEIGHT 0x007F
#define NUMERIC_BASE 10000

static const NativeType types[] =
	{
		{INT4OID, 0, 4, true, 'i', NATIVE_ANY},
		{INT8OID, 0, 8, FLOAT8PASSBYVAL, 'd', NATIVE_ANY},
		{TEXTOID, 0, -1, false, 'i', NATIVE_TEXT},
		{VARCHAROID, 0, -1, false, 'i', NATIVE_TEXT},
		{BPCHAROID, 0, -1, false, 'i', NATIVE_TEXT},
		{NUMERICOID, 0, -1, false, 'i', NATIVE_NUMERIC},
		{TIMESTAMPOID, 0, 8, FLOAT8PASSBYVAL, 'd', NATIVE_TIMESTAMP},
		{TIMESTAMPTZOID, 0, 8, FLOAT8PASSBYVAL, 'd', NATIVE_TIMESTAMP},
		{BOOLOID, 0, 1, true, 'c', NATIVE_BOOL},
		{BYTEAOID, 0, -1, false, 'i', NATIVE_ANY},
		{CHAROID, 0, 1, true, 'c', NATIVE_ANY},
		{INT2OID, 0, 2, true, 's', NATIVE_ANY},
		{OIDOID, 0, 4, true, 'i', NATIVE_ANY},
		{FLOAT4OID, 0, 4, true, 'i', NATIVE_ANY},
		{FLOAT8OID, 0, 8, FLOAT8PASSBYVAL, 'd', NATIVE_ANY},
		{DATEOID, 0, 4, true, 'i', NATIVE_DATE},
		{TIMEOID, 0, 8, FLOAT8PASSBYVAL, 'd', NATIVE_TIME},
		{TIMETZOID, 0, 12, false, 'd', NATIVE_TIMETZ},
		{INTERVALOID, 0, 16, false, 'd', NATIVE_ANY},
		{UUIDOID, 0, 16, false, 'c', NATIVE_ANY},
		{BITOID, 0, -1, false, 'i', NATIVE_BIT},
		{VARBITOID, 0, -1, false, 'i', NATIVE_BIT},
		{INETOID, 0, -1, false, 'i', NATIVE_INET},
		{CIDROID, 0, -1, false, 'i', NATIVE_CIDR},
		{MACADDROID, 0, 6, false, 'i', NATIVE_ANY},
		{MACADDR8OID, 0, 8, false, 'i', NATIVE_ANY},

		{INT4ARRAYOID, INT4OID, -1, false, 'i', NATIVE_ARRAY},
		{INT8ARRAYOID, INT8OID, -1, false, 'd', NATIVE_ARRAY},
		{TEXTARRAYOID, TEXTOID, -1, false, 'i', NATIVE_ARRAY},
		{VARCHARARRAYOID, VARCHAROID, -1, false, 'i', NATIVE_ARRAY},
		{BPCHARARRAYOID, BPCHAROID, -1, false, 'i', NATIVE_ARRAY},
		{NUMERICARRAYOID, NUMERICOID, -1, false, 'i', NATIVE_ARRAY},
		{TIMESTAMPARRAYOID, TIMESTAMPOID, -1, false, 'd', NATIVE_ARRAY},
		{TIMESTAMPTZARRAYOID, TIMESTAMPTZOID, -1, false, 'd', NATIVE_ARRAY},
		{BOOLARRAYOID, BOOLOID, -1, false, 'i', NATIVE_ARRAY},
		{CHARARRAYOID, CHAROID, -1, false, 'i', NATIVE_ARRAY},
		{BYTEAARRAYOID, BYTEAOID, -1, false, 'i', NATIVE_ARRAY},
		{INT2ARRAYOID, INT2OID, -1, false, 'i', NATIVE_ARRAY},
		{OIDARRAYOID, OIDOID, -1, false, 'i', NATIVE_ARRAY},
		{FLOAT4ARRAYOID, FLOAT4OID, -1, false, 'i', NATIVE_ARRAY},
		{FLOAT8ARRAYOID, FLOAT8OID, -1, false, 'd', NATIVE_ARRAY},
		{DATEARRAYOID, DATEOID, -1, false, 'i', NATIVE_ARRAY},
		{TIMEARRAYOID, TIMEOID, -1, false, 'd', NATIVE_ARRAY},
		{TIMETZARRAYOID, TIMETZOID, -1, false, 'd', NATIVE_ARRAY},
		{INTERVALARRAYOID, INTERVALOID, -1, false, 'd', NATIVE_ARRAY},
		{UUIDARRAYOID, UUIDOID, -1, false, 'i', NATIVE_ARRAY},
		{BITARRAYOID, BITOID, -1, false, 'i', NATIVE_ARRAY},
		{VARBITARRAYOID, VARBITOID, -1, false, 'i', NATIVE_ARRAY},
		{INETARRAYOID, INETOID, -1, false, 'i', NATIVE_ARRAY},
		{CIDRARRAYOID, CIDROID, -1, false, 'i', NATIVE_ARRAY},
		{MACADDRARRAYOID, MACADDROID, -1, false, 'i', NATIVE_ARRAY},
		{MACADDR8ARRAYOID, MACADDR8OID, -1, false, 'i', NATIVE_ARRAY},
};

const NativeType *
native_type(Oid typid)
{
	for (int i = 0; i < lengthof(types); i++)
	{
		if (types[i].typid == typid)
			return &types[i];
	}

	return NULL;
}

bool
native_is_text(const NativeType *type)
{
	return type->check == NATIVE_TEXT;
}

/*
 * Before the semicolon what must be equal, behind it what a server can do.
 */
char *
native_signature(int encoding)
{
	return psprintf("%d,%s,%s,align%d,block%d,name%d,%s;%s%s",
					NATIVE_RULES,
#ifdef WORDS_BIGENDIAN
					"be",
#else
					"le",
#endif
					FLOAT8PASSBYVAL ? "byval8" : "byref8",
					MAXIMUM_ALIGNOF, BLCKSZ, NAMEDATALEN,
					pg_encoding_to_char(encoding),
#ifdef USE_LZ4
					"lz4,",
#else
					"",
#endif
#ifdef INTERVAL_NOBEGIN
					"infinite-interval,"
#else
					""
#endif
	);
}

/* Is the word, with a comma behind it, in the second part of a signature? */
static bool
has_feature(const char *signature, const char *feature)
{
	const char *features = strchr(signature, ';');

	return features != NULL && strstr(features, feature) != NULL;
}

void
native_agree(const char *own, const char *peer, NativeAgreement *agreement)
{
	size_t		len = strcspn(own, ";");

	agreement->agreed = strcspn(peer, ";") == len && strncmp(own, peer, len) == 0;
	agreement->lz4 = has_feature(peer, "lz4,");
	agreement->interval = has_feature(own, "infinite-interval,") ==
						  has_feature(peer, "infinite-interval,");
}

bool
native_agreed_type(const NativeAgreement *agreement, const NativeType *type)
{
	if (!agreement->agreed)
		return false;
	if (type->typid == INTERVALOID || type->elemid == INTERVALOID)
		return agreement->interval;

	return true;
}

static inline uint16
get16(const char *p)
{
	uint16		v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline int32
get32(const char *p)
{
	int32		v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline int64
get64(const char *p)
{
	int64		v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/*
 * Is the number of bytes right, and what the varlena header says about them?
 */
const char *
native_outer_fault(const NativeType *type, const char *data, size_t len,
				   NativeValue *value)
{
	/* of the header, where macros may look at all of it */
	union
	{
		varattrib_4b header;
		char		bytes[sizeof(varattrib_4b)];
	} copy;

	value->compressed = false;
	value->lz4 = false;

	if (type->len > 0)
	{
		if (len != type->len)
			return "A value does not have the length of its type.";
		value->content = data;
		value->len = value->rawlen = len;
		return NULL;
	}

	if (len < 1)
		return "A value has no header.";

	if (VARATT_IS_1B(data))
	{
		if (VARATT_IS_1B_E(data))
			return "A value points to data outside of it.";
		if (VARSIZE_1B(data) != len)
			return "A value does not have the length that its header says.";
		value->content = data + VARHDRSZ_SHORT;
		value->len = value->rawlen = len - VARHDRSZ_SHORT;
		return NULL;
	}

	if (len < VARHDRSZ)
		return "A value has no complete header.";
	memset(&copy, 0, sizeof(copy));
	memcpy(copy.bytes, data, Min(len, sizeof(copy)));
	if (VARSIZE_4B(&copy) != len)
		return "A value does not have the length that its header says.";

	if (VARATT_IS_4B_U(&copy))
	{
		value->content = data + VARHDRSZ;
		value->len = value->rawlen = len - VARHDRSZ;
		return NULL;
	}

	if (len < VARHDRSZ_COMPRESSED)
		return "A value has no complete header.";
	value->compressed = true;
	value->content = data + VARHDRSZ_COMPRESSED;
	value->len = len - VARHDRSZ_COMPRESSED;
	value->rawlen = VARDATA_COMPRESSED_GET_EXTSIZE(&copy);
	switch (VARDATA_COMPRESSED_GET_COMPRESS_METHOD(&copy))
	{
		case TOAST_PGLZ_COMPRESSION_ID:
			break;
		case TOAST_LZ4_COMPRESSION_ID:
			value->lz4 = true;
			break;
		default:
			return "A value is compressed in an unknown way.";
	}
	if (value->rawlen > MaxAllocSize - VARHDRSZ ||
		value->rawlen / MAX_EXPANSION > value->len)
		return "A compressed value says an impossible length.";

	return NULL;
}

static const char *
numeric_fault(const char *p, size_t len)
{
	static const char fault[] = "A numeric is malformed.";
	uint16		header;
	bool		negative;
	int			weight;
	size_t		ndigits;

	if (len < sizeof(uint16) || len % sizeof(uint16) != 0)
		return fault;
	header = get16(p);

	switch (header & NUMERIC_KIND_MASK)
	{
		case NUMERIC_KIND_SPECIAL:
			if (len != sizeof(uint16) ||
				(header != NUMERIC_IS_NAN && header != NUMERIC_IS_PINF &&
				 header != NUMERIC_IS_NINF))
				return fault;
			return NULL;

		case NUMERIC_KIND_SHORT:
			p += sizeof(uint16);
			len -= sizeof(uint16);
			negative = (header & NUMERIC_SHORT_NEGATIVE) != 0;
			weight = header & NUMERIC_SHORT_WEIGHT;
			break;

		default:
			if (len < 2 * sizeof(uint16))
				return fault;
			weight = get16(p + sizeof(uint16));
			p += 2 * sizeof(uint16);
			len -= 2 * sizeof(uint16);
			negative = (header & NUMERIC_KIND_MASK) == NUMERIC_KIND_NEGATIVE;
			break;
	}

	ndigits = len / sizeof(uint16);
	if (ndigits == 0)
		return (negative || weight != 0) ? fault : NULL;
	for (size_t i = 0; i < ndigits; i++)
	{
		if (get16(p + i * sizeof(uint16)) >= NUMERIC_BASE)
			return fault;
	}
	/* The server never stores zeros at either end. */
	if (get16(p) == 0 || get16(p + (ndigits - 1) * sizeof(uint16)) == 0)
		return fault;

	return NULL;
}

static const char *
bit_fault(const char *p, size_t len)
{
	static const char fault[] = "A bit string is malformed.";
	int32		bits;
	int			pad;

	if (len < sizeof(int32))
		return fault;
	bits = get32(p);
	if (bits < 0 || ((size_t) bits + 7) / 8 != len - sizeof(int32))
		return fault;
	pad = (8 - bits % 8) % 8;
	if (pad != 0 && ((uint8) p[len - 1] & ((1 << pad) - 1)) != 0)
		return fault;

	return NULL;
}

static const char *
inet_fault(const char *p, size_t len, bool cidr)
{
	static const char fault[] = "A network address is malformed.";
	int			addrlen;
	int			bits;

	if (len < 2)
		return fault;
	if ((uint8) p[0] == PGSQL_AF_INET)
		addrlen = 4;
	else if ((uint8) p[0] == PGSQL_AF_INET6)
		addrlen = 16;
	else
		return fault;
	bits = (uint8) p[1];
	if (len != 2 + addrlen || bits > addrlen * 8)
		return fault;

	if (cidr)
	{
		for (int i = bits; i < addrlen * 8; i++)
		{
			if (((uint8) p[2 + i / 8] & (0x80 >> (i % 8))) != 0)
				return fault;
		}
	}

	return NULL;
}

static inline size_t
align_offset(size_t offset, char align)
{
	switch (align)
	{
		case 'c':
			return offset;
		case 's':
			return SHORTALIGN(offset);
		case 'i':
			return INTALIGN(offset);
		default:
			return DOUBLEALIGN(offset);
	}
}

/*
 * Offsets inside of an array count from its varlena header of four bytes, also
 * where it has a shorter one.
 */
static const char *
array_fault(const NativeType *type, const char *content, size_t len, int encoding)
{
	static const char fault[] = "An array is malformed.";
	const NativeType *elem = native_type(type->elemid);
	const char *base = content - VARHDRSZ;	/* not to be looked at */
	size_t		size = len + VARHDRSZ;
	size_t		offset;
	size_t		bitmap = 0;
	int64		nitems = 1;
	int32		ndim;
	int32		dataoffset;

	if (size < sizeof(ArrayType))
		return fault;
	ndim = get32(base + offsetof(ArrayType, ndim));
	dataoffset = get32(base + offsetof(ArrayType, dataoffset));
	if (ndim < 0 || ndim > MAXDIM || elem == NULL ||
		(Oid) get32(base + offsetof(ArrayType, elemtype)) != type->elemid)
		return fault;
	if (ndim == 0)
		return (dataoffset != 0 || size != sizeof(ArrayType)) ? fault : NULL;

	offset = sizeof(ArrayType) + 2 * sizeof(int32) * ndim;
	if (size < offset)
		return fault;
	for (int i = 0; i < ndim; i++)
	{
		int32		dim = get32(base + sizeof(ArrayType) + sizeof(int32) * i);
		int32		lower = get32(base + sizeof(ArrayType) + sizeof(int32) * (ndim + i));
		int32		upper;

		if (dim <= 0 || pg_add_s32_overflow(dim, lower, &upper))
			return fault;
		nitems *= dim;
		if (nitems > MaxArraySize)
			return fault;
	}

	if (dataoffset != 0)
	{
		bitmap = offset;
		offset = MAXALIGN(offset + (nitems + 7) / 8);
		if (dataoffset != offset)
			return fault;
	}
	else
		offset = MAXALIGN(offset);
	if (size < offset)
		return fault;

	for (int64 i = 0; i < nitems; i++)
	{
		size_t		left = size - offset;
		const char *item = base + offset;
		size_t		itemlen;
		const char *inner;

		if (bitmap != 0 && ((uint8) base[bitmap + i / 8] & (1 << (i % 8))) == 0)
			continue;

		if (elem->len > 0)
		{
			itemlen = elem->len;
			if (left < itemlen)
				return fault;
			inner = native_content_fault(elem, item, itemlen, encoding);
		}
		else
		{
			NativeValue value;
			varattrib_4b header;

			/* Elements always have plain headers of four bytes. */
			if (left < VARHDRSZ || !VARATT_IS_4B_U(item))
				return fault;
			memset(&header, 0, sizeof(header));
			memcpy(&header, item, VARHDRSZ);
			itemlen = VARSIZE_4B(&header);
			if (itemlen < VARHDRSZ || left < itemlen)
				return fault;
			if (native_outer_fault(elem, item, itemlen, &value) != NULL)
				return fault;
			inner = native_content_fault(elem, value.content, value.len, encoding);
		}
		if (inner != NULL)
			return inner;

		/* Padded behind the last one as well. */
		offset = align_offset(offset + itemlen, elem->align);
		if (offset > size)
			return fault;
	}

	return offset == size ? NULL : fault;
}

/*
 * Is the content a value of the type?
 */
const char *
native_content_fault(const NativeType *type, const char *content, size_t len,
					 int encoding)
{
	switch (type->check)
	{
		case NATIVE_ANY:
			return NULL;

		case NATIVE_BOOL:
			if ((uint8) content[0] > 1)
				return "A boolean is neither true nor false.";
			return NULL;

		case NATIVE_DATE:
			{
				DateADT		date = get32(content);

				if (!DATE_NOT_FINITE(date) && !IS_VALID_DATE(date))
					return "A date is out of range.";
				return NULL;
			}

		case NATIVE_TIMETZ:
			{
				int32		zone = get32(content + sizeof(int64));

				if (zone <= -TZDISP_LIMIT || zone >= TZDISP_LIMIT)
					return "A time zone displacement is out of range.";
			}
			/* FALLTHROUGH */
		case NATIVE_TIME:
			{
				TimeADT		time = get64(content);

				if (time < 0 || time > USECS_PER_DAY)
					return "A time is out of range.";
				return NULL;
			}

		case NATIVE_TIMESTAMP:
			{
				Timestamp	timestamp = get64(content);

				if (!TIMESTAMP_NOT_FINITE(timestamp) && !IS_VALID_TIMESTAMP(timestamp))
					return "A timestamp is out of range.";
				return NULL;
			}

		case NATIVE_TEXT:
			if (pg_encoding_verifymbstr(encoding, content, (int) len) != (int) len)
				return "A text is not valid in the encoding of the database.";
			return NULL;

		case NATIVE_NUMERIC:
			return numeric_fault(content, len);

		case NATIVE_BIT:
			return bit_fault(content, len);

		case NATIVE_INET:
		case NATIVE_CIDR:
			return inet_fault(content, len, type->check == NATIVE_CIDR);

		case NATIVE_ARRAY:
			return array_fault(type, content, len, encoding);
	}

	return "A value cannot be checked.";
}
