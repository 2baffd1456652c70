/*-------------------------------------------------------------------------
 *
 * takeover.c
 *	  Stands between the server and its walreceiver function table.
 *
 * The server's logical apply worker reaches the publisher only through the
 * table WalReceiverFunctions.  While the postmaster preloads libraries, we
 * replace that pointer by a copy of the table in which four entries are ours;
 * every process inherits it.
 *
 *	walrcv_create_slot		CREATE SUBSCRIPTION with a parallel worker number
 *							makes its slot with output plugin pgparrep.
 *	walrcv_startstreaming	an apply worker whose subscription is parallel
 *							becomes a leader here and never returns.
 *	walrcv_receive			between two messages, an apply worker that stayed
 *							serial notices that it should be parallel now.
 *	walrcv_endstreaming		a table synchronization worker is about to drop
 *							its slot, and flushes its end (I5).
 *
 * Everything else that logical replication consists of (launcher, restarts,
 * connection, table synchronization, ALTER and DROP SUBSCRIPTION) stays the
 * server's.
 *
 * Invariants:
 *
 * I1.	Physical walreceivers, table synchronization workers, the server's own
 *		parallel apply workers and all backends that run no CREATE
 *		SUBSCRIPTION of ours get the server's functions, but for I5.
 *
 * I2.	For a subscription with worker number 0 or 1 the publisher sees exactly
 *		the commands of a server without pgparrep.
 *
 * I3.	A slot keeps the output plugin it was made with, and pgoutput does not
 *		know our options.  So the slot decides, not the setting: with another
 *		plugin the apply stays serial, which is reported once per subscription
 *		and server start, not with each restart of the worker.
 *
 * I4.	A serial worker restarts for a new worker number only between remote
 *		transactions.
 *
 * I5.	The commit with which a table synchronization worker ends is flushed at
 *		once.  The server makes it with the subscription's synchronous_commit,
 *		off by default, and drops the slot of the copy beside it; if a crash
 *		took the commit away, the table would wait for that slot for ever.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "replication/logicallauncher.h"
#include "replication/origin.h"
#include "replication/walreceiver.h"
#include "replication/worker_internal.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/syscache.h"

#include "compat.h"
#include "guc.h"
#include "interface.h"
#include "leader.h"
#include "shared.h"
#include "takeover.h"

/*
 * Subscriptions already reported under I3.  A ring: with more than that many
 * the oldest is reported again.
 */
#define REPORTED_SUBSCRIPTIONS 128

typedef struct ReportedSubscription
{
	Oid			subid;			/* InvalidOid: free */
	int			elevel;			/* how loud it was; WARNING comes after LOG */
} ReportedSubscription;

/* In main shared memory; all fields under the lock. */
typedef struct TakeoverShared
{
	LWLock	   *lock;			/* set at creation, then constant */
	int			next;			/* entry to use next */
	ReportedSubscription reported[REPORTED_SUBSCRIPTIONS];
} TakeoverShared;

TakeoverSlotPlugin takeover_slot_plugin = SLOT_PLUGIN_STOCK;

/* The server's table and our copy; set by takeover_init(). */
static WalReceiverFunctionsType *stock = NULL;
static WalReceiverFunctionsType ours;

/*
 * walrcv_receive() and its like are macros that go through
 * WalReceiverFunctions; the parentheses keep them from being expanded.
 */
#define STOCK(function) (stock->function)

/* Hooks that were there before ours; set by takeover_init(). */
static shmem_request_hook_type prev_shmem_request = NULL;
static shmem_startup_hook_type prev_shmem_startup = NULL;

static TakeoverShared *shared = NULL;

/* Set by an invalidation, reset by takeover_subscription_changed(). */
static bool subscription_changed = false;

/* pgparrep.default_worker_number when the worker number was last read. */
static int	seen_default_worker_number;

/* Is this a main apply worker that stayed serial, and did it want to? */
static bool serial_apply_worker = false;
static bool serial_wanted_parallel;

/*
 * What to do on the publisher when it does not let our output plugin run; null
 * if the failure is something else.
 */
