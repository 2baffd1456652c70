/*-------------------------------------------------------------------------
 *
 * keyplan.c
 *	  What the changes of a relation conflict with (leader).
 *
 * Makes, for each version of a remote relation, a plan from the local
 * catalogs: which unique indexes there are, which columns of the message
 * their keys come from, and how a value is hashed so that values that the
 * index takes for equal have equal hashes.  Then hashes the keys of each
 * change as it arrives.
 *
 * I1	The leader never waits for a lock that a transaction may hold (a worker
 *		could wait for the leader meanwhile) and runs no user-defined code.  A
 *		relation that is locked has no plan for now and its changes conflict
 *		with everything.
 * I2	No error leaves here on account of a value.  What cannot be hashed
 *		conflicts with everything; the worker reports the value, if it is still
 *		wrong when its turn has come.
 * I3	Hashing looks up no catalog, so that no transaction is needed for it:
 *		types are from an explicit list.
 *
 * A plan may be out of date by the time a change is applied.  That costs
 * time, not correctness; see depend.c.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "apply.h"
#include "compat.h"
#include "keyplan.h"
#include "nativedatum.h"

typedef enum HashKind
{
	KEYHASH_INTEGER,			/* int2, int4, int8, oid */
	KEYHASH_STRING,				/* equal when the bytes are */
	KEYHASH_BPCHAR,				/* ... apart from trailing blanks */
	KEYHASH_FUNCTION			/* through input or receive and hash function */
} HashKind;

typedef struct KeyColumn
{
	int			remote;			/* index of the column in the message */
	HashKind	kind;
	FmgrInfo	input;
	FmgrInfo	receive;
	FmgrInfo	hash;
	Oid			input_param;
	Oid			receive_param;
	int32		typmod;
	const NativeType *native;	/* of the remote type; NULL: it has none */
	bool		as_is;			/* its datums are those of the column */
	FmgrInfo	output;			/* for the others */
} KeyColumn;

typedef struct KeyIndex
{
	uint64		seed;
	bool		identity;		/* finds the row of an update or delete */
	bool		nulls_equal;
	int			ncolumns;
	KeyColumn  *columns;
} KeyIndex;

typedef struct KeyPlan
{
	Conflict	insert;
	Conflict	update;
	Conflict	delete;
	int			last_column;	/* highest index that any key needs */
	int			nindexes;
	KeyIndex   *indexes;
	DependDomain *domain;
	MemoryContext mcxt;
} KeyPlan;

typedef struct DomainEntry
{
	Oid			relid;			/* hash key: the table or topmost parent */
	DependDomain domain;
} DomainEntry;

/* The columns of one tuple in a message. */
typedef struct ParsedTuple
{
	int			ncolumns;
	char		kind[MaxTupleAttributeNumber];
	int			len[MaxTupleAttributeNumber];
	const char *value[MaxTupleAttributeNumber];
} ParsedTuple;

static HTAB *domains;
static MemoryContext hash_mcxt; /* reset after each function call */
static ParsedTuple parsed;

/* A relation that could not be planned is not tried again in this one. */
static TransactionId failed_xid = InvalidTransactionId;
static RelVersion *failed_rel = NULL;

static void
mark_stale(RelVersion *rel, void *arg)
{
	Oid			relid = *(Oid *) arg;

	/* A relation not known yet may have come into being. */
	if (relid == InvalidOid || rel->localoid == InvalidOid ||
		rel->localoid == relid)
		rel->stale = true;
}

static void
relcache_callback(Datum arg, Oid relid)
{
	streamrel_foreach(mark_stale, &relid);
}

static void
syscache_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	Oid			relid = InvalidOid;

	streamrel_foreach(mark_stale, &relid);
}

void
keyplan_init(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(DomainEntry);
	ctl.hcxt = TopMemoryContext;
	domains = hash_create("pgparrep conflict domains", 128, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	hash_mcxt = AllocSetContextCreate(TopMemoryContext, "pgparrep key hashes",
									  ALLOCSET_DEFAULT_SIZES);
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, syscache_callback, (Datum) 0);
}

