/*-------------------------------------------------------------------------
 *
 * depend.h
 *	  Which earlier commit a change has to wait for.
 *
 * Pure logic: of the server it needs no more than palloc0.  For each
 * transaction, in commit order: depend_begin, depend_change for each change,
 * depend_end.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_DEPEND_H
#define PGPARREP_DEPEND_H

#include "postgres.h"

/* Same type as in shared.h. */
typedef uint64 DependCsn;

typedef enum DependKind
{
	DEPEND_KEYS,				/* on writers of the same keys */
	DEPEND_TABLE,				/* on every other change of the domain */
	DEPEND_ALL					/* on every other transaction */
} DependKind;

/* A table, or a tree of partitions.  To be zeroed by whoever allocates it. */
typedef struct DependDomain
{
	uint32		number;			/* not for depend.c */
	DependCsn	last;			/* newest that changed it at all */
	DependCsn	all;			/* newest that conflicts with all of it */
	DependCsn	touched;		/* transaction in work that changed it */
	bool		pending_all;	/* ... and conflicts with all of it */
	struct DependDomain *next_touched;
} DependDomain;

typedef struct DependTable DependTable;

/* Memory: 64 bytes a bucket of four keys; buckets must be a power of two. */
extern DependTable *depend_create(uint32 buckets);
extern void depend_begin(DependTable *table, DependCsn self,
						 DependCsn committed);

/*
 * Returns the newest earlier transaction that the change has to wait for, 0
 * if none that had not committed at depend_begin.  Keys are hashes and must
 * not be 0.  domain may be NULL for DEPEND_ALL.
 */
extern DependCsn depend_change(DependTable *table, DependDomain *domain,
							   DependKind kind, int nkeys, const uint64 *keys);

/*
 * The transaction changes the domain, in whatever way.  Returns the newest
 * earlier one that did, as above.
 */
extern DependCsn depend_touch(DependTable *table, DependDomain *domain);
extern void depend_end(DependTable *table);

#endif							/* PGPARREP_DEPEND_H */
