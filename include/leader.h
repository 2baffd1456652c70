/*-------------------------------------------------------------------------
 *
 * leader.h
 *	  The leader of a parallel subscription.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_LEADER_H
#define PGPARREP_LEADER_H

#include "postgres.h"

#include "replication/walreceiver.h"

#include "compat.h"

/*
 * Takes the server's apply worker over: called instead of its
 * walrcv_startstreaming, on a connection whose slot is of our output plugin.
 * The process is a leader from here on until it ends.
 */
pg_noreturn extern void pgparrep_leader_main(WalReceiverConn *conn,
											 const WalRcvStreamOptions *options);

/* A transaction of the leader's own; memory stays where it was. */
extern void leader_start_tx(void);
extern void leader_commit_tx(void);

#endif							/* PGPARREP_LEADER_H */
