# Decoders change nothing: with 1, 4 and 20 of them the stream is the same, byte
# for byte, for all types and under all settings that values depend on.
#
# A decoder that lacks a setting of the walsender's session (time zone, date style,
# client encoding ...) formats values that look right and are different.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$PgParRep::decoders = 2;		# for pgparrep.force_decoders
my $node = publisher_node('publisher',
	max_worker_processes => 40,
	max_replication_slots => 40,
	max_wal_senders => 40);

$node->safe_psql('postgres', q{CREATE DATABASE utf8 TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
sub sql { return $node->safe_psql('utf8', shift) }

my %available = map { $_ => 1 }
  split /\n/, sql(q{SELECT name FROM pg_available_extensions WHERE name IN ('citext', 'hstore', 'pgparrep')});
foreach my $extension (sort keys %available)
{
	sql("CREATE EXTENSION $extension");
}

# One column for each base type and its array, filled from a sample as text.
my %samples = (
	bool => [ 't', 'f' ], bytea => [ '\x0001ff', '' ], '"char"' => [ 'c' ], name => [ 'a_name' ],
	int2 => [ -32768, 0 ], int4 => [ -2147483648, 7 ], int8 => [ '-9223372036854775808', 1 ],
	oid => [ 4294967295 ], text => [ 'gr' . "\xc3\xbc" . 'n', '', ' "quoted", {braces}' ], varchar => [ 'v' ],
	'bpchar(7)' => [ 'b' ], json => [ '{"a" : [1, null]}' ], jsonb => [ '{"a" : [1, 2.50, "x"]}' ],
	xml => [ '<a/>' ], jsonpath => [ '$.a' ], float4 => [ '0.1', 'NaN', '-0' ],
	float8 => [ '0.1', 'Infinity', '1e300', '1234567.891' ], numeric => [ '1.500', 'NaN', '-12345678901234567890.5' ],
	money => [ '-1234.56' ], date => [ '2020-02-29', 'infinity', '0044-03-15 BC' ], time => [ '12:34:56.789' ],
	timetz => [ '12:34:56+02' ], timestamp => [ '2020-02-29 12:34:56.789', '-infinity' ],
	timestamptz => [ '2020-07-29 12:34:56.789+00', '2020-01-01 00:00+00' ],
	interval => [ '1 year 2 mons -3 days 04:05:06.789', '-1 mon' ], uuid => [ '00000000-0000-0000-0000-000000000001' ],
	'bit(5)' => [ '10101' ], varbit => [ '1' ], inet => [ '10.1.2.3/8', '::1' ], cidr => [ '10.0.0.0/8' ],
	macaddr => [ '08:00:2b:01:02:03' ], macaddr8 => [ '08:00:2b:01:02:03:04:05' ],
	point => [ '(1.5,2)' ], lseg => [ '[(0,0),(1,1)]' ], path => [ '((0,0),(1,1))' ], box => [ '(1,1),(0,0)' ],
	polygon => [ '((0,0),(1,1),(2,0))' ], line => [ '{1,2,3}' ], circle => [ '<(1,2),3>' ],
	pg_lsn => [ 'AB/CD' ], tsvector => [ 'a:1A b:2' ], tsquery => [ 'a & b' ], tid => [ '(1,2)' ], xid => [ 7 ],
	xid8 => [ 7 ], cid => [ 7 ], txid_snapshot => [ '1:2:' ], pg_snapshot => [ '1:2:' ],
	regclass => [ 'pg_class' ], regtype => [ 'int4' ], regproc => [ 'now' ], regrole => [ 'pg_monitor' ],
	regnamespace => [ 'pg_catalog' ], regconfig => [ 'english' ],
	int4range => [ '[1,5)', 'empty' ], numrange => [ '[1.5,)' ], tstzrange => [ '[2020-07-01 00:00+00,)' ],
	daterange => [ '[2020-01-01,2020-02-01)' ], int4multirange => [ '{[1,2),[4,5)}' ],
	int2vector => [ '1 2' ], oidvector => [ '1 2' ],
	mood => [ 'gut', 's' . "\xc3\xbc" . 'ss' ], posint => [ 5 ], ints => [ '{1,2}' ], moods => [ '{gut}' ], pair => [ '(1,gut)' ]);
delete $samples{xml} if $node->psql('utf8', q{SELECT '<a/>'::xml}) != 0;
$samples{citext} = [ 'CiText' ] if $available{citext};
$samples{hstore} = [ 'a=>1, b=>NULL' ] if $available{hstore};

sql("CREATE TYPE mood AS ENUM ('gut', 's\xc3\xbcss')");
sql(q{
	CREATE DOMAIN posint AS int CHECK (value > 0);
	CREATE DOMAIN ints AS int[];
	CREATE DOMAIN moods AS mood[];
	CREATE TYPE pair AS (x int, y mood);
});

# Each type has its table; all base types that decoders format have one together.
my @workload;
my $n = 0;
sub literal { my $s = shift; $s =~ s/'/''/g; return "'$s'" }
foreach my $type (sort keys %samples)
{
	$n++;
	my $array = $type =~ /vector|moods|ints/ ? 'text[]' : "$type\[]";
	sql("CREATE TABLE t$n (id serial PRIMARY KEY, v $type, a $array); ALTER TABLE t$n REPLICA IDENTITY FULL");
	foreach my $s (@{ $samples{$type} })
	{
		my $v = literal($s);
		push @workload, "INSERT INTO t$n (v, a) VALUES ($v, ARRAY[$v, NULL, $v]::$array);\n";
	}
	push @workload, "INSERT INTO t$n (v) VALUES (NULL); UPDATE t$n SET id = id + 1000; DELETE FROM t$n WHERE id % 2 = 0;\n";
}
my @base = grep { !/mood|posint|ints|pair|citext|hstore/ && !/"char"/ } sort keys %samples;
my $i = 0;
sql('CREATE TABLE wide (id serial PRIMARY KEY, ' . join(', ', map { 'c' . $i++ . " $_" } @base) . ')');
push @workload, map {
	my $row = $_;
	'INSERT INTO wide VALUES (DEFAULT, '
	  . join(', ', map { my $s = $samples{$_}; literal($s->[ $row % @$s ]) } @base) . ");\n"
} 1 .. 20;
sql(q{
	CREATE TABLE big (id int PRIMARY KEY, v text, w text, n int);
	ALTER TABLE big ALTER v SET STORAGE EXTERNAL;
	CREATE TABLE missing (id int PRIMARY KEY);
	CREATE PUBLICATION p FOR ALL TABLES;
});
push @workload, q{
	-- values that are added to rows which were written before
	INSERT INTO missing SELECT i FROM generate_series(1, 5) i;
	ALTER TABLE missing ADD i int DEFAULT 7, ADD t text DEFAULT 'added', ADD f float8 DEFAULT 1.5;
	ALTER TABLE missing REPLICA IDENTITY FULL;
	UPDATE missing SET id = id + 10;
	DELETE FROM missing;
	-- out of line, compressed a hundred times, larger than a batch
	INSERT INTO big SELECT i, repeat(md5(i::text), 1000), repeat('x', 100000), i FROM generate_series(1, 30) i;
	INSERT INTO big VALUES (100, repeat('y', 1000000), repeat('z', 10000000), 1);
	UPDATE big SET n = n + 1;
	UPDATE big SET w = repeat('w', 50000) WHERE id < 20;
	BEGIN;
	SAVEPOINT a;
	INSERT INTO big SELECT i, repeat(md5(i::text), 1000), NULL, i FROM generate_series(1001, 1030) i;
	ROLLBACK TO a;
	INSERT INTO big (id, n) SELECT i, i FROM generate_series(2001, 4000) i;
	SAVEPOINT b;
	UPDATE big SET n = n + 1;
	RELEASE b;
	COMMIT;
	INSERT INTO big VALUES (100, 'x', 'x', 1) ON CONFLICT (id) DO UPDATE SET n = 5;
	COPY big (id, v, n) FROM PROGRAM $p$perl -e 'print "$_\t", "q" x 5000, "\t$_\n" for 5001 .. 5100'$p$;
	BEGIN; TRUNCATE missing; INSERT INTO missing (id) VALUES (1); COMMIT;
	DELETE FROM big;
};

# Everything up to now, without the boundaries of messages.
sub receive
{
	my ($slot, $settings, %options) = @_;
	my $client = replication_connect($node, database => 'utf8', %$settings);
	my @data;
	my $end = sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");

	replication_start($client, $slot, publication_names => 'p', %options);
	sql('CHECKPOINT');
	while (1)
	{
		my $m = replication_read($client, 60) or die 'timeout';
		push @data, $m->{data} if $m->{type} eq 'w';
		last if $m->{type} eq 'k' && $m->{lsn} >= $end;
	}
	my $stat = $available{pgparrep} ? sql('SELECT sum(batches), max(walsender_batches), count(*) FROM pgparrep.stat_decoder') : '';
	close $client->{sock};
	$node->poll_query_until('utf8', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')})
	  or die 'process stays behind';
	return (join('', @data), $stat);
}

my %sessions = (
	plain => [ {} ],
	binary => [ {}, binary => 'true' ],
	native => [ {}, 'native-signature' => native_signature($node, 'utf8') ],
	settings => [ {
		TimeZone => 'Asia/Kathmandu',
		DateStyle => 'German',
		IntervalStyle => 'sql_standard',
		extra_float_digits => -5,
		bytea_output => 'escape',
		client_encoding => 'LATIN1',
		search_path => 'pg_catalog' } ],
	'ISO settings' => [ { TimeZone => 'America/St_Johns', DateStyle => 'ISO', IntervalStyle => 'postgres', extra_float_digits => 3 } ]);

foreach my $session (sort keys %sessions)
{
	foreach my $n (1, 2, 4, 20)
	{
		(my $slot = "${session}_$n") =~ s/ /_/g;
		sql(qq{SELECT pg_create_logical_replication_slot(lower('$slot'), 'pgparrep')});
	}
}
sql(join '', @workload);

foreach my $session (sort keys %sessions)
{
	my ($settings, %options) = @{ $sessions{$session} };
	my %stream;

	foreach my $n (1, 2, 4, 20)
	{
		(my $slot = lc "${session}_$n") =~ s/ /_/g;
		my ($data, $stat) = receive($slot, $settings, 'parallel-decode-num' => $n, %options);
		$stream{$n} = $data;
		next if $n == 1;
		cmp_ok(length $data, '>', 1000000, "$session: something came");
		ok($data eq $stream{1}, "$session: $n decoders, the same " . length($data) . ' bytes');
		next unless $available{pgparrep};
		my ($batches, $own, $count) = split /\|/, $stat;
		is($count, $n, "$session: $n processes");
		cmp_ok($batches, '>', 10, "$session: they have done $batches batches");
		is($own, 0, "$session: and the walsender none");
	}
}
isnt(join('', receive('plain_1', {})), '', 'not confirmed: comes again');

# A change of the configuration reaches the decoders when it reaches the walsender.
{
	my %seen;
	foreach my $n (1, 4)
	{
		sql("SELECT pg_create_logical_replication_slot('reload_$n', 'pgparrep')");
		my $client = replication_connect($node, database => 'utf8');
		replication_start($client, "reload_$n", publication_names => 'p', 'parallel-decode-num' => $n);
		foreach my $zone ('UTC', 'Asia/Tokyo', 'UTC')
		{
			sql("ALTER SYSTEM SET timezone = '$zone'");
			$node->reload;
			# the walsender reads it when something happens
			my $values = '';
			for (1 .. 100)
			{
				sql(q{CREATE TABLE IF NOT EXISTS zoned (id serial PRIMARY KEY, v timestamptz); INSERT INTO zoned (v) VALUES ('2020-01-01 00:00+00')});
				my $m;
				do { $m = replication_read($client, 10) } while $m && !($m->{type} eq 'w' && $m->{data} =~ /2020-01-01 (\d\d:00:00\+\d\d)/);
				$values = $m && $m->{data} =~ /2020-01-01 (\d\d:00:00\+\d\d)/ ? $1 : 'nothing';
				last if $values eq ($zone eq 'UTC' ? '00:00:00+00' : '09:00:00+09');
			}
			is($values, $zone eq 'UTC' ? '00:00:00+00' : '09:00:00+09', "$n: time zone $zone");
		}
		close $client->{sock};
	}
}

$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
done_testing();
