/*-------------------------------------------------------------------------
 *
 * startpoint.c
 *	  Where the publisher can start, and whether that is where we need it to.
 *
 * The server starts a stream at the later of the position that is asked for
 * and that of the slot, and waits where its WAL does not reach that far.  After
 * a failover of the publisher, or with a slot that was made anew or moved, it
 * would leave out changes without a word.
 *
 * I1	No stream starts with a slot that is ahead of the subscription: of the
 *		position of its origin, and of what its last leader reported as flushed,
 *		which is further on where the publisher had nothing for us.
 * I2	Nor does one while the subscription is ahead of the publisher: of the end
 *		of its WAL, or of the place where its timeline left the one that the
 *		last leader read.
 *
 * The last leader's part is known as long as the subscriber's server has not
 * been restarted, and no serial apply was at work, which does not keep it:
 * see LastLeader.  Without it the origin is compared with the end of WAL only.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "replication/worker_internal.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/wait_event.h"

#include "leader.h"
#include "startpoint.h"

/* How often, and how many times, to look whether the slot is free. */
#define ACTIVE_MS 50
#define ACTIVE_TRIES 20

/* First row of what a command returns; null if it returns none. */
static TupleTableSlot *
fetch_row(WalReceiverConn *conn, const char *command, const char *what,
		  int ncolumns, const Oid *types)
{
	WalRcvExecResult *res = walrcv_exec(conn, command, ncolumns, types);
	TupleTableSlot *row;

	if (res->status != WALRCV_OK_TUPLES)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not fetch %s from the publisher: %s",
						what, res->err ? res->err : "unexpected result")));
	row = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);

	/* Both last as long as the transaction does. */
	return tuplestore_gettupleslot(res->tuplestore, true, true, row) ? row : NULL;
}

/*
 * A slot's position, user, and the end of the WAL unless that is a standby's; null
 * if there is no such slot.  Waits a moment for its last user to go, who may still
 * move it.
 */
static TupleTableSlot *
fetch_slot(WalReceiverConn *conn, const char *slot_name)
{
	const Oid	types[] = {PG_LSNOID, INT4OID, PG_LSNOID};
	char	   *query = psprintf("SELECT confirmed_flush_lsn, active_pid, "
						   "CASE WHEN NOT pg_catalog.pg_is_in_recovery() "
						   "THEN pg_catalog.pg_current_wal_flush_lsn() END "
						   "FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
						   quote_literal_cstr(slot_name));

	for (int n = 0;; n++)
	{
		TupleTableSlot *row = fetch_row(conn, query, "the position of the replication slot",
										lengthof(types), types);
		bool		isnull = true;
		int			pid = row != NULL ? DatumGetInt32(slot_getattr(row, 2, &isnull)) : 0;

		if (isnull)
			return row;
		if (n == ACTIVE_TRIES)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("could not start WAL streaming: replication slot \"%s\" is active for PID %d",
							slot_name, pid)));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ACTIVE_MS, WAIT_EVENT_LOGICAL_APPLY_MAIN);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Where a timeline, given by its history file, left another one, or 0.  Lines
 * are as the server writes them: parent, end of the parent, reason.
 */
