/*-------------------------------------------------------------------------
 *
 * interface.h
 *	  Subscription option worker_number and the label that stores it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGPARREP_INTERFACE_H
#define PGPARREP_INTERFACE_H

#include "postgres.h"

/*
 * Effective worker number of a subscription: 0 or 1 means stock apply.
 * *explicit (may be NULL) tells whether the subscription itself says a number,
 * as opposed to pgparrep.default_worker_number.  Needs a transaction; opens no
 * relation that a user could have locked.
 */
extern int	pgparrep_worker_number(Oid subid, bool *explicit);

/* label.c, for interface.c */
extern void label_init(void);
extern void label_set(Oid subid, int worker_number);
extern void label_delete(Oid subid);
extern bool label_get(Oid subid, int *worker_number);

#endif							/* PGPARREP_INTERFACE_H */
