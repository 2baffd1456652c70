/*-------------------------------------------------------------------------
 *
 * depend.c
 *	  Which earlier commit a change has to wait for.
 *
 * Remembers for each key that was written the newest transaction that wrote
 * it.  An entry is of use until that transaction has committed, so the table
 * only has to hold the keys of what is in flight.  It is bounded all the
 * same: where a bucket is full of transactions that have not committed, the
 * oldest entry gives way and its CSN becomes the floor that every key not
 * found is taken to depend on.
 *
 * I1	Keys are hashes: two keys may share one.  Then a change waits without
 *		need; it never fails to wait.
 * I2	"Newest earlier" is enough, since commits are made in order: when that
 *		one has committed, all before it have.
 * I3	A change does not wait for its own transaction: where that has written
 *		the key already, the earlier change has waited for the predecessor.
 *
 * This table only saves work.  A dependency that it does not know makes an
 * attempt fail and be repeated at its turn; it cannot make a wrong row.
 *
 *-------------------------------------------------------------------------
 */
#include "depend.h"

#define WAYS 4

typedef struct Entry
{
	uint64		key;
	DependCsn	csn;
} Entry;

struct DependTable
{
	DependCsn	self;			/* transaction in work */
	DependCsn	committed;
	DependCsn	barrier;		/* newest that conflicts with everything */
	DependCsn	floor;			/* newest that was evicted */
	bool		pending_barrier;
	bool		pending_floor;
	DependDomain *touched;
	uint32		mask;
	Entry		entries[FLEXIBLE_ARRAY_MEMBER];
};

DependTable *
depend_create(uint32 buckets)
{
	Size		size = offsetof(DependTable, entries) +
				sizeof(Entry) * WAYS * (Size) buckets;
	DependTable *table = palloc0(size);

	Assert((buckets & (buckets - 1)) == 0);
	table->mask = buckets - 1;
	return table;
}

void
depend_begin(DependTable *table, DependCsn self, DependCsn committed)
{
	Assert(table->touched == NULL);
	table->self = self;
	table->committed = committed;
	table->pending_barrier = false;
	table->pending_floor = false;
}

/* Makes the transaction in work the newest writer; returns the one before. */
static DependCsn
exchange(DependTable *table, uint64 key)
{
	Entry	   *bucket = &table->entries[(key & table->mask) * WAYS];
	Entry	   *victim = bucket;
	DependCsn	previous = table->floor;

	for (int i = 0; i < WAYS; i++)
	{
		Entry	   *entry = &bucket[i];

		if (entry->key == key)
		{
			if (entry->csn == table->self)
				return 0;		/* I3 */
			/* The floor may be newer than what a key was found with. */
			previous = Max(previous, entry->csn);
			victim = entry;
			break;
		}
		if (entry->csn < victim->csn)
			victim = entry;
	}
	if (victim->key != key && victim->csn > table->committed)
	{
		/* One of this transaction's own keys counts for later ones only. */
		if (victim->csn == table->self)
			table->pending_floor = true;
		else
			table->floor = Max(table->floor, victim->csn);
	}

	victim->key = key;
	victim->csn = table->self;
	return previous;
}

DependCsn
depend_touch(DependTable *table, DependDomain *domain)
{
	if (domain->touched != table->self)
	{
		domain->touched = table->self;
		domain->pending_all = false;
		domain->next_touched = table->touched;
		table->touched = domain;
	}
	return domain->last > table->committed ? domain->last : 0;
}

DependCsn
depend_change(DependTable *table, DependDomain *domain, DependKind kind,
			  int nkeys, const uint64 *keys)
{
	DependCsn	wait = table->barrier;

	switch (kind)
	{
		case DEPEND_KEYS:
			wait = Max(wait, domain->all);
			for (int i = 0; i < nkeys; i++)
			{
				DependCsn	csn = exchange(table, keys[i]);

				wait = Max(wait, csn);
			}
			break;
		case DEPEND_TABLE:
			wait = Max(wait, domain->last);
			break;
		case DEPEND_ALL:
			wait = table->self - 1;
			table->pending_barrier = true;
			break;
	}

	if (domain != NULL)
	{
		(void) depend_touch(table, domain);
		if (kind != DEPEND_KEYS)
			domain->pending_all = true;
	}
	return wait > table->committed ? wait : 0;
}

void
depend_end(DependTable *table)
{
	while (table->touched != NULL)
	{
		DependDomain *domain = table->touched;

		domain->last = table->self;
		if (domain->pending_all)
			domain->all = table->self;
		table->touched = domain->next_touched;
	}
	if (table->pending_barrier)
		table->barrier = table->self;
	if (table->pending_floor)
		table->floor = table->self;
}
