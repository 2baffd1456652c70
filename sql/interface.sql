--
-- Subscription option worker_number: syntax, storage as a label, view.
-- Needs pgparrep in shared_preload_libraries.  No subscription here connects.
--
SET client_min_messages = error;	-- the text about connect = false varies
CREATE EXTENSION IF NOT EXISTS pgparrep;

CREATE VIEW labels AS
	SELECT s.subname, l.label, v.subwkrnum
	  FROM pg_catalog.pg_subscription s
	  LEFT JOIN pg_shseclabel l ON l.objoid = s.oid AND l.classoid = 'pg_catalog.pg_subscription'::regclass
	  JOIN pgparrep.pg_subscription v USING (oid)
	 ORDER BY 1;

-- values
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = foo);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = true);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 2.5);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = ' 8');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '8x');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '99999999999999999999');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 99999999999);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = -1);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '-1');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 257);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '257');
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 4, worker_number = 4);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_numbers = 4);
CREATE SUBSCRIPTION regress_ppr CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 4, no_such_option = 1);
SELECT count(*) FROM pg_shseclabel WHERE provider = 'pgparrep';

CREATE SUBSCRIPTION regress_ppr_256 CONNECTION 'dbname=none' PUBLICATION p WITH (worker_number = 256, connect = false);
CREATE SUBSCRIPTION regress_ppr_str CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = '008');
CREATE SUBSCRIPTION regress_ppr_0 CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 0, binary = true);
CREATE SUBSCRIPTION regress_ppr_1 CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, worker_number = 1);
CREATE SUBSCRIPTION regress_ppr_none CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false);
SELECT * FROM labels;
SELECT subname, subbinary FROM pg_catalog.pg_subscription WHERE subname = 'regress_ppr_0';

-- ALTER: values
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = -1);
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 257);
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = many);
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 2, worker_number = 3);
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 2, no_such_option = 1);
ALTER SUBSCRIPTION regress_ppr_missing SET (worker_number = 2);
ALTER SUBSCRIPTION regress_ppr_none SET PUBLICATION p WITH (refresh = false, worker_number = 2);
SELECT * FROM labels WHERE subname = 'regress_ppr_none';

-- alone, and with other options, which must not be lost
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 4);
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
ALTER SUBSCRIPTION regress_ppr_none SET (binary = true, worker_number = 16, synchronous_commit = local);
SELECT subname, subbinary, subsynccommit, subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'regress_ppr_none';
-- other options alone leave it as it is
ALTER SUBSCRIPTION regress_ppr_none SET (binary = false);
SELECT * FROM labels WHERE subname = 'regress_ppr_none';

-- transactional
BEGIN;
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 5);
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
SAVEPOINT s;
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 6);
ROLLBACK TO s;
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
ROLLBACK;
SELECT * FROM labels WHERE subname = 'regress_ppr_none';

-- a cached plan is executed as it was parsed, each time
CREATE FUNCTION set_sixteen_or_seven(seven bool) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF seven THEN
		ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 7, binary = true);
	ELSE
		ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 16);
	END IF;
	RETURN subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'regress_ppr_none';
END $$;
SELECT set_sixteen_or_seven(true), set_sixteen_or_seven(false), set_sixteen_or_seven(true), set_sixteen_or_seven(false);
CREATE FUNCTION create_and_drop() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	result int;
BEGIN
	CREATE SUBSCRIPTION regress_ppr_function CONNECTION 'dbname=none' PUBLICATION p
		WITH (connect = false, worker_number = 9, slot_name = NONE);
	result := subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'regress_ppr_function';
	DROP SUBSCRIPTION regress_ppr_function;
	RETURN result;
END $$;
SELECT create_and_drop();
SELECT create_and_drop();
DO $$
BEGIN
	FOR i IN 1..3 LOOP
		CREATE SUBSCRIPTION regress_ppr_do CONNECTION 'dbname=none' PUBLICATION p
			WITH (connect = false, worker_number = 3, slot_name = NONE);
		ALTER SUBSCRIPTION regress_ppr_do SET (worker_number = 2);
		IF (SELECT subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'regress_ppr_do') <> 2 THEN
			RAISE 'worker_number was lost';
		END IF;
		DROP SUBSCRIPTION regress_ppr_do;
	END LOOP;
END $$;
-- a failing command inside a block, then a stock one: nothing sticks
DO $$
BEGIN
	BEGIN
		CREATE SUBSCRIPTION regress_ppr_do CONNECTION 'no such option=1' PUBLICATION p
			WITH (connect = false, worker_number = 3);
	EXCEPTION WHEN OTHERS THEN
		NULL;
	END;
	CREATE SUBSCRIPTION regress_ppr_do CONNECTION 'dbname=none' PUBLICATION p
		WITH (connect = false, slot_name = NONE);