/* The domain of a table; stays where it is as long as the leader lives. */
static DependDomain *
get_domain(Oid relid)
{
	DomainEntry *entry;
	bool		found;

	entry = hash_search(domains, &relid, HASH_ENTER, &found);
	if (!found)
	{
		memset(&entry->domain, 0, sizeof(entry->domain));
		entry->domain.number = hash_get_num_entries(domains);
	}
	return &entry->domain;
}

/* Chooses how values of a local type are hashed; false if they cannot be. */
static bool
plan_column(KeyColumn *column, Oid type, int32 typmod, Oid opfamily,
			Oid opcintype, Oid collation)
{
	Oid			input;
	Oid			receive;
	Oid			equal;
	RegProcedure hash;

	type = getBaseTypeAndTypmod(type, &typmod);
	column->typmod = typmod;

	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
			column->kind = KEYHASH_INTEGER;
			return true;
		case TEXTOID:
		case VARCHAROID:
		case NAMEOID:
		case BPCHAROID:
			if (OidIsValid(collation) &&
				!get_collation_isdeterministic(collation))
				return false;
			/* An index on varchar may treat it as bpchar and the reverse. */
			column->kind = (type == BPCHAROID || opcintype == BPCHAROID) ?
							   KEYHASH_BPCHAR :
							   KEYHASH_STRING;
			return true;
		case BOOLOID:
		case BYTEAOID:
		case CHAROID:
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
		case DATEOID:
		case TIMEOID:
		case TIMETZOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
		case INTERVALOID:
		case UUIDOID:
		case INETOID:
		case CIDROID:
		case MACADDROID:
		case MACADDR8OID:
			break;
		default:
			/* The message has the label, which is unique in its type. */
			if (get_typtype(type) == TYPTYPE_ENUM)
			{
				column->kind = KEYHASH_STRING;
				return true;
			}
			return false;
	}

	equal = get_opfamily_member(opfamily, opcintype, opcintype,
								BTEqualStrategyNumber);
	if (!OidIsValid(equal) || !get_op_hash_functions(equal, &hash, NULL) ||
		hash >= FirstUnpinnedObjectId)
		return false;
	column->kind = KEYHASH_FUNCTION;
	getTypeInputInfo(type, &input, &column->input_param);
	fmgr_info_cxt(input, &column->input, CurrentMemoryContext);
	getTypeBinaryInputInfo(type, &receive, &column->receive_param);
	fmgr_info_cxt(receive, &column->receive, CurrentMemoryContext);
	fmgr_info_cxt(hash, &column->hash, CurrentMemoryContext);
	return true;
}

/* Prepares for native values of a remote type. */
static void
plan_native(KeyColumn *column, Oid remotetype, int32 remotetypmod, Oid localtype)
{
	column->native = native_type(remotetype);
	if (column->native == NULL)
		return;

	column->as_is = native_fits(column->native, remotetypmod,
								getBaseType(localtype), column->typmod);
	native_output_info(column->native, &column->output, CurrentMemoryContext);
}

/*
 * Plans a unique index; false if its keys cannot be computed from a message.
 */
