/*-------------------------------------------------------------------------
 *
 * slow_io.c
 *	  A disk that is slower than the one there is; for LD_PRELOAD.
 *
 * Every read of a relation's file takes PGPARREP_READ_MS longer, every flush of
 * a WAL file PGPARREP_FLUSH_MS.  The process sleeps, so that others can use
 * the processor, as they could while a real disk is at work.  A relation's file
 * is one below base/, a WAL file one below pg_wal/; of what is read with io_uring
 * nothing is seen here.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int
is_below(int fd, const char *dir)
{
	char		link[64];
	char		path[PATH_MAX];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len <= 0)
		return 0;
	path[len] = '\0';
	return strstr(path, dir) != NULL;
}

static void
delay(int fd, const char *dir, const char *setting)
{
	const char *value = getenv(setting);
	double		ms = value ? atof(value) : 0;
	struct timespec ts;

	if (ms <= 0 || !is_below(fd, dir))
		return;
	ts.tv_sec = (time_t) (ms / 1000);
	ts.tv_nsec = (long) ((ms - ts.tv_sec * 1000.0) * 1e6);
	while (nanosleep(&ts, &ts) != 0)
		;
}

#define READ(name, arguments, call) \
ssize_t name arguments \
{ \
	static ssize_t (*real) arguments; \
	if (!real) \
		real = (ssize_t (*) arguments) dlsym(RTLD_NEXT, #name); \
	delay(fd, "/base/", "PGPARREP_READ_MS"); \
	return real call; \
}

#define FLUSH(name) \
int name(int fd) \
{ \
	static int (*real) (int); \
	if (!real) \
		real = (int (*) (int)) dlsym(RTLD_NEXT, #name); \
	delay(fd, "/pg_wal/", "PGPARREP_FLUSH_MS"); \
	return real(fd); \
}

READ(pread, (int fd, void *buf, size_t n, off_t at), (fd, buf, n, at))
READ(pread64, (int fd, void *buf, size_t n, off64_t at), (fd, buf, n, at))
READ(preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
READ(preadv64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
FLUSH(fsync)
FLUSH(fdatasync)
