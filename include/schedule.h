/*-------------------------------------------------------------------------
 *
 * schedule.h
 *	  Rules by which workers take transactions and put off changes.
 *
 * Pure logic, which bench/scale runs as well (bench/scale.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_SCHEDULE_H
#define PGPARREP_SCHEDULE_H

#include "postgres.h"

/* Changes in a group: one that has to be repeated should not cost much. */
#define MAX_GROUP_CHANGES 500

/* What may be put off at a time; a large transaction waits after these. */
#define MAX_POSTPONED MAX_GROUP_CHANGES

/*
 * How many transactions from "first" on to apply as a group, of those handed
 * out: no more than the worker's share of them.  "may_join" says whether one can
 * be part of a group, and how many changes it has.
 */
static inline int
schedule_group_size(uint64 first, uint64 handed, uint32 nworkers, int most,
					bool (*may_join)(uint64 csn, uint64 *nchanges))
{
	uint64		limit = (handed - first + 1) / Max(nworkers, 1);
	uint64		changes = 0;
	int			n = 0;

	limit = Min(limit, most);
	while (n < limit)
	{
		uint64		nchanges;

		if (!may_join(first + n, &nchanges) ||
			(changes += nchanges) > MAX_GROUP_CHANGES)
			break;
		n++;
	}
	return Max(n, 1);
}

/*
 * A set of keys (hashes whose lowest bit is set), as bits: now and then it says
 * that it has one that it has not.
 */
#define KEYSET_WORDS 256

typedef struct KeySet
{
	uint64		words[KEYSET_WORDS];
} KeySet;

static inline void
keyset_add(KeySet *set, uint64 key)
{
	set->words[(key >> 7) % KEYSET_WORDS] |= UINT64CONST(1) << ((key >> 1) % 64);
}

static inline bool
keyset_has(const KeySet *set, uint64 key)
{
	return (set->words[(key >> 7) % KEYSET_WORDS] >> ((key >> 1) % 64)) & 1;
}

#endif							/* PGPARREP_SCHEDULE_H */