static bool
plan_index(KeyIndex *index, Relation rel, Relation idxrel,
		   const RelVersion *version, Oid domain)
{
	const LogicalRepRelation *remote = version->rel;
	Form_pg_index form = idxrel->rd_index;
	TupleDesc	desc = RelationGetDescr(rel);

	index->seed = domain;
	index->nulls_equal = form->indnullsnotdistinct;
	index->ncolumns = form->indnkeyatts;
	index->columns = palloc0(sizeof(KeyColumn) * form->indnkeyatts);

	for (int i = 0; i < form->indnkeyatts; i++)
	{
		AttrNumber	attnum = form->indkey.values[i];
		Form_pg_attribute att;
		int			remotecol = -1;

		if (attnum <= 0)
			return false;		/* an expression */
		att = TupleDescAttr(desc, attnum - 1);
		if (att->attgenerated)
			return false;
		for (int j = 0; j < remote->natts; j++)
			if (strcmp(remote->attnames[j], NameStr(att->attname)) == 0)
				remotecol = j;
		if (remotecol < 0)
			return false;

		index->columns[i].remote = remotecol;
		if (!plan_column(&index->columns[i], att->atttypid, att->atttypmod,
						 idxrel->rd_opfamily[i], idxrel->rd_opcintype[i],
						 idxrel->rd_indcollation[i]))
			return false;
		plan_native(&index->columns[i], remote->atttyps[remotecol],
					version->typmods[remotecol], att->atttypid);

		/*
		 * By name, so that the same key of a partition and of its root has
		 * the same hash, whichever of them a message names.
		 */
		index->seed = hash_bytes_extended((const unsigned char *) NameStr(att->attname),
										  strlen(NameStr(att->attname)),
										  index->seed);
	}
	return true;
}

/* Does applying a change of the relation read other rows? */
static bool
reads_other_rows(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (rel->rd_rel->relkind != RELKIND_RELATION &&
		rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return true;

	if (apply_fires_row_triggers(rel))
		return true;

	if (desc->constr != NULL)
	{
		for (int i = 0; i < desc->constr->num_check; i++)
			if (contain_mutable_functions(stringToNode(desc->constr->check[i].ccbin)))
				return true;
		for (int i = 0; i < desc->natts; i++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, i);

			if (!att->attisdropped && att->attgenerated &&
				contain_mutable_functions(build_column_default(rel, i + 1)))
				return true;
		}
	}
	return false;
}

static KeyPlan *
make_plan(RelVersion *version, Relation rel)
{
	MemoryContext mcxt = AllocSetContextCreate(version->mcxt, "key plan",
											   ALLOCSET_SMALL_SIZES);
	MemoryContext oldcxt = MemoryContextSwitchTo(mcxt);
	KeyPlan    *plan = palloc0(sizeof(KeyPlan));
	Oid			domain = RelationGetRelid(rel);
	Oid			identity;
	List	   *indexes;
	ListCell   *lc;
	bool		coarse = false;

	plan->mcxt = mcxt;

	/* One domain for a tree of partitions, however a message addresses it. */
	if (rel->rd_rel->relispartition)
		domain = llast_oid(get_partition_ancestors(domain));
	plan->domain = get_domain(domain);

	identity = compat_identity_or_primary_key(rel);

	indexes = RelationGetIndexList(rel);
	plan->indexes = palloc0(sizeof(KeyIndex) * Max(list_length(indexes), 1));
#ifdef PGPARREP_SABOTAGE_TRIGGERS_ASIDE
	if (false)
#else
	if (reads_other_rows(rel))
#endif
	{
		plan->insert = plan->update = plan->delete = CONFLICT_ALL;
		indexes = NIL;
	}
	else
		plan->insert = plan->update = plan->delete = CONFLICT_KEYS;

	foreach(lc, indexes)
	{
		Oid			indexoid = lfirst_oid(lc);
		Relation	idxrel;
		KeyIndex   *index = &plan->indexes[plan->nindexes];

		/* Being rebuilt; an invalidation tells when that is over (I1). */
		if (!ConditionalLockRelationOid(indexoid, AccessShareLock))
		{
			plan->insert = plan->update = plan->delete = CONFLICT_ALL;
			continue;
		}
		idxrel = index_open(indexoid, NoLock);

		if (idxrel->rd_index->indisexclusion ||
			(idxrel->rd_index->indisunique && !idxrel->rd_index->indimmediate))
			plan->insert = plan->update = plan->delete = CONFLICT_ALL;
		else if (idxrel->rd_index->indisunique)
		{
			index->identity = (indexoid == identity);
			if (plan_index(index, rel, idxrel, version, domain))
				plan->nindexes++;
			else if (index->identity)
				plan->insert = plan->update = plan->delete =
					Max(plan->delete, CONFLICT_TABLE);
			else
				coarse = true;
		}
		index_close(idxrel, AccessShareLock);
	}

	/* A unique value that the leader cannot know: a table is one key. */
	if (coarse || plan->nindexes * 2 > KEYPLAN_MAX_KEYS)
	{
		plan->insert = Max(plan->insert, CONFLICT_TABLE);
		plan->update = Max(plan->update, CONFLICT_TABLE);
	}

	/*
	 * Without a key the rows are found by their values: each such update or
	 * delete has to see all that came before.  Inserts of such a table do not
	 * disturb each other.
	 */
	if (!OidIsValid(identity))
	{
		plan->update = Max(plan->update, CONFLICT_TABLE);
		plan->delete = Max(plan->delete, CONFLICT_TABLE);
	}

	for (int i = 0; i < plan->nindexes; i++)
		for (int j = 0; j < plan->indexes[i].ncolumns; j++)
			plan->last_column = Max(plan->last_column,
									plan->indexes[i].columns[j].remote);
	MemoryContextSwitchTo(oldcxt);
	return plan;
}

