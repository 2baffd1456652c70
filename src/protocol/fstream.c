/*-------------------------------------------------------------------------
 *
 * fstream.c
 *	  The F stream: encoding and decoding of frames.
 *
 * Pure functions of their arguments.  The reading half works on memory that a
 * hostile peer may have filled:
 *
 * I1.	No byte outside of [data, data + len) is looked at; every length is
 *		compared with what is left before it is used, never added first.
 * I2.	fstream_next returns FSTREAM_OK only for a frame whose xid fits its
 *		type (0 for R, Y and S, either for M, not 0 for the rest) and whose
 *		body has the right size if its type has a fixed one.
 * I3.	fstream_get_row returns true only after walking both tuples to their
 *		ends, so that fstream_next_column cannot fail later.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FRONTEND
#include "postgres.h"
#else
#include "postgres_fe.h"
#endif

#include "fstream.h"

#include "port/pg_bswap.h"

static inline uint16
get16(const char *p)
{
	uint16		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh16(v);
}

static inline uint32
get32(const char *p)
{
	uint32		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh32(v);
}

static inline uint64
get64(const char *p)
{
	uint64		v;

	memcpy(&v, p, sizeof(v));
	return pg_ntoh64(v);
}

static inline char *
put32(char *p, uint32 v)
{
	v = pg_hton32(v);
	memcpy(p, &v, sizeof(v));
	return p + sizeof(v);
}

static inline char *
put64(char *p, uint64 v)
{
	v = pg_hton64(v);
	memcpy(p, &v, sizeof(v));
	return p + sizeof(v);
}

/*
 * Append the header of a frame.
 */
int
fstream_begin(StringInfo buf, uint32 xid, char type)
{
	int			frame = buf->len;
	char	   *p;

	enlargeStringInfo(buf, FSTREAM_HEADER_SIZE + 1);
	p = buf->data + frame;
	*p++ = FSTREAM_MARKER;
	p = put32(p, xid);
	p = put32(p, 0);			/* msgLen: fstream_end */
	*p = type;
	buf->len += FSTREAM_HEADER_SIZE + 1;

	return frame;
}

/*
 * The body is complete.
 */
void
fstream_end(StringInfo buf, int frame)
{
	put32(buf->data + frame + 5, buf->len - frame - FSTREAM_HEADER_SIZE);
}

void
fstream_put_commit(StringInfo buf, uint32 xid, uint64 commit_lsn,
				   uint64 end_lsn, int64 commit_time)
{
	char		body[FSTREAM_COMMIT_SIZE];
	char	   *p = body;
	int			frame = fstream_begin(buf, xid, FSTREAM_COMMIT);

	*p++ = 0;					/* flags: none defined */
	p = put64(p, commit_lsn);
	p = put64(p, end_lsn);
	put64(p, (uint64) commit_time);
	appendBinaryStringInfo(buf, body, sizeof(body));
	fstream_end(buf, frame);
}

void
fstream_put_prepare(StringInfo buf, uint32 xid, char type, uint64 prepare_lsn,
					uint64 end_lsn, int64 prepare_time, const char *gid)
{
	char		body[1 + 8 + 8 + 8 + 4];
	char	   *p = body;
	int			frame = fstream_begin(buf, xid, type);

	if (type == FSTREAM_PREPARE)
		*p++ = 0;				/* flags: none defined */
	p = put64(p, prepare_lsn);
	p = put64(p, end_lsn);
	p = put64(p, (uint64) prepare_time);
	p = put32(p, xid);
	appendBinaryStringInfo(buf, body, p - body);
	appendBinaryStringInfo(buf, gid, strlen(gid) + 1);
	fstream_end(buf, frame);
}

void
fstream_put_subxact(StringInfo buf, uint32 xid, uint32 subxid)
{
	char		body[FSTREAM_SUBXACT_SIZE];
	int			frame = fstream_begin(buf, xid, FSTREAM_SUBXACT);

	put32(body, subxid);
	appendBinaryStringInfo(buf, body, sizeof(body));
	fstream_end(buf, frame);
}

void
fstream_put_abort(StringInfo buf, uint32 xid, uint32 subxid, uint64 lsn,
				  int64 time)
{
	char		body[FSTREAM_ABORT_SIZE];
	char	   *p = body;
	int			frame = fstream_begin(buf, xid, FSTREAM_ABORT);

	p = put32(p, subxid);
	p = put64(p, lsn);
	put64(p, (uint64) time);
	appendBinaryStringInfo(buf, body, sizeof(body));
	fstream_end(buf, frame);
}

void
fstream_put_sync(StringInfo buf, bool synchronous)
{
	char		body[FSTREAM_SYNC_SIZE] = {synchronous ? 1 : 0};
	int			frame = fstream_begin(buf, 0, FSTREAM_SYNC);

	appendBinaryStringInfo(buf, body, sizeof(body));
	fstream_end(buf, frame);
}

