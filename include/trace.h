/*-------------------------------------------------------------------------
 *
 * trace.h
 *	  Writes down which transactions were handed out (leader, for testing).
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TRACE_H
#define PGPARREP_TRACE_H

#include "txnbuf.h"

/* Besides PTXN_*: the changes are in a file, and not told. */
#define TRACE_FILE 0x10000

/* If pgparrep.trace is on; before it is handed out. */
extern void trace_transaction(const PoolTxn *ptxn, const TxnBuffer *txn,
							  dsa_area *area);

#endif							/* PGPARREP_TRACE_H */
