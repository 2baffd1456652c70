/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  Plans: what is known about a relation, looked up once.
 *
 * A record names a file; the plan says which relation that is, whether and how
 * it is published, and how each of its columns becomes bytes.  Also the
 * bundles: which description of a relation the client has.
 *
 * I1.	A plan is made under the historic snapshot of the record that needs it
 *		and stays true until an invalidation says otherwise: core executes the
 *		invalidations of every transaction at its commit, whether the reader
 *		keeps the commit from core or not.
 * I2.	Invalidation callbacks only mark.  Plans are freed by plan_lookup, so
 *		one in use stays whole.
 * I3.	What the reader cannot reproduce exactly makes the plan PLAN_QUEUE: row
 *		filters, column lists, publishing via a root, generated columns, and
 *		everything unexpected.
 * I4.	Before a row is sent, the client's description of its relation is the
 *		one that the row's producer goes by; two producers (plans and core's
 *		pgoutput) may differ, since a replay looks at older catalogs.
 * I5.	What a plan has put into the server's caches is of a later moment than
 *		a transaction that is replayed under the snapshot of its beginning.  If
 *		something that no lock on a table protects changed meanwhile (a
 *		publication, a schema, an enum), the replay starts with empty caches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "catalog/catalog.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_type.h"
#include "catalog/pg_type_d.h"
#include "fstream.h"
#include "publisher.h"
#include "replication/logicalproto.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/*
 * When so many relations are known, start anew: a server that creates and drops
 * partitions for months must not make us grow for ever.
 */
#define MAX_PLANS 20000

typedef struct NodeEntry
{
	CompatFileNode node;		/* hash key */
	RelPlan    *plan;
} NodeEntry;

/*
 * Raised by the invalidation callbacks.  Process-wide, as the callbacks are.
 */
static uint64 plan_epoch = 1;
static uint64 type_epoch = 1;
static uint64 unlocked_epoch = 1;
static bool forgetting = false;
static bool publications_valid = false;

/* Plans of the present session, for the relcache callback; NULL if none. */
static HTAB *current_plans = NULL;

static void relation_changed(Datum arg, Oid relid);
static void publication_changed(Datum arg, int cacheid, uint32 hash);
static void schema_changed(Datum arg, int cacheid, uint32 hash);
static void type_changed(Datum arg, int cacheid, uint32 hash);
static void enum_changed(Datum arg, int cacheid, uint32 hash);
static bool make_plan(Publisher *pub, RelPlan *plan);

