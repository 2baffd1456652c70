# The subscriber's tables need not look like the publisher's.
#
# Rows come by column name and are converted by text; the subscriber fills its
# own columns, computes its generated ones, routes to its own partitions, fires
# its own REPLICA and ALWAYS triggers.  A fast path that forgets one of these
# would store values in the wrong column, or rows that the table forbids; a
# trigger that runs before its turn would read a state that never was.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber();

$publisher->safe_psql(
	'postgres', q{
	CREATE TABLE reordered (id int PRIMARY KEY, a text, b int, dropped int, c text);
	ALTER TABLE reordered DROP dropped;
	CREATE TABLE more_columns (id int PRIMARY KEY, a text);
	CREATE TABLE generated (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);
	CREATE TABLE generated_full (id int, a int, g int GENERATED ALWAYS AS (a * 2) STORED);
	ALTER TABLE generated_full REPLICA IDENTITY FULL;
	CREATE TABLE to_partitions (id int PRIMARY KEY, v text);
	CREATE TABLE from_partitions (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE from_partitions_1 PARTITION OF from_partitions FOR VALUES FROM (0) TO (100);
	CREATE TABLE from_partitions_2 (v text, junk int, id int NOT NULL);
	ALTER TABLE from_partitions_2 DROP junk;
	ALTER TABLE from_partitions ATTACH PARTITION from_partitions_2 FOR VALUES FROM (100) TO (1000000);
	CREATE TABLE with_trigger (id int PRIMARY KEY, amount int);
	CREATE TABLE full_identity (a int, b text, c numeric);
	ALTER TABLE full_identity REPLICA IDENTITY FULL;
	CREATE TABLE added_column (a int);
	ALTER TABLE added_column REPLICA IDENTITY FULL;
	INSERT INTO added_column VALUES (1);
	ALTER TABLE added_column ADD b boolean NOT NULL DEFAULT false;
	INSERT INTO added_column VALUES (2);
	CREATE TABLE index_identity (id int PRIMARY KEY, a int NOT NULL, b text);
	CREATE UNIQUE INDEX index_identity_a ON index_identity (a);
	ALTER TABLE index_identity REPLICA IDENTITY USING INDEX index_identity_a;
	CREATE TABLE other_types (id int PRIMARY KEY, i int, n numeric, t text, v varchar(10), ts timestamp);
	CREATE TABLE toasted (id int PRIMARY KEY, big text, n int);
	ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE deferred (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE);
	CREATE TABLE equality (k numeric PRIMARY KEY, v text);
	CREATE TABLE padded (k char(10) PRIMARY KEY, v text);
	CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)});

$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE reordered (c text, b bigint, id int PRIMARY KEY, a text);
	CREATE TABLE more_columns (own serial, a text, stamp text DEFAULT 'here', id int PRIMARY KEY, own2 int DEFAULT 7);
	CREATE TABLE generated (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 3) STORED);
	CREATE TABLE generated_full (id int, a int, g int GENERATED ALWAYS AS (a * 3) STORED);
	CREATE TABLE to_partitions (v text, id int PRIMARY KEY) PARTITION BY LIST (id);
	CREATE TABLE to_partitions_1 PARTITION OF to_partitions FOR VALUES IN (1, 3, 5, 7, 9);
	CREATE TABLE to_partitions_0 PARTITION OF to_partitions DEFAULT;
	CREATE TABLE from_partitions (id int PRIMARY KEY, v text);
	CREATE TABLE with_trigger (id int PRIMARY KEY, amount int);
	CREATE TABLE full_identity (a int, b text, c numeric);
	CREATE TABLE added_column (a int, b boolean NOT NULL);
	CREATE TABLE index_identity (b text, a int NOT NULL UNIQUE, id int);
	ALTER TABLE index_identity REPLICA IDENTITY USING INDEX index_identity_a_key;
	CREATE TABLE other_types (id bigint PRIMARY KEY, i bigint, n text, t varchar, v text, ts timestamptz);
	CREATE TABLE toasted (id int PRIMARY KEY, n int, big text);
	CREATE TABLE deferred (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE);
	CREATE TABLE equality (k numeric PRIMARY KEY, v text);
	CREATE TABLE padded (k char(10) PRIMARY KEY, v text);

	-- a total that only a serial order keeps right, read and written by the trigger
	CREATE TABLE totals (what text PRIMARY KEY, n bigint, amount bigint);
	INSERT INTO totals VALUES ('always', 0, 0), ('replica', 0, 0), ('origin', 0, 0);
	-- apply runs with an empty search path
	CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE
		old_n bigint;
	BEGIN
		SELECT n INTO old_n FROM public.totals WHERE what = TG_ARGV[0];
		UPDATE public.totals SET n = old_n + 1, amount = amount + NEW.amount WHERE what = TG_ARGV[0];
		RETURN NEW;
	END $$;
	CREATE TRIGGER always AFTER INSERT ON with_trigger FOR EACH ROW EXECUTE FUNCTION count_up('always');
	ALTER TABLE with_trigger ENABLE ALWAYS TRIGGER always;
	CREATE TRIGGER replica BEFORE INSERT ON with_trigger FOR EACH ROW EXECUTE FUNCTION count_up('replica');
	ALTER TABLE with_trigger ENABLE REPLICA TRIGGER replica;
	CREATE TRIGGER origin AFTER INSERT ON with_trigger FOR EACH ROW EXECUTE FUNCTION count_up('origin')});

