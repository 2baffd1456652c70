/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  All settings of pgparrep, sorted by name.
 *
 *-------------------------------------------------------------------------
 */
#include "guc.h"
#include "pgparrep.h"

#include <limits.h>

#include "utils/guc.h"

#include "compat.h"

int			pgparrep_apply_buffer = 256 * 1024;
int			pgparrep_cached_changes = 1000;
int			pgparrep_cached_transactions = 1000;
int			pgparrep_decode_buffer = 0;
int			pgparrep_decode_txn_buffer = 0;
int			pgparrep_default_worker_number = 1;
int			pgparrep_eager_threshold = 10000;
bool		pgparrep_force_decoders = false;
int			pgparrep_group_transactions = 64;
bool		pgparrep_insert_runs = true;
bool		pgparrep_key_table = true;
char	   *pgparrep_native_signature = NULL;
int			pgparrep_parallel_decode_num = 2;
bool		pgparrep_postpone_changes = true;
bool		pgparrep_trace = false;
int			pgparrep_tuple_format = TUPLE_FORMAT_AUTO;

static const struct config_enum_entry tuple_formats[] =
	{
		{"auto", TUPLE_FORMAT_AUTO, false},
		{"text", TUPLE_FORMAT_TEXT, false},
		{"binary", TUPLE_FORMAT_BINARY, false},
		{NULL, 0, false}};

void
guc_init(void)
{
	DefineCustomIntVariable("pgparrep.apply_buffer",
							"Shared memory that the leader of one subscription may fill with transactions.",
							"Holds committed transactions that wait to be applied and uncommitted ones "
							"that are not in a file. Too low: large transactions go to files early and "
							"workers run dry. Too high: memory.",
							&pgparrep_apply_buffer,
							256 * 1024, 8 * 1024, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.cached_changes",
							"Changes of one uncommitted transaction that the leader keeps in memory.",
							"A transaction with more goes to a temporary file until it commits. Too low: "
							"files for ordinary transactions. Too high: memory for long ones.",
							&pgparrep_cached_changes,
							1000, 0, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.cached_transactions",
							"Uncommitted transactions that the leader keeps in memory.",
							"Further ones go to temporary files from their first change. Too low: files "
							"for ordinary transactions. Too high: memory while many are open.",
							&pgparrep_cached_transactions,
							1000, 0, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.decode_buffer",
							"Memory for records in flight that a subscription allows its publisher's decoders.",
							"0 leaves it to the publisher: half a megabyte for each of the batches, two "
							"per decoder and two more. Too low: rows do not fit into a batch and are not "
							"decoded in parallel. Takes effect at the next connection.",
							&pgparrep_decode_buffer,
							0, 0, MAX_MEMORY_OPTION_MB,
							PGC_SIGHUP, GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.decode_txn_buffer",
							"Memory that a subscription allows its publisher for one transaction's parts of rows.",
							"With more, the rest of the transaction is sent at its commit. 0: no limit. Too "
							"low: transactions with large values are not sent while they run. Takes effect "
							"at the next connection.",
							&pgparrep_decode_txn_buffer,
							0, 0, MAX_MEMORY_OPTION_MB,
							PGC_SIGHUP, GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.default_worker_number",
							"Worker number of subscriptions that do not say one themselves.",
							"0 and 1 mean the server's own serial apply. A subscription whose slot was "
							"made for another output plugin stays serial whatever this says.",
							&pgparrep_default_worker_number,
							1, PGPARREP_MIN_WORKER_NUMBER, PGPARREP_MAX_WORKER_NUMBER,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.eager_threshold",
							"Changes after which a transaction is applied before it commits on the publisher.",
							"If a worker has nothing to do, and while at most half of them do this. 0: from "
							"the first change. -1: never. Too low: work that is done twice where "
							"transactions meet, and locks held for as long as they run on the publisher. "
							"Too high: large transactions are visible late.",
							&pgparrep_eager_threshold,
							10000, -1, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pgparrep.force_decoders",
							 "Has the decoders do everything that they can, on a publisher.",
							 "For testing only: also at the end of WAL, where handing over costs more than "
							 "it saves, and even if the walsender has to wait for them.",
							 &pgparrep_force_decoders,
							 false,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.group_transactions",
							"Remote transactions that a worker may apply in one local transaction.",
							"Only small ones that follow each other, and only while the subscriber "
							"is behind. 1 gives each its own. Too low: more work for transaction ids, "
							"locks and commits. Too high: workers wait for each other longer.",
							&pgparrep_group_transactions,
							64, 1, 256,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pgparrep.insert_runs",
							 "Stores runs of inserted rows several at a time.",
							 "For testing only: off stores each by itself.",
							 &pgparrep_insert_runs,
							 true,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("pgparrep.key_table",
							 "Tracks which transactions touch the same keys.",
							 "For testing only: without it every apply worker starts at once and finds "
							 "out by waiting and repeating; slower, never wrong.",
							 &pgparrep_key_table,
							 true,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("pgparrep.native_signature",
							   "Signature sent to the publisher instead of this server's own.",
							   "For testing only: with another one than the publisher's, values come as text.",
							   &pgparrep_native_signature,
							   "",
							   PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							   NULL, NULL, NULL);

	DefineCustomIntVariable("pgparrep.parallel_decode_num",
							"Processes that decode for a subscription on its publisher.",
							"1: the walsender does it itself. Others are background workers there, of "
							"max_worker_processes; they work while the walsender is behind. Takes effect at "
							"the next connection.",
							&pgparrep_parallel_decode_num,
							2, 1, MAX_PARALLEL_DECODE_NUM,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("pgparrep.postpone_changes",
							 "Applies changes that have to wait after those that need not.",
							 "For testing only: off makes a worker wait in front of the first one.",
							 &pgparrep_postpone_changes,
							 true,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("pgparrep.trace",
							 "Writes down which transactions are applied, for bench/scale.",
							 "For testing only: the file pgparrep.trace in the data directory has the "
							 "tables and hashes of keys that each changed, and grows without bound.",
							 &pgparrep_trace,
							 false,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	DefineCustomEnumVariable("pgparrep.tuple_format",
							 "Form in which a parallel subscription asks for values.",
							 "auto: as stored, where both servers store the type alike, else as text. "
							 "A subscription with binary = true gets binary whatever this says. "
							 "Takes effect when the subscription connects again.",
							 &pgparrep_tuple_format,
							 TUPLE_FORMAT_AUTO, tuple_formats,
							 PGC_SIGHUP, 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved(PGPARREP_NAME);
}
