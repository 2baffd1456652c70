/*-------------------------------------------------------------------------
 *
 * guc.h
 *	  The settings of pgparrep; guc.c documents each.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_GUC_H
#define PGPARREP_GUC_H

#include "postgres.h"

extern int	pgparrep_apply_buffer;	/* kB of shared memory per leader */
extern int	pgparrep_cached_changes;	/* changes kept of one transaction */
extern int	pgparrep_cached_transactions;	/* transactions kept in memory */
extern int	pgparrep_decode_buffer; /* MB on the publisher; 0: its choice */
extern int	pgparrep_decode_txn_buffer; /* MB on the publisher; 0: no limit */
extern int	pgparrep_default_worker_number;
extern int	pgparrep_eager_threshold;	/* changes; -1: never */
extern bool pgparrep_force_decoders;	/* developer: also at the end of WAL */
extern int	pgparrep_group_transactions;	/* remote ones in a local one */
extern bool pgparrep_insert_runs;	/* developer: several rows at a time */
extern bool pgparrep_key_table; /* developer: track keys at all */
extern char *pgparrep_native_signature; /* developer: instead of ours */
extern int	pgparrep_parallel_decode_num;	/* on the publisher */
extern bool pgparrep_postpone_changes;	/* apply them after later ones */
extern bool pgparrep_trace;		/* developer: write down what is handed out */

typedef enum PgparrepTupleFormat
{
	TUPLE_FORMAT_AUTO,			/* native where both servers agree, else text */
	TUPLE_FORMAT_TEXT,
	TUPLE_FORMAT_BINARY
} PgparrepTupleFormat;

extern int	pgparrep_tuple_format;

#endif							/* PGPARREP_GUC_H */
