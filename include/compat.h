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

#include "replication/reorderbuffer.h"
#include "replication/snapbuild.h"
#include "replication/slot.h"
#include "utils/inval.h"

/*
 * 16 renamed relfilenodes to relfilenumbers and locators.
 */
#if PG_VERSION_NUM >= 160000
#include "storage/relfilelocator.h"
#include "utils/relfilenumbermap.h"
typedef RelFileLocator CompatFileNode;
#define compat_node_spc(n) ((n).spcOid)
#define compat_node_db(n) ((n).dbOid)
#define compat_node_rel(n) ((n).relNumber)
#define compat_relid_by_node(n) \
	RelidByRelfilenumber((n).spcOid, (n).relNumber)
#define compat_change_node(c) ((c)->data.tp.rlocator)
#else
#include "storage/relfilenode.h"
#include "utils/relfilenodemap.h"
typedef RelFileNode CompatFileNode;
#define compat_node_spc(n) ((n).spcNode)
#define compat_node_db(n) ((n).dbNode)
#define compat_node_rel(n) ((n).relNode)
#define compat_relid_by_node(n) \
	RelidByRelfilenode((n).spcNode, (n).relNode)
#define compat_change_node(c) ((c)->data.tp.relnode)
#endif

/* 16 dropped the unused xid. */
#if PG_VERSION_NUM >= 160000
#define compat_historic_snapshot(builder, xid) \
	SnapBuildGetOrBuildSnapshot(builder)
#else
#define compat_historic_snapshot(builder, xid) \
	SnapBuildGetOrBuildSnapshot(builder, xid)
#endif

/*
 * The tuples of a ReorderBufferChange: 17 made them plain HeapTuples, 18
 * renamed the functions that allocate.
 */
#if PG_VERSION_NUM >= 180000
#define compat_alloc_change(rb) ReorderBufferAllocChange(rb)
#define compat_alloc_tuple(rb, len) ReorderBufferAllocTupleBuf(rb, len)
#else
#define compat_alloc_change(rb) ReorderBufferGetChange(rb)
#define compat_alloc_tuple(rb, len) ReorderBufferGetTupleBuf(rb, len)
#endif
#if PG_VERSION_NUM >= 170000
typedef HeapTuple CompatChangeTuple;
#define compat_change_tuple(t) (t)
#else
typedef ReorderBufferTupleBuf *CompatChangeTuple;
#define compat_change_tuple(t) (&(t)->tuple)
#endif

/*
 * Before 18 pgoutput goes on with a relation's description when its schema is
 * renamed.  It forgets them all when a publication changes.
 */
#if PG_VERSION_NUM >= 180000
#define compat_pgoutput_schema_changed() ((void) 0)
#else
#define compat_pgoutput_schema_changed() CallSyscacheCallbacks(PUBLICATIONRELMAP, 0)
#endif

/* 18 publishes generated columns on demand. */
#if PG_VERSION_NUM >= 180000
#define compat_write_rel(out, rel) \
	logicalrep_write_rel(out, InvalidTransactionId, rel, NULL, PUBLISH_GENCOLS_NONE)
#define compat_publishes_generated(pub) \
	((pub)->pubgencols_type != PUBLISH_GENCOLS_NONE)
#else
#define compat_write_rel(out, rel) \
	logicalrep_write_rel(out, InvalidTransactionId, rel, NULL)
#define compat_publishes_generated(pub) (false)
#endif

/*
 * 18 goes on without a publication that does not exist at this point of the
 * WAL; older ones raise an error.
 */
#if PG_VERSION_NUM >= 180000
#define COMPAT_PUBLICATION_MAY_MISS true
#else
#define COMPAT_PUBLICATION_MAY_MISS false
#endif

/* 16 dropped the type of a failed assertion; for unit/. */
#if PG_VERSION_NUM >= 160000
#define COMPAT_ASSERTION_TYPE_PARAM
#else
#define COMPAT_ASSERTION_TYPE_PARAM const char *type,
#endif

/* 16 brought pgoutput's option origin. */
#if PG_VERSION_NUM >= 160000
#define COMPAT_PGOUTPUT_HAS_ORIGIN true
#else
#define COMPAT_PGOUTPUT_HAS_ORIGIN false
#endif

/* 18: a renamed publication is announced by its own kind of invalidation. */
#if PG_VERSION_NUM >= 180000
#define compat_register_relsync_callback(func) \
	CacheRegisterRelSyncCallback(func, (Datum) 0)
#else
#define compat_register_relsync_callback(func) ((void) 0)
#endif

/* 17: a slot may have to wait for physical standbys before it sends. */
#if PG_VERSION_NUM >= 170000
#define compat_slot_waits_for_standbys(slot) ((slot)->data.failover)
#else
#define compat_slot_waits_for_standbys(slot) (false)
#endif

/* 18 keeps what deforming needs of an attribute apart. */
#if PG_VERSION_NUM >= 180000
#define compat_init_attribute(desc, i) populate_compact_attribute(desc, i)
#else
#define compat_init_attribute(desc, i) \
	(TupleDescAttr(desc, i)->attcacheoff = -1)
#endif

