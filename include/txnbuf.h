/*-------------------------------------------------------------------------
 *
 * txnbuf.h
 *	  Buffers of remote transactions: written by the leader while they
 *	  arrive, read by the worker that applies them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TXNBUF_H
#define PGPARREP_TXNBUF_H

#include "postgres.h"

#include "lib/ilist.h"
#include "storage/buffile.h"

#include "shared.h"

/* What a change conflicts with; keyplan.c says which. */
typedef enum Conflict
{
	CONFLICT_KEYS,				/* writers of the same keys */
	CONFLICT_TABLE,				/* every other change of the table */
	CONFLICT_ALL				/* every other transaction */
} Conflict;

/*
 * One change in a buffer, aligned to MAXIMUM_ALIGNOF, followed by
 * uint64 keys[nkeys] and the body.  Types are those of the logical
 * replication protocol.  The body of an insert, update and delete is the
 * message's body after its type; that of a truncate is TruncateBody.
 *
 * wait_csn is at first what was handed out when the change arrived, for eager.c.
 * At the commit the leader makes it what the change depends on, if it is in
 * memory and is not being read.
 */
typedef struct ChangeRec
{
	uint32		size;			/* of all, aligned */
	uint32		len;			/* of the body */
	uint32		version;		/* of the relation; 0 for a truncate */
	char		type;			/* I U D T */
	uint8		conflict;		/* Conflict */
	uint16		nkeys;
	Csn			wait_csn;		/* to wait for; see below */
} ChangeRec;

#define change_keys(rec) ((uint64 *) ((char *) (rec) + sizeof(ChangeRec)))
#define change_body(rec) \
	((char *) (rec) + sizeof(ChangeRec) + (rec)->nkeys * sizeof(uint64))

typedef struct TruncateBody
{
	uint32		flags;			/* as in the protocol's message */
	uint32		nrels;
	uint32		versions[FLEXIBLE_ARRAY_MEMBER];
} TruncateBody;

typedef struct Chunk
{
	dsa_pointer next;
	uint32		size;			/* of data */
	uint32		used;
	char		data[FLEXIBLE_ARRAY_MEMBER];
} Chunk;

/* A subtransaction and where in its transaction it began. */
typedef struct SubXact
{
	TransactionId xid;
	uint64		start;			/* bytes of changes before it */
	uint64		nchanges;		/* changes before it */
} SubXact;

/* A key that a transaction in a file has touched. */
typedef struct SpillKey
{
	uint32		version;
	uint8		conflict;
	uint64		key;			/* only for CONFLICT_KEYS */
} SpillKey;

struct		RelVersion;

/* How the leader finds the buffer of an uncommitted transaction. */
typedef struct RemoteTxn
{
	TransactionId xid;			/* hash key */
	char		status;			/* of the hash table */
	struct TxnBuffer *buf;
} RemoteTxn;

/* A remote transaction in the leader. */
typedef struct TxnBuffer
{
	TransactionId xid;
	dlist_node	node;			/* in memory, by age; or in files */

	uint64		nchanges;
	uint64		bytes;			/* of changes, in file and memory */
	uint64		file_bytes;		/* of those, in the file */
	Size		allocated;		/* shared memory held */
	uint32		file;			/* name of the spill file; 0 = none */

	dsa_pointer first;			/* chunks */
	dsa_pointer last;

	EagerTxn   *eager;			/* if it is applied already, or offered */
	bool		never_eager;

	SubXact    *subxacts;
	int			nsubxacts;
	int			maxsubxacts;

	struct RelVersion **rels;	/* versions used, each pinned once */
	int			nrels;
	int			maxrels;

	/* Only with a file. */
	SpillKey   *keys;
	int			nkeys;
	int			maxkeys;
	bool		all_tables;		/* too many keys to keep */
	bool		all_else;		/* one of the keys is CONFLICT_ALL */
} TxnBuffer;

/* Leader. */
extern void txnbuf_init(Pool *pool, dsa_area *area);
extern TxnBuffer *txnbuf_get(TransactionId xid, bool create);
extern char *txnbuf_append(TxnBuffer *txn, char type, uint32 version,
						   Conflict conflict, int nkeys, const uint64 *keys,
						   uint32 len, Csn handed);
extern void txnbuf_pin_relation(TxnBuffer *txn, struct RelVersion *rel);
extern void txnbuf_subxact(TxnBuffer *txn, TransactionId subxid);
extern void txnbuf_abort_subxact(TxnBuffer *txn, TransactionId subxid);
extern void txnbuf_enforce_limits(TxnBuffer *txn);
extern void txnbuf_commit(TxnBuffer *txn, PoolTxn *ptxn);
extern void txnbuf_drop(TxnBuffer *txn);
extern void txnbuf_release(TxnBuffer *txn);
extern uint64 txnbuf_in_progress(void);
extern uint64 txnbuf_spilled(void);
extern Size txnbuf_committed_bytes(void);

/* Worker. */
typedef struct TxnReader
{
	Pool	   *pool;
	dsa_area   *area;
	Chunk	   *chunk;
	uint32		offset;
	BufFile    *file;

	/* Of an eager transaction. */
	EagerTxn   *eager;			/* NULL for others */
	uint64		position;		/* of the next change */
	uint64		file_limit;		/* to read from the file, up to here */
	uint64		file_segment;	/* last segment that the open file has */
	uint32		generation;		/* that "at" is of */
	dsa_pointer at;				/* chunk to copy from next, and where */
	uint32		at_offset;
	char	   *batch;			/* copied from a chunk */
	Size		batch_size;
	uint32		batch_used;
	uint32		batch_offset;

	const ChangeRec *stored;	/* the current change, if it stays in memory */
	ChangeRec	rec;			/* its header */
	char	   *body;			/* its body, private, one spare byte behind */
	Size		bodysize;
} TxnReader;

extern void txnread_begin(TxnReader *reader, Pool *pool, dsa_area *area,
						  PoolTxn *ptxn);
extern bool txnread_next(TxnReader *reader);

/* Makes a change that was "stored" the current one, also when all has been read. */
extern void txnread_again(TxnReader *reader, const ChangeRec *rec);

/*
 * The same of an eager transaction.  Here txnread_next returns false as soon
 * as there is no more for now, and raises an error if there never will be.
 */
extern void txnread_begin_eager(TxnReader *reader, Pool *pool, dsa_area *area,
								EagerTxn *eager);

/* The body of a relation message, a copy that is the caller's to free. */
extern char *txnread_relation(TxnReader *reader, const TxnRel *rel);
extern void txnread_end(TxnReader *reader);
extern void txnread_abort(TxnReader *reader);

#endif							/* PGPARREP_TXNBUF_H */
