/*-------------------------------------------------------------------------
 *
 * feedback.h
 *	  What the leader reports to the publisher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_FEEDBACK_H
#define PGPARREP_FEEDBACK_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"

#include "shared.h"

/*
 * start: of the stream; what comes before it is on the local disk already.
 * last: takes note of what is reported as flushed.
 */
extern void feedback_init(WalReceiverConn *conn, XLogRecPtr start, LastLeader *last);

/*
 * A remote transaction has committed here; called in commit order.  local_end
 * is the end of its local commit record, 0 if it wrote none.
 */
extern void feedback_committed(XLogRecPtr remote_end, XLogRecPtr local_end);

/*
 * Sends a status if there is news, or force.  received: everything up to here
 * has been taken in.  idle: and everything that committed up to here has been
 * applied.
 */
extern void feedback_send(XLogRecPtr received, bool idle, bool force,
						  bool request_reply);

/* Is there a commit that has not been flushed here? */
extern bool feedback_unflushed(void);
extern XLogRecPtr feedback_applied(void);
extern XLogRecPtr feedback_flushed(void);

#endif							/* PGPARREP_FEEDBACK_H */
