/*-------------------------------------------------------------------------
 *
 * shared.h
 *	  What the leader of a subscription and its apply workers share.
 *
 * Two places.  Main shared memory (SharedState) has a slot for each leader
 * and each apply worker, so that views can read them and a successor can see
 * what a predecessor left.  A dynamic segment per life of a leader (Pool) has
 * the commit order: a ring of the transactions handed out.  The changes
 * themselves lie in the leader's DSA area or in its temporary files.
 *
 * Vocabulary:
 *	CSN		commit sequence number; 1, 2, 3 ... in the order of the publisher's
 *			commits, anew for each life of a leader
 *	handed	newest CSN that the leader has handed out
 *	claimed	newest CSN that a worker has taken
 *	committed	newest CSN that has committed; all earlier ones have too
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_SHARED_H
#define PGPARREP_SHARED_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "replication/origin.h"
#include "storage/dsm.h"
#include "storage/fileset.h"
#include "storage/lwlock.h"
#include "utils/dsa.h"

#include "pgparrep.h"

/*
 * Transactions that may be handed out and not yet committed.  A power of two,
 * so that a CSN maps to its entry by a mask.  Large enough that workers do
 * not run dry while the leader is busy with one large transaction.
 */
#define POOL_RING_SIZE 4096
#define pool_txn(pool, csn) (&(pool)->ring[(csn) & (POOL_RING_SIZE - 1)])

/* Relations of a transaction that need no allocation of their own. */
#define POOL_FEW_RELS 6

/* Tables of which trouble is noted; where there are more, some share a number. */
#define POOL_TABLES 1024
#define POOL_EVERY_TABLE 0		/* all there are, and what is not known */

/* Transactions that are applied before their commit, at a time. */
#define POOL_EAGER 16

/* Relations that such a transaction may change. */
#define EAGER_RELS 16

typedef uint64 Csn;

/* What an apply worker is doing; shown in pgparrep.stat_apply_worker. */
typedef enum WorkerState
{
	WORKER_STARTING,			/* next: idle, stopped */
	WORKER_IDLE,				/* next: applying, stopped */
	WORKER_APPLYING,			/* next: any waiting state, committing, idle */
	WORKER_WAIT_DEPENDENCY,		/* for a commit that a change depends on */
	WORKER_WAIT_TURN,			/* for the commit before its own */
	WORKER_WAIT_RETRY,			/* for its turn, or a pause, to try again */
	WORKER_WAIT_CHANGES,		/* for more of an eager transaction */
	WORKER_COMMITTING,			/* next: idle */
	WORKER_STOPPED
} WorkerState;

/* One apply worker.  Written by itself unless said otherwise. */
typedef struct WorkerSlot
{
	Oid			subid;			/* leader, under SharedState.lock; 0 = free */
	int			generation;		/* leader, under lock: taken anew each time */
	pid_t		leader_pid;		/* leader, under lock */
	pid_t		pid;			/* 0 until the process runs */
	int			procno;			/* index of its PGPROC, -1 until it runs */
	pg_atomic_uint32 state;		/* WorkerState */
	pg_atomic_uint64 wait_csn;	/* commit it waits for, 0 if none */
	pg_atomic_uint64 csn;		/* CSN in work, the first of a group; 0 if none */
	pg_atomic_uint64 last_csn;	/* the last of the group */
	pg_atomic_uint32 eager;		/* in work is an eager transaction */
	pg_atomic_uint32 table;		/* number of the one it changes, or changed last */
	pg_atomic_uint32 remote_xid;
	pg_atomic_uint64 commit_lsn;
	pg_atomic_uint64 transactions;	/* committed */
	pg_atomic_uint64 changes;	/* applied in them */
	pg_atomic_uint64 retries;	/* attempts that were repeated */
	pg_atomic_uint64 postponed; /* changes applied after later ones */
	pg_atomic_uint64 missing;	/* updates and deletes that found no row */
} WorkerSlot;

/* One leader.  Written by it, under SharedState.lock where said. */
typedef struct LeaderSlot
{
	Oid			subid;			/* under lock; 0 = free */
	pid_t		pid;			/* under lock */
	pg_atomic_uint32 workers_wanted;
	pg_atomic_uint32 workers;
	pg_atomic_uint64 received_lsn;
	pg_atomic_uint64 applied_lsn;
	pg_atomic_uint64 flushed_lsn;
	pg_atomic_uint64 in_progress;	/* uncommitted transactions */
	pg_atomic_uint64 cached;	/* of those, in memory */
	pg_atomic_uint64 spilled;	/* of those, in temporary files */
	pg_atomic_uint64 waiting;	/* committed remotely, not yet locally */
	pg_atomic_uint64 transactions;	/* committed locally */
	pg_atomic_uint64 retries;	/* attempts of all its workers repeated */
	pg_atomic_uint64 yields;	/* of those, to break a cycle of waits */
	pg_atomic_uint64 deadlocks; /* of those, a cycle that the server broke */
	pg_atomic_uint64 eager;		/* transactions begun before their commit */
	pg_atomic_uint64 eager_rolled_back; /* of those, to no avail */
} LeaderSlot;

