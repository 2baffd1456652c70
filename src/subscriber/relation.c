/*-------------------------------------------------------------------------
 *
 * relation.c
 *	  Remote relations, and how they map to local tables.
 *
 * Owns all RemoteRels and RelMaps.  The column numbers, functions, key and
 * flags of a RelMap are computed at first use and stay until local DDL
 * invalidates them, however many transactions later.
 *
 * Invariants:
 *
 * I1. A RemoteRel never changes: a transaction is applied with the column
 *	   list in force when its changes were read, even if the publisher has
 *	   sent a newer one since.
 * I2. A RelMap holds no pointer into the relation cache and no lock.
 * I3. Callbacks only clear RelMap.valid.  The map is freed when it is next
 *	   built, and no Target is open through it then (apply.c closes Targets
 *	   whose map became invalid first).
 * I4. A valid map is used only under a lock on its table that was taken
 *	   before validity was tested: taking it runs the callbacks.
 *
 * What can change under the RowExclusiveLock of a transaction does no harm to
 * it: CREATE and DROP INDEX CONCURRENTLY wait for it between their steps,
 * and everything else that a RelMap depends on needs a stronger lock.
 *
 *-------------------------------------------------------------------------
 */
#include "apply_internal.h"

#include "access/amapi.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "fstream.h"
#include "nativedatum.h"

/* Lives as long as the process; parent of all contexts of this file. */
static MemoryContext relation_cxt = NULL;

static HTAB *remote_rels = NULL;	/* version -> RemoteRel */
static HTAB *rel_maps = NULL;	/* RelMapKey -> RelMap */

/* What relation_lookup returned last, or NULL. */
static RemoteRel *last_lookup = NULL;

static void relcache_callback(Datum arg, Oid relid);
static void syscache_callback(Datum arg, int cacheid, uint32 hashvalue);
static RelMap *get_map(uint32 version, Oid localoid);
static void build_map(RelMap *map, RemoteRel *remote, Relation rel,
					  bool partition);

void
relation_init(void)
{
	HASHCTL		ctl;

	relation_cxt = AllocSetContextCreate(TopMemoryContext,
										 "pgparrep relations",
										 ALLOCSET_DEFAULT_SIZES);

	ctl.keysize = sizeof(uint32);
	ctl.entrysize = sizeof(RemoteRel);
	ctl.hcxt = relation_cxt;
	remote_rels = hash_create("pgparrep remote relations", 128, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	ctl.keysize = sizeof(RelMapKey);
	ctl.entrysize = sizeof(RelMap);
	ctl.hcxt = relation_cxt;
	rel_maps = hash_create("pgparrep relation maps", 128, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	/*
	 * Tables, their indexes, triggers and constraints come as relcache
	 * invalidations.  Types matter for input functions and domain
	 * constraints, functions for whether they are immutable.
	 */
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, syscache_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(CONSTROID, syscache_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, syscache_callback, (Datum) 0);
}

static void
relcache_callback(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	RelMap	   *map;

	hash_seq_init(&status, rel_maps);
	while ((map = hash_seq_search(&status)) != NULL)
	{
		if (!OidIsValid(relid) || map->key.localoid == relid)
			map->valid = false;
	}
}

static void
syscache_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	relcache_callback(arg, InvalidOid);
}

/*
 * After a rollback, state that a function keeps in its FmgrInfo may point to
 * something that the rollback took away.  Input functions of base types keep
 * nothing of that kind; those of domains run arbitrary expressions.
 */
void
relation_after_rollback(void)
{
	HASH_SEQ_STATUS status;
	RelMap	   *map;

	hash_seq_init(&status, rel_maps);
	while ((map = hash_seq_search(&status)) != NULL)
	{
		if (map->fragile)
			map->valid = false;
	}
}

void
apply_define_relation(uint32 version, const char *body, int len)
{
	MemoryContext cxt;
	MemoryContext oldcxt;
	LogicalRepRelation *rel;
	int32	   *typmods;
	StringInfoData s;
	RemoteRel  *remote;
	bool		found;

	cxt = AllocSetContextCreate(relation_cxt, "pgparrep remote relation",
								ALLOCSET_SMALL_SIZES);
	oldcxt = MemoryContextSwitchTo(cxt);

	PG_TRY();
	{
		/* A copy, so that the last string cannot run over the end. */
		initStringInfo(&s);
		appendBinaryStringInfo(&s, body, len);
		rel = logicalrep_read_rel(&s);
		if (s.cursor != s.len)
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("invalid description of a remote relation"),
					 errdetail("%d bytes follow the description of \"%s.%s\".",
							   s.len - s.cursor, rel->nspname, rel->relname)));
		pfree(s.data);

		typmods = palloc(sizeof(int32) * Max(rel->natts, 1));
		if (!fstream_get_typmods(body, len, rel->natts, typmods))
			ereport(ERROR,
					(errcode(ERRCODE_PROTOCOL_VIOLATION),
					 errmsg("invalid description of a remote relation"),
					 errdetail("The columns of \"%s.%s\" cannot be read.",
							   rel->nspname, rel->relname)));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcxt);
		MemoryContextDelete(cxt);
		PG_RE_THROW();
	}
	PG_END_TRY();

	remote = hash_search(remote_rels, &version, HASH_ENTER, &found);
	if (found)
	{
		/* The same body again, by the contract. */
		MemoryContextSwitchTo(oldcxt);
		MemoryContextDelete(cxt);
		return;
	}

	memset((char *) remote + sizeof(version), 0,
		   sizeof(RemoteRel) - sizeof(version));
	remote->cxt = cxt;
	remote->rel = rel;
	remote->typmods = typmods;
	remote->oldtup.cols = palloc0(sizeof(RemoteColumn) * Max(rel->natts, 1));
	remote->newtup.cols = palloc0(sizeof(RemoteColumn) * Max(rel->natts, 1));

	MemoryContextSwitchTo(oldcxt);
}

