/*-------------------------------------------------------------------------
 *
 * takeover.h
 *	  Replaced entries of the walreceiver function table.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_TAKEOVER_H
#define PGPARREP_TAKEOVER_H

#include "postgres.h"

#include "replication/walreceiver.h"

/* Which output plugin the slot of the running CREATE SUBSCRIPTION is for. */
typedef enum TakeoverSlotPlugin
{
	SLOT_PLUGIN_STOCK,			/* the server's own choice */
	SLOT_PLUGIN_EXPLICIT,		/* pgparrep, worker_number was given */
	SLOT_PLUGIN_DEFAULT			/* pgparrep, default_worker_number asks for it */
} TakeoverSlotPlugin;

/*
 * Set by the utility hook for the time of one CREATE SUBSCRIPTION, and reset
 * by it also on error; SLOT_PLUGIN_STOCK at any other time.
 */
extern TakeoverSlotPlugin takeover_slot_plugin;

/*
 * May the worker number of this apply worker's subscription have changed since
 * the last call, or since streaming started?  Costs two comparisons, so that
 * it can be asked between any two messages.  On true the caller reads
 * pgparrep_worker_number() again, in a transaction.
 */
extern bool takeover_subscription_changed(void);

/*
 * Hint for a replication command that failed on the publisher because it does
 * not let the output plugin pgparrep run; null for any other failure.
 */
extern const char *takeover_publisher_hint(const WalRcvExecResult *res);

#endif							/* PGPARREP_TAKEOVER_H */
