/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The options of START_REPLICATION with streaming 'extreme'.
 *
 * Those of pgoutput keep their meaning and are passed on to it, but for
 * streaming, which it would not understand.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "nodes/makefuncs.h"
#include "publisher.h"
#include "utils/builtins.h"
#include "utils/varlena.h"

/* Bits for options already seen. */
enum
{
	OPT_PROTO_VERSION = 1 << 0,
	OPT_PUBLICATION_NAMES = 1 << 1,
	OPT_BINARY = 1 << 2,
	OPT_MESSAGES = 1 << 3,
	OPT_ORIGIN = 1 << 4,
	OPT_STREAMING = 1 << 5,
	OPT_TWO_PHASE = 1 << 6,
	OPT_DECODE_NUM = 1 << 7,
	OPT_RECORDBUFFER = 1 << 8,
	OPT_TXN = 1 << 9,
	OPT_REPORT_SYNC = 1 << 10,
	OPT_NATIVE = 1 << 11
};

/*
 * Names of ours are accepted with hyphens, as documented, and with underscores,
 * which need no quotes.
 */
static bool
name_is(const char *name, const char *hyphenated)
{
	for (; *name != '\0' && *hyphenated != '\0'; name++, hyphenated++)
	{
		if (*name != *hyphenated && !(*name == '_' && *hyphenated == '-'))
			return false;
	}

	return *name == *hyphenated;
}

static char *
get_string(DefElem *def)
{
	if (def->arg == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("option \"%s\" requires a value", def->defname)));

	return strVal(def->arg);
}

static int
get_int(DefElem *def, int min, int max)
{
	char	   *string = get_string(def);
	char	   *end;
	long		value;

	errno = 0;
	value = strtol(string, &end, 10);
	if (end == string || *end != '\0' || isspace((unsigned char) *string))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\": \"%s\"", def->defname, string),
				 errdetail("The value must be an integer from %d to %d.", min, max)));
	if (errno != 0 || value < min || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value \"%s\" of option \"%s\" is out of range", string, def->defname),
				 errdetail("The value must be an integer from %d to %d.", min, max)));

	return (int) value;
}

static void
get_origin(DefElem *def, PublisherOptions *opts)
{
	char	   *string = get_string(def);

	if (pg_strcasecmp(string, "none") == 0)
		opts->no_origin = true;
	else if (pg_strcasecmp(string, "any") == 0)
		opts->no_origin = false;
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\": \"%s\"", def->defname, string),
				 errdetail("The value must be \"any\" or \"none\".")));
}

/*
 * Does the client want the F stream?
 */
bool
options_ask_for_extreme(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = (DefElem *) lfirst(lc);

		if (strcmp(def->defname, "streaming") == 0 && def->arg != NULL &&
			pg_strcasecmp(strVal(def->arg), "extreme") == 0)
			return true;
	}

	return false;
}

void
options_parse(List *options, PublisherOptions *opts)
{
	int			seen = 0;
	ListCell   *lc;

	memset(opts, 0, sizeof(PublisherOptions));
	opts->parallel_decode_num = 1;

	foreach(lc, options)
	{
		DefElem    *def = (DefElem *) lfirst(lc);
		bool		pass_on = true;
		int			bit;

		if (strcmp(def->defname, "proto_version") == 0)
		{
			bit = OPT_PROTO_VERSION;
			(void) get_string(def);
		}
		else if (strcmp(def->defname, "publication_names") == 0)
		{
			bit = OPT_PUBLICATION_NAMES;
			/* a copy, since it is taken apart */
			if (!SplitIdentifierString(pstrdup(get_string(def)), ',',
									   &opts->publication_names))
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_NAME),
						 errmsg("invalid publication_names syntax")));
		}
		else if (strcmp(def->defname, "binary") == 0)
		{
			bit = OPT_BINARY;
			opts->binary = defGetBoolean(def);
		}
		else if (strcmp(def->defname, "messages") == 0)
		{
			bit = OPT_MESSAGES;
			opts->messages = defGetBoolean(def);
		}
		else if (strcmp(def->defname, "origin") == 0)
		{
			bit = OPT_ORIGIN;
			get_origin(def, opts);
			pass_on = COMPAT_PGOUTPUT_HAS_ORIGIN;
		}
		else if (strcmp(def->defname, "streaming") == 0)
		{
			bit = OPT_STREAMING;
			opts->extreme = true;
			pass_on = false;
		}
		else if (strcmp(def->defname, "two_phase") == 0)
		{
			bit = OPT_TWO_PHASE;
			(void) defGetBoolean(def);
		}
		else if (name_is(def->defname, "parallel-decode-num"))
		{
			bit = OPT_DECODE_NUM;
			opts->parallel_decode_num = get_int(def, 1, MAX_PARALLEL_DECODE_NUM);
			pass_on = false;
		}
		else if (name_is(def->defname, "max-recordbuffer-in-memory"))
		{
			bit = OPT_RECORDBUFFER;
			opts->max_recordbuffer_mb = get_int(def, 0, MAX_MEMORY_OPTION_MB);
			pass_on = false;
		}
		else if (name_is(def->defname, "max-txn-in-memory"))
		{
			bit = OPT_TXN;
			opts->max_txn_mb = get_int(def, 0, MAX_MEMORY_OPTION_MB);
			pass_on = false;
		}
		else if (name_is(def->defname, "report-sync"))
		{
			bit = OPT_REPORT_SYNC;
			opts->report_sync = defGetBoolean(def);
			pass_on = false;
		}
		else if (name_is(def->defname, "native-signature"))
		{
			bit = OPT_NATIVE;
			native_agree(native_signature(GetDatabaseEncoding()), get_string(def),
						 &opts->native);
			/* What comes through the protocol as text would be converted. */
			if (pg_get_client_encoding() != GetDatabaseEncoding())
				opts->native.agreed = false;
			pass_on = false;
		}
		else
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("unrecognized option \"%s\" of output plugin \"%s\"",
							def->defname, "pgparrep")));

		if ((seen & bit) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options"),
					 errdetail("Option \"%s\" is given more than once.", def->defname)));
		seen |= bit;

		if (pass_on)
			opts->pgoutput_options = lappend(opts->pgoutput_options, def);
	}

	if (opts->binary && (seen & OPT_NATIVE) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("conflicting or redundant options"),
				 errdetail("Option \"binary\" cannot be used together with \"native-signature\".")));

	if ((seen & OPT_PROTO_VERSION) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" missing", "proto_version")));
	if ((seen & OPT_PUBLICATION_NAMES) == 0 || opts->publication_names == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" missing", "publication_names")));
}
