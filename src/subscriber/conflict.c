/*-------------------------------------------------------------------------
 *
 * conflict.c
 *	  Reporting rows that are missing or that somebody else has changed.
 *
 * Up to 17 a missing row is a debug message and a unique violation an error
 * of the index.  From 18 on both are conflicts, which are logged with the rows
 * involved and counted for the subscription, and so is a row that comes from
 * another origin.
 *
 * Invariants:
 *
 * I1. Nothing is reported before our turn: until then everything odd may be
 *	   the doing of a transaction before ours that is not finished.
 * I2. A conflict is reported once: only by an attempt that is not made again
 *	   because of what others of a group, or changes postponed, may meet; one
 *	   that is an error, by the attempt whose error ends the leader.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/commit_ts.h"
#include "access/genam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "replication/origin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "postpone.h"
#include "worker.h"

/*
 * Waits for our turn after a new row was stored.
 */
static void
wait_with_new_row(Target *target, TupleTableSlot *slot)
{
	postpone_check_none();
	if (worker_at_turn())
		return;

	/* it may share values with the row in localslot, whose pin must go */
	ExecMaterializeSlot(slot);
	find_release(target);
	apply_wait_turn();
}

#ifdef COMPAT_HAVE_CONFLICTS

/* Once for a table whose indexes were opened. */
void
conflict_init_indexes(ResultRelInfo *relinfo, EState *estate)
{
	MemoryContext oldcxt;

	if (relinfo->ri_onConflictArbiterIndexes != NIL)
		return;

	oldcxt = MemoryContextSwitchTo(estate->es_query_cxt);
	InitConflictIndexes(relinfo);
	MemoryContextSwitchTo(oldcxt);
}

/*
 * Looks for a row that has the same values in a unique index, and locks it so
 * that it can be shown.
 */
static TupleTableSlot *
find_unique_conflict(Target *target, Oid indexoid, TupleTableSlot *slot)
{
	ResultRelInfo *relinfo = target->relinfo;
	TupleTableSlot *conflictslot;

	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		IndexInfo  *info = relinfo->ri_IndexRelationInfo[i];
		Relation	index = relinfo->ri_IndexRelationDescs[i];

		if (RelationGetRelid(index) == indexoid && info->ii_UniqueOps == NULL)
		{
			MemoryContext oldcxt;

			oldcxt = MemoryContextSwitchTo(target->estate->es_query_cxt);
			BuildSpeculativeIndexInfo(index, info);
			MemoryContextSwitchTo(oldcxt);
		}
	}

	conflictslot = table_slot_create(target->rel, NULL);

	for (;;)
	{
		ItemPointerData tid;
		TM_FailureData tmfd;
		TM_Result	result;

		if (ExecCheckIndexConstraints(relinfo, slot, target->estate, &tid,
									  &slot->tts_tid,
									  list_make1_oid(indexoid)))
		{
			ExecDropSingleTupleTableSlot(conflictslot);
			return NULL;
		}

		PushActiveSnapshot(GetLatestSnapshot());
		result = table_tuple_lock(target->rel, &tid, GetActiveSnapshot(),
								  conflictslot, GetCurrentCommandId(false),
								  LockTupleShare, LockWaitBlock, 0, &tmfd);
		PopActiveSnapshot();

		if (result == TM_Ok)
			return conflictslot;
		if (result != TM_Updated && result != TM_Deleted)
			elog(ERROR, "unexpected result %d of locking a tuple", result);
	}
}

/*
 * The new row is in, but a unique index may hold another one with the same
 * values.  Raises an error if that is still so at our turn.
 */
void
conflict_check_unique(Target *target, TupleTableSlot *searchslot,
					  TupleTableSlot *slot, bool update, List *recheck)
{
	List	   *conflicts = NIL;
	ListCell   *lc;

	wait_with_new_row(target, slot);

	foreach(lc, target->relinfo->ri_onConflictArbiterIndexes)
	{
		Oid			indexoid = lfirst_oid(lc);
		TupleTableSlot *conflictslot;
		ConflictTupleInfo *info;

		if (!list_member_oid(recheck, indexoid))
			continue;
		conflictslot = find_unique_conflict(target, indexoid, slot);
		if (conflictslot == NULL)
			continue;

		info = palloc0(sizeof(ConflictTupleInfo));
		info->slot = conflictslot;
		info->indexoid = indexoid;
		GetTupleTransactionInfo(conflictslot, &info->xmin, &info->origin,
								&info->ts);
		conflicts = lappend(conflicts, info);
	}

	if (conflicts != NIL)
	{
		worker_require_counting();	/* I2 */
		ReportApplyConflict(target->estate, target->relinfo, ERROR,
							list_length(conflicts) > 1 ? CT_MULTIPLE_UNIQUE_CONFLICTS :
							update					   ? CT_UPDATE_EXISTS :
														 CT_INSERT_EXISTS,
							searchslot, slot, conflicts);
	}
}