END $$;
SELECT * FROM labels WHERE subname = 'regress_ppr_do';
DROP SUBSCRIPTION regress_ppr_do;

-- two_phase goes with any number of workers
CREATE SUBSCRIPTION regress_ppr_2pc CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, two_phase = perhaps, worker_number = 2);
CREATE SUBSCRIPTION regress_ppr_2pc CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, two_phase = on, worker_number = 2, slot_name = NONE);
SELECT * FROM labels WHERE subname = 'regress_ppr_2pc';
ALTER SUBSCRIPTION regress_ppr_2pc SET (worker_number = 0);
ALTER SUBSCRIPTION regress_ppr_2pc SET (worker_number = 3);
SELECT * FROM labels WHERE subname = 'regress_ppr_2pc';
DROP SUBSCRIPTION regress_ppr_2pc;

-- the label directly
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=12';
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=257';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=08';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=-1';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'worker_number=8 ';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS 'classified';
SECURITY LABEL FOR pgparrep ON VIEW labels IS 'worker_number=8';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_missing IS 'worker_number=8';
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_none IS NULL;
SELECT * FROM labels WHERE subname = 'regress_ppr_none';

-- a label that nobody could have set means serial
INSERT INTO pg_shseclabel
	SELECT oid, 'pg_catalog.pg_subscription'::regclass, 'pgparrep', 'worker_number=999'
	  FROM pg_catalog.pg_subscription WHERE subname = 'regress_ppr_none';
SELECT * FROM labels WHERE subname = 'regress_ppr_none';
ALTER SUBSCRIPTION regress_ppr_none SET (worker_number = 4);
SELECT * FROM labels WHERE subname = 'regress_ppr_none';

-- rename keeps it, drop removes it; a drop that is rolled back does not
ALTER SUBSCRIPTION regress_ppr_none RENAME TO regress_ppr_renamed;
SELECT * FROM labels WHERE subname = 'regress_ppr_renamed';
BEGIN;
ALTER SUBSCRIPTION regress_ppr_renamed SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_renamed;
SELECT count(*) FROM pg_shseclabel WHERE provider = 'pgparrep' AND label = 'worker_number=4';
ROLLBACK;
SELECT * FROM labels WHERE subname = 'regress_ppr_renamed';

-- owner
CREATE ROLE regress_ppr_owner SUPERUSER;
CREATE ROLE regress_ppr_other;
ALTER SUBSCRIPTION regress_ppr_renamed OWNER TO regress_ppr_owner;
ALTER ROLE regress_ppr_owner NOSUPERUSER;
SET ROLE regress_ppr_owner;
ALTER SUBSCRIPTION regress_ppr_renamed SET (worker_number = 11);
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_renamed IS 'worker_number=10';
SET ROLE regress_ppr_other;
ALTER SUBSCRIPTION regress_ppr_renamed SET (worker_number = 12);
SECURITY LABEL FOR pgparrep ON SUBSCRIPTION regress_ppr_renamed IS 'worker_number=13';

-- the view: everything but the connection string
SELECT subname, subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'regress_ppr_renamed';
SELECT subconninfo FROM pgparrep.pg_subscription;
SELECT * FROM pgparrep.pg_subscription;
RESET ROLE;
SELECT attname FROM pg_attribute
 WHERE attrelid = 'pgparrep.pg_subscription'::regclass AND attnum > 0
   AND NOT has_column_privilege('regress_ppr_other', attrelid, attnum, 'SELECT');
-- the catalog's columns in the catalog's order, then one
SELECT attname FROM (
	SELECT attnum, attname, atttypid FROM pg_attribute WHERE attrelid = 'pgparrep.pg_subscription'::regclass AND attnum > 0
	EXCEPT
	SELECT attnum, attname, atttypid FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_subscription'::regclass AND attnum > 0) x;
SELECT count(*) = (SELECT count(*) + 1 FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_subscription'::regclass AND attnum > 0)
  FROM pg_attribute WHERE attrelid = 'pgparrep.pg_subscription'::regclass AND attnum > 0;
SELECT pgparrep.subscription_worker_number(0);

-- drop everything: no label may be left
ALTER SUBSCRIPTION regress_ppr_256 SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_256;
ALTER SUBSCRIPTION regress_ppr_str SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_str;
ALTER SUBSCRIPTION regress_ppr_0 SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_0;
ALTER SUBSCRIPTION regress_ppr_1 SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_1;
ALTER SUBSCRIPTION regress_ppr_renamed SET (slot_name = NONE);
DROP SUBSCRIPTION regress_ppr_renamed;
SELECT count(*) FROM pg_shseclabel WHERE provider = 'pgparrep';
DROP FUNCTION set_sixteen_or_seven, create_and_drop;
DROP VIEW labels;
DROP ROLE regress_ppr_owner, regress_ppr_other;