static XLogRecPtr
find_branch(const char *history, TimeLineID parent)
{
	for (const char *line = history; line != NULL;)
	{
		TimeLineID	tli;
		uint32		hi;
		uint32		lo;

		if (sscanf(line, "%u\t%X/%X", &tli, &hi, &lo) == 3 && tli == parent)
			return ((uint64) hi << 32) | lo;
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return InvalidXLogRecPtr;
}

void
startpoint_fetch(WalReceiverConn *conn, const char *slot_name,
				 const LastLeader *last, StartPoint *start)
{
	const Oid	history_types[] = {TEXTOID, TEXTOID};
	TupleTableSlot *row;
	bool		isnull;

	memset(start, 0, sizeof(*start));
	start->slot_name = slot_name;

	leader_start_tx();			/* walrcv_exec() looks up types */
	start->system = strtou64(walrcv_identify_system(conn, &start->timeline), NULL, 10);

	row = fetch_slot(conn, slot_name);
	if (row != NULL)
	{
		start->confirmed = DatumGetLSN(slot_getattr(row, 1, &isnull));
		start->wal_end = DatumGetLSN(slot_getattr(row, 3, &isnull));
		if (isnull)
			start->timeline = 0;
	}

	if (start->timeline > 1 && last->timeline != 0 && last->timeline != start->timeline &&
		last->system == start->system)
	{
		row = fetch_row(conn, psprintf("TIMELINE_HISTORY %u", start->timeline),
						"the history of its timeline", 2, history_types);
		if (row != NULL)
		{
			Datum		history = slot_getattr(row, 2, &isnull);

			if (!isnull)
				start->branch = find_branch(TextDatumGetCString(history), last->timeline);
		}
	}
	leader_commit_tx();
}

/* What makes the subscription go on from another position. */
static const char *
accepting(XLogRecPtr position)
{
	return psprintf("SELECT pg_replication_origin_advance('pg_%u', '%X/%X'); ALTER SUBSCRIPTION %s ENABLE;",
					MySubscription->oid, LSN_FORMAT_ARGS(position),
					quote_identifier(MySubscription->name));
}

/* Reports I2.  end: what the publisher has of what was applied, 0 if unknown. */
pg_noreturn static void
report_ahead(XLogRecPtr origin, XLogRecPtr end, const char *but)
{
	const char *anew = "Create the subscription anew, which copies the tables.";

	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" is ahead of its publisher", MySubscription->name),
			 errdetail("Changes up to %X/%X have been applied, but %s.", LSN_FORMAT_ARGS(origin), but),
			 XLogRecPtrIsInvalid(end) ?
				 errhint("%s", anew) :
				 errhint("%s Or go on with the rows that are only here: %s", anew, accepting(end))));
}

void
startpoint_check(const StartPoint *start, XLogRecPtr origin, LastLeader *last)
{
	XLogRecPtr	position;

	/* The server's own report of a missing slot is good. */
	if (XLogRecPtrIsInvalid(start->confirmed))
		return;

	if (!XLogRecPtrIsInvalid(start->wal_end) && origin > start->wal_end)
		report_ahead(origin, start->wal_end,
					 psprintf("the publisher's WAL ends at %X/%X",
							  LSN_FORMAT_ARGS(start->wal_end)));

	if (last->timeline != 0 && start->timeline != 0 &&
		last->timeline != start->timeline && last->system == start->system)
	{
		if (XLogRecPtrIsInvalid(start->branch))
			report_ahead(origin, InvalidXLogRecPtr,
						 psprintf("from timeline %u, of which the publisher's timeline %u is no continuation",
								  last->timeline, start->timeline));
		if (origin > start->branch)
			report_ahead(origin, start->branch,
						 psprintf("from timeline %u, which the publisher's timeline %u left at %X/%X",
								  last->timeline, start->timeline, LSN_FORMAT_ARGS(start->branch)));

		/* Of what comes after the branch, nothing is known. */
		last->flushed = Min(last->flushed, start->branch);
	}

	/* Settled even if the slot is not: its position is of this timeline. */
	last->system = start->system;
	last->timeline = start->timeline;

	position = Max(origin, last->flushed);
	if (!XLogRecPtrIsInvalid(last->flushed) && start->confirmed > position)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("replication slot \"%s\" is ahead of subscription \"%s\"",
						start->slot_name, MySubscription->name),
				 errdetail("It would send what commits after %X/%X, but the subscription needs everything after %X/%X.",
						   LSN_FORMAT_ARGS(start->confirmed), LSN_FORMAT_ARGS(position)),
				 errhint("Create the subscription anew, which copies the tables. Or leave out what has committed in between, if it is nothing: %s",
						 accepting(start->confirmed))));

	last->flushed = Max(position, start->confirmed);
}