/*
 * Logs a conflict.  Reporting adds slots to the executor state; they must not
 * stay there, or a transaction with many conflicts would grow without bound.
 */
static void
log_conflict(EState *estate, ResultRelInfo *relinfo, ConflictType type,
			 TupleTableSlot *searchslot, TupleTableSlot *remoteslot,
			 ConflictTupleInfo *info)
{
	List	   *saved = estate->es_tupleTable;

	/* I2 */
	worker_require_alone();

	estate->es_tupleTable = NIL;
	ReportApplyConflict(estate, relinfo, LOG, type, searchslot, remoteslot,
						list_make1(info));
	ExecResetTupleTable(estate->es_tupleTable, false);
	estate->es_tupleTable = saved;
}

/* Was the row written by another origin than the one we apply for? */
bool
conflict_other_origin(TupleTableSlot *localslot)
{
	TransactionId xmin;
	RepOriginId origin;
	TimestampTz ts;

	return track_commit_timestamp &&
		   GetTupleTransactionInfo(localslot, &xmin, &origin, &ts) &&
		   origin != replorigin_session_origin;
}

/* Reports it.  remoteslot is the new row of an update, NULL for a delete. */
void
conflict_report_origin(EState *estate, ResultRelInfo *relinfo,
					   TupleTableSlot *searchslot, TupleTableSlot *localslot,
					   TupleTableSlot *remoteslot)
{
	ConflictTupleInfo info = {0};

	info.slot = localslot;
	GetTupleTransactionInfo(localslot, &info.xmin, &info.origin, &info.ts);
	log_conflict(estate, relinfo,
				 remoteslot != NULL ? CT_UPDATE_ORIGIN_DIFFERS :
									  CT_DELETE_ORIGIN_DIFFERS,
				 searchslot, remoteslot, &info);
}

/*
 * Reports that there is no row to be updated, to remoteslot, or to be deleted
 * if that is NULL.
 */
void
conflict_report_missing(EState *estate, ResultRelInfo *relinfo,
						TupleTableSlot *searchslot,
						TupleTableSlot *remoteslot, bool partition)
{
	ConflictTupleInfo info = {0};

	log_conflict(estate, relinfo,
				 remoteslot != NULL ? CT_UPDATE_MISSING : CT_DELETE_MISSING,
				 searchslot, remoteslot, &info);
}

#else							/* !COMPAT_HAVE_CONFLICTS */

void
conflict_init_indexes(ResultRelInfo *relinfo, EState *estate)
{
}

/*
 * As unique_key_recheck does for a deferred constraint.
 */
void
conflict_check_unique(Target *target, TupleTableSlot *searchslot,
					  TupleTableSlot *slot, bool update, List *recheck)
{
	ResultRelInfo *relinfo = target->relinfo;
	ExprContext *econtext = GetPerTupleExprContext(target->estate);

	wait_with_new_row(target, slot);

	econtext->ecxt_scantuple = slot;
	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		Relation	index = relinfo->ri_IndexRelationDescs[i];
		IndexInfo  *info = relinfo->ri_IndexRelationInfo[i];
		Datum		values[INDEX_MAX_KEYS];
		bool		isnull[INDEX_MAX_KEYS];

		/* a deferrable constraint is for its trigger, which does not fire */
		if (!index->rd_index->indimmediate ||
			!list_member_oid(recheck, RelationGetRelid(index)))
			continue;

		FormIndexDatum(info, slot, target->estate, values, isnull);
		index_insert(index, values, isnull, &slot->tts_tid, target->rel,
					 UNIQUE_CHECK_EXISTING, false, info);
	}
}

bool
conflict_other_origin(TupleTableSlot *localslot)
{
	return false;
}

void
conflict_report_origin(EState *estate, ResultRelInfo *relinfo,
					   TupleTableSlot *searchslot, TupleTableSlot *localslot,
					   TupleTableSlot *remoteslot)
{
}

void
conflict_report_missing(EState *estate, ResultRelInfo *relinfo,
						TupleTableSlot *searchslot,
						TupleTableSlot *remoteslot, bool partition)
{
	const char *relname = RelationGetRelationName(relinfo->ri_RelationDesc);

	if (remoteslot == NULL)
		elog(DEBUG1,
			 "logical replication did not find row to be deleted "
			 "in replication target relation \"%s\"",
			 relname);
	else if (partition)
		elog(DEBUG1,
			 "logical replication did not find row to be updated "
			 "in replication target relation's partition \"%s\"",
			 relname);
	else
		elog(DEBUG1,
			 "logical replication did not find row to be updated "
			 "in replication target relation \"%s\"",
			 relname);
}

#endif							/* COMPAT_HAVE_CONFLICTS */
