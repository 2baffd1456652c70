/*-------------------------------------------------------------------------
 *
 * trace.c
 *	  Writes down which transactions were handed out (leader, for testing).
 *
 * With pgparrep.trace the leader writes the file "pgparrep.trace" in the data
 * directory, anew in each of its lives: what bench/scale.c needs to know of a
 * workload.  Lines are
 *
 *		T bytes flags				a transaction: of its changes; PTXN_* of shared.h
 *		C conflict domain keys...	a change: Conflict of txnbuf.h, number of its
 *									table, hashes
 *
 * and T is before its C.  A transaction in a file (flag TRACE_FILE) has none.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "guc.h"
#include "keyplan.h"
#include "streamrel.h"
#include "trace.h"

static FILE *file = NULL;

void
trace_transaction(const PoolTxn *ptxn, const TxnBuffer *txn, dsa_area *area)
{
	if (file == NULL)
	{
		file = fopen("pgparrep.trace", "w");
		if (file == NULL)
		{
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", "pgparrep.trace")));
			pgparrep_trace = false;
			return;
		}
	}

	fprintf(file, "T " UINT64_FORMAT " %u\n", txn->bytes,
			ptxn->flags | (txn->file != 0 ? TRACE_FILE : 0));
	for (dsa_pointer p = txn->file == 0 ? txn->first : InvalidDsaPointer; DsaPointerIsValid(p);)
	{
		Chunk	   *chunk = dsa_get_address(area, p);

		for (uint32 offset = 0; offset < chunk->used;)
		{
			ChangeRec  *rec = (ChangeRec *) (chunk->data + offset);
			DependDomain *domain = rec->version == 0 ?
									   NULL :
									   keyplan_domain(streamrel_version(rec->version));

			fprintf(file, "C %d %u", rec->conflict, domain ? domain->number : 0);
			for (int i = 0; i < rec->nkeys; i++)
				fprintf(file, " " UINT64_FORMAT, change_keys(rec)[i]);
			fputc('\n', file);
			offset += rec->size;
		}
		p = chunk->next;
	}
	fflush(file);
}