# Foreign keys are checked in apply only where somebody asked for it.
$subscriber->safe_psql('postgres', qq{ALTER TABLE child ENABLE ALWAYS TRIGGER "$_"})
  for split /\n/,
  $subscriber->safe_psql('postgres', q{SELECT tgname FROM pg_trigger WHERE tgrelid = 'child'::regclass});

create_subscription($publisher, $subscriber, worker_number => 4);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'initial copy', 'added_column');

my @same = qw(reordered more_columns to_partitions from_partitions with_trigger full_identity added_column
  index_identity other_types toasted deferred parent child equality padded);

# ---------- columns

$publisher->safe_psql(
	'postgres', q{
	INSERT INTO reordered SELECT i, 'a' || i, i, 'c' || i FROM generate_series(1, 100) i;
	UPDATE reordered SET b = NULL WHERE id % 2 = 0;
	UPDATE reordered SET id = id + 1000, c = NULL WHERE id % 3 = 0;
	DELETE FROM reordered WHERE id % 7 = 0;
	INSERT INTO more_columns SELECT i, 'a' || i FROM generate_series(1, 100) i;
	INSERT INTO generated SELECT i, i FROM generate_series(1, 20) i;
	UPDATE generated SET a = a + 1 WHERE id % 2 = 0;
	UPDATE added_column SET b = true;
	INSERT INTO other_types VALUES (1, 2147483647, 1.50, 'text', 'varchar', '2024-01-01 12:00'), (2, NULL, 'NaN', '', NULL, 'infinity');
	UPDATE other_types SET i = -i, t = 'updated' WHERE id = 1;
	UPDATE other_types SET id = 3 WHERE id = 2});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'columns by name', qw(reordered more_columns added_column));
is($subscriber->safe_psql('postgres', 'SELECT id, i, n, t, v FROM other_types ORDER BY 1'),
	"1|-2147483647|1.50|updated|varchar\n3||NaN||", 'values by their text');
is( $subscriber->safe_psql(
		'postgres', q{SELECT count(*), count(DISTINCT own), min(stamp), min(own2) FROM more_columns}),
	'100|100|here|7', 'columns of the subscriber\'s own get their defaults');
$subscriber->safe_psql('postgres', q{UPDATE more_columns SET stamp = 'kept', own2 = 8});
$publisher->safe_psql('postgres', q{UPDATE more_columns SET a = 'updated'});
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM more_columns WHERE stamp = 'kept' AND own2 = 8 AND a = 'updated'}),
	100, '... and keep their values in updates');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM generated WHERE g <> a * 3'), 0, 'generated columns are computed here');

