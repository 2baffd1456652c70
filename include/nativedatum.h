/*-------------------------------------------------------------------------
 *
 * nativedatum.h
 *	  Native values of a message as datums.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_NATIVEDATUM_H
#define PGPARREP_NATIVEDATUM_H

#include "postgres.h"

#include "fmgr.h"

#include "native.h"

/* Error if the bytes are not a sound value of the type. */
extern void native_check(const NativeType *type, const char *data, size_t len);

/*
 * Would the input function of a local column make the same datum out of the
 * text of every value of a remote column?
 */
extern bool native_fits(const NativeType *type, int32 typmod, Oid localtype, int32 localtypmod);

/* Datum of checked bytes; may point to them. */
extern Datum native_datum(const NativeType *type, const char *data, size_t len);

/*
 * Text as a publisher would send it, palloc'd.  output is looked up in mcxt
 * at first use, for which a transaction is needed.
 */
extern void native_output_info(const NativeType *type, FmgrInfo *output, MemoryContext mcxt);
extern char *native_text(FmgrInfo *output, Datum datum);

#endif							/* PGPARREP_NATIVEDATUM_H */
