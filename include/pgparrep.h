/*-------------------------------------------------------------------------
 *
 * pgparrep.h
 *	  What every part of pgparrep shares: names, limits, initialisation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_H
#define PGPARREP_H

#include "postgres.h"

/* Name of the library, the output plugin and the security label provider. */
#define PGPARREP_NAME "pgparrep"

/* Backend type as it stands in pg_stat_activity. */
#define PGPARREP_APPLY_WORKER_TYPE "pgparrep apply worker"
#define PGPARREP_DECODER_TYPE "pgparrep decoder"

/* Range of the subscription option worker_number; 0 and 1 mean stock apply. */
#define PGPARREP_MIN_WORKER_NUMBER 0
#define PGPARREP_MAX_WORKER_NUMBER 256

/* Ranges of the output plugin's options */
#define MAX_PARALLEL_DECODE_NUM 20
#define MAX_MEMORY_OPTION_MB (1024 * 1024)

/* guc.c */
extern void guc_init(void);

/* subscriber/shared.c: only when preloaded by the postmaster */
extern void shared_init(void);

/* subscriber/interface.c: only when preloaded by the postmaster */
extern void interface_init(void);

/* subscriber/takeover.c: only when preloaded by the postmaster */
extern void takeover_init(void);

#endif							/* PGPARREP_H */