# 18 refuses this on the publisher
my $version = $subscriber->safe_psql('postgres', 'SHOW server_version_num');
if ($version < 180000)
{
	$publisher->safe_psql(
		'postgres', q{
		INSERT INTO generated_full SELECT i, i FROM generate_series(1, 20) i;
		UPDATE generated_full SET a = a + 1 WHERE id % 2 = 0;
		DELETE FROM generated_full WHERE id % 5 = 0});
	wait_caught_up($publisher, $subscriber);
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM generated_full WHERE g <> a * 3'),
		0, '... with identity FULL too');
	is( $subscriber->safe_psql('postgres', 'SELECT sum(id), sum(a) FROM generated_full'),
		$publisher->safe_psql('postgres', 'SELECT sum(id), sum(a) FROM generated_full'),
		'... and every row was found');
}

# ---------- partitions: to, from, and rows that move

$publisher->safe_psql('postgres', $_) for (
	q{INSERT INTO to_partitions SELECT i, 'v' || i FROM generate_series(1, 50) i},
	q{UPDATE to_partitions SET id = id + 100 WHERE id IN (1, 3)},
	q{UPDATE to_partitions SET id = 1 WHERE id = 2},
	q{UPDATE to_partitions SET v = 'updated' WHERE id % 2 = 1},
	q{DELETE FROM to_partitions WHERE id IN (5, 6)},
	q{INSERT INTO from_partitions SELECT i * 10, 'v' || i FROM generate_series(1, 50) i},
	q{UPDATE from_partitions SET id = id + 1000 WHERE id < 100},
	q{UPDATE from_partitions SET id = id + 1 WHERE id % 30 = 0},
	q{UPDATE from_partitions SET v = 'updated' WHERE id > 300},
	q{DELETE FROM from_partitions WHERE id % 50 = 0});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'partitions', qw(to_partitions from_partitions));
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM to_partitions_1 WHERE id NOT IN (1, 3, 5, 7, 9)'),
	0, 'rows are where they belong');

# DDL on the subscriber between two updates: every worker must see the new shape
$subscriber->safe_psql(
	'postgres', q{
	ALTER TABLE to_partitions DETACH PARTITION to_partitions_1;
	ALTER TABLE to_partitions_1 DROP v;
	ALTER TABLE to_partitions_1 ADD v text;
	UPDATE to_partitions_1 SET v = 'reshaped';
	ALTER TABLE to_partitions ATTACH PARTITION to_partitions_1 FOR VALUES IN (1, 3, 5, 7, 9)});
$publisher->safe_psql('postgres', "UPDATE to_partitions SET v = 'late $_' WHERE id = $_") for 1, 7, 9, 10, 11, 101;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a partition reshaped', 'to_partitions');

# ---------- triggers

my $dir = $publisher->basedir;
append_to_file("$dir/trigger.sql", q{
\set id random(1, 100000000)
INSERT INTO with_trigger VALUES (:id, 3) ON CONFLICT DO NOTHING;
});
$publisher->command_ok(
	[
		'pgbench', '-n', '-c', 8, '-t', 250, '-f', "$dir/trigger.sql", '-h', $publisher->host, '-p', $publisher->port,
		'postgres'
	],
	'load for a trigger');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'table with triggers', 'with_trigger');
is( $subscriber->safe_psql('postgres', q{SELECT what, n, amount FROM totals ORDER BY what}),
	$subscriber->safe_psql(
		'postgres', q{
		SELECT 'always', count(*), sum(amount) FROM with_trigger
		UNION ALL SELECT 'origin', 0, 0
		UNION ALL SELECT 'replica', count(*), sum(amount) FROM with_trigger ORDER BY 1}),
	'ALWAYS and REPLICA triggers fire once a row and in order, ordinary ones do not');

# ---------- identities

$publisher->safe_psql(
	'postgres', q{
	INSERT INTO full_identity SELECT i % 5, 'b', NULL FROM generate_series(1, 50) i;
	INSERT INTO full_identity VALUES (9, NULL, 1.0), (9, NULL, 1.00), (9, NULL, 1.0);
	UPDATE full_identity SET b = 'one of many' WHERE ctid = (SELECT ctid FROM full_identity WHERE a = 3 LIMIT 1);
	DELETE FROM full_identity WHERE ctid = (SELECT ctid FROM full_identity WHERE a = 2 LIMIT 1);
	UPDATE full_identity SET c = 2 WHERE a = 1;
	INSERT INTO index_identity SELECT i, 100 + i, 'b' FROM generate_series(1, 50) i;
	UPDATE index_identity SET a = a + 1000 WHERE id % 2 = 0;
	UPDATE index_identity SET id = id + 1000 WHERE id % 3 = 0;
	DELETE FROM index_identity WHERE id % 5 = 0});
