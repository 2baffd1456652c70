/*-------------------------------------------------------------------------
 *
 * txn.c
 *	  The transactions that the reader has met, and their ends.
 *
 * One entry per top-level transaction with a change in our database, until
 * its commit, abort or, with two-phase decoding, PREPARE is decoded.  Which
 * top-level transaction an xid belongs to is always asked of core's reorder
 * buffer, which learns it from the first record of a subtransaction of
 * whatever kind; the reader sees only few kinds.
 *
 * States:
 *	  streamed	next: queued (sticky), ended
 *	  queued	next: ended
 *
 * I1.	An entry is streamed only if no change of the transaction was ever left
 *		to core.  Only then may its commit be kept from core, which forgets
 *		whatever it has queued.
 * I2.	While an entry is queued nothing is held.
 * I3.	A client that was sent anything of a transaction is told how it ends,
 *		also if its end was lost in a crash of the server.
 * I4.	An error in work that may yet roll back is raised when, and only when,
 *		that work commits.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "publisher.h"
#include "utils/memutils.h"

static void forget_sub(Publisher *pub, PubTxn *txn, PubSub *sub);
static void forget_errors(PubTxn *txn, TransactionId xid);

void
txn_init(Publisher *pub)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(TransactionId);
	ctl.entrysize = sizeof(PubTxn);
	ctl.hcxt = pub->cxt;
	pub->txns = hash_create("pgparrep transactions", 128, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	ctl.entrysize = sizeof(PubSub);
	pub->subs = hash_create("pgparrep subtransactions", 128, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * Core's entry of the top-level transaction of xid, or NULL.
 */
ReorderBufferTXN *
txn_core_top(Publisher *pub, TransactionId xid)
{
	ReorderBuffer *rb = pub->ctx->reorder;
	ReorderBufferTXN *txn;

	/* Called for its side effect on the reorder buffer's lookup cache. */
	(void) ReorderBufferXidHasCatalogChanges(rb, xid);
	if (rb->by_txn_last_xid != xid || rb->by_txn_last_txn == NULL)
		return NULL;

	txn = rb->by_txn_last_txn;
	if (rbtxn_is_known_subxact(txn) && txn->toptxn != NULL)
		txn = txn->toptxn;

	return txn;
}

PubTxn *
txn_find(Publisher *pub, TransactionId xid)
{
	if (pub->last_txn != NULL && pub->last_txn->xid == xid)
		return pub->last_txn;

	return (PubTxn *) hash_search(pub->txns, &xid, HASH_FIND, NULL);
}

/*
 * Find the entry of a top-level transaction or make one.
 */
PubTxn *
txn_get(Publisher *pub, TransactionId xid)
{
	PubTxn	   *txn;
	bool		found;

	if (pub->last_txn != NULL && pub->last_txn->xid == xid)
		return pub->last_txn;

	txn = (PubTxn *) hash_search(pub->txns, &xid, HASH_ENTER, &found);
	if (!found)
	{
		memset(txn, 0, sizeof(PubTxn));
		txn->xid = xid;
		txn->cur_subxid = xid;
		txn->unlocked_epoch = plan_unlocked_epoch();
	}
	pub->last_txn = txn;

	return txn;
}

/*
 * Remember that something of subtransaction xid is with the client or held.
 */
void
txn_note_sub(Publisher *pub, PubTxn *txn, TransactionId xid)
{
	PubSub	   *sub;
	bool		found;

	/* The one last noted is by far the most frequent. */
	if (txn->subs != NULL && txn->subs->xid == xid)
		return;

	sub = (PubSub *) hash_search(pub->subs, &xid, HASH_ENTER, &found);
	if (found)
		return;

	sub->topxid = txn->xid;
	sub->prev = NULL;
	sub->next = txn->subs;
	if (sub->next != NULL)
		sub->next->prev = sub;
	txn->subs = sub;
}

static void
forget_sub(Publisher *pub, PubTxn *txn, PubSub *sub)
{
	TransactionId xid = sub->xid;

	if (sub->prev != NULL)
		sub->prev->next = sub->next;
	else
		txn->subs = sub->next;
	if (sub->next != NULL)
		sub->next->prev = sub->prev;

	hash_search(pub->subs, &xid, HASH_REMOVE, NULL);
}