/*
 * Looks the local relation up by name, without asking for privileges: it is
 * the worker's to miss them, in the transaction that needs them (I2).
 */
Oid
keyplan_find_relation(RelVersion *version)
{
	Oid			namespace = get_namespace_oid(version->rel->nspname, true);

	return OidIsValid(namespace) ?
			   get_relname_relid(version->rel->relname, namespace) :
			   InvalidOid;
}

/*
 * The plan of a version, made if there is none; NULL if the local relation
 * is missing or locked by somebody.
 */
static KeyPlan *
get_plan(RelVersion *version, TransactionId xid)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	Oid			relid;
	bool		started = false;

	if (likely(version->plan != NULL && !version->stale))
		return version->plan;

	if (failed_rel == version && failed_xid == xid)
		return NULL;

	if (version->plan != NULL)
	{
		MemoryContextDelete(version->plan->mcxt);
		version->plan = NULL;
	}
	if (version->stale || version->localoid == InvalidOid)
		version->state = 0;
	version->localoid = InvalidOid;

	if (!IsTransactionState())
	{
		StartTransactionCommand();
		started = true;
	}

	/* Before the lookup: what changes from here on makes it stale again. */
	version->stale = false;
	relid = keyplan_find_relation(version);
	if (OidIsValid(relid) &&
		ConditionalLockRelationOid(relid, AccessShareLock)) /* I1 */
	{
		Relation	rel = try_relation_open(relid, NoLock);

		if (rel != NULL)
		{
			version->localoid = relid;
			version->plan = make_plan(version, rel);
			relation_close(rel, NoLock);
		}
		UnlockRelationOid(relid, AccessShareLock);
	}
	if (started)
		CommitTransactionCommand();
	MemoryContextSwitchTo(oldcxt);

	if (version->plan == NULL)
	{
		failed_rel = version;
		failed_xid = xid;
	}
	return version->plan;
}

Oid
keyplan_localoid(RelVersion *rel, TransactionId xid)
{
	(void) get_plan(rel, xid);
	return rel->localoid;
}

DependDomain *
keyplan_domain(RelVersion *rel)
{
	return rel->plan ? rel->plan->domain : NULL;
}

/* Splits a checked tuple into its columns, up to and including "last". */
static void
split_tuple(ParsedTuple *tuple, FStreamTuple *source, int last)
{
	FStreamColumn column;
	int			i = 0;

	while (i <= last && fstream_next_column(source, &column))
	{
		tuple->kind[i] = column.kind;
		tuple->value[i] = column.data;
		tuple->len[i] = column.len;
		i++;
	}
	tuple->ncolumns = i;
}

/* The finalizer of a 64-bit hash: spreads all bits of a number. */
static inline uint64
mix(uint64 h)
{
	h ^= h >> 30;
	h *= UINT64CONST(0xbf58476d1ce4e5b9);
	h ^= h >> 27;
	h *= UINT64CONST(0x94d049bb133111eb);
	return h ^ (h >> 31);
}

