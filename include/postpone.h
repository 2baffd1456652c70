/*-------------------------------------------------------------------------
 *
 * postpone.h
 *	  Changes of the transaction in work that are applied after later ones
 *	  (apply worker).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_POSTPONE_H
#define PGPARREP_POSTPONE_H

#include "postgres.h"

#include "executor/tuptable.h"

#include "txnbuf.h"

typedef struct Postponed
{
	const ChangeRec *rec;		/* in the buffer of its transaction */
	const TxnRel *rel;
	Csn			csn;			/* its transaction, which may be part of a group */
	CommandId	cid;			/* what has a later one was applied later */
} Postponed;

typedef struct PostponedList
{
	int			n;
	int			current;		/* in work is this one; -1: none of them */
	CommandId	cid;			/* if so: when this round through them began */
	Postponed  *item;
} PostponedList;

extern PostponedList postponed;

extern void postpone_reset(void);

/* Must the change come after one that is postponed? */
extern bool postpone_touched(const ChangeRec *rec);

/* Postpones a change; false if there are too many. */
extern bool postpone_add(const ChangeRec *rec, const TxnRel *rel, Csn csn);

/*
 * A round through the list, around the changes that are applied: postpone_keep
 * for each, in its place, that has to wait still.  postpone_end leaves these.
 */
extern void postpone_begin(void);
extern void postpone_keep(int i);
extern void postpone_end(void);

/* The row to be changed is this one, or has not been found (NULL). */
extern void postpone_check_row(TupleTableSlot *row);

/* What comes next would be something else in another order. */
extern void postpone_check_none(void);

#endif							/* PGPARREP_POSTPONE_H */
