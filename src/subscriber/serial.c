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
 * In the same way a table is kept out of groups for a while if one had to be
 * given up on its account: the leader does not know all that makes a worker
 * look at other rows (a partition's trigger, a default of a local column).
 *
 * And likewise it is not changed by transactions that have not committed on the
 * publisher (eager.c) for a while after one of those had to be rolled back, and
 * its changes are not postponed (postpone.c) after that came to nothing.
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

/* Transactions that a span has, at first and at most. */
#define FIRST_LENGTH 64
#define LAST_LENGTH 65536

static void
init_span(SerialSpan *span)
{
	pg_atomic_init_u64(&span->from, 0);
	pg_atomic_init_u64(&span->until, 0);
	pg_atomic_init_u32(&span->length, FIRST_LENGTH);
}

void
serial_init(Pool *pool)
{
	for (int i = 0; i < POOL_TABLES; i++)
	{
		init_span(&pool->tables[i].serial);
		init_span(&pool->tables[i].alone);
		init_span(&pool->tables[i].eager);
		init_span(&pool->tables[i].in_order);
	}
}

/* False if it is in force, and was when the transaction was claimed. */
static bool
begin_span(Pool *pool, SerialSpan *span, Csn csn)
{
	Csn			until = pg_atomic_read_u64(&span->until);
	uint32		length = pg_atomic_read_u32(&span->length);
	Csn			from;

	if (csn < until)
		return csn < pg_atomic_read_u64(&span->from);

	if (until > 0)
	{
		uint64		quiet = (csn - until) / length;

		length = ((uint64) length * 2) >> Min(quiet, 31);
		length = Max(length, FIRST_LENGTH);
		length = Min(length, LAST_LENGTH);
	}
	from = pg_atomic_read_u64(&pool->claimed) + 1;
	pg_atomic_write_u32(&span->length, length);
	pg_atomic_write_u64(&span->from, from);
	pg_write_barrier();
	pg_atomic_write_u64(&span->until, from + length);
	return true;
}

void
serial_note_trouble(Pool *pool, uint32 table, Csn csn)
{
	if (!begin_span(pool, &pool->tables[table].serial, csn))
		(void) begin_span(pool, &pool->tables[POOL_EVERY_TABLE].serial, csn);	/* I3 */
}

void
serial_note_alone(Pool *pool, uint32 table, Csn csn)
{
	(void) begin_span(pool, &pool->tables[table].alone, csn);
}

void
serial_note_eager(Pool *pool, uint32 table, Csn csn)
{
	(void) begin_span(pool, &pool->tables[table].eager, csn);
}

void
serial_note_in_order(Pool *pool, uint32 table, Csn csn)
{
	(void) begin_span(pool, &pool->tables[table].in_order, csn);
}