/* A decoder may connect whenever its walsender could; 17 checks for LOGIN. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_DECODER_CONNECT_FLAGS \
	(BGWORKER_BYPASS_ALLOWCONN | BGWORKER_BYPASS_ROLELOGINCHECK)
#else
#define COMPAT_DECODER_CONNECT_FLAGS BGWORKER_BYPASS_ALLOWCONN
#endif

/* 16 renamed a function of the table of backends. */
#if PG_VERSION_NUM >= 160000
#define compat_local_beentry(i) pgstat_get_local_beentry_by_index(i)
#else
#define compat_local_beentry(i) pgstat_fetch_stat_local_beentry(i)
#endif

/*
 * Subscriptions and the walreceiver function table.
 *
 * 16 has a third kind of logical replication worker (parallel apply) and paces
 * the restarts of each subscription by itself; on 15 nothing can be forgotten.
 */
#if PG_VERSION_NUM >= 160000
#define compat_am_main_apply_worker() am_leader_apply_worker()
#define compat_forget_worker_start_time(subid) \
	ApplyLauncherForgetWorkerStartTime(subid)
#else
#define compat_am_main_apply_worker() (!am_tablesync_worker())
#define compat_forget_worker_start_time(subid) ((void) (subid))
#endif

/* 17 added a parameter to walrcv_create_slot, between two_phase and action. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_FAILOVER_PARAM bool failover,
#define COMPAT_FAILOVER_ARG failover,
#define COMPAT_FAILOVER failover
#else
#define COMPAT_FAILOVER_PARAM
#define COMPAT_FAILOVER_ARG
#define COMPAT_FAILOVER false
#endif

/*
 * 18 puts pg_noreturn in front of a declaration; its predecessor, which stood
 * behind, is gone there.
 */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 17 lets an extension name its wait events; before, all are "Extension". */
#if PG_VERSION_NUM >= 170000
#define compat_wait_event(name) WaitEventExtensionNew(name)
#else
#define compat_wait_event(name) PG_WAIT_EXTENSION
#endif

/* Index of this process in ProcGlobal->allProcs. */
#if PG_VERSION_NUM >= 170000
#define compat_my_procno() MyProcNumber
#else
#define compat_my_procno() (MyProc->pgprocno)
#endif

/*
 * A replication origin has one owner on 15, so that workers pass it on from
 * commit to commit; since 16 they can share it with the leader that holds it.
 */
#if PG_VERSION_NUM >= 160000
#define COMPAT_ORIGIN_SHARED true
#define compat_origin_setup(origin, leader_pid) \
	replorigin_session_setup(origin, leader_pid)
#else
#define COMPAT_ORIGIN_SHARED false
#define compat_origin_setup(origin, leader_pid) \
	replorigin_session_setup(origin)
#endif

/* 17 can end a transaction that lasts too long; an apply worker's may. */
#if PG_VERSION_NUM >= 170000
#define compat_no_transaction_timeout() \
	SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE)
#else
#define compat_no_transaction_timeout() ((void) 0)
#endif

/* 16 merged two functions. */
#if PG_VERSION_NUM >= 160000
#define compat_not_ready_relations(subid) GetSubscriptionRelations(subid, true)
#else
#define compat_not_ready_relations(subid) GetSubscriptionNotReadyRelations(subid)
#endif
/* 18: the caller may hold the lock. */
#if PG_VERSION_NUM >= 180000
#define compat_workers_find(subid) logicalrep_workers_find(subid, true, false)
#else
#define compat_workers_find(subid) logicalrep_workers_find(subid, true)
#endif

/* 16 brought the subscription option origin. */
#if PG_VERSION_NUM >= 160000
#define compat_append_origin_option(buf, options, publisher_version) \
	do \
	{ \
		if ((options)->proto.logical.origin && (publisher_version) >= 160000) \
			appendStringInfo(buf, ", origin '%s'", (options)->proto.logical.origin); \
	} while (0)
#else
#define compat_append_origin_option(buf, options, publisher_version) ((void) 0)
#endif

/*
 * What a change of the subscription makes an apply worker restart for, beyond
 * what is the same in all versions.
 */
#if PG_VERSION_NUM >= 170000
#define compat_subscription_differs(a, b) \
	(strcmp((a)->origin, (b)->origin) != 0 || \
	 (a)->passwordrequired != (b)->passwordrequired || \
	 ((a)->ownersuperuser && !(b)->ownersuperuser))
#elif PG_VERSION_NUM >= 160000
#define compat_subscription_differs(a, b) \
	(strcmp((a)->origin, (b)->origin) != 0 || \
	 (a)->passwordrequired != (b)->passwordrequired)
#else
#define compat_subscription_differs(a, b) false
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
 * Inserts index entries for a row.  Returns the unique indexes that may hold
 * another row with the same values, for conflict_check_unique, instead of
 * raising an error: from 18 on always, since core reports both rows there;
 * before, if lenient.
 */
static inline List *
compat_insert_index_tuples(ResultRelInfo *relinfo, TupleTableSlot *slot,
						   EState *estate, bool update,
						   TU_UpdateIndexes update_indexes, bool lenient)
{
#if PG_VERSION_NUM >= 180000
	List	   *arbiters = relinfo->ri_onConflictArbiterIndexes;
	bool		conflict = false;
	List	   *recheck;

	recheck = ExecInsertIndexTuples(relinfo, slot, estate, update,
									arbiters != NIL, &conflict, arbiters,
									update_indexes == TU_Summarizing);
	return conflict ? recheck : NIL;
#elif PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(relinfo, slot, estate, update, lenient, NULL,
								 NIL, update_indexes == TU_Summarizing);
#else
	return ExecInsertIndexTuples(relinfo, slot, estate, update, lenient, NULL,
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
