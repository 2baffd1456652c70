/*-------------------------------------------------------------------------
 *
 * serial.h
 *	  Tables that are applied serially, or not by groups, for a while, since
 *	  that made trouble.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_SERIAL_H
#define PGPARREP_SERIAL_H

#include "postgres.h"

#include "shared.h"

/* The number in Pool.tables of a domain, which are counted from 1; 0: of none. */
static inline uint16
serial_number(uint32 domain)
{
	return domain == 0 ? POOL_EVERY_TABLE : 1 + domain % (POOL_TABLES - 1);
}

/* Does the transaction have to wait for the one that changed the table before? */
static inline bool
serial_applies(Pool *pool, uint32 table, Csn csn)
{
	return csn < pg_atomic_read_u64(&pool->tables[table].serial.until);
}

/* Is the transaction to be no part of a group, since it changes the table? */
static inline bool
serial_alone(Pool *pool, uint32 table, Csn csn)
{
	return csn < pg_atomic_read_u64(&pool->tables[table].alone.until);
}

/* Is it to change the table, or any, not beside others? */
static inline bool
serial_is_serial(Pool *pool, uint32 table, Csn csn)
{
	return serial_applies(pool, table, csn) ||
		   serial_applies(pool, POOL_EVERY_TABLE, csn);
}

/*
 * Is an eager transaction not to change the table?  Not one that is serial
 * either: it cannot wait for those that come before it.
 */
static inline bool
serial_not_eager(Pool *pool, uint32 table, Csn csn)
{
	return csn < pg_atomic_read_u64(&pool->tables[table].eager.until) ||
		   serial_is_serial(pool, table, csn);
}

/* Are the table's changes to be applied in their order?  So are those of a serial one. */
static inline bool
serial_in_order(Pool *pool, uint32 table, Csn csn)
{
	return csn < pg_atomic_read_u64(&pool->tables[table].in_order.until) ||
		   serial_is_serial(pool, table, csn);
}

extern void serial_init(Pool *pool);

/*
 * An attempt at the transaction came to nothing because of how it met with
 * others at the table.
 */
extern void serial_note_trouble(Pool *pool, uint32 table, Csn csn);

/* The same, because the table's changes cannot be part of a group. */
extern void serial_note_alone(Pool *pool, uint32 table, Csn csn);

/* An eager transaction came to nothing because of what it met at the table. */
extern void serial_note_eager(Pool *pool, uint32 table, Csn csn);

/* Changes of the table could not be postponed (postpone.c). */
extern void serial_note_in_order(Pool *pool, uint32 table, Csn csn);

#endif							/* PGPARREP_SERIAL_H */
