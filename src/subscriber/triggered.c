/*-------------------------------------------------------------------------
 *
 * triggered.c
 *	  Changing a row of a table with row triggers that fire in apply.
 *
 * Triggers can read and write anything.  Such a change is applied at our turn
 * and the way core does it, with an executor state of its own, the row locked
 * before it is changed, and every table closed afterwards.
 *
 * Invariants:
 *
 * I1. All transactions before ours are visible to the trigger.
 * I2. No Target is open: the trigger may do to any table what requires that
 *	   it is not in use.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"
#include "worker.h"

#include "access/table.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* A table that the change is made in: the one named, or a partition. */
typedef struct Place
{
	RelMap	   *map;
	ResultRelInfo *relinfo;
	AttrMap    *from_root;
	bool		partition;
	TupleTableSlot *slot;		/* row in the form of this table */
} Place;

/* One change. */
typedef struct Change
{
	RemoteRel  *remote;
	EState	   *estate;
	EPQState	epqstate;
	ResultRelInfo *rootinfo;
	Target		root;			/* for tuple_fill_defaults */
	ModifyTableState *mtstate;
	PartitionTupleRouting *proute;
} Change;

static void choose_place(Change *change, TupleTableSlot *slot, Place *place);
static bool find_and_lock(Place *place, TupleTableSlot *searchslot,
						  TupleTableSlot *localslot);
static void do_insert(Change *change, Place *place);
static void do_update(Change *change, Place *place, TupleTableSlot *rootslot);
static void do_delete(Change *change, Place *place);

/*
 * Applies the change that tuple_parse has read.  rel is open and locked, and
 * remote->map is its map.
 */
void
triggered_change(RemoteRel *remote, Relation rel, char type, bool has_old)
{
	bool		partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	Change		change;
	Place		place;
	Bitmapset **updated_cols;
	EState	   *estate;
	TupleTableSlot *slot;
	RangeTblEntry *rte;
	ListCell   *lc;

	target_close_all();
#ifndef PGPARREP_SABOTAGE_TRIGGERS_ASIDE
	worker_require_alone();
	if (!apply_wait_turn())
#endif
		apply_new_snapshot();

	memset(&change, 0, sizeof(change));
	change.remote = remote;
	change.estate = estate = CreateExecutorState();

	rte = makeNode(RangeTblEntry);
	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
	updated_cols = compat_init_range_table(estate, rte);

	change.rootinfo = makeNode(ResultRelInfo);
	InitResultRelInfo(change.rootinfo, rel, 1, NULL, 0);
	estate->es_opened_result_relations =
		lappend(estate->es_opened_result_relations, change.rootinfo);
	estate->es_output_cid = GetCurrentCommandId(true);

	/* Prepare to catch AFTER triggers. */
	AfterTriggerBeginQuery();

	compat_epq_init(&change.epqstate, estate);

	if (partitioned)
	{
		change.mtstate = makeNode(ModifyTableState);
		change.mtstate->ps.state = estate;
		change.mtstate->operation = type == LOGICAL_REP_MSG_INSERT ? CMD_INSERT :
									type == LOGICAL_REP_MSG_UPDATE ? CMD_UPDATE :
																	 CMD_DELETE;
		change.mtstate->resultRelInfo = change.rootinfo;
		change.proute = ExecSetupPartitionTupleRouting(estate, rel);
	}
	else
		ExecOpenIndices(change.rootinfo, false);

	slot = ExecInitExtraTupleSlot(estate, RelationGetDescr(rel),
								  &TTSOpsVirtual);

	if (type == LOGICAL_REP_MSG_UPDATE)
		*updated_cols = tuple_updated_columns(remote->map, &remote->newtup);

	if (type == LOGICAL_REP_MSG_DELETE || has_old)
		tuple_store(remote->map, &remote->oldtup, slot);
	else
		tuple_store(remote->map, &remote->newtup, slot);

	if (type == LOGICAL_REP_MSG_INSERT)
	{
		change.root.map = remote->map;
		change.root.estate = estate;
		tuple_fill_defaults(&change.root, slot);
	}

	choose_place(&change, slot, &place);

	if (type != LOGICAL_REP_MSG_INSERT)
		relation_check_updatable(remote, place.map,
								 place.relinfo->ri_RelationDesc);

	if (type == LOGICAL_REP_MSG_INSERT)
		do_insert(&change, &place);
	else if (type == LOGICAL_REP_MSG_UPDATE)
		do_update(&change, &place, slot);
	else
		do_delete(&change, &place);

	EvalPlanQualEnd(&change.epqstate);
	AfterTriggerEndQuery(estate);

	if (partitioned)
		ExecCleanupTupleRouting(change.mtstate, change.proute);
	else
		ExecCloseIndices(change.rootinfo);

	/* opened to fire the triggers of partitions */
	foreach(lc, estate->es_trig_target_relations)
		table_close(((ResultRelInfo *) lfirst(lc))->ri_RelationDesc, NoLock);

	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
}

/*
 * Finds the table that a row belongs to, and converts the row for it.
 */
