# Partitions, types, encodings, row filters and column lists beside the server's
# own apply.
#
# What is published of a row, under which name, with which columns and in which
# form is decided between reading its record and storing it in another table, by
# maps that are cached on both sides.  A map that is stale, or made for another
# relation of the same tree, puts values into wrong columns.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

my $trio = trio("wal_retrieve_retry_interval = 100ms\npgparrep.force_decoders = on\nautovacuum = off",
	'pgparrep.parallel_decode_num = 3');
my ($publisher, $pool, $serial) = @{$trio}{qw(publisher pool serial)};

sub sql { return $publisher->safe_psql('postgres', shift) }

sub subscribers
{
	my ($sql) = @_;

	$_->safe_psql('postgres', $sql) for $pool, $serial;
	return;
}

# Both stop with this; the details that differ are gone.
sub both_fail
{
	my ($what, $pattern, $offsets) = @_;
	my %message;

	foreach my $node ($serial, $pool)
	{
		my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
		my $log = '';

		usleep(50_000)
		  until ($log = log_since($node, $offsets->{ $node->name })) =~ /ERROR:\s+(?!could not|terminating)(.*)/ || time() > $deadline;
		($message{ $node->name }) = $log =~ /ERROR:\s+((?!could not|terminating).*)/;
	}
	like($message{pool} // '', $pattern, "$what: error");
	is($message{pool} // '', $message{serial}, "$what: as in the server's own apply");
	return;
}

sub log_sizes { return { map { $_->name => log_size($_) } $pool, $serial } }

# ---- Partitions ---------------------------------------------------------

$publisher->safe_psql('postgres', q{
	CREATE TABLE r (a int PRIMARY KEY, b text, c int) PARTITION BY RANGE (a);
	CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100);
	CREATE TABLE r2 (c int, junk text, a int NOT NULL, more int, b text);
	ALTER TABLE r2 DROP junk, DROP more;
	ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200);
	CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300) PARTITION BY LIST (a);
	CREATE TABLE r31 (b text, c int, a int NOT NULL);
	ALTER TABLE r3 ATTACH PARTITION r31 DEFAULT;
	CREATE TABLE plain (a int PRIMARY KEY);
	CREATE PUBLICATION root FOR TABLE r, plain WITH (publish_via_partition_root = true);
	CREATE PUBLICATION leaves FOR TABLE r, plain;});
