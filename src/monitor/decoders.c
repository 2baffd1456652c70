/*-------------------------------------------------------------------------
 *
 * decoders.c
 *	  The function behind the view pgparrep.stat_decoder.
 *
 * A publisher need not preload the library, so there is no place in main shared
 * memory to look at.  Each decoder has the handle of the segment that it shares
 * with its walsender in its application_name; we attach, read, and detach.
 * Counters are read without a lock: two columns may be a moment apart.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "decoder.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#define DECODER_COLUMNS (12 + QUEUE_REASONS)

PG_FUNCTION_INFO_V1(pgparrep_stat_get_decoder);

static const char *
state_name(uint32 state)
{
	switch ((DecoderState) state)
	{
		case DECODER_STARTING:
			return "starting";
		case DECODER_IDLE:
			return "idle";
		case DECODER_WORKING:
			return "working";
		case DECODER_WAITING:
			return "waiting for walsender";
		case DECODER_GONE:
			return "gone";
	}

	return "unknown";
}

static void
put_decoder(ReturnSetInfo *rsinfo, DecoderShared *shared, int pid)
{
	Datum		values[DECODER_COLUMNS];
	bool		nulls[DECODER_COLUMNS] = {0};
	DecoderSlot *slot = NULL;
	uint64		published;
	uint64		claimed;
	int			i;

	for (i = 0; i < MAX_PARALLEL_DECODE_NUM; i++)
	{
		if (shared->decoders[i].pid == pid)
			slot = &shared->decoders[i];
	}
	if (slot == NULL)
		return;

	claimed = pg_atomic_read_u64(&shared->claimed);
	published = pg_atomic_read_u64(&shared->published);

	values[0] = NameGetDatum(&shared->slot_name);
	values[1] = Int32GetDatum(shared->walsender_pid);
	values[2] = LSNGetDatum(pg_atomic_read_u64(&shared->reader_lsn));
	nulls[2] = pg_atomic_read_u64(&shared->reader_lsn) == InvalidXLogRecPtr;
	values[3] = Int32GetDatum(pid);
	values[4] = CStringGetTextDatum(state_name(pg_atomic_read_u32(&slot->state)));
	values[5] = Int64GetDatum((int64) pg_atomic_read_u64(&slot->batches));
	values[6] = Int64GetDatum((int64) pg_atomic_read_u64(&slot->bytes));
	values[7] = Int32GetDatum((int32) (published > claimed ? published - claimed : 0));
	values[8] = Int32GetDatum((int32) (published - pg_atomic_read_u64(&shared->collected)));
	values[9] = Int32GetDatum(shared->nbatches);
	values[10] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->own_batches));
	values[11] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->streamed));
	for (i = 0; i < QUEUE_REASONS; i++)
		values[12 + i] = Int64GetDatum((int64) pg_atomic_read_u64(&shared->queued[i]));

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
pgparrep_stat_get_decoder(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	int			i;

	InitMaterializedSRF(fcinfo, 0);

	n = pgstat_fetch_stat_numbackends();
	for (i = 1; i <= n; i++)
	{
		LocalPgBackendStatus *entry = compat_local_beentry(i);
		PgBackendStatus *be;
		const char *type;
		uint32		handle;
		dsm_segment *seg;

		if (entry == NULL)
			continue;
		be = &entry->backendStatus;
		if (be->st_backendType != B_BG_WORKER || be->st_appname == NULL)
			continue;
		type = GetBackgroundWorkerTypeByPid(be->st_procpid);
		if (type == NULL || strcmp(type, PGPARREP_DECODER_TYPE) != 0 ||
			sscanf(be->st_appname, PGPARREP_DECODER_TYPE " %u", &handle) != 1 ||
			dsm_find_mapping(handle) != NULL)
			continue;

		seg = dsm_attach(handle);
		if (seg == NULL)
			continue;			/* ended a moment ago */
		if (((DecoderShared *) dsm_segment_address(seg))->magic == DECODER_MAGIC)
			put_decoder(rsinfo, (DecoderShared *) dsm_segment_address(seg),
						be->st_procpid);
		dsm_detach(seg);
	}

	return (Datum) 0;
}
