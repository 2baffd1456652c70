/*-------------------------------------------------------------------------
 *
 * scale.c
 *	  How fast a backlog would be applied with other numbers of cores and
 *	  workers: a simulation.
 *
 * Usage: scale TRACE NAME=VALUE...
 *
 * Reads what a leader has handed out (src/subscriber/trace.c) and plays it to
 * one reader of the publisher, one leader and "workers" workers on "cores"
 * cores.  Which transactions a worker takes, what a change has to wait for and
 * what is put off is decided by the product's own code (schedule.h, depend.c).
 * Time is CPU time per step, as measured, and is given to all that are not
 * waiting in equal shares where they are more than the cores.
 *
 *		cores, workers, group	how many; pgparrep.group_transactions
 *		reader, leader, change	microseconds of CPU for a change: publisher's
 *								walsender, leader, worker
 *		commit					... for a local commit, of a worker
 *		read					microseconds that a change waits for the disk
 *		wake					... until who is woken runs
 *		start					seconds before anything happens
 *		local					1: the publisher uses the same cores
 *
 * Prints one line: cores, workers, seconds, transactions per second, what limits
 * ("publisher", "leader", "cores", "workers" or "dependencies"), and of the
 * workers' time, in percent: CPU, disk, waiting for a dependency, for the turn, idle.
 *
 * Left out: large transactions before their commit, prepared ones, repeated
 * attempts, contention in the server (locks of buffers and of WAL), caches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "depend.h"
#include "schedule.h"
#include "unit.h"

/* As in shared.h. */
#define RING 4096
#define MAX_WORKERS 256

/* Transactions that may be on their way to the leader. */
#define ON_THE_WAY 256

typedef enum Kind
{
	KEYS,
	TABLE,
	ALL
} Kind;

typedef struct Change
{
	Kind		kind;
	int			domain;
	int			nkeys;
	uint64	   *keys;
	uint64		wait;			/* set at the hand-out */
} Change;

typedef struct Txn
{
	int			nchanges;
	Change	   *changes;
	bool		alone;			/* in no group */
} Txn;

typedef enum State
{
	RUN,						/* needs "left" seconds of CPU */
	SLEEP,						/* until "left" */
	WAIT,						/* for the commit of "csn" */
	IDLE						/* for work */
} State;

typedef enum Step
{
	CLAIM,
	CHANGES,
	DISK,						/* the same, after its CPU */
	MAKE_UP,					/* for what was put off */
	TURN,
	COMMIT
} Step;

typedef struct Proc
{
	State		state;
	State		before;			/* what it slept or was woken from */
	double		left;
	uint64		csn;
	Step		step;
	uint64		first;			/* of a worker: its group, and where it is */
	uint64		last;
	uint64		at;
	int			change;
	int			reads;			/* changes that wait for the disk */
	double		spent[5];		/* CPU, disk, dependency, turn, idle */
} Proc;

static Txn *txns;
static uint64 ntxns;
static DependDomain *domains;
static uint64 ndomains;
static DependTable *depend;

static double cores = 2;
static int	nworkers = 4;
static int	group = 64;
static double reader_cost = 1e-6;
static double leader_cost = 1e-6;
static double change_cost = 5e-6;
static double commit_cost = 20e-6;
static double read_time = 0;
static double wake_time = 30e-6;
static double start_time = 0;
static bool local = false;

static double now = 0;
static uint64 nread = 0;
static uint64 handed = 0;
static uint64 claimed = 0;
static uint64 committed = 0;
static Proc procs[MAX_WORKERS + 2];
static Proc *const reader = &procs[0];
static Proc *const leader = &procs[1];
static Proc *const workers = &procs[2];

pg_noreturn static void
fail(const char *what, const char *name)
{
	fprintf(stderr, "scale: %s: %s\n", name, what);
	exit(1);
}

static void *
more(void *array, uint64 n, size_t size)
{
	/* doubled at powers of two */
	if (n >= 64 && (n & (n - 1)) != 0)
		return array;
	array = realloc(array, size * Max(n * 2, 64));
	if (array == NULL)
		fail("out of memory", "trace");
	return array;
}

