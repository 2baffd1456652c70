/*-------------------------------------------------------------------------
 *
 * postpone.c
 *	  Changes of the transaction in work that are applied after later ones
 *	  (apply worker).
 *
 * Often the changes that have to wait for an earlier transaction are few: the
 * balance of a branch, a counter.  Rather than wait in front of the first of
 * them, a worker sets it aside, goes on with what does not depend on it, and
 * makes up for what it has set aside when there is nothing else left to do.  By
 * then the earlier transaction has often committed, and if not, what remains to
 * be done one after the other is little.
 *
 * Owns the list of what is set aside.
 *
 * I1	Changes of the same key are applied in their order: what shares a key
 *		with a postponed change is postponed as well.  Whatever depends on more
 *		than keys comes after everything before it (worker.c).
 * I2	That does not rest on the keys alone, which are the leader's guess at the
 *		time of the change (keyplan.c).  If two changes of one row, P before Q on
 *		the publisher, were applied in the other order, it shows in one of
 *		these ways, and the attempt ends by an error that counts for nothing:
 *
 *			Q finds no row while P is postponed, or P none later;
 *			P finds a row that this transaction has written after P was
 *			postponed, and before it began to make up for it;
 *			one of them meets a duplicate in a unique index.
 *
 *		So does whatever looks at other rows, and any conflict.
 * I3	An attempt that began at its turn has nothing to wait for and postpones
 *		nothing.  So an error that counts is that of a change in its place.
 *
 *-------------------------------------------------------------------------
 */
#include "postpone.h"

#include "access/sysattr.h"
#include "access/xact.h"
#include "utils/memutils.h"

#include "worker.h"

/*
 * What is set aside at most.  A group has no more changes (order.c); a large
 * transaction waits after these.
 */
#define MAX_POSTPONED 500

/*
 * A bit for each key of what is set aside, by its hash.  Two may share one,
 * which only postpones a change without need.
 */
#define KEY_BITS 16384

PostponedList postponed = {.current = -1};

static uint64 key_bits[KEY_BITS / 64];

#define key_word(key) (key_bits[((key) >> 6) % (KEY_BITS / 64)])
/* not the lowest bit of a key, which is always set */
#define key_bit(key) (UINT64CONST(1) << (((key) >> 1) % 64))

void
postpone_reset(void)
{
	if (postponed.n > 0)
		memset(key_bits, 0, sizeof(key_bits));
	postponed.n = 0;
	postponed.current = -1;
}

bool
postpone_touched(const ChangeRec *rec)
{
	const uint64 *keys = change_keys(rec);

	if (postponed.n == 0)
		return false;
#if defined(PGPARREP_SABOTAGE_POSTPONED_KEYS) || defined(PGPARREP_SABOTAGE_POSTPONED_FREELY)
	return false;
#endif
	for (int i = 0; i < rec->nkeys; i++)
		if (key_word(keys[i]) & key_bit(keys[i]))
			return true;
	return false;
}

bool
postpone_add(const ChangeRec *rec, const TxnRel *rel, Csn csn)
{
	const uint64 *keys = change_keys(rec);
	Postponed  *item;

	if (postponed.n == MAX_POSTPONED)
		return false;
	if (postponed.item == NULL)
		postponed.item = MemoryContextAlloc(TopMemoryContext,
											sizeof(Postponed) * MAX_POSTPONED);
	item = &postponed.item[postponed.n++];
	item->rec = rec;
	item->rel = rel;
	item->csn = csn;
	item->cid = GetCurrentCommandId(false);
	for (int i = 0; i < rec->nkeys; i++)
		key_word(keys[i]) |= key_bit(keys[i]);
	return true;
}

void
postpone_check_row(TupleTableSlot *row)
{
	CommandId	cid;
	bool		isnull;

	if (postponed.n == 0)
		return;
	if (row == NULL)
		postpone_check_none();
	else if (postponed.current >= 0 &&
			 TransactionIdIsCurrentTransactionId(DatumGetTransactionId(
				 slot_getsysattr(row, MinTransactionIdAttributeNumber, &isnull))))
	{
		cid = DatumGetCommandId(slot_getsysattr(row, MinCommandIdAttributeNumber,
												&isnull));
		if (cid >= postponed.item[postponed.current].cid && cid < postponed.cid)
			postpone_check_none();
	}
}

void
postpone_check_none(void)
{
#ifdef PGPARREP_SABOTAGE_POSTPONED_FREELY
	return;
#endif
	if (postponed.n > 0)
		worker_out_of_order();
}
