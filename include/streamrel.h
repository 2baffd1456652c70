/*-------------------------------------------------------------------------
 *
 * streamrel.h
 *	  Relations as the publisher announced them, in versions.
 *
 * A relation message is state of the stream: it applies from where it
 * arrived, whatever becomes of the transaction around it.  Each makes a new,
 * immutable version; a change is bound to the version current at its arrival
 * and keeps it until the transaction has been applied.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_STREAMREL_H
#define PGPARREP_STREAMREL_H

#include "postgres.h"

#include "replication/logicalproto.h"

#include "shared.h"

struct		KeyPlan;

typedef struct RelVersion
{
	uint32		version;		/* 1, 2, ... in the life of a leader */
	LogicalRepRelId remoteid;
	bool		current;		/* no newer version has arrived */
	int			pins;			/* transactions that use it */
	dsa_pointer body;			/* for the workers */
	int			len;
	LogicalRepRelation *rel;	/* parsed */
	int32	   *typmods;		/* of its columns, which it lacks */
	MemoryContext mcxt;			/* of this struct and all in it */

	/* What the leader knows of the local side; keyplan.c and tables.c. */
	Oid			localoid;		/* InvalidOid: not known */
	bool		stale;			/* plan and localoid are out of date */
	struct KeyPlan *plan;		/* NULL: to be made */
	char		state;			/* of table sync; 0: to be read */
	XLogRecPtr	statelsn;
} RelVersion;

extern void streamrel_init(dsa_area *area);

/* Takes the body of a relation message; errors as logicalrep_read_rel. */
extern RelVersion *streamrel_define(const char *body, int len);

/* The current version of a remote relation, or NULL. */
extern RelVersion *streamrel_lookup(LogicalRepRelId remoteid);

/* A version that is pinned or current. */
extern RelVersion *streamrel_version(uint32 version);

extern void streamrel_pin(RelVersion *rel);
extern void streamrel_unpin(RelVersion *rel);

/* Calls back for every version there is. */
extern void streamrel_foreach(void (*callback)(RelVersion *rel, void *arg),
							  void *arg);

#endif							/* PGPARREP_STREAMREL_H */
