--
-- The output plugin behind the SQL functions: as pgoutput, and with F frames.
--
-- The functions replay whole transactions at their commit; what the walsender
-- streams before is tested in t/.
--

-- Recent minor releases load only the plugins that this setting names.
SELECT count(set_config(name, 'pgoutput, test_decoding, pgparrep', false)) < 2 AS ok
FROM pg_settings WHERE name = 'output_plugin_libraries';

CREATE TABLE frames_t (id int PRIMARY KEY, v text, n numeric);
CREATE TABLE frames_full (id int, v text);
ALTER TABLE frames_full REPLICA IDENTITY FULL;
CREATE TYPE frames_mood AS ENUM ('sad', 'happy');
CREATE TABLE frames_mood_t (id int PRIMARY KEY, m frames_mood);
CREATE PUBLICATION frames_pub FOR TABLE frames_t, frames_full, frames_mood_t;

SELECT 'init' FROM pg_create_logical_replication_slot('frames', 'pgparrep');

-- Frames of one message: 'F', xid, length, type, body.  OIDs, xids, positions
-- and times differ from run to run.
CREATE FUNCTION frames(data bytea) RETURNS TABLE (has_xid bool, len int, type text, body text)
LANGUAGE plpgsql AS $$
DECLARE
	pos int := 1;
	b bytea;
BEGIN
	WHILE pos <= length(data) LOOP
		IF substring(data FROM pos FOR 1) <> 'F'::bytea THEN
			RAISE 'no frame at %', pos;
		END IF;
		has_xid := substring(data FROM pos + 1 FOR 4) <> '\x00000000';
		len := ('x' || encode(substring(data FROM pos + 5 FOR 4), 'hex'))::bit(32)::int;
		b := substring(data FROM pos + 9 FOR len);
		type := convert_from(substring(b FROM 1 FOR 1), 'UTF8');
		body := CASE
			WHEN type IN ('I', 'U', 'D', 'R', 'Y') THEN '(oid)' || encode(substring(b FROM 6), 'escape')
			WHEN type = 'T' THEN encode(substring(b FROM 2 FOR 5), 'hex') || '(oids)'
			WHEN type = 'M' THEN encode(substring(b FROM 2 FOR 1), 'hex') || '(lsn)' || encode(substring(b FROM 11), 'escape')
			WHEN type = 'C' THEN encode(substring(b FROM 2 FOR 1), 'hex') || '(lsn)(lsn)(time)'
			ELSE encode(substring(b FROM 2), 'hex') END;
		-- user-defined types have other OIDs each time
		IF type = 'R' AND body LIKE '%frames_mood%' THEN
			body := regexp_replace(body, 'm\\000.*(\\377\\377\\377\\377)$', 'm\000(oid)\1');
		END IF;
		RETURN NEXT;
		pos := pos + 9 + len;
	END LOOP;
END $$;

INSERT INTO frames_t VALUES (1, 'one', 1.5), (2, NULL, NULL);
UPDATE frames_t SET v = 'eins' WHERE id = 1;
UPDATE frames_t SET id = 10 WHERE id = 1;
DELETE FROM frames_t WHERE id = 2;
BEGIN;
INSERT INTO frames_full VALUES (1, 'a');
SAVEPOINT s;
INSERT INTO frames_full VALUES (2, 'rolled back');
ROLLBACK TO s;
UPDATE frames_full SET v = 'b';
DELETE FROM frames_full;
COMMIT;
BEGIN;
INSERT INTO frames_t VALUES (3, 'rolled back', 0);
ROLLBACK;
INSERT INTO frames_mood_t VALUES (1, 'happy');
SELECT 'msg' FROM pg_logical_emit_message(true, 'prefix', 'transactional');
SELECT 'msg' FROM pg_logical_emit_message(false, 'prefix', 'not transactional');
TRUNCATE frames_t, frames_full RESTART IDENTITY;

SELECT f.* FROM pg_logical_slot_peek_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'messages', 'true',
	'streaming', 'extreme'), frames(data) f;

-- peek has consumed nothing; without messages; options of ours are accepted
SELECT string_agg(f.type, '' ORDER BY lsn, ord) FROM pg_logical_slot_peek_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub',
	'streaming', 'extreme', 'parallel-decode-num', '4', 'max-txn-in-memory', '0')
	WITH ORDINALITY AS c (lsn, xid, data, ord), frames(data) f;

-- the same as pgoutput
SELECT substring(data FROM 1 FOR 1) AS type, count(*) FROM pg_logical_slot_peek_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub') GROUP BY 1 ORDER BY 1;

-- binary output is refused by the text functions
SELECT * FROM pg_logical_slot_peek_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'streaming', 'extreme');

-- errors leave the session in the present
SELECT * FROM pg_logical_slot_peek_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'streaming', 'extreme',
	'parallel-decode-num', '21');
SELECT * FROM pg_logical_slot_peek_binary_changes('frames', NULL, NULL,
	'proto_version', '2', 'publication_names', 'frames_pub', 'streaming', 'extreme',
	'two_phase', 'on');
CREATE TABLE frames_later (id int);
SELECT count(*) FROM frames_later;

-- get consumes, and xid and lsn are those of pgoutput
SELECT count(*) > 0 AS some, bool_and(xid::text <> '0' OR f.type = 'M') AS xids, bool_and(lsn > '0/0') AS lsns
FROM pg_logical_slot_get_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'messages', 'true',
	'streaming', 'extreme'), frames(data) f;
SELECT count(*) FROM pg_logical_slot_get_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'streaming', 'extreme');

-- inside of a transaction, with a limit, through a subtransaction of the session
INSERT INTO frames_t VALUES (5, 'five', 5), (6, 'six', 6);
INSERT INTO frames_t VALUES (7, 'seven', 7);
BEGIN;
SAVEPOINT s;
SELECT f.type, f.body FROM pg_logical_slot_get_binary_changes('frames', NULL, 1,
	'proto_version', '1', 'publication_names', 'frames_pub', 'streaming', 'extreme'), frames(data) f;
ROLLBACK TO s;
SELECT count(*) FROM frames_t;
COMMIT;
SELECT f.type, f.body FROM pg_logical_slot_get_binary_changes('frames', NULL, NULL,
	'proto_version', '1', 'publication_names', 'frames_pub', 'streaming', 'extreme'), frames(data) f;

SELECT pg_drop_replication_slot('frames');
DROP PUBLICATION frames_pub;
DROP TABLE frames_t, frames_full, frames_mood_t, frames_later;
DROP TYPE frames_mood;
DROP FUNCTION frames(bytea);
