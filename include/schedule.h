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
 * A set of keys, which are hashes and not 0.  All zeroes is an empty one.  Who
 * adds the keys of a change to it asks first whether it is full.
 */
#define KEYSET_SIZE 2048
#define KEYSET_LIMIT (KEYSET_SIZE * 3 / 4)

typedef struct KeySet
{
	int			n;
	uint64		keys[KEYSET_SIZE];
} KeySet;

static inline void
keyset_clear(KeySet *set)
{
	if (set->n > 0)
		memset(set, 0, sizeof(*set));
}

static inline bool
keyset_full(const KeySet *set, int nkeys)
{
	return set->n + nkeys > KEYSET_LIMIT;
}

/* Where a key is, or belongs. */
static inline uint32
keyset_slot(const KeySet *set, uint64 key)
{
	uint32		slot = (key >> 1) % KEYSET_SIZE;	/* the lowest bit may be always set */

	while (set->keys[slot] != 0 && set->keys[slot] != key)
		slot = (slot + 1) % KEYSET_SIZE;
	return slot;
}

static inline void
keyset_add(KeySet *set, uint64 key)
{
	uint32		slot = keyset_slot(set, key);

	if (set->keys[slot] == 0)
	{
		set->keys[slot] = key;
		set->n++;
	}
}

static inline bool
keyset_has(const KeySet *set, uint64 key)
{
	return set->keys[keyset_slot(set, key)] != 0;
}

#endif							/* PGPARREP_SCHEDULE_H */
