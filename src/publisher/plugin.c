/*-------------------------------------------------------------------------
 *
 * plugin.c
 *	  The output plugin: load, startup, and who it is for whom.
 *
 * For a client that does not ask for streaming 'extreme' the plugin is
 * pgoutput: the server's own callbacks run on the server's own context, and
 * nothing of ours is called after startup.
 *
 * For the others, startup builds a Publisher.  There is one at most in a
 * process, since there is one replication slot at most.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "pgparrep.h"
#include "publisher.h"
#include "utils/inval.h"
#include "utils/memutils.h"

/* Set by startup; cleared by the shutdown callback or the context's reset. */
Publisher  *publisher = NULL;

/* Set when the library is initialised as an output plugin, then constant. */
static OutputPluginCallbacks pgoutput_callbacks;

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *cb);

static void startup(LogicalDecodingContext *ctx, OutputPluginOptions *opt, bool is_init);

void
_PG_output_plugin_init(OutputPluginCallbacks *cb)
{
	LogicalOutputPluginInit init;

	init = (LogicalOutputPluginInit)
		load_external_function("pgoutput", "_PG_output_plugin_init", true, NULL);
	memset(&pgoutput_callbacks, 0, sizeof(pgoutput_callbacks));
	init(&pgoutput_callbacks);

	*cb = pgoutput_callbacks;
	cb->startup_cb = startup;
}

/*
 * The decoding context goes away, perhaps after an error.  Its child contexts
 * are gone already, the Publisher with them.
 *
 * After an error, 18 gets here with the next command of the connection; before
 * 18 that may never be, if the failed command was the first after one that
 * exported a snapshot.  Then startup calls this.
 */
static void
context_reset(void *arg)
{
	if (publisher != arg)
		return;

	sender_shutdown();
	plan_shutdown();
	publisher = NULL;
}

static void
startup(LogicalDecodingContext *ctx, OutputPluginOptions *opt, bool is_init)
{
	Publisher  *pub;
	MemoryContext cxt;
	MemoryContext old;
	MemoryContextCallback *callback;
	List	   *options = ctx->output_plugin_options;

	if (publisher != NULL)
		context_reset(publisher);

	if (is_init || !options_ask_for_extreme(options))
	{
		pgoutput_callbacks.startup_cb(ctx, opt, is_init);
		return;
	}

	cxt = AllocSetContextCreate(ctx->context, "pgparrep publisher",
								ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(cxt);
	pub = palloc0(sizeof(Publisher));
	pub->ctx = ctx;
	pub->cxt = cxt;
	pub->rowcxt = AllocSetContextCreate(cxt, "pgparrep record", ALLOCSET_DEFAULT_SIZES);
	pub->pgoutput = pgoutput_callbacks;
	options_parse(options, &pub->opts);
	MemoryContextSwitchTo(old);

	/* pgoutput checks what remains, and leaves its state in the context. */
	ctx->output_plugin_options = pub->opts.pgoutput_options;
	pgoutput_callbacks.startup_cb(ctx, opt, is_init);
	ctx->output_plugin_options = options;

	callback = MemoryContextAllocZero(ctx->context, sizeof(MemoryContextCallback));
	callback->func = context_reset;
	callback->arg = pub;
	MemoryContextRegisterResetCallback(ctx->context, callback);

	pub->prepare_write = ctx->prepare_write;
	pub->write = ctx->write;
	pub->update_progress = ctx->update_progress;
	pub->streaming = ctx->update_progress != NULL;

	publisher = pub;
	txn_init(pub);
	plan_init(pub);
	sender_init(pub);
	replay_init(pub);

	/*
	 * Entries of the present, loaded while the connection was made or by
	 * queries before, must not be taken for those of the past.  The SQL
	 * functions do this themselves.
	 */
	if (pub->streaming)
		InvalidateSystemCaches();
}
