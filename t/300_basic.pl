# What a first-time user does: one option more in CREATE SUBSCRIPTION, and all
# kinds of changes on all kinds of tables arrive.
#
# Without it nobody would notice that one kind of change, REFRESH PUBLICATION,
# or a new worker_number on a running subscription does not work at all; every
# other test takes these for granted.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber();

my @all = ($publisher, $subscriber);

$_->safe_psql(
	'postgres', q{
	CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
	CREATE DOMAIN small AS int CHECK (VALUE < 1000);
	CREATE TYPE pair AS (a int, b text);
	CREATE TABLE plain (id int PRIMARY KEY, v text);
	CREATE TABLE two_columns (a int, b text, v numeric, PRIMARY KEY (b, a));
	CREATE TABLE types (
		id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
		b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(20, 5), t text,
		vc varchar(20), c char(8), by bytea, d date, ti time, ts timestamp, tz timestamptz,
		iv interval, j json, jb jsonb, x inet, m mood, s small, p pair, ai int[], at text[],
		r int4range, pt point, bits bit varying(12));
	CREATE TABLE keyless (a int, b text);
	CREATE TABLE full_identity (a int, b text);
	ALTER TABLE full_identity REPLICA IDENTITY FULL;
	CREATE TABLE index_identity (a int NOT NULL, b text, c int);
	CREATE UNIQUE INDEX index_identity_a ON index_identity (a);
	ALTER TABLE index_identity REPLICA IDENTITY USING INDEX index_identity_a;
	CREATE TABLE parts (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
	CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
	CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
	CREATE UNLOGGED TABLE not_replicated (a int);
	CREATE SCHEMA "Other Schema";
	CREATE TABLE "Other Schema"."Odd ""Table" ("Key Column" int PRIMARY KEY, "select" text)}) for @all;

# rows for the initial copy
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO plain SELECT i, 'copied ' || i FROM generate_series(1, 1000) i;
	INSERT INTO two_columns SELECT i, 'b' || i, i FROM generate_series(1, 100) i;
	INSERT INTO full_identity SELECT i % 10, 'copied' FROM generate_series(1, 50) i;
	INSERT INTO index_identity SELECT i, 'copied', i FROM generate_series(1, 50) i;
	INSERT INTO keyless SELECT i, 'copied' FROM generate_series(1, 10) i;
	INSERT INTO parts SELECT i, i % 20, 'copied' FROM generate_series(1, 100) i});

create_subscription($publisher, $subscriber, worker_number => 4);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'initial copy');

$publisher->safe_psql(
	'postgres', q{
	INSERT INTO plain SELECT i, 'streamed ' || i FROM generate_series(1001, 1100) i;
	UPDATE plain SET v = 'updated' WHERE id % 7 = 0;
	UPDATE plain SET id = -id WHERE id % 11 = 0;
	DELETE FROM plain WHERE id % 13 = 0;
	UPDATE plain SET v = NULL WHERE id = 1;
	UPDATE two_columns SET v = v + 0.5 WHERE a % 2 = 0;
	UPDATE two_columns SET b = 'c' || a WHERE a % 5 = 0;
	DELETE FROM two_columns WHERE a % 9 = 0;
	INSERT INTO keyless SELECT i % 3, 'same' FROM generate_series(1, 30) i;
	UPDATE full_identity SET b = 'updated' WHERE a = 3;
	DELETE FROM full_identity WHERE a = 4;
	UPDATE index_identity SET a = a + 1000 WHERE a % 3 = 0;
	UPDATE index_identity SET b = NULL WHERE a % 4 = 0;
	DELETE FROM index_identity WHERE a % 5 = 0;
	UPDATE parts SET day = 19 - day WHERE id % 3 = 0;
	DELETE FROM parts WHERE id % 8 = 0;
	INSERT INTO not_replicated VALUES (1);
	INSERT INTO "Other Schema"."Odd ""Table" VALUES (1, 'x'), (2, NULL), (3, '');
	UPDATE "Other Schema"."Odd ""Table" SET "Key Column" = 10 WHERE "Key Column" = 1;

	INSERT INTO types VALUES
	(DEFAULT, true, -5, 9000000000, 1.5, 'NaN', 12345.67891, E'tab\there', 'vc', 'c', '\x00ff5c27',
	 '2024-02-29', '23:59:59.999999', 'infinity', '2000-01-01 00:00:00+00', '1 mon 2 days 3.5 s',
	 '{"a":  1}', '{"b": [1, null]}', '10.0.0.1/8', 'happy', 999, '(1,"a,b")', '{1,NULL,3}',
	 '[2:3]={x,"y z"}', '[1,5)', '(1.5,-2)', '10101'),
	(DEFAULT, NULL, NULL, NULL, NULL, '-Infinity', 'NaN', '', '', '', '', '-infinity', '00:00', NULL, NULL, NULL,
	 'null', 'null', '::1', 'sad', NULL, ROW(NULL, ''), '{}', '{}', 'empty', NULL, ''),
	(DEFAULT, false, 32767, -9223372036854775808, '-0', '1e-300', 0.00001, repeat('long ', 5000), NULL, NULL,
	 decode(repeat('00ff', 5000), 'hex'), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
	 array_fill('z'::text, ARRAY[2,3]), '(,)', NULL, NULL);
	UPDATE types SET t = t || '!' WHERE b;
	UPDATE types SET b = NOT b});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'insert, update, delete');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM not_replicated'),
	0, 'an unlogged table is not replicated');

