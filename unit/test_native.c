/*-------------------------------------------------------------------------
 *
 * test_native.c
 *	  Native values: sound ones pass, and nothing that a peer could send makes
 *	  the checks look outside of it or passes with a length that lies.
 *
 * Each value is put at the very end of an allocation of its size, so that a
 * build with -fsanitize=address sees a byte too far.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "access/htup_details.h"
#include "catalog/pg_type_d.h"
#include "fstream.h"
#include "mb/pg_wchar.h"
#include "native.h"
#include "unit.h"

/* What is wrong with the value, or NULL; "compressed" if that is for later. */
static const char *
fault(Oid typid, const void *data, size_t len)
{
	const NativeType *type = native_type(typid);
	char	   *copy = malloc(Max(len, 1));
	NativeValue value;
	const char *result;

	memcpy(copy, data, len);
	result = native_outer_fault(type, copy, len, &value);
	if (result == NULL)
	{
		if (value.compressed)
			result = "compressed";
		else
			result = native_content_fault(type, value.content, value.len, PG_UTF8);
	}
	free(copy);
	return result;
}

/* The same for a varlena with that content, in each form of header. */
static const char *
content_fault(Oid typid, const void *content, size_t len)
{
	char		buf[2000];
	const char *short_fault = NULL;
	const char *long_fault;

	if (len + VARHDRSZ_SHORT <= VARATT_SHORT_MAX)
	{
		SET_VARSIZE_SHORT(buf, len + VARHDRSZ_SHORT);
		memcpy(buf + VARHDRSZ_SHORT, content, len);
		short_fault = fault(typid, buf, len + VARHDRSZ_SHORT);
	}
	SET_VARSIZE(buf, len + VARHDRSZ);
	memcpy(buf + VARHDRSZ, content, len);
	long_fault = fault(typid, buf, len + VARHDRSZ);

	if (len + VARHDRSZ_SHORT <= VARATT_SHORT_MAX &&
		(short_fault == NULL) != (long_fault == NULL))
		return "short and long differ";
	return long_fault;
}

static void
test_fixed(void)
{
	char		zeros[64] = {0};
	static const Oid oids[] = {BOOLOID, INT2OID, INT4OID, INT8OID, OIDOID, CHAROID,
							   FLOAT4OID, FLOAT8OID, DATEOID, TIMEOID, TIMETZOID, TIMESTAMPOID,
							   TIMESTAMPTZOID, INTERVALOID, UUIDOID, MACADDROID, MACADDR8OID};
	bool		good = true;
	bool		bad = true;
	char		two = 2;
	int32		date;
	int64		time;
	struct
	{
		int64		time;
		int32		zone;
	} timetz = {0, 0};

	for (int i = 0; i < lengthof(oids); i++)
	{
		int			len = native_type(oids[i])->len;

		good &= fault(oids[i], zeros, len) == NULL;
		for (int j = 0; j < 64; j++)
			bad &= j == len || fault(oids[i], zeros, j) != NULL;
	}
	ok(good, "fixed length: zero");
	ok(bad, "fixed length: any other length");

	ok(fault(BOOLOID, &two, 1) != NULL, "boolean 2");
	date = PG_INT32_MAX;
	ok(fault(DATEOID, &date, 4) == NULL, "date infinity");
	date--;
	ok(fault(DATEOID, &date, 4) != NULL, "date out of range");
	time = PG_INT64_MIN;
	ok(fault(TIMESTAMPOID, &time, 8) == NULL, "timestamp -infinity");
	ok(fault(TIMEOID, &time, 8) != NULL, "negative time");
	time++;
	ok(fault(TIMESTAMPTZOID, &time, 8) != NULL, "timestamp out of range");
	timetz.zone = 57600;
	ok(fault(TIMETZOID, &timetz, 12) != NULL, "time zone out of range");
	ok(native_type(JSONBOID) == NULL && native_type(MONEYOID) == NULL &&
		   native_type(REGCLASSOID) == NULL && native_type(ACLITEMOID) == NULL &&
		   native_type(100000) == NULL,
	   "types that never are native");
}

