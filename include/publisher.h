/*-------------------------------------------------------------------------
 *
 * publisher.h
 *	  The publisher side: an output plugin that streams in WAL order.
 *
 * Vocabulary:
 *	  streamed	a transaction whose changes the reader takes out of the
 *				filter_by_origin callback as their records are decoded
 *	  queued	a transaction whose (further) changes core's reorder buffer
 *				keeps and replays through pgoutput at its commit
 *	  held		what waits for a later record before it can be sent: TOAST
 *				chunks and a speculative insertion
 *	  plan		everything about a relation that formatting a row needs
 *	  bundle	the Y and R frames that describe a relation, ready to send
 *	  batch		frames not yet handed to the walsender
 *
 * The path of a change: reader.c -> plan.c, held.c, row.c -> sender.c; with
 * parallel decoders see decoder.h; of a queued one: core -> replay.c ->
 * sender.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_PUBLISHER_H
#define PGPARREP_PUBLISHER_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "access/xlogreader.h"
#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "native.h"
#include "pgparrep.h"

typedef struct PublisherOptions
{
	bool		extreme;		/* streaming 'extreme' was asked for */
	bool		binary;
	bool		messages;
	bool		no_origin;		/* origin 'none' */
	bool		report_sync;	/* tell whether commits wait for the client */
	List	   *publication_names;	/* of char * */
	int			parallel_decode_num;
	int			max_recordbuffer_mb;	/* 0: no limit */
	int			max_txn_mb;		/* 0: no limit */
	NativeAgreement native;		/* with the client; not with binary */
	List	   *pgoutput_options;	/* what remains for pgoutput */
} PublisherOptions;

/* Y and R frames of one relation, as one producer wants them. */
typedef struct Bundle
{
	char	   *data;
	int			len;
	uint64		sent_version;	/* RelSent.version when these were current */
} Bundle;

/* What the client was last told about a relation. */
typedef struct RelSent
{
	Oid			relid;			/* hash key */
	uint64		version;		/* 0: nothing yet; changes with the bytes */
	char	   *data;
	int			len;
} RelSent;

/* How a column's value becomes bytes. */
typedef enum ColumnFormat
{
	COL_OUTPUT,					/* type output function */
	COL_SEND,					/* type send function */
	COL_BOOL,
	COL_INT2,
	COL_INT4,
	COL_INT8,
	COL_OID,
	COL_VARTEXT,				/* text, varchar, bpchar, json: as stored */
	COL_NATIVE					/* the datum, as kind 'd' */
} ColumnFormat;

typedef struct PlanColumn
{
	int			att;			/* index into values[], nulls[] */
	bool		varlena;
	ColumnFormat format;
	bool		warms_up;		/* needs catalogs for its first value only */
	FmgrInfo	finfo;
	struct ArrayMetaState *elements;	/* for a decoder, instead of catalogs */
	const NativeType *native;	/* COL_NATIVE only */
	bool		native_lz4;		/* ... the client can decompress lz4 */
} PlanColumn;

typedef enum PlanKind
{
	PLAN_STREAM,				/* the reader formats rows itself */
	PLAN_QUEUE,					/* needs core and pgoutput */
	PLAN_IGNORE,				/* never published */
	PLAN_IGNORE_TOAST			/* a TOAST relation */
} PlanKind;

typedef struct RelPlan
{
	Oid			relid;			/* hash key */
	bool		valid;
	uint64		epoch;			/* valid if equal to the global ones ... */
	uint64		type_epoch;		/* ... this one if user_types */
	CompatFileNode node;		/* file that the plan was made for */
	MemoryContext cxt;			/* of all below; NULL if nothing */

	PlanKind	kind;
	char	   *name;			/* with schema, for messages; PLAN_STREAM only */
	bool		pubinsert;
	bool		pubupdate;
	bool		pubdelete;
	bool		user_types;
	bool		needs_catalog;	/* formatting looks into catalogs */
	bool		cold;			/* some column still has to warm up */
	bool		parallel;		/* decoders can format it ... */
	bool		costly;			/* ... and it costs more than handing over */
	char		oldkind;		/* 'O' for REPLICA IDENTITY FULL, else 'K' */
	TupleDesc	desc;
	int			ncols;
	PlanColumn *cols;
	Datum	   *values;			/* scratch of natts */
	bool	   *nulls;
	Bundle		bundle;
	RelSent    *sent;

	/* batch.c: the plan as decoders get it; ring.c: the batch that has it */
	uint64		version;
	char	   *blob;			/* NULL: not made yet */
	Size		blob_len;
	uint64		in_batch;		/* its number + 1 */
} RelPlan;

/* Held changes of one transaction; held.c. */
typedef struct Held Held;

/* Finds the out-of-line value of a pointer, or NULL: it is unchanged. */
typedef struct varlena *(*ValueLookup)(void *arg, struct varlena *pointer);

