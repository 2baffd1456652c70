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
#include <stdlib.h>

#include "compat.h"

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

#ifdef USE_ASSERT_CHECKING
/* The server's own, which headers with assertions call, is not linked. */
void
ExceptionalCondition(const char *condition, COMPAT_ASSERTION_TYPE_PARAM const char *file, int line)
{
	fprintf(stderr, "failed assertion \"%s\" at %s:%d\n", condition, file, line);
	abort();
}
#endif

static inline int
done_testing(void)
{
	printf("1..%d\n", unit_tests);
	return unit_failures > 0;
}

#endif							/* PGPARREP_UNIT_H */