my $leaf = 'CREATE TABLE s2 (junk int, b text, a int NOT NULL, gone int, c int); ALTER TABLE s2 DROP junk, DROP gone';
subscribers(qq{
	CREATE TABLE r (c int, a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
	CREATE TABLE s1 PARTITION OF r FOR VALUES FROM (0) TO (150);
	$leaf;
	ALTER TABLE r ATTACH PARTITION s2 FOR VALUES FROM (150) TO (300);
	CREATE TABLE plain (a int PRIMARY KEY);
	CREATE TABLE r1 (b text, c int, a int PRIMARY KEY);
	CREATE TABLE r2 (a int PRIMARY KEY, b text, c int);
	CREATE TABLE r31 (a int PRIMARY KEY, c int, b text);});

foreach my $publication (qw(root leaves))
{
	my @tables = $publication eq 'root' ? qw(r) : qw(r1 r2 r31);

	trio_subscribe($trio, publications => $publication);
	sql(q{
		INSERT INTO plain SELECT 1 + coalesce(max(a), 0) FROM plain;
		INSERT INTO r SELECT i, 'b' || i, i * 10 FROM generate_series(0, 298, 2) i;
		INSERT INTO r2 (a, b, c) VALUES (101, 'leaf', 1);
		UPDATE r SET c = c + 1 WHERE a % 3 = 0;
		UPDATE r2 SET b = 'by leaf' WHERE a < 120;
		UPDATE r SET a = a + 101 WHERE a BETWEEN 50 AND 60;
		UPDATE r SET a = a - 201, b = NULL WHERE a BETWEEN 250 AND 260;
		BEGIN;
		INSERT INTO plain SELECT 1 + coalesce(max(a), 0) FROM plain;
		UPDATE r SET a = 297 WHERE a = 0;
		UPDATE r SET a = 1 WHERE a = 297;
		DELETE FROM r WHERE a = 2;
		INSERT INTO r VALUES (297, 'again', 2);
		COMMIT;
		DELETE FROM r31 WHERE a % 10 = 0;});
	trio_equal($trio, "$publication: partitions", @tables, 'plain');

	my $default = $publication eq 'root' ? '' : ' DEFAULT 4';
	sql("ALTER TABLE r ADD d int$default");
	subscribers(join ';', map { "ALTER TABLE $_ ADD d int$default" } @tables);
	sql(q{
		INSERT INTO r VALUES (299, 'd', 1, 4), (33, 'd', 1, 4), (133, 'd', 1, 4);
		UPDATE r SET d = a, c = -c WHERE a % 3 = 1;
		UPDATE r SET a = a + 2 WHERE a = 133;});
	trio_equal($trio, "$publication: another column", @tables);

	# A leaf is detached, reshaped and attached between two updates of its rows.
	if ($publication eq 'root')
	{
		subscribers(q{
			BEGIN;
			ALTER TABLE r DETACH PARTITION s2;
			ALTER TABLE s2 DROP b;
			ALTER TABLE s2 ADD b text;
			UPDATE s2 SET b = 'reshaped';
			ALTER TABLE r ATTACH PARTITION s2 FOR VALUES FROM (150) TO (300);
			COMMIT});
		# many transactions, so that each worker has to do with it
		my $script = $publisher->basedir . '/partitions.sql';
		append_to_file($script, "\\set a random(0, 299)\nUPDATE r SET c = c + 1, b = 'n' || c, d = coalesce(d, 0) + 1 WHERE a = :a;\n");
		my $walsender = $publisher->safe_psql('postgres', q{SELECT pid FROM pg_stat_replication WHERE application_name = 'pool'});
		my $memory = sub {
			my ($kb) = slurp_file("/proc/$walsender/status") =~ /^RssAnon:\s+(\d+) kB/m;
			return $kb;
		};
		my @bench = ('pgbench', '-n', '-c', 4, '-h', $publisher->host, '-p', $publisher->port, '-f', $script, '-t');
		$publisher->command_ok([ @bench, 250, 'postgres' ], 'updates');
		sql(q{UPDATE r SET b = 'all'});
		trio_equal($trio, 'leaf reshaped', 'r');
	  SKIP:
		{
			skip 'needs /proc', 1 unless -r '/proc/self/status';
			my $before = $memory->();
			sql(q{UPDATE r SET b = b || '.'}) for 1 .. 3;
			$publisher->command_ok([ @bench, 500, 'postgres' ], 'more updates');
			sql(q{DO $$ BEGIN FOR i IN 1 .. 40 LOOP UPDATE r SET c = i; END LOOP; END $$});
			trio_equal($trio, 'many updates', 'r');
			cmp_ok($memory->() - $before, '<', 4000, 'memory of the walsender does not grow');
		}

		# A leaf that cannot be written to.
		sql('DELETE FROM r WHERE a >= 290');
		trio_wait($trio);
		subscribers(q{
			CREATE FOREIGN DATA WRAPPER elsewhere;
			CREATE SERVER elsewhere FOREIGN DATA WRAPPER elsewhere;
			ALTER TABLE r DETACH PARTITION s2;
			ALTER TABLE r ATTACH PARTITION s2 FOR VALUES FROM (150) TO (290);
			ALTER TABLE r DROP CONSTRAINT r_pkey;
			CREATE FOREIGN TABLE s3 PARTITION OF r FOR VALUES FROM (290) TO (300) SERVER elsewhere});
		my $sizes = log_sizes();
		sql(q{INSERT INTO r VALUES (291, 'foreign', 1, 1)});
		both_fail('foreign leaf', qr/s3|foreign/, $sizes);
		subscribers(q{DROP FOREIGN TABLE s3; CREATE TABLE s3 PARTITION OF r FOR VALUES FROM (290) TO (300); ALTER TABLE r ADD PRIMARY KEY (a)});
		trio_equal($trio, 'leaf is a table again', 'r');
	}
	trio_unsubscribe($trio);
	sql('DELETE FROM r');
	subscribers('DELETE FROM r; TRUNCATE plain');
	sql('TRUNCATE plain; ALTER TABLE r DROP d');
}
trio_sql($trio, 'DROP TABLE plain, r; DROP PUBLICATION root, leaves', 'DROP TABLE r, r1, r2, r31, plain');

# ---- Types --------------------------------------------------------------

my @extensions = split /\n/, sql(q{SELECT name FROM pg_available_extensions WHERE name IN ('citext', 'hstore')});
trio_sql($trio, join ';', (map { "CREATE EXTENSION $_" } @extensions), q{
	CREATE TYPE nosend;
	CREATE FUNCTION nosend_in(cstring) RETURNS nosend LANGUAGE internal IMMUTABLE STRICT AS 'textin';
	CREATE FUNCTION nosend_out(nosend) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
	CREATE TYPE nosend (INPUT = nosend_in, OUTPUT = nosend_out, LIKE = text);
	CREATE TYPE mood AS ENUM ('good', 'bad');
	CREATE DOMAIN small AS int;
	CREATE DOMAIN tiny AS int;
	CREATE TYPE deep AS (ds small[], m mood, n text);
	CREATE TABLE types (id int PRIMARY KEY, n nosend, ns nosend[], d deep, ds deep[], a int[], t text[],
		b bytea, bs bytea[], s tiny} . join('', map { ", $_ $_, ${_}s $_\[]" } @extensions) . q{);
	ALTER TABLE types REPLICA IDENTITY FULL});
trio_sql($trio, q{CREATE TABLE other_types (id int PRIMARY KEY, i int, u int, m numeric)},
	q{CREATE TABLE other_types (id bigint PRIMARY KEY, i text, u bigint, m numeric(10,1))});
foreach my $form ('text', 'binary')
{
	# from 16 on a copy would be binary, too, which nosend has no functions for
	my $options = $form eq 'binary' ? 'binary = true, copy_data = false' : undef;

	trio_subscribe($trio, options => $options);
	# an array of it has a send function, which fails unless there is no array
	my $array = $form eq 'binary' ? 'NULL' : q('{a,NULL,""}');
	my $more = join '', map { ", 'k=>v'::$_, ARRAY['a=>NULL'::$_, NULL]" } @extensions;
	sql(qq{
		INSERT INTO types VALUES
			(1, 'n', $array, ('{1,NULL}', 'good', 'x'), ARRAY[('{1}', NULL, 'x')::deep, NULL], '[-2:0]={1,NULL,3}', '[0:1][5:5]={{"a,\\"b"},{NULL}}',
				'\\x00ff5c5c27', ARRAY['\\x5c78'::bytea, NULL, ''], 5 $more);
		INSERT INTO types (id, n, d, ds, a, t, b, bs, s) VALUES
			(2, '', (NULL, NULL, NULL), '{}', '{}', '{NULL,"NULL",""}', '', '{}', NULL);
		INSERT INTO types (id) VALUES (3);
		UPDATE types SET s = id, b = b || '\\x41' WHERE id < 3;
		UPDATE types SET id = id + 10;
		DELETE FROM types WHERE id = 12;});
	trio_equal($trio, "$form: types", 'types');

	# Text converts whatever has a text input; binary does not.
	my $sizes = log_sizes();
	sql('INSERT INTO other_types VALUES (1, 5, 7, 1.25)') if $form eq 'text';
	if ($form eq 'text')
	{
		trio_wait($trio);
		is($_->safe_psql('postgres', 'SELECT * FROM other_types'), '1|5|7|1.3', "$form: other types, " . $_->name) for $serial, $pool;
		sql('DELETE FROM other_types');
	}
	else
	{
		sql('INSERT INTO other_types VALUES (1, 5, 7, 1.25)');
		both_fail("$form: other types", qr/incorrect binary data format in logical replication column 1|insufficient data left in message/, $sizes);
		subscribers('ALTER TABLE other_types ALTER id TYPE int, ALTER i TYPE int USING i::int, ALTER u TYPE int');
		trio_wait($trio);
		is($pool->safe_psql('postgres', 'SELECT id, i, u FROM other_types'), '1|5|7', "$form: the same types");
	}

	# What the subscriber does not know or forbids stops it, and is repaired.
	trio_wait($trio);
	sql(qq{ALTER TYPE mood ADD VALUE 'new$form'});
	$sizes = log_sizes();
	sql(qq{INSERT INTO types (id, d) VALUES (20, ('{}', 'new$form', NULL)::deep)});
	both_fail("$form: label", qr/invalid input value for enum public.mood: "new$form"/, $sizes);
	subscribers("ALTER TYPE mood ADD VALUE 'new$form'");
	trio_equal($trio, "$form: label known", 'types');
	subscribers(q{ALTER DOMAIN tiny ADD CONSTRAINT little CHECK (value < 100)});
	$sizes = log_sizes();
	sql(q{INSERT INTO types (id, s) VALUES (21, 1000)});
	both_fail("$form: check", qr/value for domain public.tiny violates check constraint "little"/, $sizes);
	subscribers('ALTER DOMAIN tiny DROP CONSTRAINT little');
	trio_equal($trio, "$form: check dropped", 'types');
	trio_unsubscribe($trio);
	trio_sql($trio, 'TRUNCATE types, other_types');
}

# ---- Filters and lists --------------------------------------------------

trio_sql($trio, q{
	CREATE TABLE by_key (k int PRIMARY KEY, v text);
	CREATE TABLE by_value (k int PRIMARY KEY, v int);
	CREATE TABLE by_two (k int PRIMARY KEY, v int, big text);
	ALTER TABLE by_two ALTER big SET STORAGE EXTERNAL;
	ALTER TABLE by_two REPLICA IDENTITY FULL;
	CREATE TABLE listed (k int PRIMARY KEY, hidden text, v int, w int NOT NULL UNIQUE);
	CREATE TABLE ordinary (k int PRIMARY KEY);
	CREATE TABLE faulty (k int PRIMARY KEY, v int);});
sql(q{
	CREATE PUBLICATION filtered FOR TABLE by_key WHERE (k > 10), by_two WHERE (v > 100), listed (k, v, w), ordinary;
	CREATE PUBLICATION filtered2 FOR TABLE by_two WHERE (v < 0);
	CREATE PUBLICATION by_value FOR TABLE by_value WHERE (v > 0) WITH (publish = 'insert');});
trio_subscribe($trio, publications => 'filtered, filtered2, by_value');

# rows that are streamed before the transaction is left to the server, and after
sql(q{
	BEGIN;
	INSERT INTO ordinary VALUES (1);
	INSERT INTO by_key VALUES (5, 'out'), (15, 'in'), (25, 'in');
	INSERT INTO ordinary VALUES (2);
	UPDATE by_key SET k = 6 WHERE k = 15;
	UPDATE by_key SET k = 16, v = 'came' WHERE k = 5;
	SAVEPOINT a;
	DELETE FROM by_key WHERE k = 25;
	INSERT INTO ordinary VALUES (3);
	ROLLBACK TO a;
	UPDATE by_key SET v = 'updated' WHERE k = 25;
	COMMIT;
	UPDATE by_key SET k = k + 100;
	DELETE FROM by_key WHERE k = 116;
	INSERT INTO by_value VALUES (1, 1), (2, -1), (3, NULL);
	INSERT INTO by_two SELECT i, v, repeat('t', 5000) FROM (VALUES (1, 50), (2, 150), (3, -5), (4, NULL)) AS x (i, v);
	UPDATE by_two SET v = 200 WHERE k = 1;
	UPDATE by_two SET v = 50 WHERE k = 2;
	UPDATE by_two SET v = -7 WHERE k = 2;
	UPDATE by_two SET k = 33 WHERE k = 3;
	UPDATE by_two SET v = 101 WHERE k = 4;
	DELETE FROM by_two WHERE k IN (1, 33);
	INSERT INTO listed VALUES (1, 'h', 10, 11), (2, 'h', 20, 21), (3, 'h', 30, 31);
	UPDATE listed SET hidden = 'changed';
	UPDATE listed SET v = v + 1, k = k + 10 WHERE k = 1;
	DELETE FROM listed WHERE k = 2;});
trio_wait($trio);
compare_tables($serial, $pool, 'filters and lists', qw(by_key by_value by_two listed ordinary));
is($pool->safe_psql('postgres', 'SELECT array_agg(k ORDER BY k) FROM by_key'), '{106,125}', 'filter on the key');
is($pool->safe_psql('postgres', 'SELECT k, v, length(big) FROM by_two ORDER BY k'), "2|-7|5000\n4|101|5000", 'filters combine');
is($pool->safe_psql('postgres', 'SELECT k, hidden, v, w FROM listed ORDER BY k'), "3||30|31\n11||11|11", 'column list');

# The identity moves to another column of the list while rows are written.
subscribers('ALTER TABLE listed DROP CONSTRAINT listed_pkey, ADD PRIMARY KEY (w)');
sql(q{
	BEGIN;
	INSERT INTO ordinary VALUES (4);
	INSERT INTO listed VALUES (4, 'h', 40, 41);
	ALTER TABLE listed DROP CONSTRAINT listed_pkey, ADD PRIMARY KEY (w);
	UPDATE listed SET w = 42 WHERE k = 4;
	COMMIT;
	UPDATE listed SET v = 0 WHERE k = 3;
	DELETE FROM listed WHERE k = 11;});
trio_wait($trio);
compare_tables($serial, $pool, 'another key in the list', qw(listed ordinary));
is($pool->safe_psql('postgres', 'SELECT k, hidden, v, w FROM listed ORDER BY k'), "3||0|31\n4||40|42", 'another key in the list: rows');

# What a filter or a list cannot judge is refused where it is written.
sql(q{ALTER PUBLICATION by_value SET (publish = 'insert, update, delete')});
isnt($publisher->psql('postgres', 'UPDATE by_value SET v = 2'), 0, 'filter without identity');
isnt($publisher->psql('postgres', 'DELETE FROM by_value'), 0, 'filter without identity: delete');
sql(q{ALTER PUBLICATION filtered SET TABLE ordinary, listed (k, v)});
isnt($publisher->psql('postgres', 'UPDATE listed SET v = 2'), 0, 'list without identity');

# Lists that differ are no mixture.
sql(q{ALTER PUBLICATION filtered SET TABLE ordinary, listed (k, v, w); ALTER PUBLICATION filtered2 SET TABLE listed (v, w)});
trio_unsubscribe($trio);
{
	my ($ret, undef, $err) = $pool->psql('postgres',
		"CREATE SUBSCRIPTION pool CONNECTION '" . connection($publisher) . "' PUBLICATION filtered, filtered2 WITH (worker_number = 4)");
	like($ret == 0 ? '' : $err, qr/different column lists/, 'lists differ');
}

# A filter that fails stops the slot, each time with the same error.
sql(q{CREATE PUBLICATION faulty FOR TABLE faulty WHERE (1 / (k - 5) >= 0), ordinary});
subscribers('TRUNCATE ordinary');
trio_subscribe($trio, publications => 'faulty');
my $size = log_size($publisher);
sub disable
{
	foreach my $name (qw(pool serial))
	{
		$trio->{$name}->safe_psql('postgres', "ALTER SUBSCRIPTION $name DISABLE");
		wait_for($publisher, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = '$name'", 'slot is free');
	}
	return;
}
sub enable { $trio->{$_}->safe_psql('postgres', "ALTER SUBSCRIPTION $_ ENABLE") for qw(pool serial); return }

# all of it is there when decoding begins, so nothing is sent for want of more
disable();
sql(q{
	INSERT INTO ordinary VALUES (100);
	INSERT INTO faulty VALUES (1, 1), (7, 1);
	INSERT INTO ordinary VALUES (101);
	INSERT INTO faulty VALUES (5, 1) ON CONFLICT (k) DO UPDATE SET v = 2;
	INSERT INTO ordinary VALUES (102)});
enable();
my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
my $count = sub { my @hits = log_since($publisher, $size) =~ /\Q$_[0]\E ERROR:  division by zero/g; return scalar @hits };
usleep(50_000) until $count->('pool') >= 3 && $count->('serial') >= 3 || time() > $deadline;
cmp_ok($count->('pool'), '>=', 3, 'a filter fails, again and again');
foreach my $node ($pool, $serial)
{
	ok($node->poll_query_until('postgres', 'SELECT array_agg(k ORDER BY k) FROM ordinary WHERE k >= 100', '{100,101}'),
		$node->name . ': what was before it comes');
}
# the catalog of the row's moment has the filter, whatever is done to it now
my $lsn = sql('SELECT pg_current_wal_insert_lsn()');
disable();
sql(q{INSERT INTO ordinary VALUES (103); ALTER PUBLICATION faulty SET TABLE ordinary, faulty WHERE (k > 2)});
sql("SELECT pg_replication_slot_advance('$_', '$lsn')") for qw(pool serial);
# the pool does not leave out changes unless it is told to
$pool->safe_psql('postgres', "SELECT pg_replication_origin_advance('pg_' || oid, '$lsn') FROM pg_subscription");
enable();
sql(q{INSERT INTO faulty VALUES (5, 9) ON CONFLICT (k) DO UPDATE SET v = 3; UPDATE faulty SET v = 4 WHERE k = 7});
trio_wait($trio);
compare_tables($serial, $pool, 'after the filter was repaired', qw(ordinary faulty));
is($pool->safe_psql('postgres', 'SELECT k, v FROM faulty ORDER BY k'), "1|1\n7|4", 'after the filter was repaired: rows');
trio_unsubscribe($trio);

unlike(slurp_file($_->logfile), qr/TRAP|PANIC|leak/, $_->name . ': no assertion failed') for values %$trio;
done_testing();
