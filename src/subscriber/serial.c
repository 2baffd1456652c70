/*-------------------------------------------------------------------------
 *
 * serial.c
 *	  Tables that are applied serially for a while.
 *
 * What the leader's table of keys does not know (depend.c) a worker finds out
 * by an error, or by holding a lock that an earlier transaction waits for.  It
 * then rolls back and repeats the transaction at its turn.  Where that happens
 * once it costs little.  Where it happens to nearly every transaction, each
 * costs a search for a cycle of waits and is applied twice, and all of that is
 * slower than one worker would be.
 *
 * So trouble makes its table serial: until further notice every transaction
 * waits, before it changes the table, for the commit of the one that changed
 * it before.  Then no attempt begins that would only be rolled back.  What
 * does not touch the table goes on in parallel, and transactions that follow
 * each other can still be a group, since a group applies them in order.
 *
 * After a number of transactions the table is tried in parallel again.  Trouble
 * right after that doubles the number, up to a limit at which the attempts
 * cost next to nothing; quiet halves it for each time that it lasted.
 *
 * I1	This only saves work, as the table of keys does: it may be wrong in
 *		either direction.  Everything is written without a lock, and two
 *		workers that note trouble at once count as one.
 * I2	A worker waits for earlier commits only, so that the wait is an order
 *		edge as any other (order.c).
 * I3	Where a table makes trouble although it is serial, others have a part
 *		in it (a trigger, a local session), and all tables are serial.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "serial.h"

/* Transactions that a table is serial for, at first and at most. */
#define FIRST_SPAN 64
#define LAST_SPAN 65536

void
serial_init(Pool *pool)
{
	for (int i = 0; i < POOL_TABLES; i++)
	{
		pg_atomic_init_u64(&pool->tables[i].from, 0);
		pg_atomic_init_u64(&pool->tables[i].until, 0);
		pg_atomic_init_u32(&pool->tables[i].span, FIRST_SPAN);
	}
}

void
serial_note_trouble(Pool *pool, uint32 table, Csn csn)
{
	SerialTable *serial = &pool->tables[table];
	Csn			until = pg_atomic_read_u64(&serial->until);
	Csn			from;
	uint32		span;

	if (csn < until)
	{
		/* Unless the attempt was under way before it became serial (I3). */
		if (csn >= pg_atomic_read_u64(&serial->from) &&
			table != POOL_EVERY_TABLE)
			serial_note_trouble(pool, POOL_EVERY_TABLE, csn);
		return;
	}

	span = pg_atomic_read_u32(&serial->span);
	if (until > 0)
	{
		uint64		quiet = (csn - until) / span;

		span = Max((uint64) span * 2 >> Min(quiet, 31), FIRST_SPAN);
		span = Min(span, LAST_SPAN);
	}
	from = pg_atomic_read_u64(&pool->claimed) + 1;
	pg_atomic_write_u32(&serial->span, span);
	pg_atomic_write_u64(&serial->from, from);
	pg_write_barrier();
	pg_atomic_write_u64(&serial->until, from + span);
	elog(DEBUG1, "table number %u is applied serially for %u transactions",
		 table, span);
}
