/*-------------------------------------------------------------------------
 *
 * interface.c
 *	  Subscription option worker_number in CREATE and ALTER SUBSCRIPTION.
 *
 * The server knows no option worker_number and rejects what it does not know.
 * A ProcessUtility hook takes the option out of the list, lets the server run
 * the rest of the command, and stores the number as a security label
 * (label.c).  An object access hook deletes the label with the subscription,
 * which the server forgets to do.
 *
 * Invariants:
 *
 * I1.	A command without worker_number reaches the server as it came; the same
 *		nodes, not a copy.
 *
 * I2.	The tree of a command is never changed: it may belong to a cached plan
 *		and be executed again.  The option is taken out of a copy.
 *
 * I3.	Everything that can be wrong with worker_number is reported before the
 *		server sees the command: the server then creates a replication slot on
 *		the publisher, and no rollback removes that.
 *
 * I4.	CREATE SUBSCRIPTION always writes or deletes the label.  A subscription
 *		dropped while the library was not loaded leaves its label, and OIDs
 *		come round again.
 *
 * I5.	Permissions are the server's business.  ALTER SUBSCRIPTION with
 *		worker_number as its only option goes on to the server with an empty
 *		list, for the checks, the lock on the subscription, and the update of
 *		its tuple that tells running workers.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_subscription.h"
#include "commands/defrem.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "parser/parse_node.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "guc.h"
#include "interface.h"
#include "takeover.h"

#define WORKER_NUMBER_OPTION "worker_number"

/* Arguments of ProcessUtility_hook, kept together. */
typedef struct UtilityCall
{
	PlannedStmt *pstmt;
	const char *queryString;
	bool		readOnlyTree;
	ProcessUtilityContext context;
	ParamListInfo params;
	QueryEnvironment *queryEnv;
	DestReceiver *dest;
	QueryCompletion *qc;
} UtilityCall;

/* What an option list says about what is ours. */
typedef struct WorkerNumberOption
{
	bool		given;
	int			value;			/* valid if given */
} WorkerNumberOption;

/* Hooks that were there before ours; set once by interface_init(). */
static ProcessUtility_hook_type prev_ProcessUtility = NULL;
static object_access_hook_type prev_object_access = NULL;

/*
 * Value of one worker_number option: an integer, or a string that is one.
 */
static int
worker_number_value(DefElem *defel)
{
	long		value = 0;
	bool		valid = false;

	if (defel->arg != NULL && IsA(defel->arg, Integer))
	{
		value = intVal(defel->arg);
		valid = true;
	}
	else if (defel->arg != NULL && IsA(defel->arg, String))
	{
		const char *str = strVal(defel->arg);
		const char *digits = (*str == '-' || *str == '+') ? str + 1 : str;

		/*
		 * strtol() would skip white space; and what has more digits than a
		 * number in range can have need not be converted.
		 */
		valid = *digits != '\0' && strlen(digits) <= 9 &&
				strspn(digits, "0123456789") == strlen(digits);
		if (valid)
			value = strtol(str, NULL, 10);
	}

	if (!valid)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("%s requires an integer value", defel->defname)));

	if (value < PGPARREP_MIN_WORKER_NUMBER || value > PGPARREP_MAX_WORKER_NUMBER)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value %ld out of bounds for option \"%s\"",
						value, defel->defname),
				 errdetail("Valid values are between \"%d\" and \"%d\".",
						   PGPARREP_MIN_WORKER_NUMBER,
						   PGPARREP_MAX_WORKER_NUMBER)));

	return (int) value;
}

/*
 * Finds and checks worker_number in an option list.
 */
static WorkerNumberOption
find_worker_number(List *options, const char *queryString)
{
	WorkerNumberOption result = {false, 0};
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *defel = lfirst_node(DefElem, lc);

		if (strcmp(defel->defname, WORKER_NUMBER_OPTION) != 0)
			continue;

		if (result.given)
		{
			ParseState *pstate = make_parsestate(NULL);

			pstate->p_sourcetext = queryString;
			errorConflictingDefElem(defel, pstate);
		}

		result.given = true;
		result.value = worker_number_value(defel);
	}

	return result;
}

/*
 * A copy of an option list without worker_number.
 */