bool
apply_knows_relation(uint32 version)
{
	return hash_search(remote_rels, &version, HASH_FIND, NULL) != NULL;
}

void
apply_expect_relation(uint32 version, Oid relid)
{
	relation_lookup(version)->expected = relid;
}

void
apply_forget_relation(uint32 version)
{
	HASH_SEQ_STATUS status;
	RemoteRel  *remote;
	RelMap	   *map;

	remote = hash_search(remote_rels, &version, HASH_FIND, NULL);
	if (remote == NULL)
		return;
	if (remote->target != NULL)
		elog(ERROR, "cannot forget a relation in use");

	hash_seq_init(&status, rel_maps);
	while ((map = hash_seq_search(&status)) != NULL)
	{
		if (map->key.version != version)
			continue;
		if (map->cxt)
			MemoryContextDelete(map->cxt);
		hash_search(rel_maps, &map->key, HASH_REMOVE, NULL);
	}

	last_lookup = NULL;
	MemoryContextDelete(remote->cxt);
	hash_search(remote_rels, &version, HASH_REMOVE, NULL);
}

RemoteRel *
relation_lookup(uint32 version)
{
	RemoteRel  *remote = last_lookup;

	if (likely(remote != NULL && remote->version == version))
		return remote;

	remote = hash_search(remote_rels, &version, HASH_FIND, NULL);
	if (remote == NULL)
		elog(ERROR, "no description of remote relation version %u", version);

	last_lookup = remote;
	return remote;
}

static RelMap *
get_map(uint32 version, Oid localoid)
{
	RelMapKey	key;
	RelMap	   *map;
	bool		found;

	key.version = version;
	key.localoid = localoid;

	map = hash_search(rel_maps, &key, HASH_ENTER, &found);
	if (!found)
		memset((char *) map + sizeof(key), 0, sizeof(RelMap) - sizeof(key));

	return map;
}

/*
 * Opens and locks the local table of a remote relation; remote->map is valid
 * afterwards.
 */
