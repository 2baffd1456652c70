/*-------------------------------------------------------------------------
 *
 * target.c
 *	  Tables that the current transaction has open.
 *
 * Opening a table with its indexes, an executor state and slots costs more
 * than applying a change to it.  So a table is opened at its first change in
 * a transaction, and stays open until the transaction ends.
 *
 * Transactions are often so short that they change each table once.  So of a
 * plain table, without expressions of any kind, the executor state, slots and
 * index descriptions stay with its RelMap (RelMap.kept) when it is closed;
 * opening it again only takes the locks and looks up the relations.
 *
 * Invariants:
 *
 * I1. Everything that hangs on a Target is allocated in apply_txn_cxt, in its
 *	   own context or in the executor state below that, never in the context
 *	   of one change.
 * I2. After an error nothing here is closed: the end of the transaction
 *	   releases locks, pins and references, target_forget_all the memory.
 * I3. What is kept holds no reference to the relation cache: its slots have a
 *	   row description of their own.  After an error it is not kept, since it
 *	   may still refer to a buffer that was unpinned by the rollback.
 * I4. While a trigger runs, no Target is open: the trigger may TRUNCATE or
 *	   ALTER a table that an earlier change went to (triggered.c).
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/objectaddress.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"

/* RemoteRels with an open Target. */
static List *open_remotes = NIL;

typedef struct LeafEntry
{
	Oid			relid;			/* hash key */
	Target	   *target;
} LeafEntry;

/*
 * Checks that the current user may do something to the table, and that no
 * policies would have to be obeyed, which nobody could do here.
 */
void
check_privileges(Relation rel, AclMode mode)
{
	Oid			relid = RelationGetRelid(rel);
	AclResult	aclresult;

	aclresult = pg_class_aclcheck(relid, GetUserId(), mode);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult,
					   get_relkind_objtype(rel->rd_rel->relkind),
					   get_rel_name(relid));

	if (check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("user \"%s\" cannot replicate into relation with row-level security enabled: \"%s\"",
						GetUserNameFromId(GetUserId(), true),
						RelationGetRelationName(rel))));
}

/* The same, once in a transaction. */
void
target_check_privileges(Target *target, AclMode mode)
{
	if (likely((target->granted & mode) == mode))
		return;

	check_privileges(target->rel, mode);
	target->granted |= mode;
}

static EState *
make_estate(Relation rel, Bitmapset ***updated_cols)
{
	EState	   *estate = CreateExecutorState();
	RangeTblEntry *rte = makeNode(RangeTblEntry);

	rte->rtekind = RTE_RELATION;
	rte->relid = RelationGetRelid(rel);
	rte->relkind = rel->rd_rel->relkind;
	rte->rellockmode = AccessShareLock;
	*updated_cols = compat_init_range_table(estate, rte);

	return estate;
}

