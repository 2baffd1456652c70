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