Relation
relation_open_local(RemoteRel *remote, LOCKMODE lockmode)
{
	LogicalRepRelation *rrel = remote->rel;
	Relation	rel;
	Oid			relid;

	/*
	 * By OID if the map is still good, and still is after the lock is there:
	 * getting the lock processes invalidations.
	 */
	if (remote->map != NULL && remote->map->valid)
	{
		rel = try_table_open(remote->map->key.localoid, lockmode);
		if (rel != NULL)
		{
			if (remote->map->valid)
				return rel;
			table_close(rel, lockmode);
		}
	}

	relid = RangeVarGetRelid(makeRangeVar(rrel->nspname, rrel->relname, -1),
							 lockmode, true);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("logical replication target relation \"%s.%s\" does not exist",
						rrel->nspname, rrel->relname)));

	rel = table_open(relid, NoLock);
	CheckSubscriptionRelkind(rel->rd_rel->relkind, rrel->nspname,
							 rrel->relname);

	remote->map = get_map(remote->version, relid);
	if (!remote->map->valid)
		build_map(remote->map, remote, rel, false);

	return rel;
}

/*
 * Raises an error if the table is not the one that the leader has decided about.
 * The next leader decides again.
 */
void
relation_check_expected(RemoteRel *remote, Relation rel)
{
	if (unlikely(RelationGetRelid(rel) != remote->expected))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("logical replication target relation \"%s.%s\" was created while a change of it was on its way",
						remote->rel->nspname, remote->rel->relname),
				 errdetail("Whether the table is part of the subscription was not known when the change was received.")));
}

/* The map of a partition, which is open and locked. */
RelMap *
relation_map_partition(RemoteRel *remote, Relation rel)
{
	RelMap	   *map = get_map(remote->version, RelationGetRelid(rel));

	if (!map->valid)
		build_map(map, remote, rel, true);

	return map;
}

/* Appends the quoted names of some remote columns. */
static char *
column_names(LogicalRepRelation *rrel, Bitmapset *cols)
{
	StringInfoData buf;
	int			i = -1;

	initStringInfo(&buf);
	while ((i = bms_next_member(cols, i)) >= 0)
		appendStringInfo(&buf, "%s\"%s\"", buf.len > 0 ? ", " : "",
						 rrel->attnames[i]);
	return buf.data;
}

/*
 * Fills map->cols and map->defaults.  Remote columns without a local one would
 * be lost, so that is an error.
 */
static void
map_columns(RelMap *map, RemoteRel *remote, Relation rel, bool partition)
{
	LogicalRepRelation *rrel = remote->rel;
	TupleDesc	desc = RelationGetDescr(rel);
	Bitmapset  *missing = NULL;
	Bitmapset  *generated = NULL;

	if (rrel->natts > 0)
		missing = bms_add_range(NULL, 0, rrel->natts - 1);

	map->natts = desc->natts;
	map->cols = palloc0(sizeof(MappedColumn) * Max(desc->natts, 1));
	map->defaults = palloc0(sizeof(DefaultColumn) * Max(desc->natts, 1));

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		MappedColumn *col;
		int			remoteatt;

		if (att->attisdropped)
			continue;
		if (att->attgenerated && !COMPAT_PUBLISHED_GENERATED)
			continue;

		for (remoteatt = 0; remoteatt < rrel->natts; remoteatt++)
		{
			if (strcmp(rrel->attnames[remoteatt], NameStr(att->attname)) == 0)
				break;
		}

		if (remoteatt == rrel->natts)
		{
			Expr	   *expr;

			/*
			 * Filled from its default.  As in core only where the numbers of
			 * columns differ: that they are equal although one is missing
			 * happens with dropped columns.
			 */
			if (att->attgenerated || partition || desc->natts == rrel->natts)
				continue;
			expr = (Expr *) build_column_default(rel, i + 1);
			if (expr == NULL)
				continue;
			map->defaults[map->ndefaults].local = i;
			map->defaults[map->ndefaults].expr = expression_planner(expr);
			map->ndefaults++;
			continue;
		}

		missing = bms_del_member(missing, remoteatt);
		if (att->attgenerated)
		{
			generated = bms_add_member(generated, remoteatt);
			continue;
		}

		col = &map->cols[map->ncols++];
		col->local = i;
		col->remote = remoteatt;
		col->typid = att->atttypid;
		col->typmod = att->atttypmod;
		col->native = native_type(rrel->atttyps[remoteatt]);
		col->as_is = col->native != NULL &&
					 native_fits(col->native, remote->typmods[remoteatt],
								 att->atttypid, att->atttypmod);
		map->all_updated =
			bms_add_member(map->all_updated,
						   i + 1 - FirstLowInvalidHeapAttributeNumber);
	}

	if (partition)
		return;

	if (!bms_is_empty(missing))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("logical replication target relation \"%s.%s\" is missing replicated column: %s",
							   "logical replication target relation \"%s.%s\" is missing replicated columns: %s",
							   bms_num_members(missing),
							   rrel->nspname, rrel->relname,
							   column_names(rrel, missing))));

	if (!bms_is_empty(generated))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_plural("logical replication target relation \"%s.%s\" has incompatible generated column: %s",
							   "logical replication target relation \"%s.%s\" has incompatible generated columns: %s",
							   bms_num_members(generated),
							   rrel->nspname, rrel->relname,
							   column_names(rrel, generated))));
}

