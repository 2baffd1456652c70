/*-------------------------------------------------------------------------
 *
 * test_points.h
 *	  Sabotage switches, compiled out of release builds.
 *
 * A check that cannot fail is a defect.  Each switch removes one thing that
 * correctness rests on; a build with it must turn a named test red:
 *
 *		PGPARREP_SABOTAGE_NO_COMMIT_WAIT	workers do not wait for their turn
 *		PGPARREP_SABOTAGE_MISSING_EARLY		a row not found before the turn is
 *											taken for missing
 *		PGPARREP_SABOTAGE_NO_YIELD			nobody gives way in a cycle of waits
 *		PGPARREP_SABOTAGE_NO_FINISH_WAIT	what follows the end of a prepared
 *											transaction does not wait for it
 *		PGPARREP_SABOTAGE_EARLY_FLUSH		commits are reported as flushed before
 *											they are
 *
 * scripts/sabotage knows the tests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TEST_POINTS_H
#define PGPARREP_TEST_POINTS_H

#endif							/* PGPARREP_TEST_POINTS_H */
