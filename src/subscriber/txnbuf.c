/*-------------------------------------------------------------------------
 *
 * txnbuf.c
 *	  Buffers of remote transactions.
 *
 * The leader appends each change to its transaction's buffer as it arrives.
 * A buffer is a list of chunks in shared memory; beyond a limit its chunks go
 * to a temporary file of the leader's FileSet, in the same format, and from
 * then on only the newest changes, a chunk at a time, are in memory.  At the
 * commit the buffer is handed to whichever worker claims the transaction;
 * workers only read it.
 *
 * Owns the chunks, the spill files and the table of uncommitted transactions.
 *
 * I1	Only the leader writes, and only before the transaction is handed out.
 *		So an attempt that has to be repeated reads the same changes again.
 * I2	A buffer lives until the leader has seen its transaction committed
 *		(txnbuf_release) or aborted (txnbuf_drop).
 * I3	A change does not span chunks, and "bytes" counts changes only: the
 *		position of a change in its transaction is the same number whether it
 *		is in memory or in the file.
 * I4	No file is open between two calls: transactions of the leader end in
 *		between, and the server closes temporary files at that point.
 * I5	A subtransaction and all below it are contiguous from its first change
 *		until it aborts, since its parent cannot write meanwhile.  So aborting
 *		it is cutting the buffer off at its start.
 * I6	An eager transaction (eager.c) is read while it is written.  What has
 *		been announced to its reader does not change.  Chunks are taken away
 *		only under the lock of its EagerTxn, under which the reader copies from
 *		them, and what they hold is in the file by then.  Before it is cut off
 *		or dropped it is cancelled: the reader looks for that after it has read,
 *		and before it believes what it read.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include <fcntl.h>

#include "access/transam.h"
#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "eager.h"
#include "guc.h"
#include "pool.h"
#include "streamrel.h"
#include "test_points.h"
#include "txnbuf.h"

/*
 * Most transactions fit in one small chunk; those that do not get large ones,
 * so that a long transaction costs few allocations.  The large size is also
 * what is written to a file at a time.
 */
#define CHUNK_SMALL (2048 - offsetof(Chunk, data))
#define CHUNK_LARGE (16384 - offsetof(Chunk, data))

/* Free chunks kept of each size rather than given back. */
#define KEEP_FREE_CHUNKS 256

/*
 * Keys remembered of a transaction in a file.  Beyond it is taken to conflict
 * with everything in its tables.
 */
#define MAX_SPILL_KEYS 16384

/* The same for all of them together: 2 MB. */
#define MAX_ALL_SPILL_KEYS 131072

/* Segments of a BufFile are this long; fixed in the server. */
#define BUFFILE_SEGMENT ((uint64) 0x40000000)

#define SH_PREFIX remotetxn
#define SH_ELEMENT_TYPE RemoteTxn
#define SH_KEY_TYPE TransactionId
#define SH_KEY xid
#define SH_HASH_KEY(tb, key) murmurhash32(key)
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct FreeChunks
{
	int			n;
	dsa_pointer chunk[KEEP_FREE_CHUNKS];
} FreeChunks;

static Pool *buf_pool;
static dsa_area *buf_area;
static MemoryContext buf_mcxt;
static MemoryContext txn_mcxt;	/* of the TxnBuffers, and nothing else */
static ResourceOwner buf_owner; /* of files while they are open */
static remotetxn_hash *txns;
static TxnBuffer *last_txn;		/* of the last lookup */
static dlist_head cached = DLIST_STATIC_INIT(cached);	/* oldest first */
static dlist_head spilled = DLIST_STATIC_INIT(spilled);
static uint64 ncached;
static uint64 nspilled;
static uint64 all_spill_keys;	/* room for keys of all that are in files */
static Size uncommitted_bytes;	/* allocated by what has not committed */
static Size committed_bytes;	/* allocated by what was handed out */
static FreeChunks free_small;
static FreeChunks free_large;
static uint32 last_file;

void
txnbuf_init(Pool *pool, dsa_area *area)
{
	buf_pool = pool;
	buf_area = area;
	buf_mcxt = AllocSetContextCreate(TopMemoryContext,
									 "pgparrep transactions",
									 ALLOCSET_DEFAULT_SIZES);

	/* Gives memory back when few are left of what have been thousands. */
	txn_mcxt = SlabContextCreate(TopMemoryContext,
								 "pgparrep transaction buffers",
								 SLAB_DEFAULT_BLOCK_SIZE, sizeof(TxnBuffer));
	buf_owner = ResourceOwnerCreate(NULL, "pgparrep spill files");
	txns = remotetxn_create(buf_mcxt, 1024, NULL);
}

