/*-------------------------------------------------------------------------
 *
 * native.h
 *	  Native values: datums that travel as they are stored.
 *
 * Column kind 'd' of the F stream.  Which types may, what makes two servers
 * agree on their form, and whether bytes from a peer are a sound value of a
 * type.  docs/protocol.md describes it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_NATIVE_H
#define PGPARREP_NATIVE_H

/* What is looked at in a value. */
typedef enum NativeCheck
{
	NATIVE_ANY,					/* any bytes will do */
	NATIVE_BOOL,
	NATIVE_DATE,
	NATIVE_TIME,
	NATIVE_TIMETZ,
	NATIVE_TIMESTAMP,
	NATIVE_TEXT,
	NATIVE_NUMERIC,
	NATIVE_BIT,
	NATIVE_INET,
	NATIVE_CIDR,
	NATIVE_ARRAY
} NativeCheck;

typedef struct NativeType
{
	Oid			typid;
	Oid			elemid;			/* of arrays */
	int16		len;			/* -1: varlena */
	bool		byval;
	char		align;
	NativeCheck check;
} NativeType;

/* What both ends of a connection can do. */
typedef struct NativeAgreement
{
	bool		agreed;			/* native values at all? */
	bool		lz4;			/* can the receiver decompress lz4? */
	bool		interval;		/* same idea of infinite intervals? */
} NativeAgreement;

/* A value's bytes, taken apart. */
typedef struct NativeValue
{
	bool		compressed;
	bool		lz4;			/* ... with lz4 */
	const char *content;		/* without varlena header; compressed form */
	size_t		len;
	size_t		rawlen;			/* uncompressed length of the content */
} NativeValue;

/* NULL if values of the type never travel natively. */
extern const NativeType *native_type(Oid typid);

/* This server's signature, palloc'd. */
extern char *native_signature(int encoding);
extern void native_agree(const char *own, const char *peer, NativeAgreement *agreement);
extern bool native_agreed_type(const NativeAgreement *agreement, const NativeType *type);

/*
 * What is wrong with bytes from a peer, or NULL: first the outside, then what
 * value->content points to, or what that decompresses to.
 */
extern const char *native_outer_fault(const NativeType *type, const char *data,
									  size_t len, NativeValue *value);
extern const char *native_content_fault(const NativeType *type, const char *content,
										size_t len, int encoding);

/* Values of these have the same content: that of the text. */
extern bool native_is_text(const NativeType *type);

#endif							/* PGPARREP_NATIVE_H */