/*
 * Does the message carry all columns of the key that we would search by?  A
 * key with fewer columns than the publisher's is fine.
 */
static bool
key_is_sent(RelMap *map, RemoteRel *remote, Relation rel)
{
	LogicalRepRelation *rrel = remote->rel;
	Bitmapset  *idkey;
	int			i = -1;

	/*
	 * Not to be seen from the sets of columns: from 18 on that of the primary
	 * key is there even if it is deferrable, and identifies nothing.
	 */
	if (!OidIsValid(compat_identity_or_primary_key(rel)))
		return rrel->replident == REPLICA_IDENTITY_FULL;

	idkey = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_IDENTITY_KEY);
	if (idkey == NULL)
		idkey = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);

	while ((i = bms_next_member(idkey, i)) >= 0)
	{
		int			attnum = i + FirstLowInvalidHeapAttributeNumber;
		bool		sent = false;

		if (!AttrNumberIsForUserDefinedAttr(attnum))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("logical replication target relation \"%s.%s\" uses "
							"system columns in REPLICA IDENTITY index",
							rrel->nspname, rrel->relname)));

		for (int c = 0; c < map->ncols; c++)
		{
			if (map->cols[c].local == AttrNumberGetAttrOffset(attnum))
				sent = bms_is_member(map->cols[c].remote, rrel->attkeys);
		}
		if (!sent)
			return false;
	}

	return true;
}

static bool
column_is_mapped(RelMap *map, AttrNumber attnum)
{
	for (int c = 0; c < map->ncols; c++)
	{
		if (map->cols[c].local == AttrNumberGetAttrOffset(attnum))
			return true;
	}
	return false;
}

/*
 * Can an index that is neither replica identity nor primary key find rows of
 * a table whose publisher sends whole rows?  Whatever it finds is compared
 * with the whole row.
 */
static bool
index_finds_full_rows(RelMap *map, Relation index)
{
	if (!heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL))
		return false;

	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		if (compat_equal_strategy(index->rd_rel->relam,
								  index->rd_opfamily[i]) == InvalidStrategy)
			return false;
	}

	for (int i = 0; i < index->rd_att->natts; i++)
	{
		Oid			typid = TupleDescAttr(index->rd_att, i)->atttypid;

		if (!OidIsValid(lookup_type_cache(typid, TYPECACHE_EQ_OPR_FINFO)->eq_opr_finfo.fn_oid))
			return false;
	}

	/* The leading column must be one that the publisher sends. */
	if (!AttributeNumberIsValid(index->rd_index->indkey.values[0]) ||
		!column_is_mapped(map, index->rd_index->indkey.values[0]))
		return false;

	return index->rd_indam->amgettuple != NULL;
}

/*
 * Chooses the index that rows are found by, as core does, and prepares its
 * scan keys.
 */
