/*-------------------------------------------------------------------------
 *
 * test_points.h
 *	  Sabotage switches and crash points, compiled out of release builds.
 *
 * A check that cannot fail is a defect.  Each switch removes one thing that
 * correctness rests on; a build with it must turn a named test red:
 *
 *		PGPARREP_SABOTAGE_NO_COMMIT_WAIT	workers do not wait for their turn
 *		PGPARREP_SABOTAGE_MISSING_EARLY		a row not found before the turn is
 *											taken for missing
 *		PGPARREP_SABOTAGE_NO_YIELD			nobody gives way in a cycle of waits
 *		PGPARREP_SABOTAGE_EAGER_IN_THE_WAY	a transaction that has not committed does
 *											not give way to one that has
 *		PGPARREP_SABOTAGE_NO_FINISH_WAIT	what follows the end of a prepared
 *											transaction does not wait for it
 *		PGPARREP_SABOTAGE_POSTPONED_FREELY	changes of a row are applied in any order
 *		PGPARREP_SABOTAGE_EARLY_FLUSH		commits are reported as flushed before
 *											they are
 *		PGPARREP_SABOTAGE_TRIGGERS_ASIDE	triggers run beside other transactions
 *		PGPARREP_SABOTAGE_ROLLBACK_MOVES_ORIGIN	a rollback counts as progress
 *		PGPARREP_SABOTAGE_UNCAPPED_KEEPALIVE	keepalives go ahead of batches
 *		PGPARREP_SABOTAGE_NO_FENCE			workers outlive their leader
 *		PGPARREP_SABOTAGE_DROP_MESSAGE		one row in 100,000 is dropped
 *
 * scripts/sabotage knows the tests.
 *
 * PGPARREP_SABOTAGE_POSTPONED_KEYS postpones without regard to keys, but with
 * the checks that make up for that (postpone.c, I2): rows must be right all the same.
 *
 * With PGPARREP_TEST_POINTS a process kills itself with SIGKILL at CRASH_POINT(name)
 * if the file "pgparrep_crash_point" in the data directory holds just that
 * name; it removes the file first.  t/480_crash_points.pl goes through all.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TEST_POINTS_H
#define PGPARREP_TEST_POINTS_H

#ifdef PGPARREP_TEST_POINTS
extern void crash_point(const char *name);
#define CRASH_POINT(name) crash_point(name)
#else
#define CRASH_POINT(name) ((void) 0)
#endif

#endif							/* PGPARREP_TEST_POINTS_H */
