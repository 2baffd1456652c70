/*-------------------------------------------------------------------------
 *
 * test_schedule.c
 *	  How many transactions a worker takes, and the set of postponed keys.
 *
 * A group that is too large or has a transaction that must be alone would be
 * given up and repeated, a key that the set loses would put changes of a row
 * out of order and do the same: slower, and nothing else would tell.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "schedule.h"
#include "unit.h"

#define TXNS 1000

static uint64 nchanges_of[TXNS + 1];
static bool alone[TXNS + 1];

static bool
may_join(uint64 csn, uint64 *nchanges)
{
	*nchanges = nchanges_of[csn];
	return !alone[csn];
}

static int
size(uint64 first, uint64 handed, uint32 nworkers, int most)
{
	return schedule_group_size(first, handed, nworkers, most, may_join);
}

static uint64
next_random(void)
{
	static uint64 state = 815;

	state = state * UINT64CONST(6364136223846793005) + 1442695040888963407;
	return state ^ (state >> 29);
}

static void
test_groups(void)
{
	for (int i = 1; i <= TXNS; i++)
		nchanges_of[i] = 4;

	ok(size(1, 1000, 4, 64) == 64, "a deep backlog: as many as allowed");
	ok(size(1, 1000, 4, 1) == 1, "or one");
	ok(size(1, 40, 4, 64) == 10, "a short one is shared out");
	ok(size(38, 40, 4, 64) == 1, "less than one for each worker");
	ok(size(1000, 1000, 1, 64) == 1, "the last one");
	ok(size(1, 1000, 0, 64) == 64, "no worker is counted yet");

	alone[5] = true;
	ok(size(1, 1000, 4, 64) == 4, "up to one that must be alone");
	ok(size(5, 1000, 4, 64) == 1, "which is taken by itself");

	nchanges_of[101] = MAX_GROUP_CHANGES + 1;
	nchanges_of[111] = MAX_GROUP_CHANGES;
	nchanges_of[122] = MAX_GROUP_CHANGES - 4;
	ok(size(101, 1000, 4, 64) == 1, "a large one alone");
	ok(size(100, 1000, 4, 64) == 1, "and not behind others");
	ok(size(111, 1000, 4, 64) == 1, "as many changes as allowed");
	ok(size(121, 1000, 4, 64) == 2, "the same, in two");
}

static void
test_keys(void)
{
	static KeySet set;
	static uint64 keys[KEYSET_LIMIT];
	bool		all = true;
	bool		none = true;
	int			n = 0;

	for (; !keyset_full(&set, 1); n++)
	{
		/* many in a few places, as hashes are not */
		keys[n] = (n % 3 == 0) ? ((uint64) n << 40 | 1) : (next_random() | 1);
		keyset_add(&set, keys[n]);
		keyset_add(&set, keys[n]);
	}
	ok(n == KEYSET_LIMIT && set.n == n, "a key counts once");
	for (int i = 0; i < n; i++)
		all &= keyset_has(&set, keys[i]);
	ok(all, "all that were added are there");
	for (int i = 0; i < 100000; i++)
		none &= !keyset_has(&set, (next_random() | 1) ^ UINT64CONST(0x5a5a000000000000));
	ok(none, "no other is");
	ok(keyset_full(&set, 1) && !keyset_full(&set, 0), "then it is full");
	keyset_clear(&set);
	ok(!keyset_has(&set, keys[0]) && set.n == 0, "and empty again");
}

int
main(void)
{
	test_groups();
	test_keys();
	return done_testing();
}