/* Why changes are left to core's reorder buffer. */
typedef enum QueueReason
{
	QUEUE_START,				/* before the start point or a snapshot */
	QUEUE_CATALOG,				/* the transaction changes catalogs */
	QUEUE_RELATION,				/* row filter, column list, root, ... */
	QUEUE_MEMORY,				/* at a bound */
	QUEUE_OTHER					/* lookup failed, unknown records */
} QueueReason;

#define QUEUE_REASONS (QUEUE_OTHER + 1)

/* An error that is raised if the (sub)transaction turns out to commit. */
typedef struct DeferredError
{
	struct DeferredError *next;
	TransactionId xid;
	ErrorData  *edata;
} DeferredError;

/* The same for a row that was found faulty when its batch was collected. */
typedef struct LateError
{
	struct LateError *next;
	TransactionId topxid;
	TransactionId xid;
	ErrorData  *edata;
} LateError;

/* A subtransaction that streamed something or has something deferred. */
typedef struct PubSub
{
	TransactionId xid;			/* hash key */
	TransactionId topxid;
	struct PubSub *next;		/* of the same top-level transaction */
	struct PubSub *prev;
} PubSub;

typedef struct PubTxn
{
	TransactionId xid;			/* hash key: top-level */
	bool		queued;			/* sticky */
	QueueReason reason;			/* if queued */
	bool		sent;			/* the client has something of it */
	uint64		unlocked_epoch; /* at its first record; plan.c */
	TransactionId cur_subxid;	/* named by the last X; Invalid: name it */
	uint64		bytes;			/* of its frames, for the statistics */
	Held	   *held;
	PubSub	   *subs;
	DeferredError *errors;
} PubTxn;

typedef struct Publisher
{
	LogicalDecodingContext *ctx;
	MemoryContext cxt;			/* everything below, session life time */
	MemoryContext rowcxt;		/* reset after each record */
	PublisherOptions opts;
	OutputPluginCallbacks pgoutput; /* core's own, for replays */

	/*
	 * False in the SQL functions: they run in a transaction of their own and
	 * stop between records without a chance to drain a batch.
	 */
	bool		streaming;
	bool		reading_on;		/* reader.c: within read_on */

	/* sender.c: the walsender's functions, the batch, and how far it is */
	LogicalOutputPluginWriterPrepareWrite prepare_write;
	LogicalOutputPluginWriterWrite write;
	LogicalOutputPluginWriterUpdateProgress update_progress;
	XLogPageReadCB page_read;
	StringInfo	batch;			/* header room, then frames; len 0: empty */
	int			batch_head;		/* bytes of header room */
	int			frame;			/* offset of the frame being written */
	StringInfo	header;			/* scratch */
	XLogRecPtr	sent_position;	/* of the last message */
	XLogRecPtr covered;		  /* every commit ending at or before it is in
								 * the batch or sent */
	bool uncovered;				/* the batch has output that covered lacks */
	bool		told_sync;		/* the client believes that commits wait */
	XLogRecPtr	pending_lsn;	/* start of the first record in the batch */
	TimestampTz pending_since;
	int			pending_pages;
	XLogRecPtr	known_flush;
	int			pages_to_sweep;
	LateError  *late_errors;	/* of work whose end has not been sent */

	/* ring.c */
	bool		has_decoders;
	bool		behind;			/* enough WAL is there for decoders to pay off */
	Size		held_total;		/* of all transactions */

	/* txn.c */
	HTAB	   *txns;
	HTAB	   *subs;
	PubTxn	   *last_txn;

	/* plan.c */
	MemoryContext plancxt;
	HTAB	   *plans;			/* by relid */
	HTAB	   *nodes;			/* by file node */
	CompatFileNode last_node;
	RelPlan    *last_plan;
	MemoryContext pubcxt;
	List	   *publications;	/* of Publication * */
	HTAB	   *sent;			/* by relid: RelSent */
	uint64		sent_version;

	/* replay.c */
	HTAB	   *replay_bundles;
	StringInfo	replay_types;	/* Y frames that wait for their R */
	PubTxn	   *replay_txn;
	bool		in_delegated_end;
} Publisher;

/* plugin.c */
extern Publisher *publisher;

/* options.c */
extern bool options_ask_for_extreme(List *options);
extern void options_parse(List *options, PublisherOptions *opts);

/* reader.c */
extern bool reader_filter(LogicalDecodingContext *ctx, RepOriginId origin_id);

/* catalog.c: a short transaction with the catalogs of the past */
extern void catalog_begin(Publisher *pub, TransactionId xid);
extern void catalog_end(Publisher *pub);
extern void catalog_abandon(Publisher *pub);

