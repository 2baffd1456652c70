# Concurrent random work, including DDL while transactions are open: what is
# streamed is what pgoutput replays.
#
# A plan that outlives an invalidation, a transaction queued too late or a row
# under the wrong subtransaction shows up as a difference in bytes.
#
# Changes of the publication itself are in 103_publication.pl: pgoutput is not
# exact there and cannot serve as the reference.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher',
	logical_decoding_work_mem => '64kB',
	max_prepared_transactions => 10,
	deadlock_timeout => '10ms',
	autovacuum => 'off');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE b (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE b REPLICA IDENTITY FULL;
	CREATE TABLE f (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE f REPLICA IDENTITY FULL;
	CREATE TABLE off (id int PRIMARY KEY, v int, big text, m text);
	CREATE TABLE part (id int PRIMARY KEY, v int, big text, m text) PARTITION BY HASH (id);
	CREATE TABLE part0 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE part1 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	CREATE PUBLICATION p FOR TABLE a, b, part, f WHERE (v > 50);

	CREATE FUNCTION one_change() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		t text := (ARRAY['a', 'a', 'b', 'b', 'f', 'off', 'part'])[1 + floor(random() * 7)];
		k int := floor(random() * 200);
		big text := CASE WHEN random() < 0.2 THEN repeat(md5(random()::text), 300) END;
	BEGIN
		CASE floor(random() * 6)
		WHEN 0 THEN
			EXECUTE format('INSERT INTO %I (id, v, big) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET v = $2, big = $3', t) USING k, k % 100, big;
		WHEN 1 THEN
			EXECUTE format('UPDATE %I SET v = v + 1 WHERE id = $1', t) USING k;
		WHEN 2 THEN
			EXECUTE format('UPDATE %I SET big = $2, m = $2 WHERE id = $1', t) USING k, big;
		WHEN 3 THEN
			EXECUTE format('DELETE FROM %I WHERE id = $1', t) USING k;
		WHEN 4 THEN
			EXECUTE format('INSERT INTO %I (id, v, big) SELECT i, i %% 100, $2 FROM generate_series($1, $1 + 5) i ON CONFLICT DO NOTHING', t) USING k, big;
		ELSE
			EXECUTE format('UPDATE %I SET id = id + 1000 * floor(random() * 3)::int WHERE id = $1', t) USING k;
		END CASE;
	EXCEPTION WHEN unique_violation THEN NULL;
	END $$;

	CREATE FUNCTION some_changes() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. 1 + floor(random() * 8) LOOP
			BEGIN
				PERFORM one_change();
				-- Transactional ones only at the top: core queues a message at
				-- its end, where the next change of another subtransaction
				-- begins, and replays such a pair in either order.
				IF random() < 0.2 THEN
					PERFORM pg_logical_emit_message(false, 'm', 'x');
				END IF;
				BEGIN
					PERFORM one_change();
					IF random() < 0.3 THEN RAISE division_by_zero; END IF;
				EXCEPTION WHEN division_by_zero THEN NULL;
				END;
				IF random() < 0.2 THEN RAISE division_by_zero; END IF;
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
		END LOOP;
	END $$;

	CREATE FUNCTION some_ddl() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		t text := (ARRAY['a', 'b', 'f', 'off', 'part'])[1 + floor(random() * 5)];
	BEGIN
		SET LOCAL lock_timeout = '200ms';
		CASE floor(random() * 7)
		WHEN 0 THEN EXECUTE format('ALTER TABLE %I ADD IF NOT EXISTS x int DEFAULT 7', t);
		WHEN 1 THEN EXECUTE format('ALTER TABLE %I DROP IF EXISTS x', t);
		WHEN 2 THEN EXECUTE format('TRUNCATE %I', t);
		WHEN 3 THEN CREATE TEMP TABLE IF NOT EXISTS tmp AS SELECT 1;
		WHEN 4 THEN EXECUTE format('ALTER TABLE %I ALTER m TYPE varchar', t);
		WHEN 5 THEN EXECUTE format('ALTER TABLE %I ALTER m TYPE text', t);
		ELSE EXECUTE format('CREATE INDEX ON %I (v)', t);
		END CASE;
	EXCEPTION WHEN lock_not_available OR deadlock_detected OR undefined_object OR duplicate_object OR unique_violation OR internal_error THEN NULL;
	END $$;
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
});

my $seconds = $ENV{PGPARREP_TEST_SECONDS} || 4;
my $dir = $node->basedir;
append_to_file("$dir/commit.sql", q{
SELECT setseed(:client_id / 100.0 + random() / 10);
BEGIN; SELECT some_changes(); SELECT some_changes(); COMMIT;
SELECT some_changes();
BEGIN; SELECT some_changes(); ROLLBACK;
});
append_to_file("$dir/ddl.sql", q{
SELECT some_ddl();
BEGIN; SELECT some_changes(); SELECT some_ddl(); SELECT some_changes(); COMMIT;
BEGIN; SELECT some_changes(); SAVEPOINT s; SELECT some_ddl(); SELECT some_changes(); ROLLBACK TO s; SELECT some_changes(); COMMIT;
});

foreach my $round (1 .. 3)
{
	# with few concurrent DDL statements, with many, and with none
	my $weight = (1, 10, 0)[ $round - 1 ];
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[ 'pgbench', '-n', '-c', '6', '-T', $seconds, '-h', $node->host, '-p', $node->port,
			'-f', "$dir/commit.sql\@20", $weight ? ('-f', "$dir/ddl.sql\@$weight") : (),
			'postgres' ],
		'>', \$out, '2>', \$err);
	my ($processed) = $out =~ /transactions actually processed: (\d+)/;
	note "round $round: $processed scripts";

	my %options = (publication_names => 'p', messages => 'true');
	my $data = fstream_receive($node, 'extreme', %options);
	my ($extreme, $em) = fstream_transactions(fstream_parse($data));
	my ($reference, $rm) = pgoutput_transactions($node, 'reference', proto_version => 1, %options);
	compare_streams($extreme, $reference, "round $round");
	is(scalar(@$em), scalar(@$rm), "round $round: messages outside of transactions");
}

my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP|PANIC/, 'no assertion failed');

$node->stop;
done_testing();