static void
read_trace(const char *name)
{
	FILE	   *f = fopen(name, "r");
	char		line[4096];
	Txn		   *txn = NULL;

	if (f == NULL)
		fail(strerror(errno), name);
	while (fgets(line, sizeof(line), f))
	{
		char	   *p = line + 1;

		if (line[0] == 'T')
		{
			uint32		flags;

			(void) strtoull(p, &p, 10);
			flags = strtoul(p, &p, 10);
			txns = more(txns, ntxns, sizeof(Txn));
			txn = &txns[ntxns++];
			memset(txn, 0, sizeof(*txn));
			txn->alone = flags != 0;
		}
		else if (line[0] == 'C' && txn != NULL)
		{
			Change	   *change;
			uint64		key;

			txn->changes = more(txn->changes, txn->nchanges, sizeof(Change));
			change = &txn->changes[txn->nchanges++];
			memset(change, 0, sizeof(*change));
			change->kind = strtol(p, &p, 10);
			change->domain = strtol(p, &p, 10);
			if (change->domain < 0 || change->kind < KEYS || change->kind > ALL)
				fail("not a trace", name);
			while ((key = strtoull(p, &p, 10)) != 0)
			{
				change->keys = more(change->keys, change->nkeys, sizeof(uint64));
				change->keys[change->nkeys++] = key;
			}
			ndomains = Max(ndomains, (uint64) change->domain + 1);
		}
		else
			fail("not a trace", name);
	}
	fclose(f);
	if (ntxns == 0)
		fail("no transactions", name);
}

#define txn_of(csn) (&txns[(csn) - 1])

static bool
may_join(uint64 csn, uint64 *nchanges)
{
	*nchanges = txn_of(csn)->nchanges;
	return !txn_of(csn)->alone;
}

static void
run(Proc *proc, double cpu)
{
	proc->state = RUN;
	proc->left = cpu;
}

static void
wait_for(Proc *proc, uint64 csn)
{
	proc->state = WAIT;
	proc->csn = csn;
}

static void
wake(Proc *proc)
{
	proc->before = proc->state;
	proc->state = SLEEP;
	proc->left = now + wake_time;
}

static void
wake_idle(void)
{
	for (int i = 0; i < nworkers; i++)
		if (workers[i].state == IDLE)
		{
			wake(&workers[i]);
			break;
		}
}

/* The leader hands a transaction out. */
static void
hand_out(void)
{
	uint64		csn = handed + 1;
	Txn		   *txn = txn_of(csn);

	depend_begin(depend, csn, committed);
	for (int i = 0; i < txn->nchanges; i++)
	{
		Change	   *change = &txn->changes[i];
		bool		all = change->kind == ALL || change->domain == 0;

		change->wait = depend_change(depend, all ? NULL : &domains[change->domain],
									 all ? DEPEND_ALL : (DependKind) change->kind,
									 change->nkeys, change->keys);
		txn->alone |= all;
	}
	depend_end(depend);
	handed = csn;
	wake_idle();
}

static inline bool
has_to_wait(const Proc *w, const Change *change)
{
	return change->wait != 0 && change->wait < w->first &&
		   change->wait > committed;
}

/* What each worker has put off. */
static Change *put_off[MAX_WORKERS][MAX_POSTPONED];
static int	nput_off[MAX_WORKERS];
static KeySet put_off_keys[MAX_WORKERS];

static bool
touched(int me, const Change *change)
{
	for (int i = 0; i < change->nkeys && nput_off[me] > 0; i++)
		if (keyset_has(&put_off_keys[me], change->keys[i]))
			return true;
	return false;
}

static void
put_it_off(int me, Change *change)
{
	put_off[me][nput_off[me]++] = change;
	for (int i = 0; i < change->nkeys; i++)
		keyset_add(&put_off_keys[me], change->keys[i]);
}

/* One round through them; returns how many are applied. */
static int
make_up(Proc *w)
{
	int			me = w - workers;
	int			n = nput_off[me];
	int			done = 0;

	nput_off[me] = 0;
	keyset_clear(&put_off_keys[me]);
	for (int i = 0; i < n; i++)
	{
		Change	   *change = put_off[me][i];

		if (has_to_wait(w, change) || touched(me, change))
			put_it_off(me, change);
		else
			done++;
	}
	return done;
}

static void go_on(Proc *w);

