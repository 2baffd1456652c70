# Values that travel as they are stored end up as those that travel as text.
#
# The same changes go to three subscribers, with pgparrep.tuple_format = auto,
# text and binary, and to one whose signature is made up, so that the publisher
# sends it text.  Every type that can travel natively, as column, in an array
# and NULL; values that are short, long, compressed by either method,
# out-of-line, changed and unchanged; types that cannot; columns whose type or
# modifier is another one on the subscriber; keys that come natively and, from
# transactions that the publisher's server replays, as text.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_node('publisher', 'log_replication_commands = on');
my %subscriber;

$subscriber{auto} = new_node('auto');
$subscriber{text} = new_node('text', 'pgparrep.tuple_format = text');
$subscriber{binary} = new_node('binary', 'pgparrep.tuple_format = binary');
$subscriber{faked} = new_node('faked', q{pgparrep.native_signature = '1,faked'});

my $lz4 = $publisher->safe_psql('postgres',
	q{SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'}) eq 't';
my $compression = $lz4 ? 'COMPRESSION lz4' : '';

# type => [ values ]
my %values = (
	'bool' => [ 'true', 'false' ],
	'int2' => [ '0', '-32768', '32767' ],
	'int4' => [ '0', '-2147483648', '2147483647' ],
	'int8' => [ '-1', '-9223372036854775808', '9223372036854775807' ],
	'oid' => [ '0', '4294967295' ],
	'"char"' => [ 'a', '' ],
	'float4' => [ '0', '-0', '1.5e30', 'NaN', 'Infinity', '0.1' ],
	'float8' => [ '0', '-0', '1.5e300', 'NaN', '-Infinity', '0.1' ],
	'numeric' => [ '0', '0.000', '-1.50', 'NaN', 'Infinity', '-Infinity', '1e300', '123456789012345678901234567890.123456789', '-1e-200' ],
	'numeric(10,2)' => [ '12345678.90', '0.00', '-1' ],
	'text' => [ '', 'a', "gr\x{c3}\x{bc}n", 'x' x 200, 'abc' x 2000 ],
	'varchar' => [ '', 'b' ],
	'varchar(10)' => [ '0123456789', 'short  ' ],
	'bpchar' => [ 'c  ', '' ],
	'char(10)' => [ 'ten', '' ],
	'bytea' => [ '', '\\x00ff', '\\x' . '00' x 3000 ],
	'date' => [ '2020-02-29', '4713-01-01 BC', 'infinity', '-infinity', '5874897-12-31' ],
	'time' => [ '00:00', '24:00', '12:34:56.789' ],
	'time(0)' => [ '12:34:56' ],
	'timetz' => [ '12:34:56+05:30', '00:00-15:59' ],
	'timestamp' => [ '2020-01-01 12:34:56.789', 'infinity', '-infinity', '4714-11-24 BC' ],
	'timestamp(0)' => [ '2020-01-01 12:34:56' ],
	'timestamptz' => [ '2020-01-01 12:34:56.789+03', 'infinity' ],
	'interval' => [ '1 year -2 days 03:04:05.6', '0' ],
	'uuid' => [ '00000000-0000-0000-0000-000000000000', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' ],
	'bit(5)' => [ '10101' ],
	'varbit' => [ '', '1', '1010101011' ],
	'inet' => [ '10.1.2.3', '10.1.2.3/8', '::1', '2001:db8::1/64' ],
	'cidr' => [ '10.0.0.0/8', '2001:db8::/32' ],
	'macaddr' => [ '08:00:2b:01:02:03' ],
	'macaddr8' => [ '08:00:2b:01:02:03:04:05' ],
	# these come as text
	'name' => [ 'name' ],
	'money' => [ '12.34' ],
	'json' => [ '{"a": [1, 2]}' ],
	'jsonb' => [ '{"a": [1, 2]}' ],
	'xid8' => [ '7' ],
	'point' => [ '(1,2)' ],
	'int4range' => [ '[1,5)' ],
	'tsvector' => [ 'a b' ],
	'regclass' => [ 'pg_class' ],
	'mood' => [ 'sad', 'happy' ],
	'pair' => [ '(1,"{a,b}")' ],
	'positive' => [ '5' ]);

my %schema = (
	key_change => 'CREATE TABLE key_change (id int PRIMARY KEY, k text UNIQUE, u uuid UNIQUE, ts timestamptz UNIQUE, b char(8) UNIQUE, n numeric UNIQUE, v int)',
	whole => 'CREATE TABLE whole (a int, b text, c numeric, d timestamp, e float8, f int[]); ALTER TABLE whole REPLICA IDENTITY FULL',
	large => "CREATE TABLE large (id int PRIMARY KEY, p text, l text $compression, e text, b bytea, a int[], n int); ALTER TABLE large ALTER e SET STORAGE EXTERNAL",
	parts => 'CREATE TABLE parts (a int PRIMARY KEY, b text, c numeric(10,2)) PARTITION BY RANGE (a);
		CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (50);
		CREATE TABLE parts2 (c numeric(10,2), a int NOT NULL, b text);
		ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES FROM (50) TO (1000)',
	missing_column => 'CREATE TABLE missing_column (id int PRIMARY KEY, v int)');

# Other types on the subscriber; binary could not read most of them.
my %differing = (
	wider => [ 'CREATE TABLE wider (k int PRIMARY KEY, s int2, o oid, r float4, t text)',
		'CREATE TABLE wider (k bigint PRIMARY KEY, s int4, o bigint, r float8, t varchar)' ],
	other => [ 'CREATE TABLE other (k bigint PRIMARY KEY, i int, n numeric, ts timestamp, d date, iv interval, b bytea, f float8, a int[])',
		'CREATE TABLE other (k text PRIMARY KEY, i text, n text, ts text, d timestamp, iv text, b text, f text, a bigint[])' ],
	modifier => [ 'CREATE TABLE modifier (k varchar(20) PRIMARY KEY, n numeric, c char(10), t text, ts timestamp, b bit(4))',
		'CREATE TABLE modifier (k varchar(30) PRIMARY KEY, n numeric(20,1), c char(12), t varchar(50), ts timestamp(0), b varbit(4))' ],
	domain => [ 'CREATE TABLE domain (k int PRIMARY KEY, t text, n numeric)',
		'CREATE DOMAIN short AS text CHECK (length(value) < 100); CREATE TABLE domain (k positive PRIMARY KEY, t short, n numeric(10,1))' ],
	more => [ 'CREATE TABLE more (k int PRIMARY KEY, t text)',
		'CREATE TABLE more (x serial, t text, k int PRIMARY KEY, l int GENERATED ALWAYS AS (length(t)) STORED, d timestamptz DEFAULT now())' ]);

my $types = q{
	CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
	CREATE TYPE pair AS (x int, y text[]);
	CREATE DOMAIN positive AS int CHECK (value > 0)};
my $n = 0;
my (@type_tables, @array_tables, $fill);

# a table for each type: value, array, with the replica identity FULL if there
# is an equality, else by number
foreach my $type (sort keys %values)
{
	my $t = 'type' . ++$n;
	push @type_tables, $t;
	my $array = $type eq 'positive' ? 'int[]' : "$type\[]";
	$schema{$t} = "CREATE TABLE $t (id int PRIMARY KEY, v $type, a $array)";
	my $i = 0;
	foreach my $value (@{ $values{$type} })
	{
		my $quoted = "'$value'";
		$fill .= "INSERT INTO $t VALUES (" . ++$i . ", $quoted, ARRAY[$quoted, NULL, $quoted]::$array);\n";
	}
	$fill .= "INSERT INTO $t VALUES (1000, NULL, NULL), (1001, NULL, '{}');\n";
	$fill .= "INSERT INTO $t SELECT id + 2000, v, array_fill(v, '{2,2}'::int[], '{0,-3}'::int[]) FROM $t WHERE id < 1000 AND v IS NOT NULL;\n"
	  unless $type eq 'positive';
	$fill .= "UPDATE $t SET id = id + 5000 WHERE id % 2 = 0;\nUPDATE $t SET v = NULL WHERE id = 1;\nDELETE FROM $t WHERE id = 1001;\n";
}

foreach my $node ($publisher, values %subscriber)
{
	my $differs = $node != $publisher;
	my $same = $differs && $node == $subscriber{binary};

	$node->safe_psql('postgres', join(";\n", $types, map { $schema{$_} } sort keys %schema));
	foreach my $t (sort keys %differing)
	{
		$node->safe_psql('postgres', $differing{$t}[ $differs && !$same ? 1 : 0 ]);
	}
}
foreach my $name (sort keys %subscriber)
{
	create_subscription($publisher, $subscriber{$name}, worker_number => 4, name => "sub_$name",
		options => 'copy_data = false');
}

# What must be the same everywhere: by the publisher's column names, as text,
# since column types differ.
sub contents
{
	my ($node, $t) = @_;
	my $columns = $publisher->safe_psql('postgres', "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '$t'::regclass AND attnum > 0 AND NOT attisdropped");
	return $node->safe_psql('postgres', "SELECT md5(string_agg(r, '|' ORDER BY r COLLATE \"C\")), count(*) FROM (SELECT ROW($columns)::text AS r FROM $t) x");
}

sub compare
{
	my ($what) = @_;

	wait_caught_up($publisher, $subscriber{$_}, "sub_$_") for sort keys %subscriber;
	foreach my $t (@type_tables, sort grep { !/^type/ } keys %schema)
	{
		my $expected = contents($publisher, $t);
		foreach my $name (sort keys %subscriber)
		{
			my $found = contents($subscriber{$name}, $t);
			next if $found eq $expected;
			fail("$what: $schema{$t}, $name");
			diag("$name has " . substr($subscriber{$name}->safe_psql('postgres', "SELECT * FROM $t ORDER BY 1"), 0, 1000));
			diag('publisher has ' . substr($publisher->safe_psql('postgres', "SELECT * FROM $t ORDER BY 1"), 0, 1000));
		}
	}
	foreach my $t (sort keys %differing)
	{
		my $expected = contents($subscriber{text}, $t);
		foreach my $name (qw(auto faked))
		{
			my $found = contents($subscriber{$name}, $t);
			next if $found eq $expected;
			fail("$what: $t, $name");
			diag("$name has " . substr($subscriber{$name}->safe_psql('postgres', "SELECT * FROM $t ORDER BY 1"), 0, 1000));
			diag('text has ' . substr($subscriber{text}->safe_psql('postgres', "SELECT * FROM $t ORDER BY 1"), 0, 1000));
		}
	}
	pass($what);
	return;
}

$publisher->safe_psql('postgres', $fill);
compare('every type');

$publisher->safe_psql(
	'postgres', q{
INSERT INTO large SELECT i, repeat('pglz', i * 300), repeat('lz4', i * 300), repeat('ext', i * 900),
	decode(repeat('00', i * 2000), 'hex'), array_fill(i, ARRAY[i * 800]), 0 FROM generate_series(1, 10) i;
INSERT INTO large SELECT 100 + i, string_agg(md5(i * 1000 + j || 'p'), ''), string_agg(md5(i * 1000 + j || 'l'), ''), 'e',
	decode(string_agg(md5(i * 1000 + j || 'b'), ''), 'hex'), array_agg(j * 7919), 0
	FROM generate_series(1, 10) i, generate_series(1, 400) j GROUP BY i;
-- compressed and still out of line
INSERT INTO large SELECT 200, string_agg(md5(j::text) || repeat('x', 30), ''), string_agg(md5(j::text) || repeat('x', 30), ''), NULL, NULL, NULL, 0
	FROM generate_series(1, 2000) j;
UPDATE large SET n = n + 1;
UPDATE large SET l = p WHERE id < 5;
UPDATE large SET p = l || 'p' WHERE id > 100;
UPDATE large SET id = id + 1000 WHERE id % 3 = 0;
UPDATE large SET e = NULL, a = a[2:5] WHERE id % 4 = 0;

INSERT INTO whole SELECT i % 10, CASE WHEN i % 7 > 0 THEN 'b' || i % 3 END, (i % 5) / 10.0, '2020-01-01'::timestamp + i * interval '1 s', i / 3.0, ARRAY[i] FROM generate_series(1, 100) i;
INSERT INTO whole VALUES (1000, repeat('w', 5000), NULL, NULL, NULL, NULL), (1001, repeat('w', 500000), 1, NULL, 0, '{}');
UPDATE whole SET c = c + 1.00 WHERE a < 3;
UPDATE whole SET e = 7 WHERE a >= 1000;
DELETE FROM whole WHERE a = 5;

INSERT INTO parts SELECT i, repeat('p', i), i / 100.0 FROM generate_series(1, 99) i;
UPDATE parts SET a = 150 - a WHERE a BETWEEN 40 AND 49;
UPDATE parts SET b = NULL WHERE a % 3 = 0;
DELETE FROM parts WHERE a % 7 = 0;

INSERT INTO wider VALUES (1, -1, 4294967295, 0.1, 'one'), (-2147483648, 2, 0, 'NaN', ''), (3, NULL, NULL, NULL, repeat('t', 5000));
UPDATE wider SET k = 4, t = 'four' WHERE k = 1;
UPDATE wider SET s = 5;
INSERT INTO other VALUES (1, -1, 1.50, '2020-01-01 12:34:56.7', '2020-02-29', '1 mon -3 days', '\x00ff', 0.1, '{1,2}'), (2, NULL, 'NaN', 'infinity', '-infinity', '0', '', 'Infinity', '{}');
UPDATE other SET k = 10 WHERE k = 1;
DELETE FROM other WHERE k = 2;
INSERT INTO modifier VALUES ('a', 1.25, 'c', 't', '2020-01-01 12:34:56.7', '1010'), ('b', NULL, '', '', NULL, NULL);
UPDATE modifier SET n = 7 WHERE k = 'a';
INSERT INTO domain VALUES (1, 'one', 1.25), (2, NULL, NULL);
UPDATE domain SET t = 'two' WHERE k = 2;
INSERT INTO more VALUES (1, 'one'), (2, repeat('two', 10000));
UPDATE more SET t = t || '!';
});
compare('large values, whole rows, partitions, other types');

# Keys that are handed on from transaction to transaction, some of which come
# natively and some, for the sake of a temporary table, as text: the leader has
# to see that they are the same.
$publisher->safe_psql('postgres', q{
INSERT INTO key_change SELECT i, 'k' || i, md5(i::text)::uuid, '2020-01-01'::timestamptz + i * interval '1 s', 'b' || i, i / 10.0, 0 FROM generate_series(1, 20) i});
my $script = $publisher->basedir . '/keys.sql';
append_to_file($script, q{
\set a random(1, 20)
BEGIN;
DELETE FROM key_change WHERE id = :a;
INSERT INTO key_change SELECT :a, 'k' || :a, md5(:a::text)::uuid, '2020-01-01'::timestamptz + :a * interval '1 s', 'b' || :a, :a / 10.00, 1 ON CONFLICT DO NOTHING;
COMMIT;
\set b random(1, 20)
BEGIN;
CREATE TEMP TABLE tmp () ON COMMIT DROP;
DELETE FROM key_change WHERE id = :b;
INSERT INTO key_change SELECT :b, 'k' || :b, md5(:b::text)::uuid, '2020-01-01'::timestamptz + :b * interval '1 s', 'b' || :b, :b / 10.000, 2 ON CONFLICT DO NOTHING;
COMMIT;
UPDATE key_change SET v = v + 1, n = n + 0.000 WHERE id = :a;
});
$publisher->command_ok(
	[ 'pgbench', '-n', '-c', 4, '-t', 300, '-h', $publisher->host, '-p', $publisher->port, '-f', $script, 'postgres' ],
	'keys go from hand to hand');
compare('the same keys natively and as text');

foreach my $name (qw(auto faked))
{
	my $log = slurp_file($subscriber{$name}->logfile);
	unlike($log, qr/ERROR/, "no error on subscriber $name");
}
my $log = slurp_file($publisher->logfile);
like($log, qr/"native-signature" '1,[bl]e,[^']*;[^']*'/, 'auto sends a signature');
like($log, qr/"native-signature" '1,faked'/, 'the fake was sent');

# The setting counts from the next start on.
$subscriber{auto}->append_conf('postgresql.conf', 'pgparrep.tuple_format = text');
$subscriber{auto}->reload;
my $pid = leader_pid($subscriber{auto}, 'sub_auto');
$subscriber{auto}->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$publisher->safe_psql('postgres', q{UPDATE large SET n = n + 1; UPDATE key_change SET v = v + 1});
compare('auto changed to text');

$_->stop for $publisher, values %subscriber;
done_testing();