static bool
hash_integer(char kind, const char *value, int len, uint64 *hash)
{
	int64		n = 0;
	int			i = 0;

	if (kind == FSTREAM_COL_BINARY)
	{
		if (len != 2 && len != 4 && len != 8)
			return false;
		n = (int8) value[0];
		for (i = 1; i < len; i++)
			n = (int64) ((uint64) n << 8 | (uint8) value[i]);
	}
	else
	{
		bool		negative = (len > 0 && value[0] == '-');

		if (negative)
			i = 1;
		if (len == i || len - i > 19)
			return false;
		for (; i < len; i++)
		{
			if (value[i] < '0' || value[i] > '9')
				return false;
			n = (int64) ((uint64) n * 10 + (value[i] - '0'));
		}
		if (negative)
			n = (int64) (0 - (uint64) n);
	}
	*hash = mix((uint64) n);
	return true;
}

static bool
hash_function(KeyColumn *column, char kind, const char *value, int len,
			  uint64 *hash)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(hash_mcxt);
	volatile bool ok = true;

	PG_TRY();
	{
		Datum		datum;
		StringInfoData s;

		initStringInfo(&s);
		appendBinaryStringInfo(&s, value, len);
		if (kind == FSTREAM_COL_BINARY)
			datum = ReceiveFunctionCall(&column->receive, &s,
										column->receive_param, column->typmod);
		else
			datum = InputFunctionCall(&column->input, s.data,
									  column->input_param, column->typmod);
		*hash = DatumGetUInt32(FunctionCall1Coll(&column->hash, InvalidOid,
												 datum));
	}
	PG_CATCH();
	{
		/* I2.  The functions are the server's own and leave nothing behind. */
		MemoryContextSwitchTo(hash_mcxt);
		FlushErrorState();
		ok = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcxt);
	MemoryContextReset(hash_mcxt);
	return ok;
}

/* Hashes a value in text or binary form. */
static bool
hash_value(KeyColumn *column, char kind, const char *value, int len,
		   uint64 *hash)
{
	switch (column->kind)
	{
		case KEYHASH_INTEGER:
			return hash_integer(kind, value, len, hash);
		case KEYHASH_BPCHAR:
			while (len > 0 && value[len - 1] == ' ')
				len--;
			/* FALLTHROUGH */
		case KEYHASH_STRING:
			*hash = hash_bytes_extended((const unsigned char *) value, len, 0);
			return true;
		case KEYHASH_FUNCTION:
			return hash_function(column, kind, value, len, hash);
	}
	return false;
}

/*
 * Hashes a native value, to the same as its text: both can occur for the same
 * column.
 */
