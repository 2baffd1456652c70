/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Inserting, updating and deleting one row, without triggers.
 *
 * As ExecSimpleRelationInsert, -Update and -Delete with what surrounds them
 * in core's worker.c, for tables without row triggers that fire in apply.
 *
 * Many transactions are applied at once, and only the one whose turn it is
 * can trust what it sees.  So:
 *
 * I1. A row that is not there counts as missing only at our turn; before, we
 *	   wait for the turn and look again.
 * I2. A row that somebody else changed between finding and changing it is
 *	   looked for again by its key, and the new row is made anew from what is
 *	   found then: columns that the publisher did not send are local state.
 * I3. A table that may read other rows is changed only at our turn, with a
 *	   snapshot taken after the turn came.
 * I4. A value that is in a unique index already is an error only at our turn;
 *	   before, the row goes in beside the other one, and we wait for the turn
 *	   and look whether that is still there.
 *
 * I5. Rows of a run of inserts are kept back and stored several at a time.
 *	   Nothing else is done to a table, and no table is closed, before they
 *	   are (row_flush); a rollback forgets them (row_forget).
 *
 * A row is updated without being locked first.  That is sound only without
 * BEFORE ROW triggers: GetTupleForTrigger would follow a concurrent update
 * into EvalPlanQual, which cannot work without a plan.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/heapam.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "executor/executor.h"
#include "executor/nodeModifyTable.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "guc.h"
#include "postpone.h"
#include "worker.h"

/*
 * So often a row may change under us before we wait for our turn.  Two
 * transactions of the publisher never wrote it at the same time, so after a
 * few times something else is going on.
 */
#define MAX_EARLY_RETRIES 3

/* Rows kept back at most: what is gained is per row, and little beyond. */
#define MAX_BATCH_ROWS 64
#define MAX_BATCH_BYTES 65536

/* The table that the last change was an insert into, if rows of it can wait. */
static Target *run_target = NULL;

static Target *route(Target *root, TupleTableSlot *slot);
static void to_leaf(Target *leaf, TupleTableSlot *rootslot,
					TupleTableSlot **leafslot);
static void insert_row(Target *target, TupleTableSlot *slot);
static void insert_index_entries(Target *target, TupleTableSlot *slot);
static TM_Result update_row(Target *target, TupleTableSlot *searchslot);
static TM_Result delete_row(Target *target);
static void check_row(Target *target, TupleTableSlot *slot);

/*
 * Prepares for a change to a table that may look at other rows.
 */
static inline void
before_change(Target *target, bool needs_turn)
{
	if (likely(!needs_turn))
		return;

	worker_require_alone();
	if (!apply_wait_turn())
		apply_new_snapshot();
}

/*
 * The row is not there, or not as it should be.  Before our turn that may be
 * for a transaction before ours: then waits and returns true, and the row has
 * to be looked for again.
 */
static bool
wait_to_look_again(Target *target)
{
	if (apply_saw_turn())
		return false;

	find_release(target);
	return apply_wait_turn();
}

static void
retry_changed(Target *target, TM_Result result, int *retries)
{
	CHECK_FOR_INTERRUPTS();

	if (result == TM_SelfModified)
		elog(ERROR, "tuple already updated by self");
	if (result != TM_Updated && result != TM_Deleted)
		elog(ERROR, "unexpected result %d of changing a tuple", result);

	find_release(target);
	if (++(*retries) > MAX_EARLY_RETRIES)
		apply_wait_turn();
}

/* Keeps a row back that is the next of a run of inserts. */
static void
add_to_batch(Target *target, TupleTableSlot *slot)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(target->cxt);
	HeapTuple	tuple;

	if (target->batch == NULL)
		target->batch = palloc0(sizeof(TupleTableSlot *) * MAX_BATCH_ROWS);
	if (target->batch[target->nbatch] == NULL)
		target->batch[target->nbatch] =
			MakeSingleTupleTableSlot(slot->tts_tupleDescriptor, &TTSOpsHeapTuple);
	tuple = heap_form_tuple(slot->tts_tupleDescriptor, slot->tts_values,
							slot->tts_isnull);
	ExecStoreHeapTuple(tuple, target->batch[target->nbatch++], true);
	target->batch_bytes += tuple->t_len;
	MemoryContextSwitchTo(oldcxt);

	if (target->nbatch == MAX_BATCH_ROWS ||
		target->batch_bytes >= MAX_BATCH_BYTES)
		row_flush();
}

