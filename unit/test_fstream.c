/*-------------------------------------------------------------------------
 *
 * test_fstream.c
 *	  Frames of the F stream: what is written is read, and nothing that a
 *	  peer could send makes the reader look outside of its buffer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fstream.h"
#include "unit.h"

static uint32
next_random(void)
{
	static uint64 state = 815;

	state = state * UINT64CONST(6364136223846793005) + 1442695040888963407;
	return state >> 33;
}

/* A row: relation 16384, new tuple of (null, unchanged, text "ab"). */
static void
put_row(StringInfo buf, uint32 xid)
{
	static const char body[] = "\0\0\100\0N\0\3nut\0\0\0\2ab";
	int			frame = fstream_begin(buf, xid, FSTREAM_INSERT);

	appendBinaryStringInfo(buf, body, sizeof(body) - 1);
	fstream_end(buf, frame);
}

static void
put_rollback_prepared(StringInfo buf, uint32 xid, const char *gid, int len)
{
	static const char body[] =
		"\0"					/* flags */
		"\0\0\0\0\0\0\2\20"		/* end of PREPARE */
		"\0\0\0\0\0\0\3\0"		/* end */
		"\0\0\0\0\0\0\0\7"		/* time of PREPARE */
		"\0\0\0\0\0\0\0\11"		/* time */
		"\0\0\3\40";			/* xid 800 */
	int			frame = fstream_begin(buf, xid, FSTREAM_ROLLBACK_PREPARED);

	appendBinaryStringInfo(buf, body, sizeof(body) - 1);
	appendBinaryStringInfo(buf, gid, len);
	fstream_end(buf, frame);
}

/* Is the one frame in a buffer a message of two-phase commit? */
static bool
reads_prepared(StringInfo buf)
{
	FStreamReader reader;
	FStreamFrame frame;
	FStreamPrepared prepared;
	char	   *copy = palloc(buf->len);
	bool		result;

	memcpy(copy, buf->data, buf->len);
	fstream_reader_init(&reader, copy, buf->len);
	result = fstream_next(&reader, &frame) == FSTREAM_OK &&
			 fstream_get_prepared(&frame, &prepared);
	pfree(copy);
	resetStringInfo(buf);
	return result;
}

static void
put_all(StringInfo buf)
{
	put_row(buf, 700);
	fstream_put_subxact(buf, 700, 701);
	put_row(buf, 700);
	fstream_put_abort(buf, 700, 701, 0x100, 5);
	fstream_put_commit(buf, 700, UINT64CONST(0x1122334455667788),
					   UINT64CONST(0x1122334455667799), -42);
	fstream_put_prepare(buf, 800, FSTREAM_BEGIN_PREPARE, 0x200, 0x210, 7, "gid");
	fstream_put_prepare(buf, 800, FSTREAM_PREPARE, 0x200, 0x210, 7, "gid");
	put_rollback_prepared(buf, 800, "gid", 4);
}

/* Reads all of a buffer as the leader does. */
static FStreamResult
read_all(const char *data, size_t len)
{
	FStreamReader reader;
	FStreamFrame frame;
	FStreamResult result;

	fstream_reader_init(&reader, data, len);
	while ((result = fstream_next(&reader, &frame)) == FSTREAM_OK)
	{
		FStreamCommit commit;
		FStreamAbort abort;
		FStreamPrepared prepared;
		FStreamRow	row;
		uint32		subxid;

		switch (frame.type)
		{
			case FSTREAM_COMMIT:
				(void) fstream_get_commit(&frame, &commit);
				break;
			case FSTREAM_ABORT:
				(void) fstream_get_abort(&frame, &abort);
				break;
			case FSTREAM_BEGIN_PREPARE:
			case FSTREAM_PREPARE:
			case FSTREAM_COMMIT_PREPARED:
			case FSTREAM_ROLLBACK_PREPARED:
				if (fstream_get_prepared(&frame, &prepared))
				{
					volatile size_t sum = strlen(prepared.gid);

					(void) sum;
				}
				break;
			case FSTREAM_SUBXACT:
				(void) fstream_get_subxact(&frame, &subxid);
				break;
			default:
				if (fstream_get_row(&frame, &row))
				{
					FStreamColumn column;
					volatile size_t sum = 0;

					while (row.oldkind && fstream_next_column(&row.oldtup, &column))
						for (size_t i = 0; i < column.len; i++)
							sum += column.data[i];
					while (row.has_new && fstream_next_column(&row.newtup, &column))
						for (size_t i = 0; i < column.len; i++)
							sum += column.data[i];
					(void) sum;
				}
		}
	}
	return result;
}

