# Errors: none for work that is rolled back, one clear error for work that
# commits, and nothing left behind.
#
# Without the deferral a single row that cannot be converted stops replication for
# ever, although its transaction was rolled back: each reconnect meets it again.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PgParRep::publisher_node('publisher', max_prepared_transactions => 5);
my $version = $node->safe_psql('postgres', 'SHOW server_version_num');

if ($node->safe_psql('postgres', 'SHOW server_encoding') ne 'UTF8')
{
	$node->safe_psql('postgres', q{CREATE DATABASE utf8 TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'});
}
else
{
	$node->safe_psql('postgres', q{CREATE DATABASE utf8});
}

sub sql { return $node->safe_psql('utf8', shift) }

sql(q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TYPE mood AS ENUM ('gut', 'schön');
	CREATE TABLE e (id int PRIMARY KEY, m mood, a text[]);
	CREATE TABLE f (id int PRIMARY KEY, v int);
	CREATE PUBLICATION p FOR TABLE t, e;
	CREATE PUBLICATION pf FOR TABLE f WHERE (10 / v > 1);
	CREATE PUBLICATION pt FOR TABLE t;
});

# Everything up to now; dies with the server's error.
sub receive
{
	my ($slot, $settings, %options) = @_;
	my $client = replication_connect($node, database => 'utf8', %$settings);
	my $tries = 0;
	my $data = '';
	my $end;

	until (eval { replication_start($client, $slot, publication_names => 'p', %options); 1 })
	{
		die $@ if ++$tries > 200 || $@ !~ /is active/;
		select(undef, undef, undef, 0.05);
		$client = replication_connect($node, database => 'utf8', %$settings);
	}
	$end = sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
	sql('CHECKPOINT');
	while (1)
	{
		my $m = replication_read($client, 10) or die 'timeout';
		$data .= $m->{data} if $m->{type} eq 'w';
		last if $m->{type} eq 'k' && $m->{lsn} >= $end;
	}
	replication_status($client, $end, 0);
	# let it be read before the connection goes away
	replication_status($client, $end, 1);
	replication_read($client, 1);
	close $client->{sock};
	return $data;
}

sub ids
{
	my ($done) = fstream_transactions(fstream_parse(shift));
	return join(' ', map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done);
}

sub slots
{
	sql(qq{SELECT pg_create_logical_replication_slot('$_', 'pgparrep')}) for @_;
}

my %latin1 = (client_encoding => 'LATIN1');

# What can be converted is, in all ways that a value takes.
slots('latin1');
sql(q{
	INSERT INTO t VALUES (1, 'schön');
	INSERT INTO e VALUES (2, 'schön', '{schön}');
});
{
	my ($done) = fstream_transactions(fstream_parse(receive('latin1', \%latin1)));
	my @values = map { my @c = relation_columns($_->[1]); @c[ 1 .. $#c ] }
	  map { @{ $_->{changes} } } @$done;
	is(join(' ', @values), "sch\xf6n sch\xf6n {sch\xf6n}", 'text for a LATIN1 client');
	my ($type) = grep { $_->{type} eq 'R' && $_->{body} =~ /public\0e\0/ }
	  fstream_parse(receive('latin1', \%latin1));
}

# What cannot be is not an error while it may be rolled back.
sql(q{
	BEGIN; INSERT INTO t VALUES (10, '€'); ROLLBACK;
	BEGIN; INSERT INTO t VALUES (11, 'x'); SAVEPOINT a; INSERT INTO t VALUES (12, '€');
	ROLLBACK TO a; INSERT INTO t VALUES (13, 'y'); COMMIT;
	BEGIN; SAVEPOINT a; INSERT INTO t VALUES (14, 'x'); SAVEPOINT b; INSERT INTO e VALUES (14, 'gut', '{€}');
	RELEASE b; INSERT INTO t VALUES (15, 'z'); ROLLBACK TO a; INSERT INTO t VALUES (16, 'z'); COMMIT;
	INSERT INTO t VALUES (17, 'end');
});
is(ids(receive('latin1', \%latin1)), '11 13 16 17', 'rolled back rows raise no error');

# Committed, it is: the same each time, and repaired by another encoding.
sql(q{
	INSERT INTO t VALUES (20, 'before');
	BEGIN; SAVEPOINT a; INSERT INTO t VALUES (21, '€'); RELEASE a; INSERT INTO t VALUES (22, 'x'); COMMIT;
	INSERT INTO t VALUES (23, 'after');
});
for (1 .. 3)
{
	ok(!eval { receive('latin1', \%latin1); 1 }, "attempt $_ fails");
	like($@, qr/character with byte sequence 0xe2 0x82 0xac.*has no equivalent in encoding "LATIN1".*relation "public\.t"/s,
		'with the reason and the relation');
}
# The same connection can try again: nothing of the failed stream is left.
{
	my $client = replication_connect($node, database => 'utf8', %latin1);
	for (1 .. 3)
	{
		my $ok = eval {
			my $tries = 0;
			until (eval { replication_start($client, 'latin1', publication_names => 'p'); 1 })
			{
				die $@ if ++$tries > 200 || $@ !~ /is active/;
				select(undef, undef, undef, 0.05);
			}
			while (1) { replication_read($client, 10) or die 'timeout' }
			1;
		};
		like($@, qr/has no equivalent in encoding "LATIN1"/, "attempt $_ of one connection");
	}
	close $client->{sock};
}
# Behind a command that exports a snapshot the server before 18 forgets to reset
# the failed command's memory; what the stream has put in place must not stay.
# With assertions it does not survive that itself.
SKIP:
{
	skip 'server with assertions', 4
	  if $version < 180000 && sql('SHOW debug_assertions') eq 'on';
	my $client = replication_connect($node, database => 'utf8', %latin1);
	my $command = "CREATE_REPLICATION_SLOT temporary TEMPORARY LOGICAL pgparrep\0";
	$client->{sock}->syswrite('Q' . pack('N', 4 + length $command) . $command);
	PgParRep::_wait_for($client, 'Z');
	for (1 .. 3)
	{
		eval {
			replication_start($client, 'latin1', publication_names => 'p');
			while (1) { replication_read($client, 10) or die 'timeout' }
		};
		like($@, qr/has no equivalent in encoding "LATIN1"/, "attempt $_ behind an exported snapshot");
		PgParRep::_wait_for($client, 'Z') if $@ =~ /has no equivalent/;
	}
	close $client->{sock};
	ok($node->poll_query_until('utf8', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder'}),
		'no decoder is left');
}
is(ids(receive('latin1', {})), '20 21 22 23', 'nothing is lost when the reason is gone');

# With two-phase decoding an error counts when the transaction is prepared.
sql(q{SELECT pg_create_logical_replication_slot('prepared', 'pgparrep', false, true)});
sql(q{
	BEGIN; INSERT INTO t VALUES (130, 'x'); SAVEPOINT a; INSERT INTO t VALUES (131, '€'); ROLLBACK TO a;
	INSERT INTO t VALUES (132, 'y'); PREPARE TRANSACTION 'schön';
	COMMIT PREPARED 'schön';
});
{
	my $data = receive('prepared', \%latin1, proto_version => 3);
	is(ids($data), '130 132', 'prepared without what was rolled back');
	is(join(' ', map { $_->{body} =~ /(sch.*n)\0$/ } fstream_parse($data)), join(' ', ("sch\xf6n") x 3),
		'its name in the encoding of the client');
}
sql(q{
	INSERT INTO t VALUES (133, 'before');
	BEGIN; INSERT INTO t VALUES (134, '€'); PREPARE TRANSACTION 'g';
	INSERT INTO t VALUES (135, 'after');
});
for (1 .. 2)
{
	ok(!eval { receive('prepared', \%latin1, proto_version => 3); 1 }, "attempt $_ fails at PREPARE");
	like($@, qr/has no equivalent in encoding "LATIN1".*relation "public\.t"/s, 'with the reason and the relation');
}
is(ids(receive('prepared', {}, proto_version => 3)), '133 134 135', 'prepared when the reason is gone');
sql(q{ROLLBACK PREPARED 'g'});
is(join('', map { $_->{type} } fstream_parse(receive('prepared', \%latin1, proto_version => 3))), 'r', 'and rolled back');
sql(q{SELECT pg_drop_replication_slot('prepared')});

# A row filter that fails: pgoutput's error, at commit, until it is repaired.
slots('filter');
sql(q{
	BEGIN; INSERT INTO f VALUES (1, 0); ROLLBACK;
	INSERT INTO f VALUES (2, 2);
	INSERT INTO f VALUES (3, 0);
	INSERT INTO f VALUES (4, 100);
	INSERT INTO f VALUES (5, 1);
});
for (1 .. 2)
{
	ok(!eval { receive('filter', {}, publication_names => 'pf'); 1 }, "filter: attempt $_ fails");
	like($@, qr/division by zero/, 'with the reason');
}

# An error that decoders have yet to report is not raised within a replay: between the
# out-of-line chunks of a subtransaction and the end of their row, the server's cleanup
# reads memory that it has freed.
sql(q{
	CREATE TABLE q (id int PRIMARY KEY, v text);
	ALTER TABLE q ALTER v SET STORAGE EXTERNAL;
	CREATE PUBLICATION pq FOR TABLE t, q WHERE (id > 0);
});
slots('replay');
{
	my ($in, $out) = ('', '');
	my $h = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('utf8'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>', \my $err);
	$in .= "BEGIN; SAVEPOINT a; INSERT INTO q VALUES (60, repeat('x', 100000)); SELECT 'ready';\n";
	$h->pump until $out =~ /ready/;
	sql(q{INSERT INTO t VALUES (61, '€')});
	$in .= "COMMIT;\n";
	$h->finish;
	ok(!eval { receive('replay', \%latin1, publication_names => 'pq'); 1 }, 'an error before a replay');
	like($@, qr/has no equivalent in encoding "LATIN1".*relation "public\.t"/s, 'is raised there');
	is(ids(receive('replay', {}, publication_names => 'pq')), '61 60', 'nothing is lost when the reason is gone');
}

# A publication that does not exist at this point of the WAL.
slots('missing');
sql('INSERT INTO t VALUES (30, NULL)');
sql('CREATE PUBLICATION late FOR TABLE t');
sql('INSERT INTO t VALUES (31, NULL)');
if ($version < 180000)
{
	ok(!eval { receive('missing', {}, publication_names => 'late'); 1 }, 'missing publication');
	like($@, qr/publication "late" does not exist/, 'is an error before 18');
	slots('missing2');
	sql('DROP PUBLICATION late');
	sql('BEGIN; INSERT INTO t VALUES (32, NULL); ROLLBACK');
	sql('CREATE PUBLICATION late FOR TABLE t');
	sql('INSERT INTO t VALUES (33, NULL)');
	is(ids(receive('missing2', {}, publication_names => 'late')), '33',
		'but not for what is rolled back');
}
else
{
	is(ids(receive('missing', {}, publication_names => 'late')), '31',
		'missing publication: is skipped since 18');
	like(slurp_file($node->logfile), qr/skipped loading publication "late"/, 'with a warning');
}

# A crash of the server ends a transaction without a trace in the WAL.
slots('crash');
{
	my ($in, $out) = ('', '');
	my $h = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('utf8'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>', \my $err);
	$in .= "BEGIN; INSERT INTO t VALUES (40, 'lost'); SAVEPOINT a; INSERT INTO t VALUES (41, 'lost'); SELECT 'ready';\n";
	$h->pump until $out =~ /ready/;
	sql(q{INSERT INTO t VALUES (42, 'kept')});
	$node->stop('immediate');
	eval { $h->finish };
	$node->start;

	# a list of running transactions, and some WAL to read
	sql('CHECKPOINT');
	sql(q{INSERT INTO f SELECT i, 1 FROM generate_series(1000, 20000) i});
	sql(q{INSERT INTO t VALUES (43, 'kept')});
	my $data = receive('crash', {});
	my ($done, undef, $open) = fstream_transactions(fstream_parse($data));
	is(ids($data), '42 43', 'committed transactions after a crash');
	is(scalar(@$open), 0, 'the lost transaction is taken back');
	my @aborts = grep { $_->{type} eq 'A' } fstream_parse($data);
	is(scalar(@aborts), 1, 'by one abort message');
	is(unpack('H*', substr($aborts[0]{body}, 4)), '0' x 32, 'without position and time');
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
$node->stop;
done_testing();