Target *
row_batch(void)
{
	return run_target != NULL && run_target->nbatch > 0 ? run_target : NULL;
}

/* Stores what was kept back. */
void
row_flush(void)
{
	Target	   *target = row_batch();
	UserContext ucxt;
	bool		switch_user;

	if (target == NULL)
		return;

	switch_user = compat_run_as_table_owner();
	if (switch_user)
		SwitchToUntrustedUser(target->rel->rd_rel->relowner, &ucxt);

	table_multi_insert(target->rel, target->batch, target->nbatch,
					   GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < target->nbatch; i++)
	{
		insert_index_entries(target, target->batch[i]);
		ExecClearTuple(target->batch[i]);
		ResetPerTupleExprContext(target->estate);
	}
	target->nbatch = 0;
	target->batch_bytes = 0;

	if (switch_user)
		RestoreUserContext(&ucxt);
}

/* What was kept back is void, or there is nothing. */
void
row_forget(void)
{
	run_target = NULL;
}

/*
 * Applies an insert of remote->newtup.
 */
RowResult
row_insert(Target *target)
{
	TupleTableSlot *slot = target->remoteslot;

	before_change(target, target->map->needs_turn ||
							  target->map->insert_needs_turn);

	*target->updated_cols = NULL;
	tuple_store(target->map, &target->remote->newtup, slot);
	tuple_fill_defaults(target, slot);

	if (target->leaves != NULL)
	{
		Target	   *leaf = route(target, slot);

		if (leaf->map->row_triggers)
			return ROW_TRIGGERED;
		before_change(leaf, leaf->map->needs_turn);
		to_leaf(leaf, slot, &leaf->remoteslot);
		target = leaf;
		slot = leaf->remoteslot;
	}

	target_check_privileges(target, ACL_INSERT);
	check_row(target, slot);
	if (target == run_target)
	{
		add_to_batch(target, slot);
		return ROW_DONE;
	}

	/* slots that are kept, and nothing to be run for a row but the index */
	run_target = pgparrep_insert_runs && target->cxt != NULL &&
						 target->rel->rd_tableam == GetHeapamTableAmRoutine() ?
					 target :
					 NULL;
	insert_row(target, slot);
	return ROW_DONE;
}

/*
 * Applies a delete of remote->oldtup.
 */
RowResult
row_delete(Target *target)
{
	TupleTableSlot *searchslot = target->searchslot;
	int			retries = 0;

	run_target = NULL;
	before_change(target, target->map->needs_turn);

	*target->updated_cols = NULL;
	tuple_store(target->map, &target->remote->oldtup, searchslot);

	if (target->leaves != NULL)
	{
		Target	   *leaf = route(target, searchslot);

		relation_check_updatable(leaf->remote, leaf->map, leaf->rel);
		if (leaf->map->row_triggers)
			return ROW_TRIGGERED;
		before_change(leaf, leaf->map->needs_turn);
		to_leaf(leaf, searchslot, &leaf->searchslot);
		target = leaf;
		searchslot = leaf->searchslot;
	}

	for (;;)
	{
		TM_Result	result;
		bool		found = find_row(target, searchslot);

		postpone_check_row(found ? target->localslot : NULL);
		if (!found)
		{
			if (wait_to_look_again(target))
				continue;
			apply_count_missing();
			conflict_report_missing(target->estate, target->relinfo,
									searchslot, NULL, false);
			return ROW_DONE;
		}

		if (conflict_other_origin(target->localslot))
		{
			if (wait_to_look_again(target))
				continue;
			conflict_report_origin(target->estate, target->relinfo,
								   searchslot, target->localslot, NULL);
		}

		result = delete_row(target);
		if (result == TM_Ok)
			break;
		retry_changed(target, result, &retries);
	}

	find_release(target);
	return ROW_DONE;
}

/*
 * The updated row does not belong into its partition any more: deletes it
 * there and inserts it into another one.
 */