const char *
takeover_publisher_hint(const WalRcvExecResult *res)
{
	/*
	 * The publisher's own hint names the setting; its error code alone could
	 * as well mean that the role lacks the REPLICATION attribute.
	 */
	if (res->err != NULL && strstr(res->err, "output_plugin_libraries") != NULL)
		return "Run this on the publisher, keeping other plugins that it lists already: "
			   "ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, " PGPARREP_NAME "; "
			   "SELECT pg_reload_conf();";

	if (res->sqlstate == ERRCODE_UNDEFINED_FILE)
		return PGPARREP_NAME " must be installed on the publisher, too.";

	return NULL;
}

static void
report_create_slot_failure(const char *slotname, const WalRcvExecResult *res)
{
	const char *hint = takeover_publisher_hint(res);

	/* Nobody asked for this subscription to be parallel? Say how to avoid it. */
	const char *otherwise = takeover_slot_plugin == SLOT_PLUGIN_DEFAULT ?
								" Or create the subscription WITH (worker_number = 1)." :
								"";

	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("could not create replication slot \"%s\": %s",
					slotname, res->err ? res->err : "unexpected result"),
			 hint ? errhint("%s%s", hint, otherwise) : 0));
}

/*
 * CREATE_REPLICATION_SLOT as libpqwalreceiver sends it, but for our plugin.
 */
static char *
takeover_create_slot(WalReceiverConn *conn, const char *slotname,
					 bool temporary, bool two_phase, COMPAT_FAILOVER_PARAM CRSSnapshotAction snapshot_action, XLogRecPtr *lsn)
{
	const Oid	column_types[4] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID};
	bool		parentheses;
	const char *separator;
	const char *snapshot_option = NULL;
	StringInfoData cmd;
	WalRcvExecResult *res;
	TupleTableSlot *slot;
	char	   *snapshot = NULL;
	Datum		value;
	bool		isnull;

	if (takeover_slot_plugin == SLOT_PLUGIN_STOCK || temporary)
		return STOCK(walrcv_create_slot)(conn, slotname, temporary, two_phase,
										 COMPAT_FAILOVER_ARG
											 snapshot_action,
										 lsn);

	/* 15 changed the syntax of the options. */
	parentheses = walrcv_server_version(conn) >= 150000;
	separator = parentheses ? ", " : " ";

	switch (snapshot_action)
	{
		case CRS_EXPORT_SNAPSHOT:
			snapshot_option = parentheses ? "SNAPSHOT 'export'" : "EXPORT_SNAPSHOT";
			break;
		case CRS_NOEXPORT_SNAPSHOT:
			snapshot_option = parentheses ? "SNAPSHOT 'nothing'" : "NOEXPORT_SNAPSHOT";
			break;
		case CRS_USE_SNAPSHOT:
			snapshot_option = parentheses ? "SNAPSHOT 'use'" : "USE_SNAPSHOT";
			break;
	}

	initStringInfo(&cmd);
	appendStringInfo(&cmd, "CREATE_REPLICATION_SLOT \"%s\" LOGICAL %s %s",
					 slotname, PGPARREP_NAME, parentheses ? "(" : "");
	if (two_phase)
		appendStringInfo(&cmd, "TWO_PHASE%s", separator);
	if (COMPAT_FAILOVER)
		appendStringInfo(&cmd, "FAILOVER%s", separator);
	appendStringInfo(&cmd, "%s%s", snapshot_option, parentheses ? ")" : "");

	/* The answer is an ordinary row: name, position, snapshot, plugin. */
	res = walrcv_exec(conn, cmd.data, lengthof(column_types), column_types);
	pfree(cmd.data);

	if (res->status != WALRCV_OK_TUPLES)
		report_create_slot_failure(slotname, res);

	slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	if (!tuplestore_gettupleslot(res->tuplestore, true, false, slot))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("could not create replication slot \"%s\": %s",
						slotname, "unexpected result")));

	value = slot_getattr(slot, 2, &isnull);
	if (lsn && !isnull)
		*lsn = DatumGetLSN(DirectFunctionCall1(pg_lsn_in,
											   CStringGetDatum(TextDatumGetCString(value))));

	value = slot_getattr(slot, 3, &isnull);
	if (!isnull)
		snapshot = TextDatumGetCString(value);

	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);

	return snapshot;
}

static void
subscription_change_cb(Datum arg, int cacheid, uint32 hashvalue)
{
	subscription_changed = true;
}