static bool
hash_native(KeyColumn *column, const char *value, int len, uint64 *hash)
{
	const NativeType *type = column->native;
	MemoryContext oldcxt;
	char *volatile text = NULL;
	volatile bool ok = true;

	/* An array's output function looks up its elements' (I3). */
	if (type == NULL || type->check == NATIVE_ARRAY)
		return false;

	if (column->kind == KEYHASH_INTEGER && len == type->len)
	{
		Datum		datum = native_datum(type, value, len);

		switch (type->typid)
		{
			case INT2OID:
				*hash = mix((uint64) (int64) DatumGetInt16(datum));
				return true;
			case INT4OID:
				*hash = mix((uint64) (int64) DatumGetInt32(datum));
				return true;
			case INT8OID:
				*hash = mix((uint64) DatumGetInt64(datum));
				return true;
			case OIDOID:
				*hash = mix((uint64) DatumGetObjectId(datum));
				return true;
		}
	}

	if ((column->kind == KEYHASH_STRING || column->kind == KEYHASH_BPCHAR) &&
		native_is_text(type))
	{
		NativeValue v;

		if (native_outer_fault(type, value, len, &v) != NULL)
			return false;
		if (!v.compressed)
			return hash_value(column, FSTREAM_COL_TEXT, v.content, v.len, hash);
	}

	oldcxt = MemoryContextSwitchTo(hash_mcxt);
	PG_TRY();
	{
		Datum		datum;

		native_check(type, value, len);
		datum = native_datum(type, value, len);
		if (column->kind == KEYHASH_FUNCTION && column->as_is)
			*hash = DatumGetUInt32(FunctionCall1Coll(&column->hash, InvalidOid,
													 datum));
		else
			text = native_text(&column->output, datum);
	}
	PG_CATCH();
	{
		/* I2, as above */
		MemoryContextSwitchTo(hash_mcxt);
		FlushErrorState();
		ok = false;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(oldcxt);

	if (text != NULL)
		ok = hash_value(column, FSTREAM_COL_TEXT, text, strlen(text), hash);
	MemoryContextReset(hash_mcxt);
	return ok;
}

/* What became of the key of one tuple in one index. */
typedef enum KeyResult
{
	KEY_OK,
	KEY_NONE,					/* has a null: equal to no other */
	KEY_UNKNOWN					/* cannot be told from the message */
} KeyResult;

static KeyResult
hash_key(KeyIndex *index, const ParsedTuple *tuple, uint64 *key)
{
	uint64		hash = index->seed;

	for (int i = 0; i < index->ncolumns; i++)
	{
		KeyColumn  *column = &index->columns[i];
		int			remote = column->remote;
		uint64		h = 0;
		int			len;

		if (remote >= tuple->ncolumns)
			return KEY_UNKNOWN;
		len = tuple->len[remote];
		switch (tuple->kind[remote])
		{
			case FSTREAM_COL_NULL:
				if (!index->nulls_equal)
					return KEY_NONE;
				break;
			case FSTREAM_COL_UNCHANGED:
				return KEY_UNKNOWN;
			case FSTREAM_COL_NATIVE:
				if (!hash_native(column, tuple->value[remote], len, &h))
					return KEY_UNKNOWN;
				break;
			default:
				if (!hash_value(column, tuple->kind[remote],
								tuple->value[remote], len, &h))
					return KEY_UNKNOWN;
		}
		hash = mix(hash * 31 + h);
	}
	*key = hash | 1;			/* not 0 */
	return KEY_OK;
}

/*
 * Adds the keys of a tuple; false if one cannot be told.  With only_identity
 * the tuple has no more than the replica identity.
 */
static bool
add_keys(KeyPlan *plan, const ParsedTuple *tuple, bool only_identity,
		 int *nkeys, uint64 *keys)
{
	for (int i = 0; i < plan->nindexes; i++)
	{
		if (only_identity && !plan->indexes[i].identity)
			continue;
		switch (hash_key(&plan->indexes[i], tuple, &keys[*nkeys]))
		{
			case KEY_OK:
				(*nkeys)++;
				break;
			case KEY_NONE:
				break;
			case KEY_UNKNOWN:
				return false;
		}
	}
	return true;
}

Conflict
keyplan_change(RelVersion *rel, TransactionId xid, char type, FStreamRow *row,
			   int *nkeys, uint64 *keys)
{
	KeyPlan    *plan = get_plan(rel, xid);
	Conflict	conflict;

	*nkeys = 0;
	if (plan == NULL)
		return CONFLICT_ALL;
	conflict = (type == FSTREAM_INSERT) ? plan->insert :
			   (type == FSTREAM_UPDATE) ? plan->update :
										  plan->delete;
	if (conflict != CONFLICT_KEYS || plan->nindexes == 0)
		return conflict;

	if (row->oldkind != 0)
	{
		split_tuple(&parsed, &row->oldtup, plan->last_column);
		if (!add_keys(plan, &parsed, row->oldkind == 'K', nkeys, keys))
			return CONFLICT_TABLE;
	}
	if (row->has_new)
	{
		split_tuple(&parsed, &row->newtup, plan->last_column);
		if (!add_keys(plan, &parsed, false, nkeys, keys))
			return CONFLICT_TABLE;
	}
	return conflict;
}