int
main(void)
{
	StringInfoData buf;
	FStreamReader reader;
	FStreamFrame frame;
	FStreamRow	row;
	FStreamColumn column;
	FStreamCommit commit;
	FStreamAbort abort;
	FStreamPrepared prepared;
	uint32		subxid;
	int			whole = 0;
	char	   *copy;

	initStringInfo(&buf);
	put_all(&buf);

	fstream_reader_init(&reader, buf.data, buf.len);
	ok(fstream_next(&reader, &frame) == FSTREAM_OK && frame.xid == 700 &&
		   frame.type == FSTREAM_INSERT && fstream_get_row(&frame, &row) &&
		   row.relid == 16384 && row.oldkind == 0 && row.has_new &&
		   row.newtup.ncols == 3,
	   "an insert");
	ok(fstream_next_column(&row.newtup, &column) && column.kind == 'n' &&
		   fstream_next_column(&row.newtup, &column) && column.kind == 'u' &&
		   fstream_next_column(&row.newtup, &column) && column.kind == 't' &&
		   column.len == 2 && memcmp(column.data, "ab", 2) == 0 &&
		   !fstream_next_column(&row.newtup, &column),
	   "its columns");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   fstream_get_subxact(&frame, &subxid) && subxid == 701,
	   "start of a subtransaction");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK, "another insert");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   fstream_get_abort(&frame, &abort) && abort.subxid == 701 &&
		   abort.lsn == 0x100 && abort.time == 5,
	   "an abort");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   fstream_get_commit(&frame, &commit) &&
		   commit.commit_lsn == UINT64CONST(0x1122334455667788) &&
		   commit.end_lsn == UINT64CONST(0x1122334455667799) &&
		   commit.commit_time == -42,
	   "a commit");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   frame.type == FSTREAM_BEGIN_PREPARE &&
		   fstream_get_prepared(&frame, &prepared) && prepared.lsn == 0x200,
	   "beginning of a prepared transaction");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   frame.type == FSTREAM_PREPARE && frame.xid == 800 &&
		   fstream_get_prepared(&frame, &prepared) &&
		   prepared.lsn == 0x200 && prepared.end_lsn == 0x210 &&
		   prepared.time == 7 && strcmp(prepared.gid, "gid") == 0,
	   "a PREPARE");
	ok(fstream_next(&reader, &frame) == FSTREAM_OK &&
		   frame.type == FSTREAM_ROLLBACK_PREPARED &&
		   fstream_get_prepared(&frame, &prepared) &&
		   prepared.prepare_end_lsn == 0x210 && prepared.end_lsn == 0x300 &&
		   prepared.prepare_time == 7 && prepared.time == 9 &&
		   strcmp(prepared.gid, "gid") == 0,
	   "a ROLLBACK PREPARED");
	ok(fstream_next(&reader, &frame) == FSTREAM_DONE, "the end");

	/*
	 * Exact allocations, so that valgrind or a sanitizer sees a read that goes
	 * too far by one byte.
	 */
	for (int len = 0; len < buf.len; len++)
	{
		copy = palloc(Max(len, 1));
		memcpy(copy, buf.data, len);
		if (read_all(copy, len) == FSTREAM_DONE)
			whole++;
		pfree(copy);
	}
	ok(whole == 8, "cut off anywhere: whole only between two frames");

	{
		StringInfoData one;

		initStringInfo(&one);
		put_rollback_prepared(&one, 800, "gid", 4);
		ok(reads_prepared(&one), "a good one");
		put_rollback_prepared(&one, 801, "gid", 4);
		ok(!reads_prepared(&one), "its xid is not the frame's");
		put_rollback_prepared(&one, 800, "gid", 3);
		ok(!reads_prepared(&one), "its name has no end");
		put_rollback_prepared(&one, 800, "g\0d", 4);
		ok(!reads_prepared(&one), "something behind its name");
		put_rollback_prepared(&one, 800, "", 0);
		ok(!reads_prepared(&one), "no name");
		fstream_put_prepare(&one, 800, FSTREAM_PREPARE, 0x200, 0, 7, "gid");
		ok(!reads_prepared(&one), "no position");
		fstream_put_prepare(&one, 800, FSTREAM_PREPARE, 0x200, 0x210, 7, "gid");
		one.data[FSTREAM_HEADER_SIZE + 1] = 1;
		ok(!reads_prepared(&one), "unknown flags");
	}

	copy = palloc(buf.len);
	for (int i = 0; i < 200000; i++)
	{
		memcpy(copy, buf.data, buf.len);
		for (int j = next_random() % 4; j >= 0; j--)
			copy[next_random() % buf.len] = next_random();
		(void) read_all(copy, next_random() % (buf.len + 1));
	}
	ok(true, "random damage: no crash");
	return done_testing();
}