static void
choose_key(RelMap *map, RemoteRel *remote, Relation rel)
{
	Relation	index;

	map->keyindex = compat_identity_or_primary_key(rel);
	map->keyunique = OidIsValid(map->keyindex);

	if (!map->keyunique && COMPAT_FULL_IDENTITY_BY_INDEX &&
		remote->rel->replident == REPLICA_IDENTITY_FULL)
	{
		List	   *indexes = RelationGetIndexList(rel);
		ListCell   *lc;

		foreach(lc, indexes)
		{
			bool		usable;

			index = index_open(lfirst_oid(lc), AccessShareLock);
			usable = index_finds_full_rows(map, index);
			index_close(index, AccessShareLock);
			if (usable)
			{
				map->keyindex = lfirst_oid(lc);
				break;
			}
		}
	}

	if (!OidIsValid(map->keyindex))
		return;

	index = index_open(map->keyindex, AccessShareLock);

	map->keys = palloc0(sizeof(ScanKeyData) * INDEX_MAX_KEYS);
	map->keycols = palloc0(sizeof(int) * INDEX_MAX_KEYS);

	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		AttrNumber	attnum = index->rd_index->indkey.values[i];
		Oid			opfamily = index->rd_opfamily[i];
		Oid			optype = index->rd_opcintype[i];
		StrategyNumber strategy;
		Oid			eqop;

		/* expressions only narrow the search */
		if (!AttributeNumberIsValid(attnum))
			continue;

		strategy = compat_equal_strategy(index->rd_rel->relam, opfamily);
		eqop = get_opfamily_member(opfamily, optype, optype, strategy);
		if (!OidIsValid(eqop))
			elog(ERROR, "missing operator %d(%u,%u) in opfamily %u",
				 strategy, optype, optype, opfamily);

		ScanKeyInit(&map->keys[map->nkeys], i + 1, strategy,
					get_opcode(eqop), (Datum) 0);
		map->keys[map->nkeys].sk_collation = index->rd_indcollation[i];
		map->keycols[map->nkeys] = AttrNumberGetAttrOffset(attnum);
		map->nkeys++;
	}

	index_close(index, AccessShareLock);
}

bool
apply_fires_row_triggers(Relation rel)
{
	TriggerDesc *desc = rel->trigdesc;

	if (desc == NULL)
		return false;

	for (int i = 0; i < desc->numtriggers; i++)
	{
		Trigger    *trigger = &desc->triggers[i];

		/* an apply worker has session_replication_role = replica */
		if (TRIGGER_FOR_ROW(trigger->tgtype) &&
			(trigger->tgenabled == TRIGGER_FIRES_ALWAYS ||
			 trigger->tgenabled == TRIGGER_FIRES_ON_REPLICA))
			return true;
	}

	return false;
}

/*
 * Looks for domains in a type: they can run expressions when a value of the
 * type is read.
 */
static void
inspect_type(Oid typid, bool *has_domain, bool *is_mutable)
{
	check_stack_depth();

	switch (get_typtype(typid))
	{
		case TYPTYPE_DOMAIN:
			{
				DomainConstraintRef ref;
				ListCell   *lc;

				*has_domain = true;
				InitDomainConstraintRef(typid, &ref, CurrentMemoryContext,
										false);
				foreach(lc, ref.constraints)
				{
					DomainConstraintState *con = lfirst(lc);

					if (con->check_expr != NULL &&
						contain_mutable_functions((Node *) con->check_expr))
						*is_mutable = true;
				}
				inspect_type(getBaseType(typid), has_domain, is_mutable);
				break;
			}

		case TYPTYPE_COMPOSITE:
			{
				TupleDesc	desc = lookup_rowtype_tupdesc_copy(typid, -1);

				for (int i = 0; i < desc->natts; i++)
				{
					if (!TupleDescAttr(desc, i)->attisdropped)
						inspect_type(TupleDescAttr(desc, i)->atttypid,
									 has_domain, is_mutable);
				}
				break;
			}

		case TYPTYPE_RANGE:
			inspect_type(get_range_subtype(typid), has_domain, is_mutable);
			break;

		case TYPTYPE_MULTIRANGE:
			inspect_type(get_multirange_range(typid), has_domain, is_mutable);
			break;

		default:
			{
				Oid			element = get_element_type(typid);

				if (OidIsValid(element))
					inspect_type(element, has_domain, is_mutable);
			}
	}
}

/*
 * Finds out whether applying a change may read rows other than the one that
 * is changed.  Such a table must see exactly the transactions before.
 */