bool
takeover_subscription_changed(void)
{
	if (!subscription_changed &&
		seen_default_worker_number == pgparrep_default_worker_number)
		return false;

	/* Reset before the caller reads: what comes meanwhile counts again. */
	subscription_changed = false;
	seen_default_worker_number = pgparrep_default_worker_number;
	return true;
}

/*
 * pgparrep_worker_number() of this worker's subscription, in a transaction of
 * its own.  The apply worker has none open where we are called.
 */
static int
read_worker_number(bool *explicit)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	int			worker_number;

	StartTransactionCommand();
	worker_number = pgparrep_worker_number(MyLogicalRepWorker->subid, explicit);
	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);

	return worker_number;
}

/*
 * Output plugin of a slot on the publisher, in the caller's memory context.
 * Null if there is no such slot; the server's own report of that is good.
 */
static char *
fetch_slot_plugin(WalReceiverConn *conn, const char *slotname)
{
	const Oid	column_types[1] = {TEXTOID};
	MemoryContext oldcontext = CurrentMemoryContext;
	StringInfoData cmd;
	WalRcvExecResult *res;
	TupleTableSlot *slot;
	char	   *plugin = NULL;

	/* walrcv_exec() looks up types. */
	StartTransactionCommand();

	initStringInfo(&cmd);
	appendStringInfo(&cmd,
					 "SELECT plugin FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
					 quote_literal_cstr(slotname));
	res = walrcv_exec(conn, cmd.data, lengthof(column_types), column_types);

	if (res->status != WALRCV_OK_TUPLES)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not fetch the output plugin of replication slot \"%s\" from the publisher: %s",
						slotname, res->err ? res->err : "unexpected result")));

	slot = MakeSingleTupleTableSlot(res->tupledesc, &TTSOpsMinimalTuple);
	if (tuplestore_gettupleslot(res->tuplestore, true, false, slot))
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, 1, &isnull);

		if (!isnull)
			plugin = MemoryContextStrdup(oldcontext, TextDatumGetCString(value));
	}
	ExecDropSingleTupleTableSlot(slot);
	walrcv_clear_result(res);

	CommitTransactionCommand();
	MemoryContextSwitchTo(oldcontext);

	return plugin;
}

/*
 * Remembers that a subscription has been reported at elevel; false if it had
 * been before.
 */
static bool
remember_report(Oid subid, int elevel)
{
	bool		result = true;
	int			i;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);

	for (i = 0; i < REPORTED_SUBSCRIPTIONS; i++)
	{
		if (shared->reported[i].subid == subid)
			break;
	}

	if (i < REPORTED_SUBSCRIPTIONS)
		result = shared->reported[i].elevel != elevel &&
				 shared->reported[i].elevel != WARNING;
	else
	{
		i = shared->next;
		shared->next = (shared->next + 1) % REPORTED_SUBSCRIPTIONS;
	}

	if (result)
	{
		shared->reported[i].subid = subid;
		shared->reported[i].elevel = elevel;
	}

	LWLockRelease(shared->lock);

	return result;
}

/*
 * Reports I3: a warning to somebody who asked for this subscription to be
 * parallel, a log line where only the default does.
 */
static void
report_other_plugin(const char *slotname, const char *plugin,
					int worker_number, bool explicit)
{
	int			elevel = explicit ? WARNING : LOG;

	if (!remember_report(MyLogicalRepWorker->subid, elevel))
		return;

	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" is applied serially because its replication slot \"%s\" uses output plugin \"%s\"",
					MySubscription->name, slotname, plugin),
			 errdetail("%s is %d, but parallel apply needs a slot with output plugin \"%s\".",
					   explicit ? "worker_number" : "pgparrep.default_worker_number",
					   worker_number, PGPARREP_NAME),
			 errhint("Convert the slot: ALTER SUBSCRIPTION %s DISABLE; "
					 "on the publisher, connected to the slot's database, SELECT pg_copy_logical_replication_slot('%s', 'new_slot', false, '%s'); "
					 "here, ALTER SUBSCRIPTION %s SET (slot_name = 'new_slot'), and ENABLE; "
					 "on the publisher, SELECT pg_drop_replication_slot('%s'). "
					 "The copy is not a failover slot. Or create the subscription anew.",
					 quote_identifier(MySubscription->name), slotname, PGPARREP_NAME,
					 quote_identifier(MySubscription->name), slotname)));
}

