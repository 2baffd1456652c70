/*-------------------------------------------------------------------------
 *
 * decoder.h
 *	  Parallel decoders: what the walsender and its decoders share.
 *
 * Vocabulary:
 *	  batch		items that make a piece of the stream when they are formatted
 *				one after the other; the unit of handing over
 *	  item		a relation plan, frames that are ready, or a row to format
 *	  ring		the batches in flight, in stream order
 *	  formatter	what turns items into frames, in a decoder and, for batches
 *				that no decoder has done, in the walsender
 *
 * The path of a row: reader.c -> ring.c -> decoder.c -> ring.c -> sender.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_DECODER_H
#define PGPARREP_DECODER_H

#include "port/atomics.h"
#include "publisher.h"
#include "storage/proc.h"

#define DECODER_MAGIC 0x70677064

/* Room for the header of a CopyData message in front of a batch's output. */
#define BATCH_HEAD_ROOM 64

/* Batch.failed_at: no error with an item, whose offset it is otherwise. */
#define NO_ITEM (-1)

/*
 * A batch: who may touch it is a matter of its state.
 *
 *	  BATCH_BUSY	the walsender fills it, or it waits for a decoder, or one
 *					formats it; next: PIECE, DONE, FAILED (all set by the
 *					decoder), or freed by the walsender, which formatted it
 *	  BATCH_PIECE	a part of the output is there; next: TAKEN (walsender),
 *					FAILED (decoder)
 *	  BATCH_TAKEN	the output area is the decoder's again; next: as BUSY
 *	  BATCH_DONE	the rest of the output is there
 *	  BATCH_FAILED	the decoder has given up; the walsender formats it again
 */
typedef enum BatchState
{
	BATCH_BUSY,
	BATCH_PIECE,
	BATCH_TAKEN,
	BATCH_DONE,
	BATCH_FAILED
} BatchState;

/* What a decoder could not do; texts are cut where they are too long. */
typedef struct DecoderError
{
	int			sqlerrcode;
	char		message[512];
	char		detail[512];
	char		hint[256];
	char		context[256];
} DecoderError;

typedef struct Batch
{
	pg_atomic_uint32 state;
	int			decoder;		/* who has it: set by the decoder */
	int			failed_at;		/* decoder, before FAILED: see NO_ITEM */
	DecoderError error;			/* likewise, if there is an item */
	uint32		in_len;			/* walsender, before it is published */
	uint32		out_len;		/* decoder, before PIECE and DONE */
	bool		out_more;		/* likewise: the output ends within a frame */
	XLogRecPtr	first_lsn;		/* walsender: start of the first record */
	XLogRecPtr	covered;		/* walsender: header position of the message */
	TimestampTz since;			/* walsender: when it was begun */
} Batch;

typedef enum DecoderState
{
	DECODER_STARTING,
	DECODER_IDLE,
	DECODER_WORKING,
	DECODER_WAITING,			/* for the walsender to take output */
	DECODER_GONE
} DecoderState;

/* A decoder's own slot: written by it alone. */
typedef struct DecoderSlot
{
	int			pid;
	PGPROC	   *proc;			/* NULL before it starts */
	pg_atomic_uint32 sleeping;	/* cleared by the walsender, which wakes it */
	pg_atomic_uint32 state;
	pg_atomic_uint64 batches;
	pg_atomic_uint64 bytes;		/* of output */
} DecoderSlot;

/* Has a decoder ended as it should not?  next: UNSAID, SAID */
typedef enum DecoderExit
{
	EXIT_NONE,
	EXIT_UNSAID,				/* the first that did is writing why */
	EXIT_SAID
} DecoderExit;