void
fstream_reader_init(FStreamReader *reader, const char *data, size_t len)
{
	reader->data = data;
	reader->len = len;
	reader->pos = 0;
	reader->fault = NULL;
}

/*
 * What is wrong with this frame, or NULL.  (I2)
 */
static const char *
frame_fault(const FStreamFrame *frame)
{
	switch (frame->type)
	{
		case FSTREAM_RELATION:
		case FSTREAM_TYPE:
			if (frame->xid != 0)
				return "message that belongs to no transaction carries a transaction id";
			break;

		case FSTREAM_SYNC:
			if (frame->xid != 0)
				return "message that belongs to no transaction carries a transaction id";
			if (frame->len != FSTREAM_SYNC_SIZE)
				return "synchronous state of wrong length";
			break;

		case FSTREAM_MESSAGE:
			break;

		case FSTREAM_INSERT:
		case FSTREAM_UPDATE:
		case FSTREAM_DELETE:
		case FSTREAM_TRUNCATE:
			if (frame->xid == 0)
				return "change without transaction id";
			break;

		case FSTREAM_COMMIT:
			if (frame->xid == 0)
				return "commit without transaction id";
			if (frame->len != FSTREAM_COMMIT_SIZE)
				return "commit of wrong length";
			break;

		case FSTREAM_BEGIN_PREPARE:
		case FSTREAM_PREPARE:
		case FSTREAM_COMMIT_PREPARED:
		case FSTREAM_ROLLBACK_PREPARED:
			if (frame->xid == 0)
				return "prepared transaction without transaction id";
			break;

		case FSTREAM_SUBXACT:
			if (frame->xid == 0)
				return "subtransaction without transaction id";
			if (frame->len != FSTREAM_SUBXACT_SIZE)
				return "subtransaction of wrong length";
			break;

		case FSTREAM_ABORT:
			if (frame->xid == 0)
				return "abort without transaction id";
			if (frame->len != FSTREAM_ABORT_SIZE)
				return "abort of wrong length";
			break;

		default:
			return "unknown message type";
	}

	return NULL;
}

/*
 * Read the next frame.
 */
FStreamResult
fstream_next(FStreamReader *reader, FStreamFrame *frame)
{
	const char *p = reader->data + reader->pos;
	size_t		left = reader->len - reader->pos;
	uint32		msglen;

	if (left == 0)
		return FSTREAM_DONE;

	if (p[0] != FSTREAM_MARKER)
	{
		reader->fault = "frame does not begin with 'F'";
		return FSTREAM_FAULT;
	}
	if (left < FSTREAM_HEADER_SIZE + 1)
	{
		reader->fault = "incomplete frame header";
		return FSTREAM_FAULT;
	}

	frame->xid = get32(p + 1);
	msglen = get32(p + 5);
	left -= FSTREAM_HEADER_SIZE;
	if (msglen < 1 || msglen > left)
	{
		reader->fault = "frame length out of range";
		return FSTREAM_FAULT;
	}

	frame->type = p[FSTREAM_HEADER_SIZE];
	frame->body = p + FSTREAM_HEADER_SIZE + 1;
	frame->len = msglen - 1;

	reader->fault = frame_fault(frame);
	if (reader->fault != NULL)
		return FSTREAM_FAULT;

	reader->pos += FSTREAM_HEADER_SIZE + msglen;
	return FSTREAM_OK;
}

bool
fstream_get_sync(const FStreamFrame *frame, bool *synchronous)
{
	if (frame->len != FSTREAM_SYNC_SIZE || (uint8) frame->body[0] > 1)
		return false;
	*synchronous = frame->body[0] != 0;
	return true;
}

bool
fstream_get_commit(const FStreamFrame *frame, FStreamCommit *commit)
{
	if (frame->len != FSTREAM_COMMIT_SIZE)
		return false;

	commit->flags = (uint8) frame->body[0];
	commit->commit_lsn = get64(frame->body + 1);
	commit->end_lsn = get64(frame->body + 9);
	commit->commit_time = (int64) get64(frame->body + 17);

	return commit->flags == 0;
}

bool
fstream_get_prepared(const FStreamFrame *frame, FStreamPrepared *prepared)
{
	bool		rollback = frame->type == FSTREAM_ROLLBACK_PREPARED;
	const char *p = frame->body;
	size_t		fixed = 8 + 8 + 8 + 4;

	if (frame->type != FSTREAM_BEGIN_PREPARE)
		fixed += 1;
	if (rollback)
		fixed += 8;

	/* What follows is a string, and nothing behind it. */
	if (frame->len <= fixed ||
		memchr(p + fixed, '\0', frame->len - fixed) != p + frame->len - 1)
		return false;

	if (frame->type != FSTREAM_BEGIN_PREPARE && *p++ != 0)
		return false;			/* flags: none defined */
	memset(prepared, 0, sizeof(FStreamPrepared));
	prepared->lsn = get64(p);
	prepared->end_lsn = get64(p + 8);
	p += 16;
	if (rollback)
	{
		prepared->prepare_end_lsn = prepared->lsn;
		prepared->prepare_time = (int64) get64(p);
		p += 8;
	}
	prepared->time = (int64) get64(p);
	prepared->gid = p + 12;

	return prepared->lsn != 0 && prepared->end_lsn != 0 &&
		   get32(p + 8) == frame->xid;
}

