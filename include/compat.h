/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every difference between the supported server versions, 15 to 18.
 *
 * No other file tests PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_COMPAT_H
#define PGPARREP_COMPAT_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000
#error "pgparrep needs PostgreSQL 15 or later"
#endif

/*-------------------------------------------------------------------------
 * Applying changes
 *-------------------------------------------------------------------------
 */

#include "access/genam.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#if PG_VERSION_NUM >= 180000
#include "access/amapi.h"
#endif
#include "catalog/pg_am_d.h"
#include "catalog/pg_subscription.h"
#include "commands/tablecmds.h"
#include "executor/executor.h"
#include "parser/parse_relation.h"
#include "replication/logicalrelation.h"
#include "replication/worker_internal.h"
#include "utils/rel.h"
#if PG_VERSION_NUM >= 160000
#include "utils/usercontext.h"
#endif
#if PG_VERSION_NUM >= 180000
#include "replication/conflict.h"
#endif

/*
 * 16: an UPDATE says which kind of indexes need new entries.
 */
#if PG_VERSION_NUM < 160000
typedef bool TU_UpdateIndexes;
#define TU_None false
#endif

/*
 * 16: changes are applied as the owner of the table unless the subscription
 * says run_as_owner.  In 15 they always run as the subscription's owner.
 */
#if PG_VERSION_NUM >= 160000
#define compat_run_as_table_owner() (!MySubscription->runasowner)
#else
typedef struct UserContext
{
	int			unused;
} UserContext;
#define compat_run_as_table_owner() false
#define SwitchToUntrustedUser(userid, ucxt) ((void) (userid), (void) (ucxt))
#define RestoreUserContext(ucxt) ((void) (ucxt))
#endif

static inline void
compat_truncate_guts(List *rels, List *relids, List *relids_logged,
					 bool restart_seqs)
{
#if PG_VERSION_NUM >= 160000
	ExecuteTruncateGuts(rels, relids, relids_logged, DROP_RESTRICT,
						restart_seqs, !MySubscription->runasowner);
#else
	ExecuteTruncateGuts(rels, relids, relids_logged, DROP_RESTRICT,
						restart_seqs);
#endif
}

/*
 * Gives an executor state its one range table entry, and returns where the
 * set of updated columns of that entry lives (moved in 16).
 */
static inline Bitmapset **
compat_init_range_table(EState *estate, RangeTblEntry *rte)
{
#if PG_VERSION_NUM >= 160000
	List	   *perminfos = NIL;

	addRTEPermissionInfo(&perminfos, rte);
#if PG_VERSION_NUM >= 180000
	ExecInitRangeTable(estate, list_make1(rte), perminfos,
					   bms_make_singleton(1));
#else
	ExecInitRangeTable(estate, list_make1(rte), perminfos);
#endif
	return &((RTEPermissionInfo *) linitial(perminfos))->updatedCols;
#else
	ExecInitRangeTable(estate, list_make1(rte));
	return &rte->updatedCols;
#endif
}

static inline void
compat_epq_init(EPQState *epqstate, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	EvalPlanQualInit(epqstate, estate, NULL, NIL, -1, NIL);
#else
	EvalPlanQualInit(epqstate, estate, NULL, NIL, -1);
#endif
}

static inline TupleConversionMap *
compat_root_to_child_map(ResultRelInfo *relinfo, EState *estate)
{
#if PG_VERSION_NUM >= 160000
	return ExecGetRootToChildMap(relinfo, estate);
#else
	return relinfo->ri_RootToPartitionMap;
#endif
}

static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot,
					   int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/*
 * 18: a unique violation is found after the row is in, and is reported with
 * both rows; *conflict says that there may be one.  Before, the index access
 * method raises the error.
 */
static inline List *
compat_insert_index_tuples(ResultRelInfo *relinfo, TupleTableSlot *slot,
						   EState *estate, bool update,
						   TU_UpdateIndexes update_indexes, bool *conflict)
{
#if PG_VERSION_NUM >= 180000
	List	   *arbiters = relinfo->ri_onConflictArbiterIndexes;

	return ExecInsertIndexTuples(relinfo, slot, estate, update,
								 arbiters != NIL, conflict, arbiters,
								 update_indexes == TU_Summarizing);
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(relinfo, slot, estate, update, false, NULL,
								 NIL, update_indexes == TU_Summarizing);
#else
	return ExecInsertIndexTuples(relinfo, slot, estate, update, false, NULL,
								 NIL);
#endif
}

/*
 * 16: a table without key but with REPLICA IDENTITY FULL on the publisher is
 * searched by any suitable index, and a key may be NULL there.
 */
#if PG_VERSION_NUM >= 160000
#define COMPAT_FULL_IDENTITY_BY_INDEX true
#define COMPAT_NULL_KEY_FLAGS (SK_ISNULL | SK_SEARCHNULL)
#else
#define COMPAT_FULL_IDENTITY_BY_INDEX false
#define COMPAT_NULL_KEY_FLAGS SK_ISNULL
#endif

static inline StrategyNumber
compat_equal_strategy(Oid am, Oid opfamily)
{
#if PG_VERSION_NUM >= 180000
	return IndexAmTranslateCompareType(COMPARE_EQ, am, opfamily, true);
#elif PG_VERSION_NUM >= 170000
	if (am == BTREE_AM_OID)
		return BTEqualStrategyNumber;
	if (am == HASH_AM_OID)
		return HTEqualStrategyNumber;
	return InvalidStrategy;
#else
	return am == BTREE_AM_OID ? BTEqualStrategyNumber : InvalidStrategy;
#endif
}

static inline Oid
compat_identity_or_primary_key(Relation rel)
{
#if PG_VERSION_NUM >= 160000
	return GetRelationIdentityOrPK(rel);
#else
	Oid			index = RelationGetReplicaIndex(rel);

	return OidIsValid(index) ? index : RelationGetPrimaryKeyIndex(rel);
#endif
}

/*
 * 18: generated columns can be published, and may not meet a generated
 * column; virtual ones exist.
 */
#if PG_VERSION_NUM >= 180000
#define COMPAT_PUBLISHED_GENERATED true
#else
#define COMPAT_PUBLISHED_GENERATED false
#endif

/* 18: conflicts are logged and counted.  conflict.c */
#if PG_VERSION_NUM >= 180000
#define COMPAT_HAVE_CONFLICTS
#endif

#endif							/* PGPARREP_COMPAT_H */
