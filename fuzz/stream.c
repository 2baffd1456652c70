/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Fuzz target: what a subscriber reads from the wire before a function of
 *	  the server sees it.
 *
 * The first byte says what the rest is: an F stream (frames, bodies, rows,
 * values in native form), one native value, or a signature.  Each part that is read
 * by itself is put at the very end of an allocation of its size, so that
 * AddressSanitizer sees a byte too far.
 *
 * I1	Nothing outside of the input is read, whatever it is.
 * I2	A frame's body lies within the message, and the frames that are read
 *		add up to it.
 * I3	A row that is accepted can be walked to its last column.
 * I4	A native value that is accepted lies within its bytes.
 *
 * With a libFuzzer of clang (fuzz/stream) it searches; with replay.c it runs the
 * inputs that were found, in fuzz/corpus.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "catalog/pg_type_d.h"
#include "fstream.h"
#include "mb/pg_wchar.h"
#include "native.h"

/* All types of natively sent values have OIDs below this. */
#define MAX_OID 5000

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const NativeType *types[MAX_OID];
static int	ntypes;

#define require(condition) \
	do \
	{ \
		if (!(condition)) \
			abort(); \
	} while (0)

#ifdef USE_ASSERT_CHECKING
void
ExceptionalCondition(const char *condition, COMPAT_ASSERTION_TYPE_PARAM const char *file, int line)
{
	abort();
}
#endif

static void
find_types(void)
{
	for (Oid oid = 1; oid < MAX_OID; oid++)
	{
		const NativeType *type = native_type(oid);

		if (type != NULL)
			types[ntypes++] = type;
	}
}

static char *
copy_of(const char *data, size_t len)
{
	char	   *copy = malloc(Max(len, 1));

	require(copy != NULL);
	memcpy(copy, data, len);
	return copy;
}

static void
check_value(const NativeType *type, const char *data, size_t len)
{
	char	   *copy = copy_of(data, len);
	NativeValue value;

	if (native_outer_fault(type, copy, len, &value) == NULL)
	{
		require(value.content >= copy && value.content + value.len <= copy + len);	/* I4 */
		if (!value.compressed)
			(void) native_content_fault(type, value.content, value.len, PG_UTF8);
	}
	free(copy);
}

static void
check_tuple(FStreamTuple *tuple)
{
	FStreamColumn column;
	int			n = 0;

	while (fstream_next_column(tuple, &column))
	{
		if (column.kind == FSTREAM_COL_NATIVE)
			check_value(types[(n + tuple->ncols) % ntypes], column.data, column.len);
		n++;
	}
	require(n == tuple->ncols); /* I3 */
}

static void
check_frame(const FStreamFrame *original)
{
	FStreamFrame frame = *original;
	char	   *body = copy_of(frame.body, frame.len);
	FStreamCommit commit;
	FStreamPrepared prepared;
	FStreamAbort abort_;
	FStreamRow	row;
	uint32		subxid;
	bool		synchronous;
	int32		typmods[64];

	frame.body = body;
	(void) fstream_get_commit(&frame, &commit);
	if (fstream_get_prepared(&frame, &prepared))
		(void) strlen(prepared.gid);
	(void) fstream_get_subxact(&frame, &subxid);
	(void) fstream_get_abort(&frame, &abort_);
	(void) fstream_get_sync(&frame, &synchronous);
	for (int natts = 0; natts < lengthof(typmods); natts++)
		(void) fstream_get_typmods(frame.body, frame.len, natts, typmods);
	if (fstream_get_row(&frame, &row))
	{
		if (row.oldkind != 0)
			check_tuple(&row.oldtup);
		if (row.has_new)
			check_tuple(&row.newtup);
	}
	free(body);
}

static void
check_stream(const char *data, size_t size)
{
	char	   *copy = copy_of(data, size);
	FStreamReader reader;
	FStreamFrame frame;
	FStreamResult result;

	fstream_reader_init(&reader, copy, size);
	while ((result = fstream_next(&reader, &frame)) == FSTREAM_OK)
	{
		require(frame.body >= copy && frame.body + frame.len <= copy + size);	/* I2 */
		check_frame(&frame);
	}
	require((result == FSTREAM_FAULT) == (reader.fault != NULL));
	require(result == FSTREAM_FAULT || reader.pos == size); /* I2 */
	free(copy);
}

static void
check_signature(const char *data, size_t size)
{
	static const char own[] = "1,le,byval8,align8,block8192,name64,UTF8,infinite-interval;lz4";
	char	   *peer = malloc(size + 1);
	NativeAgreement agreement;

	require(peer != NULL);
	memcpy(peer, data, size);
	peer[size] = '\0';
	native_agree(own, peer, &agreement);
	native_agree(peer, peer, &agreement);
	free(peer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *rest = (const char *) data + 1;

	if (ntypes == 0)
		find_types();
	if (size == 0)
		return 0;
	if (data[0] == 's')
		check_stream(rest, size - 1);
	else if (data[0] == 'g')
		check_signature(rest, size - 1);
	else
		check_value(types[data[0] % ntypes], rest, size - 1);
	return 0;
}
