/*-------------------------------------------------------------------------
 *
 * fstream.h
 *	  The F stream: what a publisher sends to a client that asked for
 *	  streaming 'extreme'.
 *
 * One CopyData message of type 'w' carries one or more frames
 *
 *		'F' | xid int32 | msgLen int32 | msgType byte | msgBody
 *
 * in network byte order; msgLen counts msgType and msgBody.  docs/protocol.md
 * describes every byte.  Both ends use this file: the publisher the put
 * functions, the subscriber the reader.
 *
 * The reader trusts nothing: it never looks beyond the buffer that it was
 * given, allocates nothing and reports a fault by returning FSTREAM_FAULT with
 * a constant string that says what is wrong.  It needs no server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_FSTREAM_H
#define PGPARREP_FSTREAM_H

#include "lib/stringinfo.h"

/* First byte of every frame. */
#define FSTREAM_MARKER 'F'

/* Bytes before msgType: marker, xid, msgLen. */
#define FSTREAM_HEADER_SIZE 9

/*
 * Message types.  Those that pgoutput has too have the body that pgoutput
 * gives them outside of a streaming block.
 */
#define FSTREAM_INSERT 'I'
#define FSTREAM_UPDATE 'U'
#define FSTREAM_DELETE 'D'
#define FSTREAM_TRUNCATE 'T'
#define FSTREAM_RELATION 'R'	/* stream state, xid 0 */
#define FSTREAM_TYPE 'Y'		/* stream state, xid 0 */
#define FSTREAM_MESSAGE 'M'		/* xid 0 if not transactional */
#define FSTREAM_COMMIT 'C'
#define FSTREAM_BEGIN_PREPARE 'b'
#define FSTREAM_PREPARE 'P'
#define FSTREAM_COMMIT_PREPARED 'K'
#define FSTREAM_ROLLBACK_PREPARED 'r'
#define FSTREAM_SUBXACT 'X'		/* ours: names the subtransaction */
#define FSTREAM_ABORT 'A'		/* ours: ends a (sub)transaction */
#define FSTREAM_SYNC 'S'		/* ours: do commits wait for the client? */

/* Column kinds in the tuples of I, U and D. */
#define FSTREAM_COL_NULL 'n'
#define FSTREAM_COL_UNCHANGED 'u'
#define FSTREAM_COL_TEXT 't'
#define FSTREAM_COL_BINARY 'b'
#define FSTREAM_COL_NATIVE 'd'	/* ours: as stored; native.h */

/* Body sizes of the messages of fixed length. */
#define FSTREAM_COMMIT_SIZE 25	/* flags, commit_lsn, end_lsn, time */
#define FSTREAM_SUBXACT_SIZE 4	/* subxid */
#define FSTREAM_ABORT_SIZE 20	/* subxid, lsn, time */
#define FSTREAM_SYNC_SIZE 1		/* boolean */

/*
 * Writing.  fstream_begin returns the offset of the frame in the buffer;
 * fstream_end fills in its length.  The body goes in between.
 */
extern int	fstream_begin(StringInfo buf, uint32 xid, char type);
extern void fstream_end(StringInfo buf, int frame);
extern void fstream_put_commit(StringInfo buf, uint32 xid, uint64 commit_lsn,
							   uint64 end_lsn, int64 commit_time);
/* A BEGIN_PREPARE or a PREPARE. */
extern void fstream_put_prepare(StringInfo buf, uint32 xid, char type,
								uint64 prepare_lsn, uint64 end_lsn,
								int64 prepare_time, const char *gid);
extern void fstream_put_subxact(StringInfo buf, uint32 xid, uint32 subxid);
extern void fstream_put_sync(StringInfo buf, bool synchronous);
extern void fstream_put_abort(StringInfo buf, uint32 xid, uint32 subxid,
							  uint64 lsn, int64 time);

/* Reading. */
typedef enum FStreamResult
{
	FSTREAM_OK,					/* got one */
	FSTREAM_DONE,				/* nothing left, no fault */
	FSTREAM_FAULT				/* the peer broke the protocol */
} FStreamResult;

typedef struct FStreamReader
{
	const char *data;
	size_t		len;
	size_t		pos;			/* start of the next frame */
	const char *fault;			/* what is wrong, after FSTREAM_FAULT */
} FStreamReader;

typedef struct FStreamFrame
{
	uint32		xid;			/* top-level transaction, or 0 */
	char		type;
	const char *body;			/* points into the reader's buffer */
	size_t		len;			/* of the body */
} FStreamFrame;

typedef struct FStreamCommit
{
	uint8		flags;
	uint64		commit_lsn;		/* start of the commit record */
	uint64		end_lsn;		/* its end */
	int64		commit_time;
} FStreamCommit;

/* A message of two-phase commit: b, P, K or r. */
typedef struct FStreamPrepared
{
	uint64		lsn;			/* start of the record; of r: prepare_end_lsn */
	uint64		end_lsn;		/* end of the record */
	int64		time;			/* of the record */
	uint64		prepare_end_lsn;	/* r only: end of the PREPARE's record */
	int64		prepare_time;	/* r only */
	const char *gid;			/* terminated */
} FStreamPrepared;

typedef struct FStreamAbort
{
	uint32		subxid;			/* the frame's xid: the whole transaction */
	uint64		lsn;			/* end of the abort record, or 0 */
	int64		time;			/* 0 if unknown */
} FStreamAbort;

/* A tuple inside of a body; walk it with fstream_next_column. */
typedef struct FStreamTuple
{
	const char *data;
	size_t		len;
	size_t		pos;
	int			ncols;
	int			col;			/* columns already read */
} FStreamTuple;

typedef struct FStreamColumn
{
	char		kind;			/* FSTREAM_COL_* */
	const char *data;			/* not terminated */
	size_t		len;
} FStreamColumn;

/* An I, U or D. */
typedef struct FStreamRow
{
	uint32		relid;
	char		oldkind;		/* 'K' or 'O', or 0: no old tuple */
	bool		has_new;
	FStreamTuple oldtup;
	FStreamTuple newtup;
} FStreamRow;

/*
 * The type modifiers of the columns that the body of an R describes, which
 * the server's reader skips; false if that is malformed.
 */
extern bool fstream_get_typmods(const char *body, size_t len, int natts,
								int32 *typmods);

extern void fstream_reader_init(FStreamReader *reader, const char *data, size_t len);
extern FStreamResult fstream_next(FStreamReader *reader, FStreamFrame *frame);

/* These return false for a malformed body. */
extern bool fstream_get_commit(const FStreamFrame *frame, FStreamCommit *commit);
extern bool fstream_get_prepared(const FStreamFrame *frame, FStreamPrepared *prepared);
extern bool fstream_get_subxact(const FStreamFrame *frame, uint32 *subxid);
extern bool fstream_get_abort(const FStreamFrame *frame, FStreamAbort *abort);
extern bool fstream_get_sync(const FStreamFrame *frame, bool *synchronous);
extern bool fstream_get_row(const FStreamFrame *frame, FStreamRow *row);

/* For a tuple of fstream_get_row, which has checked all of it. */
extern bool fstream_next_column(FStreamTuple *tuple, FStreamColumn *column);

#endif							/* PGPARREP_FSTREAM_H */
