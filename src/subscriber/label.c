/*-------------------------------------------------------------------------
 *
 * label.c
 *	  The security label that stores a subscription's worker_number.
 *
 * pg_subscription has no column for worker_number and an extension's own table
 * would be unknown to pg_dump, to other databases and to ALTER SUBSCRIPTION
 * ... RENAME.  A security label of provider "pgparrep" is none of that: it is
 * bound to the OID, transactional, shared by all databases as pg_subscription
 * is, and pg_dump and pg_dumpall write it.  Its text is "worker_number=N".
 *
 * Invariants:
 *
 * I1.	A label that does not read "worker_number=N", N in range, means stock
 *		apply.  It can only come from a catalog change by hand, and the safe
 *		reading of something unknown is what the server does by itself.
 *
 * I2.	Whoever changes a label also sends an invalidation of the subscription's
 *		pg_subscription tuple: pg_shseclabel has no syscache, so that is the
 *		only way a running apply worker can notice.  CREATE and ALTER
 *		SUBSCRIPTION write the tuple anyway; SECURITY LABEL does not.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_subscription.h"
#include "commands/seclabel.h"
#include "fmgr.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "guc.h"
#include "interface.h"

#define LABEL_PREFIX "worker_number="

PG_FUNCTION_INFO_V1(pgparrep_subscription_worker_number);

/*
 * Reads a label's text.  Only the form that label_set() writes is accepted, so
 * that one number has one spelling and dumps compare equal.
 */
static bool
label_parse(const char *label, int *worker_number)
{
	const char *digits;
	int			value = 0;

	if (strncmp(label, LABEL_PREFIX, strlen(LABEL_PREFIX)) != 0)
		return false;

	digits = label + strlen(LABEL_PREFIX);
	if (*digits == '\0' || (digits[0] == '0' && digits[1] != '\0'))
		return false;

	for (; *digits; digits++)
	{
		if (*digits < '0' || *digits > '9')
			return false;
		value = value * 10 + (*digits - '0');
		if (value > PGPARREP_MAX_WORKER_NUMBER)
			return false;
	}

	*worker_number = value;
	return true;
}

/*
 * Makes running apply workers look at the label again (I2).
 */
static void
label_invalidate(Oid subid)
{
	Relation	rel = table_open(SubscriptionRelationId, AccessShareLock);
	HeapTuple	tup = SearchSysCache1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid));

	if (HeapTupleIsValid(tup))
	{
		CacheInvalidateHeapTuple(rel, tup, NULL);
		ReleaseSysCache(tup);
	}

	table_close(rel, AccessShareLock);
}

/*
 * Called by SECURITY LABEL before it stores a label; it has checked that the
 * object exists, has locked it and has checked that the user owns it.
 */
static void
label_check(const ObjectAddress *object, const char *seclabel)
{
	int			worker_number;

	if (object->classId != SubscriptionRelationId)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("security label provider \"%s\" labels subscriptions only",
						PGPARREP_NAME)));

	if (seclabel != NULL)
	{
		if (!label_parse(seclabel, &worker_number))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid security label \"%s\" for provider \"%s\"",
							seclabel, PGPARREP_NAME),
					 errdetail("The label must be \"%sN\" with N between %d and %d.",
							   LABEL_PREFIX,
							   PGPARREP_MIN_WORKER_NUMBER,
							   PGPARREP_MAX_WORKER_NUMBER),
					 errhint("Use ALTER SUBSCRIPTION ... SET (worker_number = N).")));
	}

	label_invalidate(object->objectId);
}

/*
 * Stores the label.  The subscription must be visible to this command.
 */
void
label_set(Oid subid, int worker_number)
{
	ObjectAddress address;
	char		label[sizeof(LABEL_PREFIX) + 12];

	snprintf(label, sizeof(label), LABEL_PREFIX "%d", worker_number);
	ObjectAddressSet(address, SubscriptionRelationId, subid);
	SetSecurityLabel(&address, PGPARREP_NAME, label);
}

/*
 * Deletes our label, if any.
 */
void
label_delete(Oid subid)
{
	ObjectAddress address;

	ObjectAddressSet(address, SubscriptionRelationId, subid);
	SetSecurityLabel(&address, PGPARREP_NAME, NULL);
}

/*
 * Is there a label?  An unreadable one counts as worker_number 1 (I1).
 */
bool
label_get(Oid subid, int *worker_number)
{
	ObjectAddress address;
	char	   *label;

	ObjectAddressSet(address, SubscriptionRelationId, subid);
	label = GetSecurityLabel(&address, PGPARREP_NAME);
	if (label == NULL)
		return false;

	if (!label_parse(label, worker_number))
		*worker_number = 1;
	pfree(label);

	return true;
}

int
pgparrep_worker_number(Oid subid, bool *explicit)
{
	int			worker_number = 1;
	bool		labelled = label_get(subid, &worker_number);

	if (!labelled)
		worker_number = pgparrep_default_worker_number;

	if (explicit)
		*explicit = labelled;

	return worker_number;
}

/*
 * SQL: pgparrep.subscription_worker_number(oid) returns integer.  Null for an
 * OID that is no subscription.
 */
Datum
pgparrep_subscription_worker_number(PG_FUNCTION_ARGS)
{
	Oid			subid = PG_GETARG_OID(0);

	if (!SearchSysCacheExists1(SUBSCRIPTIONOID, ObjectIdGetDatum(subid)))
		PG_RETURN_NULL();

	PG_RETURN_INT32(pgparrep_worker_number(subid, NULL));
}

void
label_init(void)
{
	register_label_provider(PGPARREP_NAME, label_check);
}
