/*-------------------------------------------------------------------------
 *
 * unit.h
 *	  A few lines of TAP for tests of pure logic, without a server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_UNIT_H
#define PGPARREP_UNIT_H

#include <stdio.h>

static int	unit_tests = 0;
static int	unit_failures = 0;

/* One test; returns whether it passed. */
static inline bool
ok(bool passed, const char *name)
{
	printf("%sok %d - %s\n", passed ? "" : "not ", ++unit_tests, name);
	if (!passed)
		unit_failures++;
	return passed;
}

static inline int
done_testing(void)
{
	printf("1..%d\n", unit_tests);
	return unit_failures > 0;
}

#endif							/* PGPARREP_UNIT_H */
