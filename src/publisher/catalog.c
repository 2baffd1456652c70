/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Looking into the catalogs as they were at the record being decoded.
 *
 * The reader works outside of any transaction.  What needs catalogs (making a
 * plan, type output functions that look things up) brackets itself with
 * catalog_begin and catalog_end, and calls catalog_abandon instead when it has
 * caught an error.
 *
 * I1.	The historic snapshot is a static of the server that a transaction's
 *		abort does not clear: whoever opened the bracket closes it, also after
 *		an error, or the session would go on in the past.
 * I2.	The snapshot belongs to the snapshot builder and is valid only until
 *		the reader returns.  It does not see changes of the transaction being
 *		decoded: transactions that change catalogs are queued.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "publisher.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

/* Set by catalog_begin, cleared by catalog_end and catalog_abandon. */
static bool is_open = false;
static MemoryContext outer_cxt;
static ResourceOwner outer_owner;

void
catalog_begin(Publisher *pub, TransactionId xid)
{
	Snapshot	snapshot;

	Assert(!is_open);
	Assert(SnapBuildCurrentState(pub->ctx->snapshot_builder) == SNAPBUILD_CONSISTENT);

	snapshot = compat_historic_snapshot(pub->ctx->snapshot_builder, xid);

	outer_cxt = CurrentMemoryContext;
	outer_owner = CurrentResourceOwner;
	SetupHistoricSnapshot(snapshot, NULL);
	is_open = true;
	StartTransactionCommand();
	MemoryContextSwitchTo(outer_cxt);
}

static void
leave(bool is_error)
{
	TeardownHistoricSnapshot(is_error);
	AbortCurrentTransaction();
	is_open = false;
	MemoryContextSwitchTo(outer_cxt);
	CurrentResourceOwner = outer_owner;
}

void
catalog_end(Publisher *pub)
{
	Assert(is_open);
	leave(false);
}

/*
 * After an error; the caller has saved its data.  No-op if nothing is open.
 */
void
catalog_abandon(Publisher *pub)
{
	if (is_open)
		leave(true);
}
