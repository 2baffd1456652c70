/*-------------------------------------------------------------------------
 *
 * startpoint.h
 *	  Where the publisher can start, and whether that is where we need it to.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_STARTPOINT_H
#define PGPARREP_STARTPOINT_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "replication/walreceiver.h"

#include "shared.h"

/* What the publisher says of itself. */
typedef struct StartPoint
{
	const char *slot_name;
	XLogRecPtr	confirmed;		/* earliest commit the slot sends; 0: no such slot */
	XLogRecPtr	wal_end;		/* 0: a standby, which may still get more */
	uint64		system;			/* its system identifier */
	TimeLineID	timeline;		/* 0: a standby, which can change it unseen */
	XLogRecPtr	branch;			/* from the last leader's timeline; 0: none */
} StartPoint;

/*
 * Asks the publisher, on a connection that does not stream yet.  slot_name is
 * kept.  Failures are errors of the connection.
 */
extern void startpoint_fetch(WalReceiverConn *conn, const char *slot_name,
							 const LastLeader *last, StartPoint *start);

/*
 * Raises an error if changes would be left out, or the subscription has
 * changes that the publisher does not have; trying again does not help.
 * Otherwise notes what the next leader needs to know.  origin: position of the
 * subscription's replication origin, 0 if it has applied nothing.
 */
extern void startpoint_check(const StartPoint *start, XLogRecPtr origin,
							 LastLeader *last);

#endif							/* PGPARREP_STARTPOINT_H */