static bool
takeover_startstreaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	int			worker_number;
	bool		explicit;

	if (!options->logical || MyLogicalRepWorker == NULL ||
		!compat_am_main_apply_worker())
		return STOCK(walrcv_startstreaming)(conn, options);

	/* Before reading, so that no change falls in between. */
	CacheRegisterSyscacheCallback(SUBSCRIPTIONOID, subscription_change_cb, (Datum) 0);
	seen_default_worker_number = pgparrep_default_worker_number;

	worker_number = read_worker_number(&explicit);

	if (worker_number > 1)
	{
		char	   *plugin = fetch_slot_plugin(conn, options->slotname);

		if (plugin != NULL && strcmp(plugin, PGPARREP_NAME) == 0)
			pgparrep_leader_main(conn, options);	/* does not return */

		if (plugin != NULL)
		{
			report_other_plugin(options->slotname, plugin, worker_number, explicit);
			pfree(plugin);
		}
	}

	/* What this one reports as flushed is not noted. */
	shared_forget_last_leader(MyLogicalRepWorker->subid);

	serial_apply_worker = true;
	serial_wanted_parallel = worker_number > 1;

	/*
	 * The server reports the position it starts at as flushed.  Parallel
	 * workers may have committed up to there a moment ago without a flush.
	 */
	(void) replorigin_session_get_progress(true);

	return STOCK(walrcv_startstreaming)(conn, options);
}

/*
 * Ends a serial apply worker whose subscription has become parallel; the
 * launcher starts the next one, which decides again.
 */
static void
restart_if_changed(void)
{
	bool		wants_parallel;

	/* Keep the notice for later while a transaction is open (I4). */
	if (in_remote_transaction || IsTransactionState())
		return;

	if (!takeover_subscription_changed())
		return;

	wants_parallel = read_worker_number(NULL) > 1;
	if (!wants_parallel || serial_wanted_parallel)
	{
		/* Serial is right, or all that the slot allows (I3). */
		serial_wanted_parallel = wants_parallel;
		return;
	}

	ereport(LOG,
			(errmsg("logical replication apply worker for subscription \"%s\" will restart because of a parameter change",
					MySubscription->name)));

	compat_forget_worker_start_time(MyLogicalRepWorker->subid);
	proc_exit(0);
}

static int
takeover_receive(WalReceiverConn *conn, char **buffer, pgsocket *wait_fd)
{
	if (serial_apply_worker)
		restart_if_changed();

	return STOCK(walrcv_receive)(conn, buffer, wait_fd);
}

static void
takeover_endstreaming(WalReceiverConn *conn, TimeLineID *next_tli)
{
	/* I5: it has written the state, and commits and drops the slot next */
	if (MyLogicalRepWorker && am_tablesync_worker() &&
		MyLogicalRepWorker->relstate == SUBREL_STATE_SYNCDONE)
		SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);

	STOCK(walrcv_endstreaming)
	(conn, next_tli);
}

static void
takeover_shmem_request(void)
{
	if (prev_shmem_request)
		prev_shmem_request();

	RequestAddinShmemSpace(MAXALIGN(sizeof(TakeoverShared)));
	RequestNamedLWLockTranche("pgparrep takeover", 1);
}

static void
takeover_shmem_startup(void)
{
	bool		found;

	if (prev_shmem_startup)
		prev_shmem_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("pgparrep takeover", sizeof(TakeoverShared), &found);
	if (!found)
	{
		memset(shared, 0, sizeof(TakeoverShared));
		shared->lock = &GetNamedLWLockTranche("pgparrep takeover")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

void
takeover_init(void)
{
	prev_shmem_request = shmem_request_hook;
	shmem_request_hook = takeover_shmem_request;
	prev_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = takeover_shmem_startup;

	/*
	 * A second load_file(), as each apply worker does, finds the library
	 * loaded and does not set the pointer again.
	 */
	load_file("libpqwalreceiver", false);

	stock = WalReceiverFunctions;
	ours = *stock;
	ours.walrcv_startstreaming = takeover_startstreaming;
	ours.walrcv_create_slot = takeover_create_slot;
	ours.walrcv_receive = takeover_receive;
	ours.walrcv_endstreaming = takeover_endstreaming;
	WalReceiverFunctions = &ours;
}