# one transaction of everything, TRUNCATE in the middle of it
$publisher->safe_psql(
	'postgres', q{
	BEGIN;
	INSERT INTO keyless VALUES (77, 'before');
	TRUNCATE keyless, full_identity;
	INSERT INTO keyless VALUES (78, 'after');
	UPDATE plain SET v = 'late' WHERE id > 1050;
	SAVEPOINT s;
	TRUNCATE plain;
	ROLLBACK TO s;
	COMMIT;
	TRUNCATE parts;
	INSERT INTO parts VALUES (1, 1, 'after'), (2, 11, 'after')});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'TRUNCATE');

# Binary values go another way through both ends.
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (binary = true)');
$publisher->safe_psql(
	'postgres', q{
	UPDATE plain SET v = v || ' binary';
	UPDATE two_columns SET v = v * 3;
	INSERT INTO keyless VALUES (79, NULL)});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'binary = true');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (binary = false)');

# a table more
$_->safe_psql('postgres', 'CREATE TABLE later (id int PRIMARY KEY, v text)') for @all;
$publisher->safe_psql('postgres', q{INSERT INTO later SELECT i, 'copied' FROM generate_series(1, 500) i});
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_synced($subscriber);
$publisher->safe_psql('postgres', q{UPDATE later SET v = 'streamed' WHERE id % 2 = 0; DELETE FROM later WHERE id % 5 = 0});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'REFRESH PUBLICATION');

SKIP:
{
	skip 'stock apply', 12 if stock_only();

	# an existing worker_number must have reached the processes
	wait_for(
		$subscriber,
		q{SELECT count(*) BETWEEN 1 AND 4 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'},
		'apply workers') && pass('apply workers run');
	is( $publisher->safe_psql(
			'postgres', q{SELECT plugin FROM pg_replication_slots WHERE slot_name = 'sub'}),
		'pgparrep',
		'the slot uses the output plugin');

	# the views
	cmp_ok($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pgparrep.stat_subscription'),
		'==', 1, 'stat_subscription has a row');
	cmp_ok($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pgparrep.stat_apply_worker'),
		'>=', 1, 'stat_apply_worker has rows');

	# worker_number of a running subscription
	foreach my $n (8, 2)
	{
		my $old = leader_pid($subscriber);
		$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SET (worker_number = $n)");
		wait_for($subscriber,
			"SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 'sub' AND relid IS NULL AND pid <> $old",
			'a new leader');
		# enough independent transactions to want every worker
		$publisher->safe_psql('postgres',
			"UPDATE plain SET v = 'w$n' WHERE id = $_") for 1001 .. 1040;
		wait_caught_up($publisher, $subscriber);
		cmp_ok(scalar(apply_worker_pids($subscriber)), '<=', $n, "at most $n workers after worker_number = $n");
		cmp_ok(scalar(apply_worker_pids($subscriber)), '>=', 1, "workers after worker_number = $n");
	}

	# 1 is stock apply, on the same slot; and back
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 1)');
	wait_for($subscriber,
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'},
		'workers to go') && pass('no worker after worker_number = 1');
	$publisher->safe_psql('postgres', q{UPDATE plain SET v = 'serial' WHERE id % 3 = 0});
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, 'stock apply');
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 4)');
	$publisher->safe_psql('postgres', q{UPDATE plain SET v = 'parallel' WHERE id % 3 = 1});
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, 'parallel again');

	# what cannot be is refused, before anything is made
	my ($ret, $out, $err) = $subscriber->psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 1000)');
	isnt($ret, 0, 'worker_number out of range is refused');
	like($err, qr/worker_number/, 'the error names the option');
}

# A subscription without the option is the server's own in every respect.
$publisher->safe_psql('postgres', 'CREATE PUBLICATION plain_pub FOR TABLE plain');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
wait_for($subscriber,
	q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub; TRUNCATE plain');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION stock CONNECTION '" . connection($publisher) . "' PUBLICATION plain_pub");
wait_synced($subscriber, 'stock');
$publisher->safe_psql('postgres', q{UPDATE plain SET v = 'stock'});
wait_caught_up($publisher, $subscriber, 'stock');
compare_tables($publisher, $subscriber, 'no worker_number', 'plain');
is( $publisher->safe_psql(
		'postgres', q{SELECT string_agg(slot_name || ' ' || plugin, ',') FROM pg_replication_slots}),
	'stock pgoutput',
	'a subscription without worker_number uses pgoutput, and the dropped one left no slot');

$subscriber->stop;
$publisher->stop;
done_testing();