static void
make_slots(Target *target)
{
	TupleDesc	desc = RelationGetDescr(target->rel);

	if (target->cxt != NULL)
		desc = CreateTupleDescCopyConstr(desc);

	target->searchslot = ExecInitExtraTupleSlot(target->estate, desc,
												&TTSOpsVirtual);
	target->remoteslot = ExecInitExtraTupleSlot(target->estate, desc,
												&TTSOpsVirtual);
	if (target->rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
	{
		target->newslot = ExecInitExtraTupleSlot(target->estate, desc,
												 &TTSOpsVirtual);
		target->localslot = ExecInitExtraTupleSlot(target->estate, desc,
												   table_slot_callbacks(target->rel));
	}
}

/* Opens a table again of which something was kept. */
static void
reopen_kept(Target *target, Relation rel)
{
	ResultRelInfo *relinfo = target->relinfo;

	target->rel = rel;
	target->eq = NULL;
	target->granted = 0;
	target->update_checked = false;
	target->delete_checked = false;

	relinfo->ri_RelationDesc = rel;
	for (int i = 0; i < relinfo->ri_NumIndices; i++)
	{
		Relation	index = index_open(target->indexoids[i], RowExclusiveLock);

		relinfo->ri_IndexRelationDescs[i] = index;

		/* a change of pg_index as such invalidates only the index */
		relinfo->ri_IndexRelationInfo[i]->ii_ReadyForInserts =
			index->rd_index->indisready;
	}
}

/*
 * Opens a table that is locked already.  Takes over the caller's reference.
 */
Target *
target_open(RemoteRel *remote, Relation rel)
{
	RelMap	   *map = remote->map;
	MemoryContext oldcxt = MemoryContextSwitchTo(apply_txn_cxt);
	MemoryContext cxt = NULL;
	Target	   *target = map->kept;
	EState	   *estate;

	/* From now on target_forget_all takes care of it. */
	open_remotes = lappend(open_remotes, remote);

	if (target != NULL)
	{
		remote->target = target;
		reopen_kept(target, rel);
		MemoryContextSwitchTo(oldcxt);
		return target;
	}

	if (map->keepable)
	{
		cxt = AllocSetContextCreate(map->cxt, "pgparrep table",
									ALLOCSET_SMALL_SIZES);
		MemoryContextSwitchTo(cxt);
	}

	target = palloc0(sizeof(Target));
	remote->target = target;
	map->kept = cxt != NULL ? target : NULL;
	target->cxt = cxt;
	target->remote = remote;
	target->map = remote->map;
	target->rel = rel;
	target->estate = estate = make_estate(rel, &target->updated_cols);

	target->relinfo = makeNode(ResultRelInfo);
	InitResultRelInfo(target->relinfo, rel, 1, NULL, 0);
	estate->es_opened_result_relations =
		lappend(estate->es_opened_result_relations, target->relinfo);

	make_slots(target);

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		HASHCTL		ctl;

		target->mtstate = makeNode(ModifyTableState);
		target->mtstate->ps.plan = NULL;
		target->mtstate->ps.state = estate;
		target->mtstate->operation = CMD_INSERT;
		target->mtstate->resultRelInfo = target->relinfo;
		target->proute = ExecSetupPartitionTupleRouting(estate, rel);

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(LeafEntry);
		ctl.hcxt = apply_txn_cxt;
		target->leaves = hash_create("pgparrep partitions", 16, &ctl,
									 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	else
	{
		ExecOpenIndices(target->relinfo, false);
		conflict_init_indexes(target->relinfo, estate);
	}

	if (cxt != NULL && target->relinfo->ri_NumIndices > 0)
	{
		int			n = target->relinfo->ri_NumIndices;

		target->indexoids = palloc(sizeof(Oid) * n);
		for (int i = 0; i < n; i++)
			target->indexoids[i] =
				RelationGetRelid(target->relinfo->ri_IndexRelationDescs[i]);
	}

	MemoryContextSwitchTo(oldcxt);

	return target;
}

/* The Target of a partition that a row was routed to. */
Target *
target_open_partition(Target *root, ResultRelInfo *relinfo)
{
	Relation	rel = relinfo->ri_RelationDesc;
	Oid			relid = RelationGetRelid(rel);
	LeafEntry  *entry;
	bool		found;
	MemoryContext oldcxt;
	TupleConversionMap *map;
	Target	   *leaf;

	entry = hash_search(root->leaves, &relid, HASH_ENTER, &found);
	if (found && entry->target != NULL)
		return entry->target;
	entry->target = NULL;

	CheckSubscriptionRelkind(rel->rd_rel->relkind,
							 get_namespace_name(RelationGetNamespace(rel)),
							 RelationGetRelationName(rel));

	oldcxt = MemoryContextSwitchTo(apply_txn_cxt);

	leaf = palloc0(sizeof(Target));
	leaf->remote = root->remote;
	leaf->root = root;
	leaf->map = relation_map_partition(root->remote, rel);
	leaf->rel = rel;
	leaf->estate = root->estate;
	leaf->relinfo = relinfo;
	leaf->updated_cols = root->updated_cols;

	/* Routing has opened the indexes. */
	conflict_init_indexes(relinfo, leaf->estate);

	map = compat_root_to_child_map(relinfo, leaf->estate);
	if (map != NULL)
		leaf->from_root = map->attrMap;
	make_slots(leaf);

	entry->target = leaf;

	MemoryContextSwitchTo(oldcxt);

	return leaf;
}

static void
close_scan(Target *target)
{
	if (target->localslot != NULL)
		ExecClearTuple(target->localslot);
	if (target->scan != NULL)
		index_endscan(target->scan);
	target->scan = NULL;
}

static void
drop_kept(Target *target)
{
	if (target->cxt == NULL)
		return;

	target->map->kept = NULL;
	MemoryContextDelete(target->cxt);
}

static void
close_target(Target *target)
{
	EState	   *estate = target->estate;

	if (target->leaves != NULL)
	{
		HASH_SEQ_STATUS status;
		LeafEntry  *entry;

		hash_seq_init(&status, target->leaves);
		while ((entry = hash_seq_search(&status)) != NULL)
		{
			if (entry->target != NULL)
				close_scan(entry->target);
		}

		/* closes partitions and their indexes */
		ExecCleanupTupleRouting(target->mtstate, target->proute);
	}
	else
	{
		close_scan(target);
		ExecCloseIndices(target->relinfo);
	}

	table_close(target->rel, NoLock);

	if (target->cxt != NULL && target->map->valid)
	{
		target->rel = NULL;
		target->relinfo->ri_RelationDesc = NULL;
		return;
	}

	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
	drop_kept(target);
}

/* Closes all tables, keeping the locks. */
void
target_close_all(void)
{
	ListCell   *lc;

	row_flush();
	row_forget();
	foreach(lc, open_remotes)
	{
		RemoteRel  *remote = lfirst(lc);

		close_target(remote->target);
		remote->target = NULL;
	}
	open_remotes = NIL;

	MemoryContextReset(apply_txn_cxt);
}

/* After an error, when the transaction has been rolled back. */
void
target_forget_all(void)
{
	ListCell   *lc;

	row_forget();
	foreach(lc, open_remotes)
	{
		RemoteRel  *remote = lfirst(lc);

		if (remote->target != NULL)
			drop_kept(remote->target);
		remote->target = NULL;
	}
	open_remotes = NIL;

	MemoryContextReset(apply_txn_cxt);
}