/* Chunks */

static inline Chunk *
chunk_address(dsa_pointer chunk)
{
	return (Chunk *) dsa_get_address(buf_area, chunk);
}

static dsa_pointer
chunk_alloc(TxnBuffer *txn, Size need)
{
	FreeChunks *list = NULL;
	Size		size;
	dsa_pointer chunk = InvalidDsaPointer;
	Chunk	   *c;

	if (need > CHUNK_LARGE)
		size = need;
	else if (txn->first == InvalidDsaPointer && txn->file == 0 &&
			 need <= CHUNK_SMALL)
	{
		size = CHUNK_SMALL;
		list = &free_small;
	}
	else
	{
		size = CHUNK_LARGE;
		list = &free_large;
	}

	if (list && list->n > 0)
		chunk = list->chunk[--list->n];
	else
	{
		ErrorContextCallback context = {error_context_stack, pool_memory_context, NULL};

		/* Returns nothing for want of room of the area; for want of memory it fails. */
		error_context_stack = &context;
		chunk = dsa_allocate_extended(buf_area, size + offsetof(Chunk, data),
									  DSA_ALLOC_HUGE | DSA_ALLOC_NO_OOM);
		error_context_stack = context.previous;
		if (!DsaPointerIsValid(chunk))
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of shared memory for remote transactions"),
					 errdetail("Could not allocate %zu bytes; %zu are in use.",
							   size, uncommitted_bytes + committed_bytes),
					 errhint("Lower pgparrep.apply_buffer or make room for dynamic shared memory.")));
	}
	c = chunk_address(chunk);
	c->next = InvalidDsaPointer;
	c->size = size;
	c->used = 0;
	txn->allocated += size;
	uncommitted_bytes += size;
	return chunk;
}

static void
chunk_free(dsa_pointer chunk, Size size)
{
	FreeChunks *list = NULL;

	if (size == CHUNK_SMALL)
		list = &free_small;
	else if (size == CHUNK_LARGE)
		list = &free_large;

	if (list && list->n < KEEP_FREE_CHUNKS)
		list->chunk[list->n++] = chunk;
	else
		dsa_free(buf_area, chunk);
}

/* Frees a list of chunks; the caller mends the buffer and the totals. */
static Size
chunks_free(dsa_pointer chunk)
{
	Size		freed = 0;

	while (DsaPointerIsValid(chunk))
	{
		Chunk	   *c = chunk_address(chunk);
		dsa_pointer next = c->next;

		freed += c->size;
		chunk_free(chunk, c->size);
		chunk = next;
	}
	return freed;
}

/* Files */

static void
spill_file_name(char *name, Size size, uint32 file)
{
	snprintf(name, size, "%u.changes", file);
}

static BufFile *
spill_open(TxnBuffer *txn, bool create)
{
	char		name[MAXPGPATH];

	spill_file_name(name, sizeof(name), txn->file);
	if (create)
		return BufFileCreateFileSet(&buf_pool->fileset, name);
	return BufFileOpenFileSet(&buf_pool->fileset, name, O_RDWR, false);
}

static void
spill_delete(uint32 file)
{
	char		name[MAXPGPATH];

	spill_file_name(name, sizeof(name), file);
	BufFileDeleteFileSet(&buf_pool->fileset, name, true);
}

static void
forget_spill_keys(TxnBuffer *txn)
{
	if (txn->keys == NULL)
		return;
	pfree(txn->keys);
	all_spill_keys -= txn->maxkeys;
	txn->keys = NULL;
	txn->nkeys = txn->maxkeys = 0;
}