static void
test_headers(void)
{
	static const Oid oids[] = {TEXTOID, VARCHAROID, BPCHAROID, BYTEAOID, NUMERICOID,
							   BITOID, VARBITOID, INETOID, CIDROID, INT4ARRAYOID, TEXTARRAYOID};
	char		buf[200];
	bool		lies = true;
	NativeValue value;
	const NativeType *text = native_type(TEXTOID);

	for (int i = 0; i < lengthof(oids); i++)
	{
		memset(buf, 'a', sizeof(buf));
		lies &= fault(oids[i], buf, 0) != NULL;
		buf[0] = 0x01;			/* external */
		for (int len = 1; len < 30; len++)
			lies &= fault(oids[i], buf, len) != NULL;
		for (int len = 1; len < 20; len++)
		{
			for (uint32 said = 0; said < 127; said++)
			{
				if (said != len && said > 0)
				{
					SET_VARSIZE_SHORT(buf, said);
					lies &= fault(oids[i], buf, len) != NULL;
				}
				if (said == len)
					continue;
				SET_VARSIZE(buf, said);
				lies &= fault(oids[i], buf, len) != NULL;
				SET_VARSIZE_COMPRESSED(buf, said);
				lies &= fault(oids[i], buf, len) != NULL;
			}
		}
		SET_VARSIZE(buf, 0x3fffffff);
		lies &= fault(oids[i], buf, 100) != NULL;
	}
	ok(lies, "a header that lies");

	memset(buf, 0, sizeof(buf));
	SET_VARSIZE_COMPRESSED(buf, 100);
	((varattrib_4b *) buf)->va_compressed.va_tcinfo = 400;
	ok(native_outer_fault(text, buf, 100, &value) == NULL && value.compressed &&
		   !value.lz4 && value.rawlen == 400 && value.len == 92,
	   "compressed header");
	((varattrib_4b *) buf)->va_compressed.va_tcinfo = 400 | (1U << 30);
	ok(native_outer_fault(text, buf, 100, &value) == NULL && value.lz4, "lz4");
	((varattrib_4b *) buf)->va_compressed.va_tcinfo = 400 | (2U << 30);
	ok(native_outer_fault(text, buf, 100, &value) != NULL, "unknown compression");
	((varattrib_4b *) buf)->va_compressed.va_tcinfo = 0x3fffffff;
	ok(native_outer_fault(text, buf, 100, &value) != NULL, "impossible raw length");
	SET_VARSIZE_COMPRESSED(buf, 7);
	ok(native_outer_fault(text, buf, 7, &value) != NULL, "half a compressed header");
}

static void
test_contents(void)
{
	uint16		num[6];
	char		buf[100];

	ok(content_fault(TEXTOID, "gr\303\274n", 5) == NULL, "text");
	ok(content_fault(TEXTOID, "", 0) == NULL, "empty text");
	ok(content_fault(TEXTOID, "a\0b", 3) != NULL, "text with a zero byte");
	ok(content_fault(VARCHAROID, "gr\374n", 4) != NULL, "invalid UTF-8");
	ok(content_fault(TEXTOID, "gr\303", 3) != NULL, "half a character at the end");
	ok(content_fault(BYTEAOID, "a\0\377", 3) == NULL, "any bytea");

	num[0] = 0x8000;
	ok(content_fault(NUMERICOID, num, 2) == NULL, "numeric 0");
	num[1] = 1;
	ok(content_fault(NUMERICOID, num, 4) == NULL, "numeric 1");
	ok(content_fault(NUMERICOID, num, 3) != NULL, "numeric with half a digit");
	num[1] = 10000;
	ok(content_fault(NUMERICOID, num, 4) != NULL, "numeric with a digit too large");
	num[1] = 0;
	ok(content_fault(NUMERICOID, num, 4) != NULL, "numeric with a leading zero");
	num[0] = 0xA000;
	ok(content_fault(NUMERICOID, num, 2) != NULL, "numeric -0");
	num[0] = 0xC000;
	ok(content_fault(NUMERICOID, num, 2) == NULL, "numeric NaN");
	ok(content_fault(NUMERICOID, num, 4) != NULL, "numeric NaN with digits");
	num[0] = 0xE000;
	ok(content_fault(NUMERICOID, num, 2) != NULL, "numeric of unknown kind");
	num[0] = 0x4010;
	num[1] = 100;
	num[2] = 5;
	ok(content_fault(NUMERICOID, num, 6) == NULL, "long numeric");
	ok(content_fault(NUMERICOID, num, 2) != NULL, "long numeric, half a header");
	ok(content_fault(NUMERICOID, num, 0) != NULL, "numeric of nothing");

	memset(buf, 0, sizeof(buf));
	ok(content_fault(VARBITOID, buf, 4) == NULL, "empty bit string");
	ok(content_fault(VARBITOID, buf, 5) != NULL, "bit string too long");
	((int32 *) buf)[0] = 9;
	buf[5] = (char) 0x80;
	ok(content_fault(BITOID, buf, 6) == NULL, "bit string of 9");
	ok(content_fault(BITOID, buf, 5) != NULL, "bit string too short");
	buf[5] = (char) 0x40;
	ok(content_fault(BITOID, buf, 6) != NULL, "bit string with bits in its padding");
	((int32 *) buf)[0] = -1;
	ok(content_fault(BITOID, buf, 4) != NULL, "negative bit string");
	((int32 *) buf)[0] = PG_INT32_MAX;
	ok(content_fault(BITOID, buf, 4) != NULL, "huge bit string");

	ok(content_fault(INETOID, "\2\40\12\1\2\3", 6) == NULL, "inet");
	ok(content_fault(INETOID, "\2\41\12\1\2\3", 6) != NULL, "inet with 33 bits");
	ok(content_fault(INETOID, "\3\40\12\1\2\3", 6) != NULL, "inet of the wrong family");
	ok(content_fault(INETOID, "\2\40\12\1\2", 5) != NULL, "inet too short");
	ok(content_fault(CIDROID, "\2\10\12\0\0\0", 6) == NULL, "cidr");
	ok(content_fault(CIDROID, "\2\10\12\0\0\1", 6) != NULL, "cidr with a host");
}

