/*-------------------------------------------------------------------------
 *
 * find.c
 *	  Finding the local row that an update or delete is for.
 *
 * As RelationFindReplTupleByIndex and RelationFindReplTupleSeq, with two
 * differences.  The index scan stays open until the transaction ends.  And
 * the row found is not locked: row.c updates or deletes it at once, which
 * waits for others just as locking does, and looks again if somebody was
 * faster.
 *
 * Invariants:
 *
 * I1. The row found was not deleted, and not written by a transaction in
 *	   progress other than ours, at some moment since the call.
 * I2. Its line pointer still means the same row when row.c comes to it: a
 *	   row that was not deleted when the active snapshot was taken, or was
 *	   stored later, cannot be pruned while that snapshot is active.
 * I3. No buffer is pinned here while waiting for another transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

static bool find_by_index(Target *target, TupleTableSlot *searchslot);
static bool find_by_scan(Target *target, TupleTableSlot *searchslot);
static bool rows_equal(Target *target, TupleTableSlot *slot1,
					   TupleTableSlot *slot2);

/*
 * Looks for the row that equals searchslot, in its key or as a whole.  If
 * there is one, puts it into target->localslot, which keeps a pin until
 * find_release.
 */
bool
find_row(Target *target, TupleTableSlot *searchslot)
{
	Assert(ActiveSnapshotSet());

	/* this reads, whatever it is for */
	target_check_privileges(target, ACL_SELECT);

	if (OidIsValid(target->map->keyindex))
		return find_by_index(target, searchslot);
	else
		return find_by_scan(target, searchslot);
}

/* Lets go of the row found, and of every other pin. */
void
find_release(Target *target)
{
	ExecClearTuple(target->localslot);
}

static void
begin_index_scan(Target *target)
{
	Relation	index = NULL;

	for (int i = 0; i < target->relinfo->ri_NumIndices; i++)
	{
		Relation	rel = target->relinfo->ri_IndexRelationDescs[i];

		if (RelationGetRelid(rel) == target->map->keyindex)
			index = rel;
	}
	if (index == NULL)
		elog(ERROR, "index %u of table \"%s\" is not open",
			 target->map->keyindex, RelationGetRelationName(target->rel));

	InitDirtySnapshot(target->dirty);
	target->scan = compat_index_beginscan(target->rel, index, &target->dirty,
										  target->map->nkeys);
}

static bool
find_by_index(Target *target, TupleTableSlot *searchslot)
{
	RelMap	   *map = target->map;
	TupleTableSlot *slot = target->localslot;
	MemoryContext oldcxt;

	/* index access methods keep state in the current context */
	oldcxt = MemoryContextSwitchTo(apply_txn_cxt);

	if (target->scan == NULL)
		begin_index_scan(target);

	for (int i = 0; i < map->nkeys; i++)
	{
		ScanKey		key = &map->keys[i];
		int			col = map->keycols[i];

		key->sk_argument = searchslot->tts_values[col];
		if (searchslot->tts_isnull[col])
			key->sk_flags |= COMPAT_NULL_KEY_FLAGS;
		else
			key->sk_flags &= ~COMPAT_NULL_KEY_FLAGS;
	}

	for (;;)
	{
		TransactionId xwait = InvalidTransactionId;
		bool		found = false;

		index_rescan(target->scan, map->keys, map->nkeys, NULL, 0);

		while (index_getnext_slot(target->scan, ForwardScanDirection, slot))
		{
			if (!map->keyunique)
			{
				bool		equal;

				MemoryContextSwitchTo(oldcxt);
				equal = rows_equal(target, slot, searchslot);
				MemoryContextSwitchTo(apply_txn_cxt);
				if (!equal)
					continue;
			}

			found = true;
			xwait = TransactionIdIsValid(target->dirty.xmin) ?
						target->dirty.xmin :
						target->dirty.xmax;
			break;
		}

		/* drops the scan's own pins; the slot keeps that of the row */
		index_rescan(target->scan, map->keys, map->nkeys, NULL, 0);

		if (!TransactionIdIsValid(xwait))
		{
			MemoryContextSwitchTo(oldcxt);
			return found;
		}

		ExecClearTuple(slot);
		XactLockTableWait(xwait, NULL, NULL, XLTW_None);
	}
}

static bool
find_by_scan(Target *target, TupleTableSlot *searchslot)
{
	TupleTableSlot *slot = target->localslot;

	for (;;)
	{
		TransactionId xwait = InvalidTransactionId;
		bool		found = false;
		TableScanDesc scan;

		InitDirtySnapshot(target->dirty);
		scan = table_beginscan(target->rel, &target->dirty, 0, NULL);

		while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		{
			if (!rows_equal(target, slot, searchslot))
				continue;

			found = true;
			xwait = TransactionIdIsValid(target->dirty.xmin) ?
						target->dirty.xmin :
						target->dirty.xmax;
			break;
		}

		/* the slot has its own pin */
		table_endscan(scan);

		if (!TransactionIdIsValid(xwait))
			return found;

		ExecClearTuple(slot);
		XactLockTableWait(xwait, NULL, NULL, XLTW_None);
	}
}

/*
 * Are two rows equal in all columns that a publisher sends?  NULLs are equal
 * to each other.  As tuples_equal in execReplication.c.
 */
static bool
rows_equal(Target *target, TupleTableSlot *slot1, TupleTableSlot *slot2)
{
	TupleDesc	desc = slot1->tts_tupleDescriptor;

	if (target->eq == NULL)
		target->eq = MemoryContextAllocZero(apply_txn_cxt,
											sizeof(TypeCacheEntry *) * desc->natts);

	slot_getallattrs(slot1);
	slot_getallattrs(slot2);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		TypeCacheEntry *typentry;

		if (att->attisdropped || att->attgenerated)
			continue;
		if (slot1->tts_isnull[i] != slot2->tts_isnull[i])
			return false;
		if (slot1->tts_isnull[i])
			continue;

		typentry = target->eq[i];
		if (typentry == NULL)
		{
			typentry = lookup_type_cache(att->atttypid,
										 TYPECACHE_EQ_OPR_FINFO);
			if (!OidIsValid(typentry->eq_opr_finfo.fn_oid))
				ereport(ERROR,
						(errcode(ERRCODE_UNDEFINED_FUNCTION),
						 errmsg("could not identify an equality operator for type %s",
								format_type_be(att->atttypid))));
			target->eq[i] = typentry;
		}

		if (!DatumGetBool(FunctionCall2Coll(&typentry->eq_opr_finfo,
											att->attcollation,
											slot1->tts_values[i],
											slot2->tts_values[i])))
			return false;
	}

	return true;
}