# round after round on the same rows, each its own transaction
$publisher->safe_psql('postgres', 'INSERT INTO full_identity VALUES (77, NULL, 7)') for 1 .. 3;
for (1 .. 10)
{
	$publisher->safe_psql('postgres', join ';',
		"INSERT INTO full_identity VALUES (5, 'x', 5), (6, 'x', 6)",
		'DELETE FROM full_identity WHERE a IN (5, 6)',
		"INSERT INTO full_identity VALUES (5, 'x', 5)",
		'UPDATE full_identity SET c = c + 1 WHERE a = 5',
		'DELETE FROM full_identity WHERE a = 5');
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'identities', qw(full_identity index_identity));

# Keys that are equal without being the same bytes, each in its own transaction
foreach my $i (1 .. 30)
{
	$publisher->safe_psql('postgres', join ';',
		"INSERT INTO equality VALUES (1.0, 'first $i')",
		"UPDATE equality SET k = 1.00, v = 'second $i'",
		'DELETE FROM equality',
		"INSERT INTO padded VALUES ('a', 'first $i')",
		"UPDATE padded SET v = 'second $i' WHERE k = 'a   '",
		'DELETE FROM padded');
}
$publisher->safe_psql('postgres', q{INSERT INTO equality VALUES (1.000, 'last'); INSERT INTO padded VALUES ('a', 'last')});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'equal keys of other bytes', qw(equality padded));

# ---------- out-of-line values that an update does not touch

$publisher->safe_psql('postgres', $_) for (
	q{INSERT INTO toasted VALUES (1, repeat('x', 100000), 1), (2, NULL, 2), (3, repeat('y', 50000), 3)},
	'UPDATE toasted SET n = n + 10',
	'UPDATE toasted SET id = 11 WHERE id = 1',
	q{BEGIN; INSERT INTO toasted VALUES (4, repeat('z', 60000), 4); UPDATE toasted SET n = 40 WHERE id = 4; COMMIT},
	'UPDATE toasted SET big = NULL WHERE id = 3',
	q{BEGIN; UPDATE toasted SET big = repeat('w', 70000) WHERE id = 4; UPDATE toasted SET n = 41 WHERE id = 4; COMMIT},
	'ALTER TABLE toasted REPLICA IDENTITY FULL',
	'UPDATE toasted SET n = n + 100');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'unchanged TOAST', 'toasted');

# A row that is missing is passed over, never made up of what the message has.
$publisher->safe_psql('postgres', 'ALTER TABLE toasted REPLICA IDENTITY DEFAULT');
$subscriber->safe_psql('postgres', 'DELETE FROM toasted WHERE id = 11');
$publisher->safe_psql('postgres', 'UPDATE toasted SET n = 0 WHERE id = 11; DELETE FROM toasted WHERE id = 11');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'missing row', 'toasted');

# ---------- constraints that are checked at commit, foreign keys that are checked here

$publisher->safe_psql('postgres', $_) for (
	'INSERT INTO deferred VALUES (1, 1), (2, 2), (3, 3)',
	'BEGIN; UPDATE deferred SET u = 2 WHERE id = 1; UPDATE deferred SET u = 1 WHERE id = 2; COMMIT',
	'DELETE FROM deferred WHERE id = 1',
	'UPDATE deferred SET u = 2 WHERE id = 3');
foreach my $i (1 .. 50)
{
	$publisher->safe_psql('postgres', "INSERT INTO parent VALUES ($i); INSERT INTO child VALUES ($i, $i)");
	$publisher->safe_psql('postgres', "DELETE FROM child WHERE id = $i; DELETE FROM parent WHERE id = $i") if $i % 3 == 0;
	$publisher->safe_psql('postgres', "DELETE FROM parent WHERE id = $i") if $i % 3 == 1;
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'deferrable and foreign keys', qw(deferred parent child));

compare_tables($publisher, $subscriber, 'in the end', @same[ 0 .. 7 ], 'index_identity', 'toasted');

