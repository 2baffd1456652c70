/*-------------------------------------------------------------------------
 *
 * apply_internal.h
 *	  What the files that apply changes share among themselves.
 *
 * Vocabulary:
 *
 *	RemoteRel	one version of a publisher's relation, as an 'R' message
 *				described it; immutable
 *	RelMap		how the columns of a RemoteRel fall on one local table, and
 *				all that can be computed from that; kept over transactions
 *	Target		a local table that the current transaction has open through
 *				a RelMap; closed at its end
 *
 * A partitioned table has a Target of its own, and one for each of its
 * partitions that a row was routed to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_APPLY_INTERNAL_H
#define PGPARREP_APPLY_INTERNAL_H

#include "postgres.h"

#include "access/attmap.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "executor/execPartition.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "replication/logicalproto.h"
#include "utils/acl.h"
#include "utils/hsearch.h"
#include "utils/snapshot.h"
#include "utils/typcache.h"

#include "apply.h"
#include "compat.h"
#include "native.h"

/* One column of a tuple in a message. */
typedef struct RemoteColumn
{
	char	   *data;			/* in the message, zero-terminated */
	int			len;
	char		kind;			/* LOGICALREP_COLUMN_... */
} RemoteColumn;

typedef struct RemoteTuple
{
	RemoteColumn *cols;			/* one for each column of the RemoteRel */
	bool		has_unchanged;	/* is a column LOGICALREP_COLUMN_UNCHANGED? */
} RemoteTuple;

/* How one remote column becomes a column of a local table. */
typedef struct MappedColumn
{
	int			local;			/* column numbers, from 0 */
	int			remote;
	Oid			typid;			/* local type and typmod */
	int32		typmod;
	Oid			typioparam;		/* for in and receive */
	FmgrInfo	in;				/* looked up at first use: fn_oid tells */
	FmgrInfo	receive;
	const NativeType *native;	/* of the remote type; NULL: it has none */
	bool		as_is;			/* native values need no conversion */
	FmgrInfo	out;			/* of the remote type, if they need one */
} MappedColumn;

/* A column that exists only here and has a default. */
typedef struct DefaultColumn
{
	int			local;
	Expr	   *expr;			/* planned */
} DefaultColumn;

typedef struct RelMapKey
{
	uint32		version;
	Oid			localoid;
} RelMapKey;

typedef struct RelMap
{
	RelMapKey	key;
	bool		valid;			/* cleared by invalidation callbacks */
	MemoryContext cxt;			/* holds what follows */

	int			natts;			/* of the local table */
	int			ncols;
	MappedColumn *cols;			/* in the order of local columns */
	int			ndefaults;
	DefaultColumn *defaults;
	Bitmapset  *all_updated;	/* every mapped column, as in updatedCols */

	/* Finding the row to be updated or deleted. */
	bool		updatable;		/* does the message carry our key? */
	Oid			keyindex;		/* InvalidOid: sequential scan */
	bool		keyunique;		/* replica identity or primary key */
	int			nkeys;
	ScanKeyData *keys;			/* all but the arguments */
	int		   *keycols;		/* column number of each key, from 0 */

	/* Peculiarities. */
	bool		row_triggers;	/* has row triggers that fire in apply */
	bool		needs_turn;		/* may read other rows while applying */
	bool		insert_needs_turn;	/* same, because of a default */
	bool		fragile;		/* forget after a rollback */

	/* What is kept of a Target when it is closed; see target.c. */
	bool		keepable;
	struct Target *kept;
} RelMap;

typedef struct RemoteRel
{
	uint32		version;		/* hash key */
	MemoryContext cxt;
	LogicalRepRelation *rel;
	int32	   *typmods;		/* of the columns; rel does not have them */
	RemoteTuple oldtup;			/* of the message being applied */
	RemoteTuple newtup;

	Oid			expected;		/* table that changes are meant for */
	RelMap	   *map;			/* of the table of that name, or NULL */
	struct Target *target;		/* if open in this transaction */
} RemoteRel;

