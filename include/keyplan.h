/*-------------------------------------------------------------------------
 *
 * keyplan.h
 *	  What the changes of a relation conflict with (leader).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_KEYPLAN_H
#define PGPARREP_KEYPLAN_H

#include "postgres.h"

#include "depend.h"
#include "fstream.h"
#include "streamrel.h"
#include "txnbuf.h"

/* Keys of one change: old and new value of each of up to 16 unique indexes. */
#define KEYPLAN_MAX_KEYS 32

extern void keyplan_init(void);

/*
 * Conflict kind and keys (hashes) of an insert, update or delete.  Raises no
 * error on account of the change: whatever goes wrong, it is taken to conflict
 * with everything.
 */
extern Conflict keyplan_change(RelVersion *rel, TransactionId xid, char type,
							   FStreamRow *row, int *nkeys, uint64 *keys);

/* The local relation, InvalidOid if there is none or it is locked. */
extern Oid	keyplan_localoid(RelVersion *rel, TransactionId xid);

/* The same by a mere look-up, in a transaction, whether locked or not. */
extern Oid	keyplan_find_relation(RelVersion *rel);

/* Its domain; NULL as long as the local relation is not known. */
extern DependDomain *keyplan_domain(RelVersion *rel);

#endif							/* PGPARREP_KEYPLAN_H */