static void
make_up_or_wait(Proc *w)
{
	int			me = w - workers;
	int			done = make_up(w);

	w->step = MAKE_UP;
	if (done > 0)
		run(w, done * change_cost);
	else if (nput_off[me] > 0)
	{
		uint64		before = w->first - 1;
		uint64		wait = 0;

		/* the group right before this one commits as one */
		for (int i = 0; i < nworkers; i++)
			if (workers[i].last == w->first - 1)
				before = workers[i].first;
		for (int i = 0; i < nput_off[me]; i++)
			if (has_to_wait(w, put_off[me][i]) && put_off[me][i]->wait < before)
				wait = Max(wait, put_off[me][i]->wait);
		if (wait == 0)
			wait = w->first - 1;
		wait_for(w, wait);
	}
	else
	{
		w->step = CHANGES;
		go_on(w);
	}
}

/* What a worker does next with its group. */
static void
go_on(Proc *w)
{
	int			me = w - workers;
	int			done = 0;

	while (w->at <= w->last)
	{
		Txn		   *txn = txn_of(w->at);

		for (; w->change < txn->nchanges; w->change++)
		{
			Change	   *change = &txn->changes[w->change];
			bool		waits = has_to_wait(w, change);
			bool		by_keys = change->kind == KEYS && change->domain != 0;
			bool		later = waits || touched(me, change);

			if (by_keys && later && nput_off[me] < MAX_POSTPONED &&
				!keyset_full(&put_off_keys[me], change->nkeys))
			{
				put_it_off(me, change);
				continue;
			}
			if (!by_keys || later)
			{
				if (done > 0 && (waits || nput_off[me] > 0))
					goto stop;
				if (nput_off[me] > 0)
				{
					make_up_or_wait(w);
					return;
				}
				if (waits)
				{
					wait_for(w, change->wait);
					return;
				}
			}
			done++;
		}
		w->at++;
		w->change = 0;

		/* what has committed meanwhile is looked at after each transaction */
		if (done > 0)
			break;
	}
stop:
	if (done > 0)
	{
		w->step = DISK;
		w->reads = done;
		run(w, done * change_cost);
	}
	else if (nput_off[me] > 0)
		make_up_or_wait(w);
	else
	{
		w->step = TURN;
		wait_for(w, w->first - 1);
	}
}

static void
step_worker(Proc *w)
{
	switch (w->step)
	{
		case CLAIM:
			if (claimed == handed)
			{
				w->state = IDLE;
				break;
			}
			w->first = w->at = claimed + 1;
			claimed += schedule_group_size(w->first, handed, nworkers, group, may_join);
			w->last = claimed;
			w->change = 0;
			w->step = CHANGES;
			if (claimed < handed)
				wake_idle();
			/* FALLTHROUGH */
		case CHANGES:
			go_on(w);
			break;
		case DISK:
			w->step = CHANGES;
			if (read_time == 0)
				go_on(w);
			else
			{
				w->before = IDLE;
				w->state = SLEEP;
				w->left = now + w->reads * read_time;
			}
			break;
		case MAKE_UP:
			make_up_or_wait(w);
			break;
		case TURN:
			w->step = COMMIT;
			run(w, commit_cost);
			break;
		case COMMIT:
			committed = w->last;
			for (int i = 0; i < nworkers; i++)
				if (workers[i].state == WAIT && workers[i].csn <= committed)
					wake(&workers[i]);
			if (leader->state == WAIT && leader->csn <= committed)
				wake(leader);
			w->step = CLAIM;
			step_worker(w);
			break;
	}
	if (w->state == WAIT && w->csn <= committed)
		step_worker(w);
}

/* A process has done what it was about. */
static void
step(Proc *proc)
{
	if (proc == reader)
	{
		if (proc->state == RUN)
			nread++;
		if (leader->state == IDLE)
			wake(leader);
		if (nread == ntxns || nread - handed >= ON_THE_WAY)
			proc->state = IDLE;
		else
			run(proc, txn_of(nread + 1)->nchanges * reader_cost);
	}
	else if (proc == leader)
	{
		if (proc->state == RUN)
		{
			hand_out();
			if (reader->state == IDLE && nread < ntxns)
				step(reader);
		}
		if (handed - committed >= RING - 1)
			wait_for(proc, committed + RING / 4);
		else if (handed == nread)
			proc->state = IDLE;
		else
			run(proc, txn_of(handed + 1)->nchanges * leader_cost);
	}
	else
		step_worker(proc);
}

