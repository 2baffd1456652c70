/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Every difference between the supported server versions, 15 to 18.
 *
 * No other file tests PG_VERSION_NUM.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_COMPAT_H
#define PGPARREP_COMPAT_H

#include "postgres.h"

#if PG_VERSION_NUM < 150000
#error "pgparrep needs PostgreSQL 15 or later"
#endif

#endif							/* PGPARREP_COMPAT_H */