static void
add_spill_key(TxnBuffer *txn, const ChangeRec *rec)
{
	const uint64 *keys = change_keys(rec);
	int			n = Max(rec->nkeys, 1);

	/*
	 * What conflicts with all there is (TRUNCATE, which names no version here,
	 * among others) says it once for the transaction.
	 */
	if (txn->all_else)
		return;
	if (rec->conflict == CONFLICT_ALL)
	{
		forget_spill_keys(txn);
		txn->all_else = true;
	}
	else if (txn->all_tables)
		return;
	else if (txn->nkeys + n > MAX_SPILL_KEYS ||
			 (txn->nkeys + n > txn->maxkeys &&
			  all_spill_keys + txn->nkeys + n > MAX_ALL_SPILL_KEYS))
	{
		forget_spill_keys(txn);
		txn->all_tables = true;
		return;
	}
	if (txn->nkeys + n > txn->maxkeys)
	{
		int			max = Max(64, (txn->nkeys + n) * 2);

		if (txn->keys == NULL)
			txn->keys = MemoryContextAlloc(buf_mcxt, max * sizeof(SpillKey));
		else
			txn->keys = repalloc(txn->keys, max * sizeof(SpillKey));
		all_spill_keys += max - txn->maxkeys;
		txn->maxkeys = max;
	}
	for (int i = 0; i < n; i++)
	{
		SpillKey   *key = &txn->keys[txn->nkeys++];

		key->version = rec->version;
		key->conflict = rec->conflict;
		key->key = (i < rec->nkeys) ? keys[i] : 0;
	}
}

static void
spill_context(void *arg)
{
	TxnBuffer  *txn = arg;

	errcontext("writing to a file what has come of remote transaction %u",
			   txn->xid);
	if (geterrcode() == ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)
		errhint("Raise temp_file_limit, which counts what is written to such a file at first; the subscription will be tried again.");
	else if (geterrcode() == ERRCODE_DISK_FULL)
	{
		errdetail(UINT64_FORMAT " transactions in progress are in files; of this one the file has " UINT64_FORMAT " of " UINT64_FORMAT " bytes.",
				  nspilled, txn->file_bytes, txn->bytes);
		errhint("Make room in the tablespace of temporary files, or point temp_tablespaces of the subscription's owner to another; the subscription will be tried again.");
	}
}

/*
 * Writes what a transaction has in memory behind what it has in its file.
 * What follows gets a new chunk.
 */
static void
spill(TxnBuffer *txn)
{
	ErrorContextCallback context = {error_context_stack, spill_context, txn};
	ResourceOwner oldowner = CurrentResourceOwner;
	bool		create = (txn->file == 0);
	BufFile    *file;
	dsa_pointer chunk;
	Size		freed;

	if (!DsaPointerIsValid(txn->first))
		return;

	if (create)
	{
		txn->file = ++last_file;
		dlist_delete(&txn->node);
		ncached--;
		dlist_push_tail(&spilled, &txn->node);
		nspilled++;
	}

	CRASH_POINT("before_spill");
	CurrentResourceOwner = buf_owner;
	error_context_stack = &context;
	file = spill_open(txn, create);
	if (!create &&
		BufFileSeek(file, (int) (txn->file_bytes / BUFFILE_SEGMENT),
					(off_t) (txn->file_bytes % BUFFILE_SEGMENT), SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not seek in temporary file of remote transaction %u: %m",
						txn->xid)));

	for (chunk = txn->first; DsaPointerIsValid(chunk);)
	{
		Chunk	   *c = chunk_address(chunk);
		uint32		offset;

		if (c->used > 0)
			BufFileWrite(file, c->data, c->used);
		txn->file_bytes += c->used;
		for (offset = 0; offset < c->used;)
		{
			ChangeRec  *rec = (ChangeRec *) (c->data + offset);

			add_spill_key(txn, rec);
			offset += rec->size;
		}
		chunk = c->next;
	}
	BufFileClose(file);
	error_context_stack = context.previous;
	CurrentResourceOwner = oldowner;
	CRASH_POINT("spilled");

	chunk = txn->first;
	txn->first = txn->last = InvalidDsaPointer;
	if (txn->eager != NULL)
		eager_spilled(txn);
	freed = chunks_free(chunk);
	txn->allocated -= freed;
	uncommitted_bytes -= freed;
}

/* Transactions */

TxnBuffer *
txnbuf_get(TransactionId xid, bool create)
{
	RemoteTxn  *entry;
	TxnBuffer  *txn;
	bool		found;

	if (last_txn != NULL && last_txn->xid == xid)
		return last_txn;

	if (!create)
	{
		entry = remotetxn_lookup(txns, xid);
		if (entry == NULL)
			return NULL;
		return (last_txn = entry->buf);
	}

	entry = remotetxn_insert(txns, xid, &found);
	if (found)
		return (last_txn = entry->buf);

	txn = MemoryContextAlloc(txn_mcxt, sizeof(TxnBuffer));
	memset(txn, 0, sizeof(*txn));
	txn->xid = xid;
	txn->first = txn->last = InvalidDsaPointer;
	dlist_push_tail(&cached, &txn->node);
	ncached++;
	entry->buf = txn;
	return (last_txn = txn);
}

