/*
 * full_disk.c
 *	  Makes some files as if their disk were full or slow; for 430_full_disk.pl.
 *
 * Preloaded into a server.  FULL_DISK_DIR names a directory of files that are
 * looked at before each write: "tmp" holds the length that a temporary file may
 * have, "slow" the microseconds that each write to one takes, and while "shm"
 * exists, dynamic shared memory does not grow.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The number in a file of FULL_DISK_DIR, or -1. */
static long
setting(const char *name)
{
	const char *dir = getenv("FULL_DISK_DIR");
	char		path[4096];
	long		n = -1;
	FILE	   *f;

	snprintf(path, sizeof(path), "%s/%s", dir ? dir : "", name);
	f = fopen(path, "r");
	if (f == NULL)
		return -1;
	if (fscanf(f, "%ld", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

static int
is_below(int fd, const char *part)
{
	char		link[64];
	char		path[4096];
	ssize_t		n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	return strstr(path, part) != NULL;
}

/* Is a write to be refused? */
static int
refused(int fd, off_t end)
{
	long		limit;
	long		pause;

	if (!is_below(fd, "/pgsql_tmp/"))
		return 0;
	pause = setting("slow");
	if (pause > 0)
		usleep(pause);
	limit = setting("tmp");
	return limit >= 0 && end > limit;
}

#define NEXT(type, name, args) \
	static type (*next) args; \
	if (next == NULL) \
		next = (type (*) args) dlsym(RTLD_NEXT, name)
#define NO_ROOM (errno = ENOSPC, -1)

ssize_t
pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	NEXT(ssize_t, "pwrite", (int, const void *, size_t, off_t));
	return refused(fd, offset + len) ? NO_ROOM : next(fd, buf, len, offset);
}

ssize_t
pwrite64(int fd, const void *buf, size_t len, off64_t offset)
{
	NEXT(ssize_t, "pwrite64", (int, const void *, size_t, off64_t));
	return refused(fd, offset + len) ? NO_ROOM : next(fd, buf, len, offset);
}

int
posix_fallocate(int fd, off_t offset, off_t len)
{
	NEXT(int, "posix_fallocate", (int, off_t, off_t));
	if (setting("shm") >= 0 && is_below(fd, "/PostgreSQL."))
		return ENOSPC;
	return next(fd, offset, len);
}

int
posix_fallocate64(int fd, off64_t offset, off64_t len)
{
	NEXT(int, "posix_fallocate64", (int, off64_t, off64_t));
	if (setting("shm") >= 0 && is_below(fd, "/PostgreSQL."))
		return ENOSPC;
	return next(fd, offset, len);
}