/* Where the time of a worker goes. */
static int
spends(const Proc *w)
{
	if (w->state == RUN)
		return 0;
	if (w->state == IDLE || (w->state == SLEEP && w->before == IDLE && w->step == CLAIM))
		return 4;
	if (w->state == SLEEP && w->before == IDLE)
		return 1;
	return w->step == TURN ? 3 : 2;
}

static const char *
limit(double elapsed)
{
	double		all[5] = {0};
	double		busy = leader->spent[0];

	for (int i = 0; i < nworkers; i++)
		for (int j = 0; j < 5; j++)
			all[j] += workers[i].spent[j];
	busy += all[0] + (local ? reader->spent[0] : 0);
	if (busy > 0.9 * cores * elapsed)
		return "cores";
	if (reader->spent[0] > 0.9 * elapsed)
		return "publisher";
	if (leader->spent[0] > 0.9 * elapsed)
		return "leader";
	if (all[2] + all[3] > 0.3 * nworkers * elapsed)
		return "dependencies";
	return "workers";
}

static void
set(const char *arg)
{
	const char *eq = strchr(arg, '=');
	double		v = eq ? atof(eq + 1) : 0;

#define NAMED(name) (eq != NULL && strncmp(arg, name "=", sizeof(name)) == 0)
	if (NAMED("cores"))
		cores = Max(v, 1);
	else if (NAMED("workers"))
		nworkers = Min(Max((int) v, 1), MAX_WORKERS);
	else if (NAMED("group"))
		group = Max((int) v, 1);
	else if (NAMED("reader"))
		reader_cost = v * 1e-6;
	else if (NAMED("leader"))
		leader_cost = v * 1e-6;
	else if (NAMED("change"))
		change_cost = v * 1e-6;
	else if (NAMED("commit"))
		commit_cost = v * 1e-6;
	else if (NAMED("read"))
		read_time = v * 1e-6;
	else if (NAMED("wake"))
		wake_time = v * 1e-6;
	else if (NAMED("start"))
		start_time = v;
	else if (NAMED("local"))
		local = v != 0;
	else
		fail("not one of the parameters", arg);
}

int
main(int argc, char **argv)
{
	int			nprocs;
	double		elapsed;
	double		share[5] = {0};

	if (argc < 2)
		fail("wants a trace", argv[0]);
	for (int i = 2; i < argc; i++)
		set(argv[i]);
	read_trace(argv[1]);
	domains = calloc(ndomains, sizeof(DependDomain));
	depend = depend_create(65536);
	nprocs = nworkers + 2;
	for (int i = 0; i < nprocs; i++)
	{
		procs[i].state = IDLE;
		procs[i].step = CLAIM;
	}
	step(reader);

	while (committed < ntxns)
	{
		double		next = INFINITY;
		double		rate;
		int			running = 0;

		for (int i = local ? 0 : 1; i < nprocs; i++)
			running += procs[i].state == RUN;
		rate = Min(1, cores / Max(running, 1));
		for (int i = 0; i < nprocs; i++)
		{
			if (procs[i].state == RUN)
				next = Min(next, procs[i].left / (i == 0 && !local ? 1 : rate));
			else if (procs[i].state == SLEEP)
				next = Min(next, procs[i].left - now);
		}
		if (isinf(next))
			fail("everybody waits", argv[1]);
		next = Max(next, 0);
		for (int i = 0; i < nprocs; i++)
		{
			double		r = (i == 0 && !local) ? 1 : rate;

			if (procs[i].state == RUN)
				procs[i].left -= next * r;
			procs[i].spent[spends(&procs[i])] += next * (procs[i].state == RUN ? r : 1);
		}
		now += next;
		for (int i = 0; i < nprocs; i++)
			if ((procs[i].state == RUN && procs[i].left <= 1e-12) ||
				(procs[i].state == SLEEP && procs[i].left <= now + 1e-12))
				step(&procs[i]);
	}

	elapsed = now + start_time;
	for (int i = 0; i < nworkers; i++)
		for (int j = 0; j < 5; j++)
			share[j] += 100 * workers[i].spent[j] / nworkers / now;
	printf("%g\t%d\t%.2f\t%.0f\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\n", cores, nworkers,
		   elapsed, ntxns / elapsed, limit(now), share[0], share[1], share[2], share[3], share[4]);
	return 0;
}