/*
 * Appends a change and returns where its body of len bytes is to be written.
 */
char *
txnbuf_append(TxnBuffer *txn, char type, uint32 version, Conflict conflict,
			  int nkeys, const uint64 *keys, uint32 len, Csn handed)
{
	Size		size = MAXALIGN(sizeof(ChangeRec) + nkeys * sizeof(uint64) + (Size) len);
	Chunk	   *c = NULL;
	ChangeRec  *rec;

	if (DsaPointerIsValid(txn->last))
		c = chunk_address(txn->last);
	if (c == NULL || c->size - c->used < size)
	{
		dsa_pointer chunk;

		if (txn->file != 0)
			spill(txn);
		chunk = chunk_alloc(txn, size);
		if (DsaPointerIsValid(txn->last))
			c->next = chunk;
		else
			txn->first = chunk;
		txn->last = chunk;
		c = chunk_address(chunk);
	}

	rec = (ChangeRec *) (c->data + c->used);
	rec->size = size;
	rec->len = len;
	rec->version = version;
	rec->type = type;
	rec->conflict = conflict;
	rec->nkeys = nkeys;
	rec->wait_csn = handed;
	if (nkeys > 0)
		memcpy(change_keys(rec), keys, nkeys * sizeof(uint64));
	c->used += size;
	txn->bytes += size;
	txn->nchanges++;
	return change_body(rec);
}

/* Notes that a transaction uses a version. */
void
txnbuf_pin_relation(TxnBuffer *txn, RelVersion *rel)
{
	/* Newest first: runs of changes of one relation are common. */
	for (int i = txn->nrels - 1; i >= 0; i--)
		if (txn->rels[i] == rel)
			return;

	if (txn->nrels == txn->maxrels)
	{
		txn->maxrels = Max(8, txn->maxrels * 2);
		if (txn->rels == NULL)
			txn->rels = MemoryContextAlloc(buf_mcxt,
										   txn->maxrels * sizeof(RelVersion *));
		else
			txn->rels = repalloc(txn->rels, txn->maxrels * sizeof(RelVersion *));
	}
	streamrel_pin(rel);
	txn->rels[txn->nrels++] = rel;
}

/*
 * The changes that follow belong to a subtransaction (or to the top).
 * Remembers where a subtransaction began.
 *
 * Subtransactions are a stack on the publisher: while one is in progress, all
 * that began later are below it, and it cannot write before they have ended.
 * So whichever it finds with a later xid have been released into this one,
 * which now answers for their changes.  What is left is sorted by xid, and each
 * is looked at once: a transaction can have a million of them.
 */
void
txnbuf_subxact(TxnBuffer *txn, TransactionId subxid)
{
	uint64		start = txn->bytes;
	uint64		nchanges = txn->nchanges;

	if (subxid == txn->xid)
	{
		txn->nsubxacts = 0;		/* only all can be undone from here on */
		return;
	}
	while (txn->nsubxacts > 0)
	{
		SubXact    *last = &txn->subxacts[txn->nsubxacts - 1];

		if (last->xid == subxid)
			return;
		if (TransactionIdPrecedes(last->xid, subxid))
			break;
		start = last->start;
		nchanges = last->nchanges;
		txn->nsubxacts--;
	}

	if (txn->nsubxacts == txn->maxsubxacts)
	{
		txn->maxsubxacts = Max(8, txn->maxsubxacts * 2);
		if (txn->subxacts == NULL)
			txn->subxacts = MemoryContextAlloc(buf_mcxt,
											   txn->maxsubxacts * sizeof(SubXact));
		else
			txn->subxacts = repalloc_huge(txn->subxacts,
										  txn->maxsubxacts * sizeof(SubXact));
	}
	txn->subxacts[txn->nsubxacts].xid = subxid;
	txn->subxacts[txn->nsubxacts].start = start;
	txn->subxacts[txn->nsubxacts].nchanges = nchanges;
	txn->nsubxacts++;
}