static TM_Result
move_row(Target *leaf, RowResult *rowresult)
{
	Target	   *root = leaf->root;
	TupleTableSlot *rootslot = leaf->newslot;
	Target	   *newleaf;
	TM_Result	result;

	if (leaf->from_root != NULL)
	{
		if (leaf->to_root == NULL)
		{
			MemoryContext oldcxt = MemoryContextSwitchTo(apply_txn_cxt);
			TupleConversionMap *map;

			map = convert_tuples_by_name(RelationGetDescr(leaf->rel),
										 RelationGetDescr(root->rel));
			leaf->to_root = map->attrMap;
			MemoryContextSwitchTo(oldcxt);
		}
		rootslot = execute_attr_map_slot(leaf->to_root, leaf->newslot,
										 root->searchslot);
	}

	newleaf = route(root, rootslot);
	if (newleaf->map->row_triggers)
	{
		*rowresult = ROW_TRIGGERED;
		return TM_Ok;
	}

	/* Waits before the old row is gone, or not at all. */
	if (newleaf->map->needs_turn && !apply_saw_turn())
	{
		find_release(leaf);
		apply_wait_turn();
		return TM_Updated;
	}
	before_change(newleaf, newleaf->map->needs_turn);

	result = delete_row(leaf);
	if (result != TM_Ok)
		return result;

	/*
	 * The new row shares values with the old one, whose pin keeps them in
	 * place although it is deleted.
	 */
	to_leaf(newleaf, rootslot, &newleaf->remoteslot);
	target_check_privileges(newleaf, ACL_INSERT);
	check_row(newleaf, newleaf->remoteslot);
	insert_row(newleaf, newleaf->remoteslot);

	return TM_Ok;
}

/*
 * Applies an update of remote->oldtup, or of the row with the key of
 * remote->newtup, to remote->newtup.
 */
RowResult
row_update(Target *target, bool has_old)
{
	RemoteRel  *remote = target->remote;
	Target	   *root = target;
	TupleTableSlot *searchslot;
	RowResult	rowresult = ROW_DONE;
	bool		converted = !has_old;
	int			retries = 0;

	run_target = NULL;
	before_change(target, target->map->needs_turn);

	*target->updated_cols = tuple_updated_columns(target->map,
												  &remote->newtup);

	searchslot = has_old ? target->searchslot : target->remoteslot;
	tuple_store(target->map, has_old ? &remote->oldtup : &remote->newtup,
				searchslot);

	if (target->leaves != NULL)
	{
		Target	   *leaf = route(target, searchslot);

		relation_check_updatable(remote, leaf->map, leaf->rel);
		if (leaf->map->row_triggers)
			return ROW_TRIGGERED;
		before_change(leaf, leaf->map->needs_turn);
		to_leaf(leaf, searchslot,
				has_old ? &leaf->searchslot : &leaf->remoteslot);
		target = leaf;
		searchslot = has_old ? leaf->searchslot : leaf->remoteslot;
	}

	for (;;)
	{
		TM_Result	result;
		bool		found = find_row(target, searchslot);
		bool		other_origin = false;

		postpone_check_row(found ? target->localslot : NULL);
		if (!found && wait_to_look_again(target))
			continue;

		if (found)
		{
			other_origin = conflict_other_origin(target->localslot);
			if (other_origin && wait_to_look_again(target))
				continue;
		}

		/* The new row is converted when it is known to be needed. */
		if (!converted && (found || conflict_wants_new_row))
		{
			tuple_store(root->map, &remote->newtup, root->remoteslot);
			if (target != root)
				to_leaf(target, root->remoteslot, &target->remoteslot);
			converted = true;
		}

		if (!found)
		{
			apply_count_missing();
			conflict_report_missing(target->estate, target->relinfo,
									searchslot, target->remoteslot,
									target != root);
			return ROW_DONE;
		}

		if (other_origin)
			conflict_report_origin(target->estate, target->relinfo,
								   searchslot, target->localslot,
								   target->remoteslot);

		tuple_merge(target->map, &remote->newtup, target->remoteslot,
					target->localslot, target->newslot);

		if (target == root || !target->rel->rd_rel->relispartition ||
			ExecPartitionCheck(target->relinfo, target->newslot,
							   target->estate, false))
			result = update_row(target, searchslot);
		else
			result = move_row(target, &rowresult);

		if (result == TM_Ok)
			break;
		retry_changed(target, result, &retries);
	}

	find_release(target);
	return rowresult;
}

/*
 * Finds the partition for a row of a partitioned table.
 */
static Target *
route(Target *root, TupleTableSlot *slot)
{
	ResultRelInfo *relinfo;

	relinfo = ExecFindPartition(root->mtstate, root->relinfo, root->proute,
								slot, root->estate);
	return target_open_partition(root, relinfo);
}

/*
 * Gives a partition a row of its parent.  If both have the same row type,
 * *leafslot becomes the parent's slot itself.
 */