/* Head of the segment; behind it the settings, then the batches' areas. */
typedef struct DecoderShared
{
	uint32		magic;
	Oid			dbid;
	Oid			userid;
	PGPROC	   *walsender;
	int			walsender_pid;
	NameData	slot_name;
	int			ndecoders;
	int			nbatches;
	Size		in_size;		/* of each batch's input area */
	Size		out_size;		/* of each batch's output area */
	Size		settings;		/* offset */
	Size		areas;			/* offset */

	pg_atomic_uint32 stop;		/* walsender: decoders are to leave */
	pg_atomic_uint32 alive;		/* decoders that are ready for work */
	pg_atomic_uint32 waiting;	/* walsender sleeps until a batch gets on */
	pg_atomic_uint32 exit;		/* a DecoderExit, of the first such decoder */
	int			exit_decoder;	/* it, before SAID */
	DecoderError exit_error;	/* likewise */
	pg_atomic_uint64 published; /* batches before it may be claimed */
	pg_atomic_uint64 claimed;	/* the next one to claim */

	/* statistics, written by the walsender */
	pg_atomic_uint64 collected;
	pg_atomic_uint64 reader_lsn;
	pg_atomic_uint64 own_batches;	/* formatted by the walsender itself */
	pg_atomic_uint64 streamed;	/* rows taken out of the WAL */
	pg_atomic_uint64 queued[QUEUE_REASONS]; /* changes left to core */

	DecoderSlot decoders[MAX_PARALLEL_DECODE_NUM];
	Batch		batches[FLEXIBLE_ARRAY_MEMBER];
} DecoderShared;

static inline Batch *
batch_of(DecoderShared *shared, uint64 seq)
{
	return &shared->batches[seq % shared->nbatches];
}

static inline char *
batch_input(DecoderShared *shared, uint64 seq)
{
	return (char *) shared + shared->areas +
		   (seq % shared->nbatches) * (shared->in_size + BATCH_HEAD_ROOM + shared->out_size);
}

/* Behind the room for the header. */
static inline char *
batch_output(DecoderShared *shared, uint64 seq)
{
	return batch_input(shared, seq) + shared->in_size + BATCH_HEAD_ROOM;
}

/*
 * Items.  All are padded to MAXALIGN.
 */
typedef enum BatchItemKind
{
	ITEM_PLAN,					/* a plan, in front of its first row */
	ITEM_FRAMES,				/* frames as they are */
	ITEM_ROW
} BatchItemKind;

typedef struct BatchItem
{
	uint32		size;			/* of the item with its padding */
	uint32		len;			/* of what follows the fixed part */
	uint64		plan_version;	/* PLAN, ROW */
	BatchItemKind kind;

	/* of a ROW */
	char		type;
	uint16		nvalues;
	TransactionId topxid;
	TransactionId xid;
	XLogRecPtr	lsn;
	uint32		newlen;			/* 0: no new tuple */
	uint32		oldlen;
} BatchItem;

#define BATCH_ITEM_SIZE MAXALIGN(sizeof(BatchItem))

/* batch.c */
typedef struct Formatter Formatter;

extern Formatter *formatter_create(MemoryContext parent);
extern void formatter_plan(Formatter *fmt, BatchItem *item);
extern RelPlan *formatter_row(Formatter *fmt, BatchItem *item, StringInfo out);
extern RelPlan *formatter_find(Formatter *fmt, uint64 version);
extern void plan_make_blob(RelPlan *plan);
extern Size batch_plan_size(RelPlan *plan);
extern void batch_put_plan(char *dst, RelPlan *plan);
extern Size batch_frames_size(Size len);
extern void batch_put_frames(char *dst, const char *data, Size len);
extern Size batch_row_size(HeapTuple newtup, HeapTuple oldtup, Held *held);
extern void batch_put_row(char *dst, RelPlan *plan, TransactionId topxid,
						  TransactionId xid, XLogRecPtr lsn, char type,
						  HeapTuple newtup, HeapTuple oldtup, Held *held);

/* Entry point of the background workers. */
extern PGDLLEXPORT void pgparrep_decoder_main(Datum arg);

#endif							/* PGPARREP_DECODER_H */