static List *
without_worker_number(List *options)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *defel = lfirst_node(DefElem, lc);

		if (strcmp(defel->defname, WORKER_NUMBER_OPTION) != 0)
			result = lappend(result, defel);
	}

	return result;
}

/*
 * Passes a command on to the next hook, or to the server.
 */
static void
process_next(const UtilityCall *call)
{
	ProcessUtility_hook_type next = prev_ProcessUtility ?
										prev_ProcessUtility :
										standard_ProcessUtility;

	next(call->pstmt, call->queryString, call->readOnlyTree, call->context,
		 call->params, call->queryEnv, call->dest, call->qc);
}

/*
 * The same with takeover_slot_plugin set for the time of the command.
 */
static void
process_next_with_plugin(const UtilityCall *call, TakeoverSlotPlugin slot_plugin)
{
	TakeoverSlotPlugin save_slot_plugin = takeover_slot_plugin;

	PG_TRY();
	{
		takeover_slot_plugin = slot_plugin;
		process_next(call);
	}
	PG_FINALLY();
	{
		takeover_slot_plugin = save_slot_plugin;
	}
	PG_END_TRY();
}

static void
create_subscription(UtilityCall *call)
{
	CreateSubscriptionStmt *stmt = (CreateSubscriptionStmt *) call->pstmt->utilityStmt;
	WorkerNumberOption option = find_worker_number(stmt->options, call->queryString);
	TakeoverSlotPlugin slot_plugin = SLOT_PLUGIN_STOCK;
	int			worker_number = option.given ? option.value : pgparrep_default_worker_number;
	Oid			subid;

	if (worker_number > 1)
		slot_plugin = option.given ? SLOT_PLUGIN_EXPLICIT : SLOT_PLUGIN_DEFAULT;

	if (option.given)
	{
		call->pstmt = copyObject(call->pstmt);
		call->readOnlyTree = false;
		stmt = (CreateSubscriptionStmt *) call->pstmt->utilityStmt;
		stmt->options = without_worker_number(stmt->options);
	}

	process_next_with_plugin(call, slot_plugin);

	/* Make the new subscription visible, then write or delete its label. */
	CommandCounterIncrement();
	subid = get_subscription_oid(stmt->subname, true);
	if (!OidIsValid(subid))
		return;					/* an event trigger may have dropped it */

	if (option.given)
		label_set(subid, option.value);
	else
		label_delete(subid);
}

static void
alter_subscription(UtilityCall *call)
{
	AlterSubscriptionStmt *stmt = (AlterSubscriptionStmt *) call->pstmt->utilityStmt;
	WorkerNumberOption option = find_worker_number(stmt->options, call->queryString);
	Oid			subid;

	if (option.given)
	{
		call->pstmt = copyObject(call->pstmt);
		call->readOnlyTree = false;
		stmt = (AlterSubscriptionStmt *) call->pstmt->utilityStmt;
		stmt->options = without_worker_number(stmt->options);
	}

	process_next(call);

	if (!option.given)
		return;

	CommandCounterIncrement();
	subid = get_subscription_oid(stmt->subname, true);
	if (!OidIsValid(subid))
		return;					/* an event trigger may have dropped it */

	label_set(subid, option.value);
}

static void
interface_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
						 bool readOnlyTree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *queryEnv,
						 DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	UtilityCall call = {pstmt, queryString, readOnlyTree, context,
						params, queryEnv, dest, qc};

	if (IsA(stmt, CreateSubscriptionStmt))
		create_subscription(&call);
	else if (IsA(stmt, AlterSubscriptionStmt) &&
			 ((AlterSubscriptionStmt *) stmt)->kind == ALTER_SUBSCRIPTION_OPTIONS)
		alter_subscription(&call);
	else
		process_next(&call);
}

static void
interface_object_access(ObjectAccessType access, Oid classId, Oid objectId,
						int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);

	if (access == OAT_DROP && classId == SubscriptionRelationId)
		DeleteSharedSecurityLabel(objectId, classId);
}

void
interface_init(void)
{
	label_init();

	prev_ProcessUtility = ProcessUtility_hook;
	ProcessUtility_hook = interface_ProcessUtility;
	prev_object_access = object_access_hook;
	object_access_hook = interface_object_access;
}