/* Cuts a transaction off at a position (I5). */
static void
truncate_to(TxnBuffer *txn, uint64 position)
{
	uint64		start = txn->file_bytes;
	dsa_pointer chunk = txn->first;
	dsa_pointer prev = InvalidDsaPointer;
	Size		freed;

	if (position == txn->bytes)
		return;
	if (txn->eager != NULL)
		eager_never(txn);		/* I6 */

	if (position < txn->file_bytes)
	{
		ResourceOwner oldowner = CurrentResourceOwner;
		BufFile    *file;

		CurrentResourceOwner = buf_owner;
		file = spill_open(txn, false);
		BufFileTruncateFileSet(file, (int) (position / BUFFILE_SEGMENT),
							   (off_t) (position % BUFFILE_SEGMENT));
		BufFileClose(file);
		CurrentResourceOwner = oldowner;
		txn->file_bytes = start = position;
	}

	/* Keep the chunks, and the part of one, that lie before it. */
	while (DsaPointerIsValid(chunk))
	{
		Chunk	   *c = chunk_address(chunk);

		if (start >= position)
			break;
		if (start + c->used > position)
			c->used = position - start;
		start += c->used;
		prev = chunk;
		chunk = c->next;
	}
	freed = chunks_free(chunk);
	txn->allocated -= freed;
	uncommitted_bytes -= freed;
	if (DsaPointerIsValid(prev))
		chunk_address(prev)->next = InvalidDsaPointer;
	else
		txn->first = InvalidDsaPointer;
	txn->last = prev;
	txn->bytes = position;
}

void
txnbuf_abort_subxact(TxnBuffer *txn, TransactionId subxid)
{
	for (int i = txn->nsubxacts - 1; i >= 0; i--)
	{
		if (TransactionIdPrecedes(txn->subxacts[i].xid, subxid))
			break;
		if (txn->subxacts[i].xid == subxid)
		{
			truncate_to(txn, txn->subxacts[i].start);
			txn->nchanges = txn->subxacts[i].nchanges;
			txn->nsubxacts = i;
			break;
		}
	}

	/*
	 * Not there: it had no change, or its parent, which aborts with it, has
	 * been or is to be cut off.
	 */
}

/* Keeps uncommitted transactions within their bounds; after an append. */
void
txnbuf_enforce_limits(TxnBuffer *txn)
{
	Size		limit = (Size) pgparrep_apply_buffer * 1024 / 2;

	if (txn->file == 0)
	{
		/* Over the number of changes or of transactions, or a large share? */
		if (txn->nchanges > pgparrep_cached_changes ||
			ncached > (uint64) pgparrep_cached_transactions ||
			txn->allocated > limit / 4)
			spill(txn);
	}
	else if (txn->allocated > 2 * CHUNK_LARGE)
		spill(txn);				/* one of its rows is very large */

	/* Many medium ones: the largest first. */
	while (uncommitted_bytes > limit && !dlist_is_empty(&cached))
	{
		TxnBuffer  *largest = NULL;
		dlist_iter	iter;

		dlist_foreach(iter, &cached)
		{
			TxnBuffer  *t = dlist_container(TxnBuffer, node, iter.cur);

			if (largest == NULL || t->allocated > largest->allocated)
				largest = t;
		}
		if (largest->allocated == 0)
			break;
		spill(largest);
	}
}

/* Takes a transaction out of the uncommitted ones. */
static void
forget(TxnBuffer *txn)
{
	remotetxn_delete(txns, txn->xid);
	last_txn = NULL;
	dlist_delete(&txn->node);
	if (txn->file != 0)
		nspilled--;
	else
		ncached--;
	uncommitted_bytes -= txn->allocated;
}

/* The buffer is in no list any more. */
static void
free_buffer(TxnBuffer *txn)
{
	Assert(txn->eager == NULL);
	chunks_free(txn->first);
	if (txn->file != 0)
		spill_delete(txn->file);
	for (int i = 0; i < txn->nrels; i++)
		streamrel_unpin(txn->rels[i]);
	if (txn->rels)
		pfree(txn->rels);
	if (txn->subxacts)
		pfree(txn->subxacts);
	forget_spill_keys(txn);
	pfree(txn);
}

/*
 * The transaction has committed on the publisher: makes its buffer readable
 * for workers and takes it out of the uncommitted ones.  The caller keeps it
 * until it has been applied.
 */
void
txnbuf_commit(TxnBuffer *txn, PoolTxn *ptxn)
{
	if (txn->file != 0)
		spill(txn);
	forget(txn);
	committed_bytes += txn->allocated;
	ptxn->chunks = txn->first;
	ptxn->file = txn->file;
	ptxn->nchanges = txn->nchanges;
}