static int32 array[64];

/* Starts an array in array[]; offsets count as if there were 4 bytes before. */
static void
put_array(int ndim, int dataoffset, Oid elem, int dim, int lower)
{
	memset(array, 0, sizeof(array));
	array[0] = ndim;
	array[1] = dataoffset;
	array[2] = elem;
	array[3] = dim;
	array[4] = lower;
}

static void
test_arrays(void)
{
	char	   *p = (char *) array - 4;

	put_array(0, 0, INT4OID, 0, 0);
	ok(content_fault(INT4ARRAYOID, array, 12) == NULL, "empty array");
	ok(content_fault(INT4ARRAYOID, array, 16) != NULL, "empty array with an end");
	ok(content_fault(INT4ARRAYOID, array, 8) != NULL, "half an array");
	ok(content_fault(INT8ARRAYOID, array, 12) != NULL, "array of another type");

	put_array(1, 0, INT4OID, 2, 1);
	ok(content_fault(INT4ARRAYOID, array, 20 + 8) == NULL, "two integers");
	ok(content_fault(INT4ARRAYOID, array, 20 + 4) != NULL, "two integers, one there");
	ok(content_fault(INT4ARRAYOID, array, 20 + 12) != NULL, "two integers, three there");
	ok(content_fault(INT4ARRAYOID, array, 16) != NULL, "no dimensions");
	array[4] = PG_INT32_MAX;
	ok(content_fault(INT4ARRAYOID, array, 28) != NULL, "subscripts overflow");
	put_array(1, 0, INT4OID, -2, 1);
	ok(content_fault(INT4ARRAYOID, array, 28) != NULL, "negative dimension");
	put_array(1, 0, INT4OID, PG_INT32_MAX, 0);
	ok(content_fault(INT4ARRAYOID, array, 28) != NULL, "huge dimension");
	put_array(2, 0, INT4OID, 0x7fffffff, 0x7fffffff);
	ok(content_fault(INT4ARRAYOID, array, 60) != NULL, "huge dimensions");
	put_array(7, 0, INT4OID, 1, 1);
	ok(content_fault(INT4ARRAYOID, array, 200) != NULL, "seven dimensions");
	put_array(-1, 0, INT4OID, 1, 1);
	ok(content_fault(INT4ARRAYOID, array, 200) != NULL, "dimensions below zero");

	/* offset 24: bitmap; 32: data */
	put_array(1, 32, INT4OID, 2, 1);
	p[24] = 2;
	ok(content_fault(INT4ARRAYOID, array, 28 + 4) == NULL, "NULL and an integer");
	ok(content_fault(INT4ARRAYOID, array, 28) != NULL, "NULL and nothing");
	array[1] = 40;
	ok(content_fault(INT4ARRAYOID, array, 28 + 12) != NULL, "data begins elsewhere");

	put_array(1, 0, TEXTOID, 2, 1);
	SET_VARSIZE(p + 24, 5);
	p[28] = 'a';
	SET_VARSIZE(p + 32, 4);
	ok(content_fault(TEXTARRAYOID, array, 32) == NULL, "two texts");
	p[28] = (char) 0xff;
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "text not valid");
	p[28] = 'a';
	SET_VARSIZE(p + 32, 5);
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "text longer than the array");
	SET_VARSIZE(p + 32, 3);
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "text shorter than its header");
	SET_VARSIZE(p + 32, 0x3fffffff);
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "huge text");
	SET_VARSIZE_COMPRESSED(p + 32, 4);
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "compressed text in an array");
	SET_VARSIZE_SHORT(p + 32, 4);
	ok(content_fault(TEXTARRAYOID, array, 32) != NULL, "short text in an array");
}

