/*-------------------------------------------------------------------------
 *
 * pgparrep.c
 *	  Loading of the library.
 *
 * The one library serves both ends.  On a publisher it is loaded by name as
 * an output plugin, in a walsender or in a backend that calls the SQL
 * decoding functions; nothing has to be preloaded there and nothing of a
 * subscriber is set up.  On a subscriber it must be in
 * shared_preload_libraries, since it needs shared memory and must have
 * replaced the walreceiver function table before the launcher starts an apply
 * worker.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "fmgr.h"
#include "miscadmin.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

void
_PG_init(void)
{
	guc_init();

	if (!process_shared_preload_libraries_in_progress)
		return;

	shared_init();
	interface_init();
	takeover_init();
}