static void
make_tables(Publisher *pub)
{
	HASHCTL		ctl = {0};

	pub->plancxt = AllocSetContextCreate(pub->cxt, "pgparrep relation plans",
										 ALLOCSET_DEFAULT_SIZES);

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(RelPlan);
	ctl.hcxt = pub->plancxt;
	pub->plans = hash_create("pgparrep plans", 128, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	ctl.entrysize = sizeof(RelSent);
	pub->sent = hash_create("pgparrep sent descriptions", 128, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	ctl.keysize = sizeof(CompatFileNode);
	ctl.entrysize = sizeof(NodeEntry);
	pub->nodes = hash_create("pgparrep file nodes", 128, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	pub->last_plan = NULL;
	current_plans = pub->plans;
}

void
plan_init(Publisher *pub)
{
	static bool registered = false;

	pub->pubcxt = AllocSetContextCreate(pub->cxt, "pgparrep publications",
										ALLOCSET_SMALL_SIZES);
	publications_valid = false;
	make_tables(pub);

	/* Never unregistered: there is no way to. */
	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		compat_register_relsync_callback(relation_changed);
		CacheRegisterSyscacheCallback(PUBLICATIONOID, publication_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(PUBLICATIONRELMAP, publication_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(PUBLICATIONNAMESPACEMAP, publication_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, schema_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(TYPEOID, type_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, type_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(ENUMOID, enum_changed, (Datum) 0);
		registered = true;
	}
}

/*
 * Must not look at the Publisher: after an error its memory is gone already.
 */
void
plan_shutdown(void)
{
	current_plans = NULL;
}

static void
relation_changed(Datum arg, Oid relid)
{
	RelPlan    *plan;

	if (current_plans == NULL)
		return;

	if (!OidIsValid(relid))
	{
		plan_epoch++;
		return;
	}

	plan = (RelPlan *) hash_search(current_plans, &relid, HASH_FIND, NULL);
	if (plan != NULL)
		plan->valid = false;
}

static void
unlocked_change(void)
{
	if (!forgetting)
		unlocked_epoch++;
}

static void
publication_changed(Datum arg, int cacheid, uint32 hash)
{
	publications_valid = false;
	plan_epoch++;
	unlocked_change();
}

static void
schema_changed(Datum arg, int cacheid, uint32 hash)
{
	plan_epoch++;
	unlocked_change();
	compat_pgoutput_schema_changed();
}

/*
 * Frequent, since every table comes with a type: only plans with columns of
 * types that can change depend on it.
 */
static void
type_changed(Datum arg, int cacheid, uint32 hash)
{
	type_epoch++;
}

static void
enum_changed(Datum arg, int cacheid, uint32 hash)
{
	unlocked_change();
}

/*
 * For a transaction that begins now.
 */
uint64
plan_unlocked_epoch(void)
{
	return unlocked_epoch;
}

/*
 * The replay of a transaction that began at this epoch begins.  (I5)
 */
void
plan_begin_replay(uint64 epoch)
{
	if (epoch == unlocked_epoch)
		return;

	/* The callbacks run; this is no change that others need know of. */
	forgetting = true;
	PG_TRY();
	{
		InvalidateSystemCaches();
	}
	PG_FINALLY();
	{
		forgetting = false;
	}
	PG_END_TRY();
}

static inline bool
plan_is_valid(RelPlan *plan)
{
	return plan->valid && plan->epoch == plan_epoch &&
		   (!plan->user_types || plan->type_epoch == type_epoch);
}

static inline bool
same_node(CompatFileNode a, CompatFileNode b)
{
	return compat_node_rel(a) == compat_node_rel(b) &&
		   compat_node_spc(a) == compat_node_spc(b);
}

/*
 * Make the plan for a file; NULL if it belongs to no relation or something
 * went wrong: then the record is for core to judge, at commit.
 */
static RelPlan *
resolve(Publisher *pub, CompatFileNode node, TransactionId xid)
{
	MemoryContext oldcxt = CurrentMemoryContext;
	RelPlan *volatile result = NULL;

	PG_TRY();
	{
		Oid			relid;

		catalog_begin(pub, xid);

		relid = compat_relid_by_node(node);
		if (OidIsValid(relid))
		{
			RelPlan    *plan;
			bool		found;

			plan = (RelPlan *) hash_search(pub->plans, &relid, HASH_ENTER, &found);
			if (!found)
			{
				memset(plan, 0, sizeof(RelPlan));
				plan->relid = relid;
			}
			else if (plan->cxt != NULL)
			{
				MemoryContextDelete(plan->cxt);
				plan->cxt = NULL;
			}
			plan->valid = false;
			plan->node = node;
			plan->epoch = plan_epoch;
			plan->type_epoch = type_epoch;

			if (make_plan(pub, plan))
			{
				/*
				 * Invalidations that came meanwhile are of the present, not of
				 * the snapshot: the ones that matter here come with a record.
				 */
				plan->valid = true;
				plan->epoch = plan_epoch;
				plan->type_epoch = type_epoch;
				result = plan;
			}
		}

		catalog_end(pub);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(oldcxt);
		edata = CopyErrorData();
		catalog_abandon(pub);
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();
		FlushErrorState();

		elog(DEBUG1, "leaving file %u to the reorder buffer: %s",
			 compat_node_rel(node), edata->message);
		FreeErrorData(edata);
		result = NULL;
	}
	PG_END_TRY();

	return result;
}

/*
 * The plan for a file, or NULL: see resolve.
 */
RelPlan *
plan_lookup(Publisher *pub, CompatFileNode node, TransactionId xid)
{
	NodeEntry  *entry;
	RelPlan    *plan;

	plan = pub->last_plan;
	if (plan != NULL && same_node(node, pub->last_node) && plan_is_valid(plan))
		return plan;

	entry = (NodeEntry *) hash_search(pub->nodes, &node, HASH_FIND, NULL);
	if (entry != NULL && same_node(entry->plan->node, node) &&
		plan_is_valid(entry->plan))
		plan = entry->plan;
	else
	{
		if (hash_get_num_entries(pub->nodes) > MAX_PLANS)
		{
			MemoryContextDelete(pub->plancxt);
			make_tables(pub);
		}

		plan = resolve(pub, node, xid);
		if (plan == NULL)
			return NULL;

		entry = (NodeEntry *) hash_search(pub->nodes, &node, HASH_ENTER, NULL);
		entry->plan = plan;
	}

	pub->last_plan = plan;
	pub->last_node = node;

	return plan;
}

/*
 * Load the publications that the client asked for.
 */
static void
load_publications(Publisher *pub)
{
	ListCell   *lc;

	if (publications_valid)
		return;

	MemoryContextReset(pub->pubcxt);
	pub->publications = NIL;

	foreach(lc, pub->opts.publication_names)
	{
		char	   *name = (char *) lfirst(lc);
		Publication *publication;
		MemoryContext old;

		old = MemoryContextSwitchTo(pub->pubcxt);
		publication = GetPublicationByName(name, COMPAT_PUBLICATION_MAY_MISS);
		if (publication != NULL)
			pub->publications = lappend(pub->publications, publication);
		MemoryContextSwitchTo(old);

		if (publication == NULL)
			ereport(WARNING,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("skipped loading publication \"%s\"", name),
					 errdetail("The publication does not exist at this point in the WAL."),
					 errhint("Create the publication if it does not exist.")));
	}

	publications_valid = true;
}

/*
 * Has the publication a row filter or a column list for the relation?
 */
static bool
is_restricted(Oid relid, Oid pubid)
{
	HeapTuple	tup;
	bool		no_filter;
	bool		no_list;

	tup = SearchSysCache2(PUBLICATIONRELMAP, ObjectIdGetDatum(relid),
						  ObjectIdGetDatum(pubid));
	if (!HeapTupleIsValid(tup))
		return false;

	(void) SysCacheGetAttr(PUBLICATIONRELMAP, tup,
						   Anum_pg_publication_rel_prqual, &no_filter);
	(void) SysCacheGetAttr(PUBLICATIONRELMAP, tup,
						   Anum_pg_publication_rel_prattrs, &no_list);
	ReleaseSysCache(tup);

	return !no_filter || !no_list;
}

/*
 * Find out what is published of the relation.  Sets plan->kind to PLAN_QUEUE if
 * that is not simply "these actions, all columns, all rows".
 */
static void
judge_publications(Publisher *pub, RelPlan *plan, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	bool		is_partition = rel->rd_rel->relispartition;
	List	   *pubids = GetRelationPublications(relid);
	List	   *schema_pubids = GetSchemaPublications(RelationGetNamespace(rel));
	List	   *ancestors = is_partition ? get_partition_ancestors(relid) : NIL;
	bool		generated = false;
	ListCell   *lc;
	int			i;

	for (i = 0; i < RelationGetNumberOfAttributes(rel); i++)
	{
		if (TupleDescAttr(RelationGetDescr(rel), i)->attgenerated)
			generated = true;
	}

	foreach(lc, pub->publications)
	{
		Publication *publication = (Publication *) lfirst(lc);
		bool		publish = publication->alltables;
		bool		via_root = publish && is_partition && publication->pubviaroot;

		if (!publish)
		{
			int			level;

			if (is_partition &&
				OidIsValid(GetTopMostAncestorInPublication(publication->oid,
														   ancestors, &level)))
			{
				publish = true;
				via_root = publication->pubviaroot;
			}

			if (list_member_oid(pubids, publication->oid) ||
				list_member_oid(schema_pubids, publication->oid))
				publish = true;
		}

		if (!publish)
			continue;

		plan->pubinsert |= publication->pubactions.pubinsert;
		plan->pubupdate |= publication->pubactions.pubupdate;
		plan->pubdelete |= publication->pubactions.pubdelete;

		if (via_root ||
			(!publication->alltables && is_restricted(relid, publication->oid)) ||
			(generated && compat_publishes_generated(publication)))
			plan->kind = PLAN_QUEUE;
	}
}

/*
 * Output functions that look at nothing but their argument, the session's
 * settings and the server's locale.  Domains share their base type's.
 */
static bool
is_pure_output(Oid func)
{
	switch (func)
	{
		case F_BOOLOUT:
		case F_BYTEAOUT:
		case F_CHAROUT:
		case F_NAMEOUT:
		case F_INT2OUT:
		case F_INT4OUT:
		case F_INT8OUT:
		case F_INT2VECTOROUT:
		case F_OIDVECTOROUT:
		case F_TEXTOUT:
		case F_BPCHAROUT:
		case F_VARCHAROUT:
		case F_OIDOUT:
		case F_TIDOUT:
		case F_XIDOUT:
		case F_XID8OUT:
		case F_CIDOUT:
		case F_FLOAT4OUT:
		case F_FLOAT8OUT:
		case F_NUMERIC_OUT:
		case F_CASH_OUT:
		case F_DATE_OUT:
		case F_TIME_OUT:
		case F_TIMETZ_OUT:
		case F_TIMESTAMP_OUT:
		case F_TIMESTAMPTZ_OUT:
		case F_INTERVAL_OUT:
		case F_UUID_OUT:
		case F_JSON_OUT:
		case F_JSONB_OUT:
		case F_BIT_OUT:
		case F_VARBIT_OUT:
		case F_INET_OUT:
		case F_CIDR_OUT:
		case F_MACADDR_OUT:
		case F_MACADDR8_OUT:
		case F_POINT_OUT:
		case F_LSEG_OUT:
		case F_PATH_OUT:
		case F_BOX_OUT:
		case F_POLY_OUT:
		case F_LINE_OUT:
		case F_CIRCLE_OUT:
		case F_PG_LSN_OUT:
		case F_TSVECTOROUT:
		case F_TSQUERYOUT:
			return true;
	}

	return false;
}

/* The same for send functions; text converts to the client's encoding. */
static bool
is_pure_send(Oid func)
{
	switch (func)
	{
		case F_BOOLSEND:
		case F_BYTEASEND:
		case F_CHARSEND:
		case F_NAMESEND:
		case F_INT2SEND:
		case F_INT4SEND:
		case F_INT8SEND:
		case F_TEXTSEND:
		case F_BPCHARSEND:
		case F_VARCHARSEND:
		case F_OIDSEND:
		case F_FLOAT4SEND:
		case F_FLOAT8SEND:
		case F_NUMERIC_SEND:
		case F_DATE_SEND:
		case F_TIME_SEND:
		case F_TIMETZ_SEND:
		case F_TIMESTAMP_SEND:
		case F_TIMESTAMPTZ_SEND:
		case F_INTERVAL_SEND:
		case F_UUID_SEND:
		case F_JSON_SEND:
		case F_JSONB_SEND:
		case F_INET_SEND:
		case F_CIDR_SEND:
			return true;
	}

	return false;
}

static ColumnFormat
short_cut_format(FmgrInfo *finfo)
{
	/*
	 * By address, since user-defined types such as citext use the built-in
	 * functions under an OID of their own.
	 */
	if (finfo->fn_addr == textout || finfo->fn_addr == varcharout ||
		finfo->fn_addr == bpcharout || finfo->fn_addr == json_out)
		return COL_VARTEXT;
	if (finfo->fn_addr == int4out)
		return COL_INT4;
	if (finfo->fn_addr == int8out)
		return COL_INT8;
	if (finfo->fn_addr == int2out)
		return COL_INT2;
	if (finfo->fn_addr == oidout)
		return COL_OID;
	if (finfo->fn_addr == boolout)
		return COL_BOOL;

	return COL_OUTPUT;
}

/*
 * What the functions of arrays look up about their elements, for a decoder,
 * which must not.
 */
static void
describe_elements(RelPlan *plan, PlanColumn *col, Oid elem, IOFuncSelector which)
{
	ArrayMetaState *elements;

	elements = MemoryContextAllocZero(plan->cxt, sizeof(ArrayMetaState));
	elements->element_type = elem;
	get_type_io_data(elem, which, &elements->typlen, &elements->typbyval,
					 &elements->typalign, &elements->typdelim,
					 &elements->typioparam, &elements->typiofunc);
	col->elements = elements;
}

static void
plan_column(Publisher *pub, RelPlan *plan, PlanColumn *col, Form_pg_attribute att)
{
	HeapTuple	tup;
	Form_pg_type type;
	Oid			output;
	Oid			send;
	Oid			func;
	Oid			elem = InvalidOid;
	bool		pure;

	tup = SearchSysCache1(TYPEOID, ObjectIdGetDatum(att->atttypid));
	if (!HeapTupleIsValid(tup))
		elog(ERROR, "cache lookup failed for type %u", att->atttypid);
	type = (Form_pg_type) GETSTRUCT(tup);
	output = type->typoutput;
	send = type->typsend;
	if (output == F_ARRAY_OUT)
		elem = type->typelem;
	ReleaseSysCache(tup);

	/*
	 * A domain over an array has array_out too but no element type of its own.
	 */
	if (output == F_ARRAY_OUT && !OidIsValid(elem))
		elem = get_element_type(getBaseType(att->atttypid));

	col->att = att->attnum - 1;
	col->varlena = att->attlen == -1;

	if (pub->opts.binary && OidIsValid(send))
	{
		func = send;
		pure = is_pure_send(send);
		if (send == F_ARRAY_SEND && OidIsValid(elem))
		{
			Oid			elemsend;
			bool		is_varlena;

			/* Elements of an array are always sent in binary. */
			getTypeBinaryOutputInfo(elem, &elemsend, &is_varlena);
			col->warms_up = is_pure_send(elemsend);
			if (col->warms_up)
				describe_elements(plan, col, elem, IOFunc_send);
		}
		fmgr_info_cxt(func, &col->finfo, plan->cxt);
		col->format = COL_SEND;
	}
	else
	{
		func = output;
		pure = is_pure_output(output);
		if (output == F_ARRAY_OUT && OidIsValid(elem))
		{
			Oid			elemout;
			bool		is_varlena;

			getTypeOutputInfo(elem, &elemout, &is_varlena);
			col->warms_up = is_pure_output(elemout);
			if (col->warms_up)
				describe_elements(plan, col, elem, IOFunc_output);
		}
		fmgr_info_cxt(func, &col->finfo, plan->cxt);
		col->format = short_cut_format(&col->finfo);
		if (col->format != COL_OUTPUT)
			pure = true;
	}

	/*
	 * Needs no function, or one whose lookups are made here: row.c may send an
	 * array as text.
	 */
	col->native = native_type(att->atttypid);
	if (col->native != NULL && native_agreed_type(&pub->opts.native, col->native))
	{
		col->format = COL_NATIVE;
		col->native_lz4 = pub->opts.native.lz4;
		if (col->native->check == NATIVE_ARRAY)
			(void) OutputFunctionCall(&col->finfo,
									  PointerGetDatum(construct_empty_array(elem)));
		col->warms_up = false;
		pure = true;
	}

	/*
	 * Worth a decoder's while?  What is stored is sent as fast as it is handed
	 * over; texts may be compressed, or need conversion.
	 */
	switch (col->format)
	{
		case COL_BOOL:
		case COL_INT2:
		case COL_INT4:
		case COL_INT8:
		case COL_OID:
			break;

		case COL_NATIVE:
			/* the elements of an array are checked */
			if (col->native->check == NATIVE_ARRAY)
				plan->costly = true;
			break;

		case COL_OUTPUT:
		case COL_SEND:
		case COL_VARTEXT:
			plan->costly = true;
			break;
	}

	if (col->warms_up)
		plan->cold = true;
	else if (!pure)
	{
		plan->needs_catalog = true;
		plan->parallel = false;
	}

	/* Hand-assigned OIDs belong to objects that cannot be altered. */
	if (att->atttypid >= FirstGenbkiObjectId || func >= FirstGenbkiObjectId)
		plan->user_types = true;
}

/*
 * Fill in the plan of plan->relid.  Returns false if the relation is gone.
 */
static bool
make_plan(Publisher *pub, RelPlan *plan)
{
	Relation	rel;
	MemoryContext oldcxt;
	StringInfoData bundle;
	int			natts;
	int			i;

	plan->kind = PLAN_IGNORE;
	plan->pubinsert = plan->pubupdate = plan->pubdelete = false;
	plan->user_types = plan->needs_catalog = plan->cold = plan->costly = false;
	plan->parallel = pub->has_decoders;
	plan->ncols = 0;
	plan->sent = NULL;
	plan->blob = NULL;
	plan->in_batch = 0;

	/* No lock, as in core: a strong one held by DDL must not stop us. */
	rel = RelationIdGetRelation(plan->relid);
	if (!RelationIsValid(rel))
		return false;

	if (IsToastRelation(rel))
		plan->kind = PLAN_IGNORE_TOAST;
	else if (rel->rd_rel->relrewrite != InvalidOid ||
			 RelationIsUsedAsCatalogTable(rel))
	{
		plan->kind = PLAN_QUEUE;
		plan->pubinsert = plan->pubupdate = plan->pubdelete = true;
	}
	else if (RelationIsLogicallyLogged(rel) && is_publishable_relation(rel))
	{
		plan->kind = PLAN_STREAM;
		load_publications(pub);
		judge_publications(pub, plan, rel);
		if (!plan->pubinsert && !plan->pubupdate && !plan->pubdelete)
			plan->kind = PLAN_IGNORE;
	}

	if (plan->kind != PLAN_STREAM)
	{
		RelationClose(rel);
		return true;
	}

	plan->cxt = AllocSetContextCreate(pub->plancxt, "pgparrep relation plan",
									  ALLOCSET_SMALL_SIZES);
	oldcxt = MemoryContextSwitchTo(plan->cxt);

	/* With constraints: they hold the values of missing attributes. */
	plan->desc = CreateTupleDescCopyConstr(RelationGetDescr(rel));
	natts = plan->desc->natts;
	plan->values = palloc(natts * sizeof(Datum));
	plan->nulls = palloc(natts * sizeof(bool));
	plan->cols = palloc0(natts * sizeof(PlanColumn));
	plan->name = psprintf("%s.%s",
						  get_namespace_name(RelationGetNamespace(rel)),
						  RelationGetRelationName(rel));
	plan->oldkind = rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL ? 'O' : 'K';

	initStringInfo(&bundle);
	for (i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(plan->desc, i);
		int			frame;

		if (att->attisdropped || att->attgenerated)
			continue;

		plan_column(pub, plan, &plan->cols[plan->ncols++], att);

		/* The same cut-off as pgoutput's. */
		if (att->atttypid < FirstGenbkiObjectId)
			continue;
		frame = fstream_begin(&bundle, InvalidTransactionId, FSTREAM_TYPE);
		bundle.len--;			/* the function below writes the type byte */
		logicalrep_write_typ(&bundle, InvalidTransactionId, att->atttypid);
		fstream_end(&bundle, frame);
	}

	i = fstream_begin(&bundle, InvalidTransactionId, FSTREAM_RELATION);
	bundle.len--;
	compat_write_rel(&bundle, rel);
	fstream_end(&bundle, i);

	plan->bundle.data = bundle.data;
	plan->bundle.len = bundle.len;
	plan->bundle.sent_version = 0;
	plan->sent = bundle_sent(pub, plan->relid);

	MemoryContextSwitchTo(oldcxt);
	RelationClose(rel);

	return true;
}

/*
 * What the client has been told about relid.
 */
RelSent *
bundle_sent(Publisher *pub, Oid relid)
{
	RelSent    *sent;
	bool		found;

	sent = (RelSent *) hash_search(pub->sent, &relid, HASH_ENTER, &found);
	if (!found)
	{
		sent->version = 0;
		sent->data = NULL;
		sent->len = 0;
	}

	return sent;
}

/*
 * Make sure that the client's description of the relation is this one.  (I4)
 */
void
bundle_require(Publisher *pub, RelSent *sent, Bundle *bundle)
{
	if (sent->version != 0 && bundle->sent_version == sent->version)
		return;

	if (sent->version == 0 || sent->len != bundle->len ||
		memcmp(sent->data, bundle->data, bundle->len) != 0)
	{
		sender_raw(pub, bundle->data, bundle->len);

		if (sent->data != NULL)
			pfree(sent->data);
		sent->data = MemoryContextAlloc(pub->plancxt, bundle->len);
		memcpy(sent->data, bundle->data, bundle->len);
		sent->len = bundle->len;
		sent->version = ++pub->sent_version;
	}

	bundle->sent_version = sent->version;
}