/* Random damage to sound values: only that nothing crashes. */
static void
test_damage(void)
{
	static uint64 state = 4711;
	static const Oid oids[] = {TEXTARRAYOID, NUMERICARRAYOID, INT8ARRAYOID,
							   BOOLARRAYOID, NUMERICOID, INETARRAYOID, VARBITARRAYOID, BYTEAOID};
	int			passed = 0;

	for (int i = 0; i < 300000; i++)
	{
		const NativeType *type = native_type(oids[i % lengthof(oids)]);
		char		buf[80];
		int			len = 4 + i % 60;

		memset(buf, 0, sizeof(buf));
		SET_VARSIZE(buf, len);
		((int32 *) buf)[1] = i % 3;
		((int32 *) buf)[3] = type->elemid;
		((int32 *) buf)[4] = 1 + i % 2;
		SET_VARSIZE(buf + 24, 6);
		SET_VARSIZE(buf + 32, 6);
		for (int j = i % 4; j > 0; j--)
		{
			state = state * UINT64CONST(6364136223846793005) + 1442695040888963407;
			buf[(state >> 33) % len] = state >> 50;
		}
		if (fault(type->typid, buf, len) == NULL)
			passed++;
	}
	ok(passed > 0, "damaged values do no harm");
}

static void
test_agreement(void)
{
	char	   *own = native_signature(PG_UTF8);
	char	   *other = native_signature(PG_LATIN1);
	NativeAgreement a;

	native_agree(own, own, &a);
	ok(a.agreed && a.interval, "agreement with oneself");
	native_agree(own, other, &a);
	ok(!a.agreed, "encodings differ");
	native_agree(own, "", &a);
	ok(!a.agreed, "empty signature");
	native_agree(own, ";lz4,", &a);
	ok(!a.agreed && a.lz4, "abilities only");
	native_agree("1,le;", "1,le", &a);
	ok(a.agreed && !a.lz4 && a.interval, "no abilities");
	native_agree("1,le;infinite-interval,", "1,le;lz4,", &a);
	ok(a.agreed && a.lz4 && !native_agreed_type(&a, native_type(INTERVALOID)) &&
		   !native_agreed_type(&a, native_type(INTERVALARRAYOID)) &&
		   native_agreed_type(&a, native_type(INT4OID)),
	   "intervals differ");
	native_agree("1,le;", "1,le,x;", &a);
	ok(!a.agreed, "longer signature");
}

static void
test_typmods(void)
{
	static const char body[] = "\0\0\100\0s\0t\0d\0\2\1a\0\0\0\0\27\377\377\377\377\0b\0\0\0\4\23\0\0\0\16";
	int32		typmods[2];
	bool		cut = true;
	size_t		len = sizeof(body) - 1;

	ok(fstream_get_typmods(body, len, 2, typmods) && typmods[0] == -1 &&
		   typmods[1] == 14,
	   "type modifiers of a relation");
	for (size_t i = 0; i < len; i++)
	{
		char	   *copy = malloc(Max(i, 1));

		memcpy(copy, body, i);
		cut &= !fstream_get_typmods(copy, i, 2, typmods);
		free(copy);
	}
	ok(cut, "cut off anywhere");
}

int
main(void)
{
	test_fixed();
	test_headers();
	test_contents();
	test_arrays();
	test_damage();
	test_agreement();
	test_typmods();
	return done_testing();
}
