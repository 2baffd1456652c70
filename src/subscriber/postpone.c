/*-------------------------------------------------------------------------
 *
 * postpone.c
 *	  Changes of the transaction in work that are applied after later ones
 *	  (apply worker).
 *
 * Often the changes that have to wait for an earlier transaction are few: the
 * balance of a branch, a counter.  Rather than wait in front of the first of
 * them, a worker sets it aside, goes on with what does not depend on it, and
 * makes up for what it has set aside when there is nothing else left to do, in
 * rounds.  The last round has only what waits for the transactions right before,
 * so that little remains to be done one after the other.
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
 *			postponed, and before the round in which P is applied;
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

#include "schedule.h"
#include "worker.h"

PostponedList postponed = {.current = -1};

/* Keys of what is set aside. */
static KeySet keys;

/* Changes that the round has kept so far, at the beginning of the list. */
static int	nkept;

static void
add_keys(const ChangeRec *rec)
{
	for (int i = 0; i < rec->nkeys; i++)
		keyset_add(&keys, change_keys(rec)[i]);
}

void
postpone_reset(void)
{
	keyset_clear(&keys);
	postponed.n = 0;
	postponed.current = -1;
}

bool
postpone_touched(const ChangeRec *rec)
{
	if (postponed.n == 0)
		return false;
#if defined(PGPARREP_SABOTAGE_POSTPONED_KEYS) || defined(PGPARREP_SABOTAGE_POSTPONED_FREELY)
	return false;
#endif
	for (int i = 0; i < rec->nkeys; i++)
		if (keyset_has(&keys, change_keys(rec)[i]))
			return true;
	return false;
}

bool
postpone_add(const ChangeRec *rec, const TxnRel *rel, Csn csn)
{
	Postponed  *item;

	if (postponed.n == MAX_POSTPONED || keyset_full(&keys, rec->nkeys))
		return false;
	if (postponed.item == NULL)
		postponed.item = MemoryContextAlloc(TopMemoryContext,
											sizeof(Postponed) * MAX_POSTPONED);
	item = &postponed.item[postponed.n++];
	item->rec = rec;
	item->rel = rel;
	item->csn = csn;
	item->cid = GetCurrentCommandId(false);
	add_keys(rec);
	return true;
}

void
postpone_begin(void)
{
	keyset_clear(&keys);
	nkept = 0;
	postponed.cid = GetCurrentCommandId(false);
}

void
postpone_keep(int i)
{
	Postponed  *item = &postponed.item[nkept++];

	*item = postponed.item[i];
	add_keys(item->rec);
}

void
postpone_end(void)
{
	postponed.n = nkept;
	postponed.current = -1;
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