/* plan.c */
extern void plan_init(Publisher *pub);
extern void plan_shutdown(void);
extern uint64 plan_unlocked_epoch(void);
extern void plan_begin_replay(uint64 epoch);
extern RelPlan *plan_lookup(Publisher *pub, CompatFileNode node, TransactionId xid);
extern void bundle_require(Publisher *pub, RelSent *sent, Bundle *bundle);
extern RelSent *bundle_sent(Publisher *pub, Oid relid);

/* row.c */
extern void row_write_change(StringInfo out, RelPlan *plan, HeapTuple newtup,
							 HeapTuple oldtup, ValueLookup lookup, void *arg);
extern bool row_needs_catalog(RelPlan *plan);

/* held.c */
extern HeapTuple tuple_make(PGAlignedBlock *room, Size datalen);
extern HeapTuple tuple_from_wal(PGAlignedBlock *room, const char *data, Size len);
extern bool held_add_chunk(Publisher *pub, PubTxn *txn, TransactionId xid,
						   CompatFileNode node, RepOriginId origin,
						   const char *data, Size len);
extern void held_set_speculative(Publisher *pub, PubTxn *txn, TransactionId xid,
								 CompatFileNode node, RepOriginId origin,
								 const char *data, Size len);
extern HeapTuple held_speculative(PubTxn *txn);
extern struct varlena *held_value(void *held, struct varlena *pointer);
/* id and size, in front of a value that held_copy_values has copied */
#define HELD_VALUE_HEADER (2 * sizeof(uint32))
extern Size held_values_size(Held *held, int *nvalues);
extern void held_copy_values(Held *held, char *dst);
extern Size held_size(PubTxn *txn);
extern void held_clear(PubTxn *txn);
extern void held_forget_xid(PubTxn *txn, TransactionId xid);
extern void held_hand_back(Publisher *pub, PubTxn *txn, XLogRecPtr lsn);
extern void held_free(PubTxn *txn);

/* txn.c */
extern void txn_init(Publisher *pub);
extern ReorderBufferTXN *txn_core_top(Publisher *pub, TransactionId xid);
extern PubTxn *txn_find(Publisher *pub, TransactionId xid);
extern PubTxn *txn_get(Publisher *pub, TransactionId xid);
extern void txn_note_sub(Publisher *pub, PubTxn *txn, TransactionId xid);
extern void txn_queue(Publisher *pub, PubTxn *txn, XLogRecPtr lsn, QueueReason reason);
extern void txn_end(Publisher *pub, PubTxn *txn);
extern void txn_abort(Publisher *pub, TransactionId xid, XLogRecPtr lsn, TimestampTz time);
extern void txn_defer_error(Publisher *pub, PubTxn *txn, TransactionId xid);
extern void txn_raise_errors(Publisher *pub, PubTxn *txn);
extern void txn_sweep(Publisher *pub);

/* sender.c */
extern void sender_init(Publisher *pub);
extern void sender_shutdown(void);
extern StringInfo sender_begin(Publisher *pub, TransactionId xid, char type);
extern void sender_end(Publisher *pub, PubTxn *txn);
extern void sender_cancel(Publisher *pub);
extern void sender_raw(Publisher *pub, const char *data, int len);
extern void sender_name_subxact(Publisher *pub, PubTxn *txn, TransactionId xid);
extern void sender_abort(Publisher *pub, TransactionId topxid, TransactionId subxid,
						 XLogRecPtr lsn, TimestampTz time);
extern void sender_commit(Publisher *pub, TransactionId xid, XLogRecPtr commit_lsn,
						  XLogRecPtr end_lsn, TimestampTz time);
extern void sender_prepare(Publisher *pub, TransactionId xid, XLogRecPtr prepare_lsn,
						   XLogRecPtr end_lsn, TimestampTz time, const char *gid);
extern void sender_tell_sync(Publisher *pub);
extern void sender_make_room(Publisher *pub, Size len);
extern void sender_covered(Publisher *pub, XLogRecPtr lsn);
extern void sender_flush(Publisher *pub);
extern void sender_send(Publisher *pub, StringInfo message, XLogRecPtr lsn);
extern void sender_late_error(Publisher *pub, TransactionId topxid, TransactionId xid);
extern bool sender_batch_is_empty(Publisher *pub);
extern void sender_reset_batch(Publisher *pub);

/* ring.c */
extern void ring_start(Publisher *pub);
extern void ring_shutdown(void);
extern bool ring_add_row(Publisher *pub, PubTxn *txn, TransactionId xid, RelPlan *plan,
						 char type, HeapTuple newtup, HeapTuple oldtup);
extern void ring_absorb(Publisher *pub);
extern void ring_poll(Publisher *pub, bool publish);
extern void ring_drain(Publisher *pub);
extern XLogRecPtr ring_oldest(void);
extern void ring_note_page(Publisher *pub, XLogRecPtr page);
extern void ring_count_streamed(void);
extern void ring_count_queued(QueueReason reason);

/* replay.c */
extern void replay_init(Publisher *pub);

#endif							/* PGPARREP_PUBLISHER_H */