# ---------- what must stop with an error that says which table

sub stops_with
{
	my ($what, $sql, $pattern, $repair) = @_;
	my $offset = log_size($subscriber);

	$publisher->safe_psql('postgres', $sql);
	my $found = 0;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $found = log_since($subscriber, $offset) =~ $pattern;
		usleep(100_000);
	}
	ok($found, $what) or diag(log_since($subscriber, $offset));
	$subscriber->safe_psql('postgres', $repair);
	wait_caught_up($publisher, $subscriber);
	return;
}

$publisher->safe_psql('postgres', 'CREATE TABLE narrow (id int PRIMARY KEY, v text)');
$subscriber->safe_psql('postgres', 'CREATE TABLE narrow (id int PRIMARY KEY, v varchar(3) CHECK (v <> $$no$$))');
$publisher->safe_psql('postgres', 'CREATE TABLE unlike_here (id int PRIMARY KEY, here int)');
$subscriber->safe_psql('postgres', 'CREATE TABLE unlike_here (id int PRIMARY KEY)');
$publisher->safe_psql('postgres', 'CREATE TABLE keyless_here (id int PRIMARY KEY, v int)');
$subscriber->safe_psql('postgres', 'CREATE TABLE keyless_here (id int, v int)');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');

stops_with(
	'a column that is missing here',
	'INSERT INTO unlike_here VALUES (1, 1)',
	qr/logical replication target relation "public\.unlike_here" is missing replicated column: "here"/,
	'ALTER TABLE unlike_here ADD here int');
wait_synced($subscriber);
stops_with(
	'a value that does not fit',
	q{INSERT INTO narrow VALUES (1, 'too long')},
	qr/value too long for type character varying\(3\)/,
	'ALTER TABLE narrow ALTER v TYPE text');
stops_with(
	'a value that a constraint forbids',
	q{INSERT INTO narrow VALUES (2, 'no')},
	qr/violates check constraint "narrow_v_check"/,
	'ALTER TABLE narrow DROP CONSTRAINT narrow_v_check');
$publisher->safe_psql('postgres', 'INSERT INTO keyless_here VALUES (1, 1)');
stops_with(
	'an update of a table without identity here',
	'UPDATE keyless_here SET v = 2',
	qr/public\.keyless_here.* has neither REPLICA IDENTITY index nor PRIMARY KEY|did not expect.*keyless_here|keyless_here.*REPLICA IDENTITY/,
	'ALTER TABLE keyless_here ADD PRIMARY KEY (id)');

# The owner's privileges count; and who would need row-level security is refused.
$subscriber->safe_psql(
	'postgres', q{
	CREATE ROLE plain_owner SUPERUSER LOGIN;
	ALTER SUBSCRIPTION sub OWNER TO plain_owner;
	ALTER ROLE plain_owner NOSUPERUSER;
	GRANT ALL ON ALL TABLES IN SCHEMA public TO plain_owner;
	GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO plain_owner;
	GRANT CREATE ON DATABASE postgres TO plain_owner;
	REVOKE INSERT ON narrow FROM plain_owner;
});
stops_with(
	'no privilege on the table',
	q{INSERT INTO narrow VALUES (3, 'x')},
	$version < 160000
	? qr/permission denied for table narrow/
	: qr/permission denied for table narrow|cannot SET ROLE|password is required/,
	'GRANT INSERT ON narrow TO plain_owner; ALTER ROLE plain_owner SUPERUSER');
if ($version < 160000)
{
	$subscriber->safe_psql(
		'postgres', q{
		ALTER ROLE plain_owner NOSUPERUSER;
		ALTER TABLE narrow ENABLE ROW LEVEL SECURITY});
	stops_with(
		'row-level security',
		q{INSERT INTO narrow VALUES (4, 'x')},
		qr/user "plain_owner" cannot replicate into relation with row-level security enabled: "narrow"/,
		'ALTER TABLE narrow DISABLE ROW LEVEL SECURITY; ALTER ROLE plain_owner SUPERUSER');
}
compare_tables($publisher, $subscriber, 'after the repairs', qw(narrow unlike_here keyless_here));

$subscriber->stop;
$publisher->stop;
done_testing();