bool
fstream_get_subxact(const FStreamFrame *frame, uint32 *subxid)
{
	if (frame->len != FSTREAM_SUBXACT_SIZE)
		return false;

	*subxid = get32(frame->body);

	return *subxid != 0;
}

bool
fstream_get_abort(const FStreamFrame *frame, FStreamAbort *abort)
{
	if (frame->len != FSTREAM_ABORT_SIZE)
		return false;

	abort->subxid = get32(frame->body);
	abort->lsn = get64(frame->body + 4);
	abort->time = (int64) get64(frame->body + 12);

	return abort->subxid != 0;
}

/* The position behind a string that begins at pos; 0 if it has no end. */
static size_t
skip_string(const char *body, size_t len, size_t pos)
{
	const char *end = pos < len ? memchr(body + pos, '\0', len - pos) : NULL;

	return end != NULL ? end - body + 1 : 0;
}

bool
fstream_get_typmods(const char *body, size_t len, int natts, int32 *typmods)
{
	size_t		pos = 4;		/* relation */

	if ((pos = skip_string(body, len, pos)) == 0 ||
		(pos = skip_string(body, len, pos)) == 0 ||
		len - pos < 3 || get16(body + pos + 1) != natts)
		return false;
	pos += 3;					/* replica identity, number of columns */

	for (int i = 0; i < natts; i++)
	{
		/* flags, name, type, modifier */
		if ((pos = skip_string(body, len, pos + 1)) == 0 || len - pos < 8)
			return false;
		typmods[i] = (int32) get32(body + pos + 4);
		pos += 8;
	}

	return pos == len;
}

/*
 * Read one column; false at the end of the tuple or at a fault, which is a
 * difference only for walk_tuple.
 */
bool
fstream_next_column(FStreamTuple *tuple, FStreamColumn *column)
{
	size_t		left = tuple->len - tuple->pos;
	const char *p = tuple->data + tuple->pos;
	uint32		len;

	if (tuple->col >= tuple->ncols || left < 1)
		return false;

	column->kind = *p++;
	left--;
	column->data = NULL;
	column->len = 0;

	switch (column->kind)
	{
		case FSTREAM_COL_NULL:
		case FSTREAM_COL_UNCHANGED:
			break;

		case FSTREAM_COL_TEXT:
		case FSTREAM_COL_BINARY:
		case FSTREAM_COL_NATIVE:
			if (left < 4)
				return false;
			len = get32(p);
			p += 4;
			left -= 4;
			if (len > left)
				return false;
			column->data = p;
			column->len = len;
			p += len;
			break;

		default:
			return false;
	}

	tuple->pos = p - tuple->data;
	tuple->col++;

	return true;
}

/*
 * Set up the tuple that begins at *pos of the body, check it, and move *pos
 * behind it.
 */
static bool
walk_tuple(const FStreamFrame *frame, size_t *pos, FStreamTuple *tuple)
{
	FStreamTuple walk;
	FStreamColumn column;

	if (frame->len - *pos < 2)
		return false;

	tuple->data = frame->body + *pos + 2;
	tuple->len = frame->len - *pos - 2;
	tuple->pos = 0;
	tuple->ncols = get16(frame->body + *pos);
	tuple->col = 0;

	walk = *tuple;
	while (fstream_next_column(&walk, &column))
		;
	if (walk.col != walk.ncols)
		return false;

	tuple->len = walk.pos;
	*pos += 2 + walk.pos;

	return true;
}

/*
 * Read the body of an I, U or D.  (I3)
 */
bool
fstream_get_row(const FStreamFrame *frame, FStreamRow *row)
{
	size_t		pos;
	char		kind;

	memset(row, 0, sizeof(FStreamRow));

	if (frame->len < 5)
		return false;
	row->relid = get32(frame->body);
	pos = 4;
	kind = frame->body[pos++];

	if (frame->type != FSTREAM_INSERT && (kind == 'K' || kind == 'O'))
	{
		row->oldkind = kind;
		if (!walk_tuple(frame, &pos, &row->oldtup))
			return false;
		if (frame->type == FSTREAM_DELETE)
			return pos == frame->len;
		if (frame->len - pos < 1)
			return false;
		kind = frame->body[pos++];
	}

	if (frame->type == FSTREAM_DELETE || kind != 'N')
		return false;

	row->has_new = true;
	return walk_tuple(frame, &pos, &row->newtup) && pos == frame->len;
}
