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

/*
 * Subscriptions and the walreceiver function table.
 *
 * 16 has a third kind of logical replication worker (parallel apply) and paces
 * the restarts of each subscription by itself; on 15 nothing can be forgotten.
 */
#if PG_VERSION_NUM >= 160000
#define compat_am_main_apply_worker() am_leader_apply_worker()
#define compat_forget_worker_start_time(subid) \
	ApplyLauncherForgetWorkerStartTime(subid)
#else
#define compat_am_main_apply_worker() (!am_tablesync_worker())
#define compat_forget_worker_start_time(subid) ((void) (subid))
#endif

/* 17 added a parameter to walrcv_create_slot, between two_phase and action. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_FAILOVER_PARAM bool failover,
#define COMPAT_FAILOVER_ARG failover,
#define COMPAT_FAILOVER failover
#else
#define COMPAT_FAILOVER_PARAM
#define COMPAT_FAILOVER_ARG
#define COMPAT_FAILOVER false
#endif

/* Can ALTER SUBSCRIPTION ... SET change two_phase? */
#if PG_VERSION_NUM >= 180000
#define COMPAT_ALTER_TWO_PHASE true
#else
#define COMPAT_ALTER_TWO_PHASE false
#endif

/*
 * 18 puts pg_noreturn in front of a declaration; its predecessor, which stood
 * behind, is gone there.
 */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

#endif							/* PGPARREP_COMPAT_H */
