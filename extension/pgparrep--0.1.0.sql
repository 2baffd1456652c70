/* extension/pgparrep--0.1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pgparrep" to load this file. \quit

--
-- Subscriptions and their worker numbers
--

CREATE FUNCTION @extschema@.subscription_worker_number(subid oid)
RETURNS int4
AS 'MODULE_PATHNAME', 'pgparrep_subscription_worker_number'
LANGUAGE C STABLE STRICT PARALLEL SAFE;

COMMENT ON FUNCTION @extschema@.subscription_worker_number(oid) IS
'worker number in force for a subscription; 0 and 1 mean the server''s own serial apply';

-- All columns that pg_subscription has on this server.  As there, everybody may
-- read all of them but the connection string.  (pg_upgrade carries the view as
-- it is: drop and create the extension to see a later release's columns.)
DO $do$
DECLARE
	all_columns text;
	open_columns text;
BEGIN
	SELECT string_agg(format('s.%I', attname), ', ' ORDER BY attnum),
		   string_agg(format('%I', attname), ', ' ORDER BY attnum)
			   FILTER (WHERE attname <> 'subconninfo')
	  INTO all_columns, open_columns
	  FROM pg_catalog.pg_attribute
	 WHERE attrelid = 'pg_catalog.pg_subscription'::regclass
	   AND attnum > 0 AND NOT attisdropped;

	EXECUTE format('CREATE VIEW @extschema@.pg_subscription AS '
				   'SELECT %s, @extschema@.subscription_worker_number(s.oid) AS subwkrnum '
				   'FROM pg_catalog.pg_subscription s', all_columns);
	EXECUTE format('GRANT SELECT (%s, subwkrnum) ON @extschema@.pg_subscription TO PUBLIC',
				   open_columns);
END
$do$;

COMMENT ON VIEW @extschema@.pg_subscription IS
'pg_catalog.pg_subscription with the worker number of each subscription';
COMMENT ON COLUMN @extschema@.pg_subscription.subwkrnum IS
'worker number in force; 0 and 1 mean the server''s own serial apply';

GRANT USAGE ON SCHEMA @extschema@ TO PUBLIC;

--
-- Statistics of parallel subscriptions
--

CREATE FUNCTION @extschema@.stat_get_subscription(
	OUT subid oid,
	OUT leader_pid int4,
	OUT workers_wanted int4,
	OUT workers int4,
	OUT received_lsn pg_lsn,
	OUT applied_lsn pg_lsn,
	OUT flushed_lsn pg_lsn,
	OUT in_progress int8,
	OUT cached int8,
	OUT spilled int8,
	OUT waiting_for_commit int8,
	OUT transactions int8,
	OUT retries int8,
	OUT yields int8,
	OUT deadlocks int8,
	OUT eager int8,
	OUT eager_rolled_back int8)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgparrep_stat_get_subscription'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION @extschema@.stat_get_subscription() IS
'state of each leader, from shared memory';

CREATE VIEW @extschema@.stat_subscription AS
SELECT g.subid, s.subname, g.leader_pid, g.workers_wanted, g.workers,
	   g.received_lsn, g.applied_lsn, g.flushed_lsn,
	   g.in_progress, g.cached, g.spilled, g.waiting_for_commit,
	   g.transactions, g.retries, g.yields, g.deadlocks,
	   g.eager, g.eager_rolled_back
  FROM @extschema@.stat_get_subscription() g
  LEFT JOIN pg_catalog.pg_subscription s ON s.oid = g.subid;

COMMENT ON VIEW @extschema@.stat_subscription IS
'one row for each subscription that is being applied in parallel';
COMMENT ON COLUMN @extschema@.stat_subscription.workers_wanted IS
'apply workers asked for; fewer than worker_number while tables are in initial copy and need slots of max_worker_processes';
COMMENT ON COLUMN @extschema@.stat_subscription.workers IS
'apply workers that were started';
COMMENT ON COLUMN @extschema@.stat_subscription.received_lsn IS
'publisher''s WAL position up to which everything has been received';
COMMENT ON COLUMN @extschema@.stat_subscription.applied_lsn IS
'publisher''s WAL position up to which every transaction is visible here';
COMMENT ON COLUMN @extschema@.stat_subscription.flushed_lsn IS
'publisher''s WAL position up to which every transaction is on disk here';
COMMENT ON COLUMN @extschema@.stat_subscription.in_progress IS
'remote transactions received in part, which have not committed there: cached + spilled';
COMMENT ON COLUMN @extschema@.stat_subscription.cached IS
'of those in progress, in memory';
COMMENT ON COLUMN @extschema@.stat_subscription.spilled IS
'of those in progress, in temporary files';
COMMENT ON COLUMN @extschema@.stat_subscription.waiting_for_commit IS
'remote transactions that have committed there and not yet here';
COMMENT ON COLUMN @extschema@.stat_subscription.transactions IS
'remote transactions committed here since the leader started';
COMMENT ON COLUMN @extschema@.stat_subscription.retries IS
'attempts to apply a transaction that were repeated, since the leader started';
COMMENT ON COLUMN @extschema@.stat_subscription.yields IS
'of those, the attempt was rolled back because an earlier transaction waited for its locks: a conflict with the commit order';
COMMENT ON COLUMN @extschema@.stat_subscription.deadlocks IS
'of those, the server found a deadlock and ended the attempt: with another worker or a local session';
COMMENT ON COLUMN @extschema@.stat_subscription.eager IS
'transactions that were begun before they had committed there (pgparrep.eager_threshold), since the leader started';
COMMENT ON COLUMN @extschema@.stat_subscription.eager_rolled_back IS
'of those, rolled back here: aborted there, or applied after their commit instead';

CREATE FUNCTION @extschema@.stat_get_apply_worker(
	OUT subid oid,
	OUT pid int4,
	OUT leader_pid int4,
	OUT state text,
	OUT remote_xid xid,
	OUT commit_lsn pg_lsn,
	OUT transactions int8,
	OUT changes int8,
	OUT retries int8,
	OUT postponed int8,
	OUT missing_rows int8,
	OUT waits_for_commits int8)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgparrep_stat_get_apply_worker'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION @extschema@.stat_get_apply_worker() IS
'state of each apply worker, from shared memory';

CREATE VIEW @extschema@.stat_apply_worker AS
SELECT g.subid, s.subname, g.pid, g.leader_pid, g.state, g.remote_xid,
	   g.commit_lsn, g.transactions, g.changes, g.retries, g.postponed, g.missing_rows,
	   CASE WHEN g.waits_for_commits IS NOT NULL
			THEN format('commit of the transaction %s before its own', g.waits_for_commits)
			WHEN g.state = 'waiting for changes'
			THEN 'more of the transaction from the publisher'
			WHEN a.wait_event IS NOT NULL
			THEN a.wait_event_type || ': ' || a.wait_event
	   END AS waits_for
  FROM @extschema@.stat_get_apply_worker() g
  LEFT JOIN pg_catalog.pg_subscription s ON s.oid = g.subid
  LEFT JOIN pg_catalog.pg_stat_get_activity(NULL) a ON a.pid = g.pid;

COMMENT ON VIEW @extschema@.stat_apply_worker IS
'one row for each apply worker of a parallel subscription';
COMMENT ON COLUMN @extschema@.stat_apply_worker.state IS
'starting, idle, applying, waiting for dependency, waiting for turn, waiting to retry, waiting for changes, committing or stopped';
COMMENT ON COLUMN @extschema@.stat_apply_worker.remote_xid IS
'publisher''s transaction in work';
COMMENT ON COLUMN @extschema@.stat_apply_worker.commit_lsn IS
'where it finished on the publisher, if it has; the position that ALTER SUBSCRIPTION ... SKIP takes';
COMMENT ON COLUMN @extschema@.stat_apply_worker.changes IS
'changes applied in committed transactions';
COMMENT ON COLUMN @extschema@.stat_apply_worker.postponed IS
'changes that had to wait for an earlier transaction and were applied after later ones of their own';
COMMENT ON COLUMN @extschema@.stat_apply_worker.missing_rows IS
'updates and deletes whose row was not there';
COMMENT ON COLUMN @extschema@.stat_apply_worker.waits_for IS
'what it waits for: an earlier commit, more changes, or the server''s wait event';

GRANT SELECT ON @extschema@.stat_subscription, @extschema@.stat_apply_worker TO PUBLIC;

--
-- Statistics of decoders, on a publisher
--

CREATE FUNCTION @extschema@.stat_get_decoder(
	OUT slot_name name,
	OUT walsender_pid int4,
	OUT reader_lsn pg_lsn,
	OUT pid int4,
	OUT state text,
	OUT batches int8,
	OUT bytes int8,
	OUT queued_batches int4,
	OUT batches_in_flight int4,
	OUT max_batches int4,
	OUT walsender_batches int8,
	OUT streamed_changes int8,
	OUT reordered_start int8,
	OUT reordered_catalog int8,
	OUT reordered_relation int8,
	OUT reordered_memory int8,
	OUT reordered_other int8)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgparrep_stat_get_decoder'
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;

COMMENT ON FUNCTION @extschema@.stat_get_decoder() IS
'state of each decoder, from the memory that it shares with its walsender';

CREATE VIEW @extschema@.stat_decoder AS
SELECT * FROM @extschema@.stat_get_decoder();

COMMENT ON VIEW @extschema@.stat_decoder IS
'one row for each decoder on this publisher, which need not preload the library; none for a walsender that decodes itself';
COMMENT ON COLUMN @extschema@.stat_decoder.reader_lsn IS
'where the walsender reads the WAL';
COMMENT ON COLUMN @extschema@.stat_decoder.state IS
'starting, idle, working or waiting for walsender';
COMMENT ON COLUMN @extschema@.stat_decoder.batches IS
'batches that this decoder has claimed since the connection began';
COMMENT ON COLUMN @extschema@.stat_decoder.bytes IS
'bytes that it has made of them';
COMMENT ON COLUMN @extschema@.stat_decoder.queued_batches IS
'batches of the connection that wait for a decoder';
COMMENT ON COLUMN @extschema@.stat_decoder.batches_in_flight IS
'batches of the connection that are not sent yet, at most max_batches';
COMMENT ON COLUMN @extschema@.stat_decoder.walsender_batches IS
'batches of the connection that the walsender formatted itself, since no decoder had begun or one gave up';
COMMENT ON COLUMN @extschema@.stat_decoder.streamed_changes IS
'changes of the connection sent in WAL order';
COMMENT ON COLUMN @extschema@.stat_decoder.reordered_start IS
'changes left to the reorder buffer: their transaction was open at the start';
COMMENT ON COLUMN @extschema@.stat_decoder.reordered_catalog IS
'likewise: their transaction has changed catalogs (DDL, TRUNCATE, temporary tables)';
COMMENT ON COLUMN @extschema@.stat_decoder.reordered_relation IS
'likewise: from a row filter, a column list, publishing via a root or a generated column on';
COMMENT ON COLUMN @extschema@.stat_decoder.reordered_memory IS
'likewise: from a bound on memory on';
COMMENT ON COLUMN @extschema@.stat_decoder.reordered_other IS
'likewise: unknown records, failed lookups';

GRANT SELECT ON @extschema@.stat_decoder TO PUBLIC;