static void
inspect_table(RelMap *map, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	TupleConstr *constr = desc->constr;
	List	   *indexes;
	ListCell   *lc;

	map->row_triggers = apply_fires_row_triggers(rel);
	map->needs_turn = map->row_triggers;

	for (int c = 0; c < map->ncols; c++)
		inspect_type(map->cols[c].typid, &map->fragile, &map->needs_turn);

	for (int d = 0; d < map->ndefaults; d++)
	{
		if (contain_mutable_functions((Node *) map->defaults[d].expr))
			map->insert_needs_turn = true;
	}

	if (constr != NULL)
	{
		for (int i = 0; i < constr->num_check; i++)
		{
			if (contain_mutable_functions(stringToNode(constr->check[i].ccbin)))
				map->needs_turn = true;
		}

		for (int i = 0; i < desc->natts; i++)
		{
			if (TupleDescAttr(desc, i)->attgenerated &&
				contain_mutable_functions(build_column_default(rel, i + 1)))
				map->needs_turn = true;
		}
	}

	/* The indexes of a partitioned table hold nothing. */
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		return;

	/*
	 * Nothing is kept that could hold state of an expression or of an index
	 * access method.
	 */
	map->keepable = !map->fragile && map->ndefaults == 0 &&
					!rel->rd_rel->relispartition &&
					(constr == NULL || constr->num_check == 0);
	for (int i = 0; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->attgenerated)
			map->keepable = false;
	}

	indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indisexclusion || !index->rd_index->indimmediate)
			map->needs_turn = true;
		if (contain_mutable_functions((Node *) RelationGetIndexExpressions(index)) ||
			contain_mutable_functions((Node *) RelationGetIndexPredicate(index)))
			map->needs_turn = true;
		if (index->rd_rel->relam != BTREE_AM_OID ||
			RelationGetIndexExpressions(index) != NIL ||
			RelationGetIndexPredicate(index) != NIL)
			map->keepable = false;

		index_close(index, AccessShareLock);
	}

	if (map->needs_turn)
		map->keepable = false;
}

static void
build_map(RelMap *map, RemoteRel *remote, Relation rel, bool partition)
{
	RelMapKey	key = map->key;
	MemoryContext oldcxt;
	UserContext ucxt;
	bool		switch_user = !partition && compat_run_as_table_owner();

	if (map->cxt)
		MemoryContextDelete(map->cxt);
	memset(map, 0, sizeof(RelMap));
	map->key = key;

	map->cxt = AllocSetContextCreate(relation_cxt, "pgparrep relation map",
									 ALLOCSET_SMALL_SIZES);
	oldcxt = MemoryContextSwitchTo(map->cxt);

	/*
	 * Valid from here on, so that an invalidation that arrives while indexes
	 * are opened below is not lost.
	 */
	map->valid = true;

	/*
	 * Planning an expression can run functions of it, which are the table
	 * owner's code.  For a partition that has been seen to.
	 */
	if (switch_user)
		SwitchToUntrustedUser(rel->rd_rel->relowner, &ucxt);

	PG_TRY();
	{
		map_columns(map, remote, rel, partition);
		map->updatable = key_is_sent(map, remote, rel);
		if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
			choose_key(map, remote, rel);
		inspect_table(map, rel);
	}
	PG_CATCH();
	{
		map->valid = false;
		MemoryContextSwitchTo(oldcxt);
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (switch_user)
		RestoreUserContext(&ucxt);
	MemoryContextSwitchTo(oldcxt);
}

/* Raises an error if updates and deletes of the table cannot be applied. */
void
relation_check_updatable(RemoteRel *remote, RelMap *map, Relation rel)
{
	/* Of a partitioned table only the partition matters. */
	if (map->updatable ||
		rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		return;

	if (OidIsValid(compat_identity_or_primary_key(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("publisher did not send replica identity column "
						"expected by the logical replication target relation \"%s.%s\"",
						remote->rel->nspname, remote->rel->relname)));

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("logical replication target relation \"%s.%s\" has "
					"neither REPLICA IDENTITY index nor PRIMARY "
					"KEY and published relation does not have "
					"REPLICA IDENTITY FULL",
					remote->rel->nspname, remote->rel->relname)));
}