/* The transaction has aborted on the publisher. */
void
txnbuf_drop(TxnBuffer *txn)
{
	eager_never(txn);
	forget(txn);
	free_buffer(txn);
}

/* The transaction has been applied. */
void
txnbuf_release(TxnBuffer *txn)
{
	committed_bytes -= txn->allocated;
	free_buffer(txn);
}

uint64
txnbuf_in_progress(void)
{
	return ncached + nspilled;
}

uint64
txnbuf_spilled(void)
{
	return nspilled;
}

Size
txnbuf_committed_bytes(void)
{
	return committed_bytes;
}

/* Reading, in a worker. */

static void
open_file(TxnReader *reader, uint32 file)
{
	char		name[MAXPGPATH];

	spill_file_name(name, sizeof(name), file);
	reader->file = BufFileOpenFileSet(&reader->pool->fileset, name, O_RDONLY, false);
}

static void
reader_init(TxnReader *reader, Pool *pool, dsa_area *area)
{
	reader->pool = pool;
	reader->area = area;
	reader->chunk = NULL;
	reader->offset = 0;
	reader->file = NULL;
	reader->eager = NULL;
	reader->stored = NULL;
}

void
txnread_begin(TxnReader *reader, Pool *pool, dsa_area *area, PoolTxn *ptxn)
{
	reader_init(reader, pool, area);
	if (ptxn->file != 0)
		open_file(reader, ptxn->file);
	else if (DsaPointerIsValid(ptxn->chunks))
		reader->chunk = dsa_get_address(area, ptxn->chunks);
}

void
txnread_begin_eager(TxnReader *reader, Pool *pool, dsa_area *area, EagerTxn *eager)
{
	reader_init(reader, pool, area);
	reader->eager = eager;
	reader->position = 0;
	reader->file_limit = 0;
	reader->at = InvalidDsaPointer;
	reader->batch_used = 0;
	reader->batch_offset = 0;
}

static void
reserve(char **buf, Size *bufsize, Size len)
{
	if (len > *bufsize)
	{
		if (*buf)
			pfree(*buf);
		*buf = NULL;
		*bufsize = Max(8192, len);
		*buf = MemoryContextAllocHuge(TopMemoryContext, *bufsize);
	}
}

static inline void
reserve_body(TxnReader *reader, Size len)
{
	reserve(&reader->body, &reader->bodysize, len + 1);
}

static void
check_cancelled(const TxnReader *reader)
{
	if (reader->eager == NULL)
		return;
	pg_read_barrier();
	if (EAGER_KIND(pg_atomic_read_u32(&reader->eager->state)) == EAGER_CANCELLED)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("remote transaction is not applied before its commit any more")));
}

/* False at the end of the file, if that is allowed. */
static bool
read_file(TxnReader *reader, void *ptr, Size size, bool end_ok)
{
	size_t		n = BufFileRead(reader->file, ptr, size);

	check_cancelled(reader);
	if (n == size)
		return true;
	if (n == 0 && end_ok)
		return false;
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not read from temporary file of a remote transaction: %m")));
}

static bool
next_from_file(TxnReader *reader, bool end_ok)
{
	ChangeRec  *rec = &reader->rec;
	Size		rest;

	if (!read_file(reader, rec, sizeof(*rec), end_ok))
		return false;
	rest = rec->size - sizeof(*rec);
	reserve_body(reader, rest);
	(void) read_file(reader, reader->body, rest, false);
	if (rec->nkeys > 0)
		memmove(reader->body, reader->body + rec->nkeys * sizeof(uint64),
				rec->len);
	return true;
}

static void
next_from_memory(TxnReader *reader, const char *data)
{
	const ChangeRec *rec = (const ChangeRec *) data;

	reader->stored = rec;
	reader->rec = *rec;
	reserve_body(reader, rec->len);
	memcpy(reader->body, change_body(rec), rec->len);
}

/*
 * Finds out where the next change of an eager transaction is, and copies a
 * number of them if they are in memory.  False if none has been announced.
 */