/*
 * What a leader leaves to the next one of its subscription; zeros where there
 * was none.  Written by the leader.  Gone with the server, and when the server's
 * own apply takes over.
 */
typedef struct LastLeader
{
	Oid			subid;			/* under lock; 0 = free */
	XLogRecPtr	failed;			/* commit whose error ended it */
	XLogRecPtr	flushed;		/* newest position that was reported as that */
	uint64		system;			/* identifier of the publisher's ... */
	TimeLineID	timeline;		/* ... and what it wrote; 0: not known */
} LastLeader;

typedef struct SharedState
{
	LWLock	   *lock;
	int			dsa_tranche;
	int			eager_tranche;
	int			nleaders;
	int			nworkers;
	LeaderSlot *leaders;
	WorkerSlot *workers;
	LastLeader *last;			/* nleaders */
} SharedState;

extern SharedState *Shared;

/* A version of a remote relation as one transaction uses it. */
typedef struct TxnRel
{
	uint32		version;
	bool		apply;
	bool		left;			/* not to be applied: left to table sync */
	uint16		table;			/* number of the local table, see serial.h */
	int			len;
	Oid			relid;			/* the table that "apply" is about, or invalid */
	uint16		behind;			/* CSNs since its last change; 0: long ago */
	dsa_pointer body;			/* body of the relation message */
} TxnRel;

/* One transaction in the commit order; see pool_txn. */
typedef struct PoolTxn
{
	/* Written by the leader before it advances "handed". */
	TransactionId remote_xid;
	XLogRecPtr	commit_lsn;
	XLogRecPtr	end_lsn;
	TimestampTz commit_time;
	XLogRecPtr	prepare_end_lsn;	/* these two: PTXN_ROLLBACK_PREPARED only */
	TimestampTz prepare_time;
	uint32		flags;			/* PTXN_* */
	uint32		file;			/* name of the spill file, 0 if none */
	uint64		nchanges;
	Csn			wait_csn;		/* to wait for before the first change */
	dsa_pointer chunks;			/* first of its chunks, if not in a file */
	int			nrels;
	dsa_pointer rels;			/* TxnRel[nrels], if more than fit in here */
	TxnRel		few_rels[POOL_FEW_RELS];

	/* Written by the worker that claimed it. */
	pg_atomic_uint32 worker;	/* its slot + 1; 0 = not claimed */
	XLogRecPtr local_end;	 /* end of local commit record, 0 if none;
								 * before "committed" reaches the CSN */
} PoolTxn;

static inline TxnRel *
pool_txn_rels(PoolTxn *txn, dsa_area *area)
{
	if (txn->nrels <= POOL_FEW_RELS)
		return txn->few_rels;
	return (TxnRel *) dsa_get_address(area, txn->rels);
}

/* Nothing to apply: only the order has to be kept. */
#define PTXN_EMPTY 0x01
/* ALTER SUBSCRIPTION ... SKIP is in force; the transaction runs alone. */
#define PTXN_SKIPLSN 0x02
/* Conflicts with everything; not to be grouped with others. */
#define PTXN_ALONE 0x04
/*
 * Two-phase commit: a transaction that is to be prepared, and the end of a
 * prepared one, which has no changes of its own.  Each takes its place in the
 * commit order as a transaction does; its LSNs and time are those of the record
 * on the publisher.
 */
#define PTXN_PREPARE 0x08
#define PTXN_COMMIT_PREPARED 0x10
#define PTXN_ROLLBACK_PREPARED 0x20
#define PTXN_FINISH_PREPARED (PTXN_COMMIT_PREPARED | PTXN_ROLLBACK_PREPARED)
/* In the hands of the worker that began it before its commit; not to be claimed. */
#define PTXN_EAGER 0x40

/*
 * A transaction that is applied before its commit; eager.c has the rules.  The
 * state has the kind in its low byte and, from EAGER_RUNNING on, the slot of the
 * worker above.  Below is who ends which.
 */
