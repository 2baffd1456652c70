/*-------------------------------------------------------------------------
 *
 * test_points.c
 *	  Crash points, for tests; empty in release builds.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"

#include "test_points.h"

#ifdef PGPARREP_TEST_POINTS

#define CRASH_POINT_FILE "pgparrep_crash_point"

/*
 * Also called where nothing may be allocated or raised.
 */
void
crash_point(const char *name)
{
	char		wanted[NAMEDATALEN];
	int			fd = open(CRASH_POINT_FILE, O_RDONLY | PG_BINARY);
	ssize_t		n;

	if (fd < 0)
		return;
	n = read(fd, wanted, sizeof(wanted) - 1);
	close(fd);
	if (n < 0)
		return;
	wanted[n] = '\0';
	/* of several that get here at once, one */
	if (strcmp(wanted, name) == 0 && unlink(CRASH_POINT_FILE) == 0)
		kill(MyProcPid, SIGKILL);
}

#endif
