/*-------------------------------------------------------------------------
 *
 * streamrel.c
 *	  Relations as the publisher announced them, in versions (leader).
 *
 * Owns all RelVersions and their copies in the DSA area.
 *
 * I1	A version never changes after it was made, and its number is never used
 *		again in the life of the leader.
 * I2	A version lives while it is current or pinned; so what a buffered
 *		change or a worker refers to is always there.
 *
 *-------------------------------------------------------------------------
 */
#include "pgparrep.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "fstream.h"
#include "streamrel.h"

typedef struct CurrentRel
{
	LogicalRepRelId remoteid;	/* hash key */
	RelVersion *rel;
} CurrentRel;

typedef struct VersionEntry
{
	uint32		version;		/* hash key */
	RelVersion *rel;
} VersionEntry;

static dsa_area *rel_area;
static MemoryContext rel_mcxt;
static HTAB *current_rels;		/* by remote OID */
static HTAB *all_versions;		/* by version */
static uint32 last_version = 0;

void
streamrel_init(dsa_area *area)
{
	HASHCTL		ctl;

	rel_area = area;
	rel_mcxt = AllocSetContextCreate(TopMemoryContext,
									 "pgparrep remote relations",
									 ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(LogicalRepRelId);
	ctl.entrysize = sizeof(CurrentRel);
	ctl.hcxt = rel_mcxt;
	current_rels = hash_create("pgparrep current relations", 128, &ctl,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ctl.keysize = sizeof(uint32);
	ctl.entrysize = sizeof(VersionEntry);
	all_versions = hash_create("pgparrep relation versions", 128, &ctl,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
free_if_unused(RelVersion *rel)
{
	if (rel->current || rel->pins > 0)
		return;
	hash_search(all_versions, &rel->version, HASH_REMOVE, NULL);
	dsa_free(rel_area, rel->body);
	MemoryContextDelete(rel->mcxt);
}

RelVersion *
streamrel_define(const char *body, int len)
{
	MemoryContext mcxt = AllocSetContextCreate(rel_mcxt,
											   "pgparrep remote relation",
											   ALLOCSET_SMALL_SIZES);
	MemoryContext oldcxt = MemoryContextSwitchTo(mcxt);
	RelVersion *rel = palloc0(sizeof(RelVersion));
	StringInfoData s;
	CurrentRel *cur;
	VersionEntry *entry;
	bool		found;

	initStringInfo(&s);
	appendBinaryStringInfo(&s, body, len);
	rel->mcxt = mcxt;
	rel->rel = logicalrep_read_rel(&s);
	pfree(s.data);
	rel->typmods = palloc(sizeof(int32) * Max(rel->rel->natts, 1));
	if (!fstream_get_typmods(body, len, rel->rel->natts, rel->typmods))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("invalid description of a remote relation"),
				 errdetail("The columns of \"%s.%s\" cannot be read.",
						   rel->rel->nspname, rel->rel->relname)));
	rel->remoteid = rel->rel->remoteid;
	rel->len = len;
	rel->body = dsa_allocate(rel_area, len);
	memcpy(dsa_get_address(rel_area, rel->body), body, len);
	rel->version = ++last_version;
	rel->current = true;
	MemoryContextSwitchTo(oldcxt);

	entry = hash_search(all_versions, &rel->version, HASH_ENTER, NULL);
	entry->rel = rel;

	cur = hash_search(current_rels, &rel->remoteid, HASH_ENTER, &found);
	if (found)
	{
		cur->rel->current = false;
		free_if_unused(cur->rel);
	}
	cur->rel = rel;
	return rel;
}

RelVersion *
streamrel_lookup(LogicalRepRelId remoteid)
{
	static CurrentRel *last = NULL;

	/* Entries of a dynahash stay where they are, and none is removed. */
	if (last == NULL || last->remoteid != remoteid)
		last = hash_search(current_rels, &remoteid, HASH_FIND, NULL);
	return last ? last->rel : NULL;
}

RelVersion *
streamrel_version(uint32 version)
{
	VersionEntry *entry = hash_search(all_versions, &version, HASH_FIND, NULL);

	Assert(entry != NULL);		/* I2 */
	return entry->rel;
}

void
streamrel_pin(RelVersion *rel)
{
	rel->pins++;
}

void
streamrel_unpin(RelVersion *rel)
{
	Assert(rel->pins > 0);
	rel->pins--;
	free_if_unused(rel);
}

void
streamrel_foreach(void (*callback)(RelVersion *rel, void *arg), void *arg)
{
	HASH_SEQ_STATUS seq;
	VersionEntry *entry;

	hash_seq_init(&seq, all_versions);
	while ((entry = hash_seq_search(&seq)) != NULL)
		callback(entry->rel, arg);
}