typedef enum EagerKind
{
	EAGER_FREE,					/* leader: offers it */
	EAGER_OFFERED,				/* a worker: begins it; leader: frees it */
	EAGER_RUNNING,				/* leader: commits, cancels; worker: gives up */
	EAGER_COMMITTED,			/* worker: frees it when it is done */
	EAGER_CANCELLED,			/* worker: frees it when it has rolled back */
	EAGER_GIVEN_UP				/* leader: frees it */
} EagerKind;

#define EAGER_STATE(kind, slot) ((uint32) (kind) | (uint32) (slot) << 8)
#define EAGER_KIND(state) ((EagerKind) ((state) &0xFF))
#define EAGER_SLOT(state) ((int) ((state) >> 8))

typedef struct EagerTxn
{
	pg_atomic_uint32 state;
	pg_atomic_uint32 waiting;	/* worker: sleeps until there is more */
	pg_atomic_uint64 bytes;		/* leader: what may be read, as a position */
	pg_atomic_uint64 csn;		/* leader, when all may be read; 0 = none yet */

	/* Written by the leader before it offers it. */
	TransactionId remote_xid;

	/* Written by the leader before it advances "bytes". */
	int			nrels;
	TxnRel		rels[EAGER_RELS];

	/*
	 * Where the changes are.  Under this lock the leader takes chunks away, and
	 * a worker copies from them.
	 */
	LWLock		lock;
	uint32		file;			/* name of the spill file, 0 if none */
	uint64		file_bytes;		/* of the changes, in the file */
	uint32		generation;		/* goes up whenever chunks go */
	/* ... and behind the file; by the leader also before it advances "bytes" */
	dsa_pointer first;
} EagerTxn;

/* A stretch of CSNs in which something is not tried; serial.c has the rules. */
typedef struct SerialSpan
{
	pg_atomic_uint64 from;		/* first CSN that was claimed after it began */
	pg_atomic_uint64 until;		/* first CSN that is not concerned */
	pg_atomic_uint32 length;
} SerialSpan;

typedef struct SerialTable
{
	SerialSpan	serial;			/* not changed in parallel */
	SerialSpan	alone;			/* not changed by groups */
	SerialSpan	eager;			/* not changed by eager transactions */
	SerialSpan	in_order;		/* changes are not postponed */
} SerialTable;

typedef struct Pool
{
	/* Constant after creation. */
	Oid			subid;
	Oid			dbid;
	Oid			userid;
	pid_t		leader_pid;
	int			leader_procno;
	int			leader_slot;
	RepOriginId origin;
	char		origin_name[NAMEDATALEN];
	dsa_handle	dsa;
	FileSet		fileset;

	pg_atomic_uint64 handed;	/* leader */
	pg_atomic_uint64 claimed;	/* workers, compare and swap; the leader past
								 * an eager one */
	pg_atomic_uint64 committed; /* the worker whose turn it is */

	/* The leader sleeps until this CSN has committed; 0 = it does not. */
	pg_atomic_uint64 leader_wait_csn;
	/* Workers that sleep for want of work, and in wait for a commit. */
	pg_atomic_uint32 nidle;
	pg_atomic_uint32 nwaiting;

	/* No further commit: the leader is going, or a worker has failed. */
	pg_atomic_uint32 stop;

	/* Set once by the worker whose error counts, before it sets "stop". */
	pg_atomic_uint64 failed_csn;

	/* Flush local commits as soon as there is nothing else to do. */
	pg_atomic_uint32 flush_when_idle;

	/* Slots in SharedState.workers; the leader appends, then counts up. */
	pg_atomic_uint32 nworkers;
	int			workers[PGPARREP_MAX_WORKER_NUMBER];

	SerialTable tables[POOL_TABLES];

	EagerTxn	eager[POOL_EAGER];

	PoolTxn		ring[POOL_RING_SIZE];
} Pool;

/* How a worker finds its pool: BackgroundWorker.bgw_extra. */
typedef struct WorkerStart
{
	dsm_handle	pool;
	int			slot;			/* in SharedState.workers */
	int			generation;
} WorkerStart;

extern LeaderSlot *shared_take_leader_slot(Oid subid);
extern void shared_free_leader_slot(LeaderSlot *slot);
extern int	shared_take_worker_slot(Oid subid);
extern void shared_free_worker_slot(int slot);

/*
 * What the last leader of the caller's subscription has left; to be called with
 * a leader slot taken, and the caller's own until it frees that.
 */
extern LastLeader *shared_last_leader(Oid subid);
extern void shared_forget_last_leader(Oid subid);

/* Wakes the process with that index in the PGPROC array. */
extern void shared_wake(int procno);

/*
 * Does an error say nothing of the data, so that trying again later can help
 * and nothing may be disabled, skipped or given up because of it?
 */
extern bool shared_is_transient(int sqlstate);

#endif							/* PGPARREP_SHARED_H */