typedef struct Target
{
	RemoteRel  *remote;
	RelMap	   *map;
	Relation	rel;
	MemoryContext cxt;			/* of its own, if kept over transactions */
	EState	   *estate;			/* a partition uses its parent's */
	ResultRelInfo *relinfo;		/* indexes are open */
	Oid		   *indexoids;		/* which ones, if kept */
	Bitmapset **updated_cols;	/* of the range table entry */
	bool		updated_all;	/* did the last update set all columns? */

	TupleTableSlot *searchslot; /* row to look for, if not remoteslot */
	TupleTableSlot *remoteslot; /* new row as it came */
	TupleTableSlot *newslot;	/* new row as it shall be stored */
	TupleTableSlot *localslot;	/* row found */

	/* Rows kept back (row.c). */
	TupleTableSlot **batch;
	int			nbatch;
	Size		batch_bytes;

	/* Lookup. */
	IndexScanDesc scan;			/* NULL until the first lookup */
	SnapshotData dirty;
	TypeCacheEntry **eq;		/* equality operators, found when needed */

	/* Checked in this transaction. */
	AclMode		granted;
	bool		update_checked; /* CheckCmdReplicaIdentity */
	bool		delete_checked;

	ExprState **defaults;		/* of map->defaults */

	/* Of a partitioned table only. */
	ModifyTableState *mtstate;
	PartitionTupleRouting *proute;
	HTAB	   *leaves;

	/* Of a partition only. */
	struct Target *root;
	AttrMap    *from_root;		/* NULL: same row type */
	AttrMap    *to_root;		/* made when first needed */
} Target;

/* apply.c */
extern MemoryContext apply_txn_cxt; /* until the end of the transaction */
extern void apply_set_column(int remote);
extern bool apply_wait_turn(void);

/* Was it our turn before the active snapshot was taken (apply.c, I4)? */
extern bool apply_saw_turn(void);
extern void apply_new_snapshot(void);
extern void apply_count_missing(void);

/* relation.c */
extern void relation_init(void);
extern RemoteRel *relation_lookup(uint32 version);
extern void relation_check_expected(RemoteRel *remote, Relation rel);
extern Relation relation_open_local(RemoteRel *remote, LOCKMODE lockmode);
extern RelMap *relation_map_partition(RemoteRel *remote, Relation rel);
extern void relation_check_updatable(RemoteRel *remote, RelMap *map,
									 Relation rel);
extern void relation_after_rollback(void);

/* target.c */
extern void target_check_privileges(Target *target, AclMode mode);
extern void check_privileges(Relation rel, AclMode mode);
extern Target *target_open(RemoteRel *remote, Relation rel);
extern Target *target_open_partition(Target *root, ResultRelInfo *relinfo);
extern void target_close_all(void);
extern void target_forget_all(void);

/* tuple.c */
extern void tuple_parse(RemoteRel *remote, char type, char *body, int len,
						bool *has_old);
extern void tuple_store(RelMap *map, RemoteTuple *tuple, TupleTableSlot *slot);
extern void tuple_fill_defaults(Target *target, TupleTableSlot *slot);
extern void tuple_merge(RelMap *map, RemoteTuple *tuple,
						TupleTableSlot *remoteslot, TupleTableSlot *localslot,
						TupleTableSlot *slot);
extern Bitmapset *tuple_updated_columns(RelMap *map, RemoteTuple *tuple);

/* find.c */
extern bool find_row(Target *target, TupleTableSlot *searchslot);
extern void find_release(Target *target);

/* row.c */
typedef enum RowResult
{
	ROW_DONE,
	ROW_TRIGGERED				/* must go through triggered.c */
} RowResult;

extern RowResult row_insert(Target *target);
extern RowResult row_update(Target *target, bool has_old);
extern RowResult row_delete(Target *target);

/* The table of which rows are kept back, NULL if there is none. */
extern Target *row_batch(void);
extern void row_flush(void);
extern void row_forget(void);

/* triggered.c */
extern void triggered_change(RemoteRel *remote, Relation rel, char type,
							 bool has_old);

/* conflict.c */
#ifdef COMPAT_HAVE_CONFLICTS
#define conflict_wants_new_row true
#else
#define conflict_wants_new_row false
#endif
extern void conflict_init_indexes(ResultRelInfo *relinfo, EState *estate);
extern void conflict_check_unique(Target *target, TupleTableSlot *searchslot,
								  TupleTableSlot *slot, bool update,
								  List *recheck);
extern bool conflict_other_origin(TupleTableSlot *localslot);
extern void conflict_report_origin(EState *estate, ResultRelInfo *relinfo,
								   TupleTableSlot *searchslot,
								   TupleTableSlot *localslot,
								   TupleTableSlot *remoteslot);
extern void conflict_report_missing(EState *estate, ResultRelInfo *relinfo,
									TupleTableSlot *searchslot,
									TupleTableSlot *remoteslot, bool partition);

#endif							/* PGPARREP_APPLY_INTERNAL_H */