static void
choose_place(Change *change, TupleTableSlot *slot, Place *place)
{
	Relation	rel;
	TupleConversionMap *map;

	memset(place, 0, sizeof(Place));

	if (change->proute == NULL)
	{
		place->map = change->remote->map;
		place->relinfo = change->rootinfo;
		place->slot = slot;
		return;
	}

	place->partition = true;
	place->relinfo = ExecFindPartition(change->mtstate, change->rootinfo,
									   change->proute, slot, change->estate);
	rel = place->relinfo->ri_RelationDesc;
	CheckSubscriptionRelkind(rel->rd_rel->relkind,
							 get_namespace_name(RelationGetNamespace(rel)),
							 RelationGetRelationName(rel));
	place->map = relation_map_partition(change->remote, rel);

	place->slot = table_slot_create(rel, &change->estate->es_tupleTable);
	map = compat_root_to_child_map(place->relinfo, change->estate);
	if (map != NULL)
	{
		place->from_root = map->attrMap;
		execute_attr_map_slot(map->attrMap, slot, place->slot);
	}
	else
	{
		ExecCopySlot(place->slot, slot);
		slot_getallattrs(place->slot);
	}
}

static bool
find_and_lock(Place *place, TupleTableSlot *searchslot,
			  TupleTableSlot *localslot)
{
	Relation	rel = place->relinfo->ri_RelationDesc;

	check_privileges(rel, ACL_SELECT);

	if (OidIsValid(place->map->keyindex))
		return RelationFindReplTupleByIndex(rel, place->map->keyindex,
											LockTupleExclusive,
											searchslot, localslot);
	else
		return RelationFindReplTupleSeq(rel, LockTupleExclusive,
										searchslot, localslot);
}

static void
do_insert(Change *change, Place *place)
{
	conflict_init_indexes(place->relinfo, change->estate);
	check_privileges(place->relinfo->ri_RelationDesc, ACL_INSERT);
	ExecSimpleRelationInsert(place->relinfo, change->estate, place->slot);
}

static void
do_delete(Change *change, Place *place)
{
	Relation	rel = place->relinfo->ri_RelationDesc;
	TupleTableSlot *localslot;

	localslot = table_slot_create(rel, &change->estate->es_tupleTable);

	if (!find_and_lock(place, place->slot, localslot))
	{
		apply_count_missing();
		conflict_report_missing(change->estate, place->relinfo, place->slot,
								NULL, false);
		return;
	}

	if (conflict_other_origin(localslot))
		conflict_report_origin(change->estate, place->relinfo, place->slot,
							   localslot, NULL);

	EvalPlanQualSetSlot(&change->epqstate, localslot);
	check_privileges(rel, ACL_DELETE);
	ExecSimpleRelationDelete(place->relinfo, change->estate,
							 &change->epqstate, localslot);
}

/*
 * rootslot is the row that was searched for in the form of the table named;
 * used for the new row then.
 */
static void
do_update(Change *change, Place *place, TupleTableSlot *rootslot)
{
	RemoteRel  *remote = change->remote;
	EState	   *estate = change->estate;
	Relation	rel = place->relinfo->ri_RelationDesc;
	Relation	root = change->rootinfo->ri_RelationDesc;
	TupleTableSlot *localslot;
	TupleTableSlot *remoteslot;
	TupleTableSlot *newslot;
	bool		found;
	bool		other_origin;
	Place		newplace;

	localslot = table_slot_create(rel, &estate->es_tupleTable);
	remoteslot = ExecInitExtraTupleSlot(estate, RelationGetDescr(rel),
										&TTSOpsVirtual);
	newslot = ExecInitExtraTupleSlot(estate, RelationGetDescr(rel),
									 &TTSOpsVirtual);

	found = find_and_lock(place, place->slot, localslot);
	if (found || conflict_wants_new_row)
		tuple_store(place->map, &remote->newtup, remoteslot);

	if (!found)
	{
		apply_count_missing();
		conflict_report_missing(estate, place->relinfo, place->slot,
								remoteslot, place->partition);
		return;
	}

	other_origin = conflict_other_origin(localslot);
	if (other_origin)
		conflict_report_origin(estate, place->relinfo, place->slot, localslot,
							   remoteslot);

	tuple_merge(place->map, &remote->newtup, remoteslot, localslot, newslot);

	if (!place->partition || !rel->rd_rel->relispartition ||
		ExecPartitionCheck(place->relinfo, newslot, estate, false))
	{
		conflict_init_indexes(place->relinfo, estate);
		EvalPlanQualSetSlot(&change->epqstate, newslot);
		check_privileges(rel, ACL_UPDATE);
		ExecSimpleRelationUpdate(place->relinfo, estate, &change->epqstate,
								 localslot, newslot);
		return;
	}

	/* Move the row to another partition. */
	if (place->from_root != NULL)
	{
		TupleConversionMap *map;

		map = convert_tuples_by_name(RelationGetDescr(rel),
									 RelationGetDescr(root));
		execute_attr_map_slot(map->attrMap, newslot, rootslot);
	}
	else
		ExecCopySlot(rootslot, newslot);
	slot_getallattrs(rootslot);

	choose_place(change, rootslot, &newplace);

	EvalPlanQualSetSlot(&change->epqstate, localslot);
	check_privileges(rel, ACL_DELETE);
	ExecSimpleRelationDelete(place->relinfo, estate, &change->epqstate,
							 localslot);

	do_insert(change, &newplace);
}