/*
 * From here on the transaction is core's.  What is held goes to the reorder
 * buffer first, as if it had been decoded with the present record.
 */
void
txn_queue(Publisher *pub, PubTxn *txn, XLogRecPtr lsn, QueueReason reason)
{
	if (txn->queued)
		return;

	held_hand_back(pub, txn, lsn);
	txn->queued = true;
	txn->reason = reason;
}

/*
 * Remove the entry.
 */
void
txn_end(Publisher *pub, PubTxn *txn)
{
	TransactionId xid = txn->xid;

	while (txn->subs != NULL)
		forget_sub(pub, txn, txn->subs);
	forget_errors(txn, InvalidTransactionId);
	held_free(txn);

	if (pub->last_txn == txn)
		pub->last_txn = NULL;
	hash_search(pub->txns, &xid, HASH_REMOVE, NULL);
}

/*
 * The transaction or subtransaction xid has been rolled back.  Most xids that
 * come here are unknown: aborts of other databases do, too.
 */
void
txn_abort(Publisher *pub, TransactionId xid, XLogRecPtr lsn, TimestampTz time)
{
	PubTxn	   *txn;
	PubSub	   *sub;

	sub = (PubSub *) hash_search(pub->subs, &xid, HASH_FIND, NULL);
	if (sub != NULL)
	{
		txn = txn_find(pub, sub->topxid);
		Assert(txn != NULL);

		if (txn->sent)
			sender_abort(pub, txn->xid, xid, lsn, time);
		if (txn->cur_subxid == xid)
			txn->cur_subxid = InvalidTransactionId;
		held_forget_xid(txn, xid);
		forget_errors(txn, xid);
		forget_sub(pub, txn, sub);
		return;
	}

	txn = txn_find(pub, xid);
	if (txn != NULL)
	{
		if (txn->sent)
			sender_abort(pub, xid, xid, lsn, time);
		txn_end(pub, txn);
	}
}

/*
 * Keep the error being handled with the work that raised it.  Clears it.
 */
void
txn_defer_error(Publisher *pub, PubTxn *txn, TransactionId xid)
{
	MemoryContext old = MemoryContextSwitchTo(pub->cxt);
	DeferredError *error;

	/* One per (sub)transaction will do: only the first is raised. */
	for (error = txn->errors; error != NULL; error = error->next)
	{
		if (error->xid == xid)
			break;
	}

	if (error == NULL)
	{
		DeferredError **tail = &txn->errors;

		error = palloc(sizeof(DeferredError));
		error->next = NULL;
		error->xid = xid;
		error->edata = CopyErrorData();
		while (*tail != NULL)
			tail = &(*tail)->next;
		*tail = error;
	}

	MemoryContextSwitchTo(old);
	catalog_abandon(pub);
	FlushErrorState();
}

static void
forget_errors(PubTxn *txn, TransactionId xid)
{
	DeferredError **link = &txn->errors;

	while (*link != NULL)
	{
		DeferredError *error = *link;

		if (TransactionIdIsValid(xid) && error->xid != xid)
		{
			link = &error->next;
			continue;
		}
		*link = error->next;
		FreeErrorData(error->edata);
		pfree(error);
	}
}

/*
 * The transaction commits: an error that is still with it counts.  (I4)
 *
 * What came before is sent first, or the commits among it would be decoded and
 * lost again at each attempt.
 */
void
txn_raise_errors(Publisher *pub, PubTxn *txn)
{
	if (txn->errors == NULL)
		return;

	sender_flush(pub);
	ReThrowError(txn->errors->edata);
}

/*
 * Look for transactions that are over without our having seen it: their end
 * lies before the start point, or a crash of the server has ended them and core
 * has dropped them at the next list of running transactions.  (I3)
 */
void
txn_sweep(Publisher *pub)
{
	HASH_SEQ_STATUS seq;
	PubTxn	   *txn;

	if (hash_get_num_entries(pub->txns) == 0)
		return;

	hash_seq_init(&seq, pub->txns);
	while ((txn = (PubTxn *) hash_seq_search(&seq)) != NULL)
	{
		if (txn_core_top(pub, txn->xid) != NULL)
			continue;

		if (txn->sent)
			sender_abort(pub, txn->xid, txn->xid, InvalidXLogRecPtr, 0);
		/* removing the entry just returned is allowed */
		txn_end(pub, txn);
	}
}