static bool
refill(TxnReader *reader)
{
	EagerTxn   *eager = reader->eager;
	uint64		bytes = pg_atomic_read_u64(&eager->bytes);
	uint32		file;

	if (reader->position == bytes)
	{
		check_cancelled(reader);
		return false;
	}
	pg_read_barrier();

	LWLockAcquire(&eager->lock, LW_SHARED);
	check_cancelled(reader);	/* an error releases the lock */
	if (reader->position >= eager->file_bytes)
	{
		Chunk	   *chunk;
		uint32		n;

		/* All that was in memory, and read from there, went to the file? */
		if (!DsaPointerIsValid(reader->at) || reader->generation != eager->generation)
		{
			Assert(reader->position == eager->file_bytes);
			reader->at = eager->first;
			reader->at_offset = 0;
			reader->generation = eager->generation;
		}
		for (;;)
		{
			chunk = dsa_get_address(reader->area, reader->at);
			n = Min(chunk->used - reader->at_offset, bytes - reader->position);
			if (n > 0)
				break;
			reader->at = chunk->next;
			reader->at_offset = 0;
		}
		reserve(&reader->batch, &reader->batch_size, n);
		memcpy(reader->batch, chunk->data + reader->at_offset, n);
		reader->batch_used = n;
		reader->batch_offset = 0;
		reader->at_offset += n;
		LWLockRelease(&eager->lock);
		return true;
	}
	file = eager->file;
	reader->file_limit = Min(eager->file_bytes, bytes);
	LWLockRelease(&eager->lock);

	/* An open file does not know of segments that were added since. */
	if (reader->file != NULL &&
		(reader->file_limit - 1) / BUFFILE_SEGMENT > reader->file_segment)
	{
		BufFileClose(reader->file);
		reader->file = NULL;
	}
	if (reader->file == NULL)
	{
		reader->file_segment = (reader->file_limit - 1) / BUFFILE_SEGMENT;
		open_file(reader, file);
	}
	if (BufFileSeek(reader->file, (int) (reader->position / BUFFILE_SEGMENT),
					(off_t) (reader->position % BUFFILE_SEGMENT), SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not seek in temporary file of a remote transaction: %m")));
	return true;
}

static bool
next_eager(TxnReader *reader)
{
	if (reader->batch_offset == reader->batch_used &&
		reader->position >= reader->file_limit && !refill(reader))
		return false;
	if (reader->batch_offset < reader->batch_used)
	{
		next_from_memory(reader, reader->batch + reader->batch_offset);
		reader->batch_offset += reader->rec.size;
	}
	else
		(void) next_from_file(reader, false);
	reader->position += reader->rec.size;
	return true;
}

bool
txnread_next(TxnReader *reader)
{
	if (reader->eager)
		return next_eager(reader);
	if (reader->file)
	{
		if (!next_from_file(reader, true))
			return false;
		reader->rec.wait_csn = 0;	/* its transaction waits as a whole */
		return true;
	}

	while (reader->chunk != NULL && reader->offset >= reader->chunk->used)
	{
		dsa_pointer next = reader->chunk->next;

		reader->chunk = DsaPointerIsValid(next) ?
							dsa_get_address(reader->area, next) :
							NULL;
		reader->offset = 0;
	}
	if (reader->chunk == NULL)
		return false;

	next_from_memory(reader, reader->chunk->data + reader->offset);
	reader->offset += reader->rec.size;
	return true;
}

void
txnread_again(TxnReader *reader, const ChangeRec *rec)
{
	next_from_memory(reader, (const char *) rec);
}

char *
txnread_relation(TxnReader *reader, const TxnRel *rel)
{
	char	   *body = palloc(rel->len);

	/* It goes with the transaction, when that is cancelled (I6). */
	LWLockAcquire(&reader->eager->lock, LW_SHARED);
	check_cancelled(reader);
	memcpy(body, dsa_get_address(reader->area, rel->body), rel->len);
	LWLockRelease(&reader->eager->lock);
	return body;
}

void
txnread_end(TxnReader *reader)
{
	if (reader->file)
		BufFileClose(reader->file);
	txnread_abort(reader);
}

static void
free_large_room(char **buf, Size *size)
{
	if (*size > 1024 * 1024)
	{
		pfree(*buf);
		*buf = NULL;
		*size = 0;
	}
}

/* After an error: the transaction's resource owner has closed the file. */
void
txnread_abort(TxnReader *reader)
{
	reader->file = NULL;
	reader->chunk = NULL;
	reader->eager = NULL;
	reader->stored = NULL;

	/* Do not sit on the room for one large row. */
	free_large_room(&reader->body, &reader->bodysize);
	free_large_room(&reader->batch, &reader->batch_size);
}
