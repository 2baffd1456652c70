/*-------------------------------------------------------------------------
 *
 * feedback.c
 *	  What the leader reports to the publisher.
 *
 * Owns the list of commits that are applied but not known to be flushed.
 *
 * I1	write: everything up to there was received.  apply: every transaction
 *		that ends up to there is visible here.  flush: its local commit is on
 *		disk here, and, as far as the subscription's synchronous_commit asks
 *		for it, on this server's synchronous standby.  That includes what was
 *		committed before this leader, or before a crash, came up.
 * I2	None of the three goes down in the life of a leader.
 * I3	Where everything received has been applied and flushed, apply and
 *		flush are what was received, so that the slot follows the WAL of a
 *		publisher that has nothing for us.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "libpq/pqformat.h"
#include "replication/syncrep.h"
#include "replication/walreceiver.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "replication/worker_internal.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "feedback.h"
#include "test_points.h"

/*
 * Commits remembered one by one.  Where there are more, the newest stands for
 * those just before it, which delays their report by a moment.
 */
#define MAX_UNFLUSHED 1024

typedef struct Unflushed
{
	XLogRecPtr	remote_end;
	XLogRecPtr	local_end;
} Unflushed;

static WalReceiverConn *fb_conn;
static LastLeader *fb_last;
static Unflushed unflushed[MAX_UNFLUSHED];	/* a ring */
static int	first_unflushed;
static int	nunflushed;
static XLogRecPtr last_local_end;
static XLogRecPtr applied;
static XLogRecPtr flushed;
static XLogRecPtr reported_write;
static XLogRecPtr reported_flush;
static XLogRecPtr reported_apply;
static TimestampTz reported_at;
static StringInfoData message;

void
feedback_init(WalReceiverConn *conn, XLogRecPtr start, LastLeader *last)
{
	MemoryContext oldcxt = MemoryContextSwitchTo(TopMemoryContext);

	fb_conn = conn;
	fb_last = last;
	initStringInfo(&message);
	MemoryContextSwitchTo(oldcxt);

	/*
	 * A synchronous standby may lack the last commits of an earlier leader
	 * even so.
	 */
	feedback_committed(start, GetFlushRecPtr(NULL));
}

void
feedback_committed(XLogRecPtr remote_end, XLogRecPtr local_end)
{
	Unflushed  *entry;

	/* Without a commit record it is as safe as the one before. */
	if (local_end > last_local_end)
		last_local_end = local_end;
	applied = remote_end;

	if (nunflushed == MAX_UNFLUSHED)
		entry = &unflushed[(first_unflushed + nunflushed - 1) % MAX_UNFLUSHED];
	else
		entry = &unflushed[(first_unflushed + nunflushed++) % MAX_UNFLUSHED];
	entry->remote_end = remote_end;
	entry->local_end = last_local_end;
}

/*
 * Up to where local commits are safe.  The workers do not wait for a
 * synchronous standby of this server, so that has to be asked here.
 */
static XLogRecPtr
local_flush_position(void)
{
#ifdef PGPARREP_SABOTAGE_EARLY_FLUSH
	XLogRecPtr	pos = GetXLogInsertRecPtr();
#else
	XLogRecPtr	pos = GetFlushRecPtr(NULL);
#endif
	int			mode = SYNC_REP_NO_WAIT;

	if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE)
		mode = SYNC_REP_WAIT_WRITE;
	else if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		mode = SYNC_REP_WAIT_FLUSH;
	else if (synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_APPLY)
		mode = SYNC_REP_WAIT_APPLY;

	if (mode != SYNC_REP_NO_WAIT && max_wal_senders > 0 &&
		SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0')
	{
		LWLockAcquire(SyncRepLock, LW_SHARED);
		pos = Min(pos, WalSndCtl->lsn[mode]);
		LWLockRelease(SyncRepLock);
	}
	return pos;
}

static void
advance_flushed(void)
{
	XLogRecPtr	pos;

	if (nunflushed == 0)
		return;
	pos = local_flush_position();
	while (nunflushed > 0)
	{
		Unflushed  *entry = &unflushed[first_unflushed];

		if (entry->local_end > pos)
			break;
		flushed = entry->remote_end;
		first_unflushed = (first_unflushed + 1) % MAX_UNFLUSHED;
		nunflushed--;
	}
}

void
feedback_send(XLogRecPtr received, bool idle, bool force, bool request_reply)
{
	XLogRecPtr	write = Max(received, reported_write);
	XLogRecPtr	flush;
	XLogRecPtr	apply;
	TimestampTz now;

	advance_flushed();
	if (!force && wal_receiver_status_interval <= 0)
		return;

	flush = flushed;
	apply = applied;
	if (idle)
	{
		apply = write;
		if (nunflushed == 0)
			flush = write;		/* I3 */
	}
	flush = Max(flush, reported_flush);
	apply = Max(apply, reported_apply);

	now = GetCurrentTimestamp();
	if (!force && write == reported_write && flush == reported_flush &&
		apply == reported_apply &&
		!TimestampDifferenceExceeds(reported_at, now,
									wal_receiver_status_interval * 1000))
		return;

	/* First, since it may arrive even if sending it ends in an error. */
	fb_last->flushed = Max(fb_last->flushed, flush);

	resetStringInfo(&message);
	pq_sendbyte(&message, 'r');
	pq_sendint64(&message, write);
	pq_sendint64(&message, flush);
	pq_sendint64(&message, apply);
	pq_sendint64(&message, now);
	pq_sendbyte(&message, request_reply);
	CRASH_POINT("before_feedback");
	walrcv_send(fb_conn, message.data, message.len);
	CRASH_POINT("feedback_sent");

	reported_at = now;
	reported_write = write;
	reported_flush = flush;
	reported_apply = apply;
}

bool
feedback_unflushed(void)
{
	return nunflushed > 0;
}

XLogRecPtr
feedback_applied(void)
{
	return reported_apply;
}

XLogRecPtr
feedback_flushed(void)
{
	return reported_flush;
}