static void
to_leaf(Target *leaf, TupleTableSlot *rootslot, TupleTableSlot **leafslot)
{
	if (leaf->from_root != NULL)
		execute_attr_map_slot(leaf->from_root, rootslot, *leafslot);
	else
	{
		ExecClearTuple(*leafslot);
		memcpy((*leafslot)->tts_values, rootslot->tts_values,
			   sizeof(Datum) * leaf->map->natts);
		memcpy((*leafslot)->tts_isnull, rootslot->tts_isnull,
			   sizeof(bool) * leaf->map->natts);
		ExecStoreVirtualTuple(*leafslot);
	}
}

/* Computes what depends on other columns, and checks constraints. */
static void
check_row(Target *target, TupleTableSlot *slot)
{
	Relation	rel = target->rel;
	TupleConstr *constr = rel->rd_att->constr;

	slot->tts_tableOid = RelationGetRelid(rel);

	if (constr != NULL)
	{
		/*
		 * Always all generated columns, as for an insert: the list of those
		 * that an update may leave out is computed only once, but the columns
		 * that updates set differ.
		 */
		if (constr->has_generated_stored)
			ExecComputeStoredGenerated(target->relinfo, target->estate, slot,
									   CMD_INSERT);
		ExecConstraints(target->relinfo, slot, target->estate);
	}
	if (rel->rd_rel->relispartition)
		ExecPartitionCheck(target->relinfo, slot, target->estate, true);
}

static void
insert_row(Target *target, TupleTableSlot *slot)
{
	table_tuple_insert(target->rel, slot, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(target, slot);
}

/* Of a row that was stored. */
static void
insert_index_entries(Target *target, TupleTableSlot *slot)
{
	List	   *recheck;

	if (target->relinfo->ri_NumIndices > 0)
	{
		recheck = compat_insert_index_tuples(target->relinfo, slot,
											 target->estate, false, TU_None,
											 !worker_at_turn());
		if (unlikely(recheck != NIL))
			conflict_check_unique(target, NULL, slot, false, recheck);
	}
}

/*
 * Replaces the row in localslot by the one in newslot.  Does nothing if the
 * result is not TM_Ok.
 */
static TM_Result
update_row(Target *target, TupleTableSlot *searchslot)
{
	TupleTableSlot *slot = target->newslot;
	ResultRelInfo *relinfo = target->relinfo;
	TU_UpdateIndexes update_indexes;
	LockTupleMode lockmode;
	TM_FailureData tmfd;
	TM_Result	result;

	target_check_privileges(target, ACL_UPDATE);
	if (!target->update_checked)
	{
		CheckCmdReplicaIdentity(target->rel, CMD_UPDATE);
		target->update_checked = true;
	}
	check_row(target, slot);

	result = table_tuple_update(target->rel, &target->localslot->tts_tid, slot,
								GetCurrentCommandId(true), InvalidSnapshot,
								InvalidSnapshot, true, &tmfd, &lockmode,
								&update_indexes);
	if (unlikely(result != TM_Ok))
		return result;

	if (relinfo->ri_NumIndices > 0 && update_indexes != TU_None)
	{
		bool		all_updated = !target->remote->newtup.has_unchanged;
		List	   *recheck;

		/*
		 * Which indexes can be told that nothing of theirs changes was found
		 * out for the columns of an earlier update.
		 */
		if (target->updated_all != all_updated || !all_updated)
		{
			for (int i = 0; i < relinfo->ri_NumIndices; i++)
				relinfo->ri_IndexRelationInfo[i]->ii_CheckedUnchanged = false;
			target->updated_all = all_updated;
		}

		recheck = compat_insert_index_tuples(relinfo, slot, target->estate,
											 true, update_indexes,
											 !worker_at_turn());
		if (unlikely(recheck != NIL))
			conflict_check_unique(target, searchslot, slot, true, recheck);
	}

	return TM_Ok;
}

/* Deletes the row in localslot, or does nothing. */
static TM_Result
delete_row(Target *target)
{
	TM_FailureData tmfd;

	target_check_privileges(target, ACL_DELETE);
	if (!target->delete_checked)
	{
		CheckCmdReplicaIdentity(target->rel, CMD_DELETE);
		target->delete_checked = true;
	}

	return table_tuple_delete(target->rel, &target->localslot->tts_tid,
							  GetCurrentCommandId(true), InvalidSnapshot,
							  InvalidSnapshot, true, &tmfd, false);
}
