/*-------------------------------------------------------------------------
 *
 * test_depend.c
 *	  The table of keys against a model that forgets nothing.
 *
 * A missing dependency costs a repeated attempt, a false one costs a wait;
 * neither makes a wrong row, so no other test would notice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "depend.h"
#include "unit.h"

#define TXNS 400
#define CHANGES 6
#define DOMAINS 3
#define KEYS 40

typedef struct Change
{
	DependKind	kind;
	int			domain;			/* -1: none */
	uint64		key;			/* 0: none */
} Change;

static Change history[TXNS + 1][CHANGES];
static DependDomain domains[DOMAINS];

static uint32
next_random(void)
{
	static uint64 state = 4711;

	state = state * UINT64CONST(6364136223846793005) + 1442695040888963407;
	return state >> 33;
}

/* Does a change conflict with one of an earlier transaction? */
static bool
conflicts(const Change *a, const Change *b)
{
	if (a->kind == DEPEND_ALL || b->kind == DEPEND_ALL)
		return true;
	if (a->domain != b->domain)
		return false;
	if (a->kind == DEPEND_TABLE || b->kind == DEPEND_TABLE)
		return true;
	return a->key != 0 && a->key == b->key;
}

static DependCsn
model(DependCsn self, DependCsn committed, const Change *change)
{
	for (DependCsn csn = self - 1; csn > committed; csn--)
		for (int i = 0; i < CHANGES; i++)
			if (conflicts(change, &history[csn][i]))
				return csn;
	return 0;
}

/*
 * Runs a random history; counts changes that wait for less, and for more, than
 * they have to.  A change whose key an earlier one of its own transaction had
 * is left out: that one has waited.
 */
static void
run(uint32 buckets, int lag, bool barriers, int *less, int *more)
{
	DependTable *table = depend_create(buckets);

	*less = *more = 0;
	memset(domains, 0, sizeof(domains));
	for (DependCsn csn = 1; csn <= TXNS; csn++)
	{
		DependCsn	committed = csn > lag ? csn - lag : 0;

		depend_begin(table, csn, committed);
		for (int i = 0; i < CHANGES; i++)
		{
			Change	   *change = &history[csn][i];
			uint32		dice = next_random() % 100;
			bool		repeated = false;
			DependCsn	need;
			DependCsn	got;

			change->domain = next_random() % DOMAINS;
			change->kind = DEPEND_KEYS;
			if (barriers && dice < 2)
				change->kind = DEPEND_ALL;
			else if (barriers && dice < 5)
				change->kind = DEPEND_TABLE;

			/* Keys are unique over domains, as the leader's hashes are. */
			change->key = (next_random() % KEYS + 1) * DOMAINS + change->domain;
			if (dice > 90)
				change->key = 0;
			for (int j = 0; j < i; j++)
				repeated |= (change->key != 0 && history[csn][j].key == change->key);

			need = model(csn, committed, change);
			got = depend_change(table, &domains[change->domain], change->kind,
								change->key != 0, &change->key);
			if (repeated)
				continue;
			*less += (got < need);
			*more += (got > need);
		}
		depend_end(table);
	}
}

int
main(void)
{
	int			less;
	int			more;
	DependTable *table;
	DependDomain domain = {0};
	uint64		key = 7;

	run(1024, 50, false, &less, &more);
	ok(less == 0, "keys only: no dependency is missed");
	ok(more == 0, "keys only: none is invented");
	run(1024, 50, true, &less, &more);
	ok(less == 0, "tables and barriers: no dependency is missed");
	ok(more == 0, "tables and barriers: none is invented");
	run(1, 50, true, &less, &more);
	ok(less == 0, "a table far too small: no dependency is missed");
	ok(more > 0, "a table far too small: waits without need");
	run(1024, 1, true, &less, &more);
	ok(less == 0 && more == 0, "everything committed: nothing to wait for");

	table = depend_create(16);
	depend_begin(table, 1, 0);
	ok(depend_change(table, &domain, DEPEND_KEYS, 1, &key) == 0,
	   "the first writer waits for nobody");
	ok(depend_change(table, &domain, DEPEND_TABLE, 0, NULL) == 0,
	   "a transaction does not wait for itself");
	depend_end(table);
	depend_begin(table, 2, 0);
	ok(depend_change(table, &domain, DEPEND_KEYS, 0, NULL) == 1,
	   "an insert without key waits for a change of the whole table");
	depend_end(table);
	depend_begin(table, 3, 0);
	ok(depend_change(table, NULL, DEPEND_ALL, 0, NULL) == 2,
	   "a barrier waits for everything before it");
	depend_end(table);
	depend_begin(table, 4, 0);
	ok(depend_change(table, &domain, DEPEND_KEYS, 0, NULL) == 3,
	   "everything waits for a barrier");
	depend_end(table);
	depend_begin(table, 5, 4);
	ok(depend_change(table, &domain, DEPEND_KEYS, 1, &key) == 0,
	   "nothing waits for what has committed");
	depend_end(table);
	depend_begin(table, 6, 4);
	ok(depend_touch(table, &domain) == 5,
	   "the one that changed the domain before has not committed");
	ok(depend_touch(table, &domain) == 5,
	   "nor is it the transaction itself");
	depend_end(table);
	depend_begin(table, 7, 6);
	ok(depend_touch(table, &domain) == 0, "it has");
	depend_end(table);
	return done_testing();
}
