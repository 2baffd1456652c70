# A decoder that fails where the walsender does not ends the stream with its error;
# one that is told to go does not.  Nothing is lost, nothing stays behind.
#
# Without that a decoder that is out of memory, or cannot even connect, is replaced
# by the walsender without a word, batch by batch: slower, for no reason that
# anybody could find.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'needs /proc and prlimit'
  unless -r '/proc/self/status' && system('prlimit --version >/dev/null 2>&1') == 0;

$PgParRep::decoders = 2;		# for pgparrep.force_decoders
my $node = publisher_node('publisher', dynamic_shared_memory_type => 'mmap', autovacuum => 'off',
	wal_retrieve_retry_interval => '200ms');
my $version = $node->safe_psql('postgres', 'SHOW server_version_num');

sub sql { return $node->safe_psql('postgres', shift) }
sub decoders { return split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder' ORDER BY 1}) }
sub position { return sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") }

sql(q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE ROLE weak LOGIN REPLICATION;
	GRANT SELECT ON t TO weak;
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});

# The server itself has some segments.
sub files
{
	return sort map { glob($node->data_dir . "/$_") } 'pg_dynshmem/mmap.*', 'base/pgsql_tmp/*';
}
my @before = files();

# A client whose decoders are there and idle.
sub connected
{
	my (%settings) = @_;
	my $client = replication_connect($node, %settings);
	replication_start($client, 's', publication_names => 'p', 'parallel-decode-num' => 2);
	for (1 .. 200) { last if decoders() == 2; sleep 0.05 }
	return $client;
}

# What comes up to the position, or until the server ends the stream: ids, error.
sub stream
{
	my ($client, $end) = @_;
	my $data = '';
	my $m;

	my $ended = !eval {
		while ($m = replication_read($client, 30))
		{
			$data .= $m->{data} if $m->{type} eq 'w';
			last if $m->{type} eq 'k' && $m->{lsn} >= $end;
		}
		1;
	};
	my $error = $ended ? $@ : $m ? '' : 'nothing came';
	my @frames = fstream_parse($data);
	my ($done) = fstream_transactions(@frames);
	my @all = grep { $_->{type} eq 'I' } @frames;
	return (join(' ', map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done), $error, scalar(@all));
}

sub nothing_behind
{
	my ($name) = @_;
	ok($node->poll_query_until('postgres',
			q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')}),
		"$name: no process stays behind");
	my @left = files();
	is("@left", "@before", "$name: no segment and no file, either");
}

# Let a process have a little more memory than it has.
sub limit_memory
{
	foreach my $pid (@_)
	{
		my ($kb) = slurp_file("/proc/$pid/status") =~ /^VmSize:\s+(\d+)/m;
		my $bytes = ($kb + 3072) * 1024;
		system_or_bail('prlimit', '--pid', $pid, "--as=$bytes:$bytes");
	}
}

# 1. An error with a row.  A value of 100 kB has 10 MB as text.
{
	my $client = connected();
	limit_memory(decoders());
	sql(q{INSERT INTO t VALUES (1, 'first')});
	sql(q{INSERT INTO t VALUES (2, repeat('x', 10000000))});
	sql(q{INSERT INTO t VALUES (3, 'last')});
	my $end = position();
	sql('CHECKPOINT');
	my ($ids, $error, $rows) = stream($client, $end);
	like($error, qr/C:53200 M:out of memory.*Failed on request of size/s, 'row: the error of the decoder');
	like($error, qr{WAL record at [0-9A-F]+/[0-9A-F]+, transaction \d+, relation "public\.t"\npgparrep decoder [12] of 2 \(PID \d+\)},
		'row: its context');
	cmp_ok($rows, '>=', 2, 'row: what was in the batch is sent, so that the next attempt gets on');
	close $client->{sock};
	nothing_behind('row');

	$client = connected();
	($ids, $error) = stream($client, $end);
	is("$ids, $error", '1 2 3, ', 'row: nothing is lost');
	replication_status($client, $end, 0);
	$node->poll_query_until('postgres', "SELECT confirmed_flush_lsn - '0/0'::pg_lsn >= $end FROM pg_replication_slots");
	close $client->{sock};
	nothing_behind('row, again');
}

# 2. An error without one; the connection itself goes on.
{
	my $client = connected();
	my ($pid) = decoders();
	sql("SELECT pg_cancel_backend($pid)");
	for (1 .. 200) { last if decoders() == 1; sleep 0.05 }
	sql(q{INSERT INTO t VALUES (4, 'x')});
	my $end = position();
	sql('CHECKPOINT');
	my ($ids, $error) = stream($client, $end);
	like($error, qr/C:57014 M:canceling statement due to user request.*pgparrep decoder [12] of 2 \(PID $pid\)/s,
		'idle: the error of the decoder');
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_replication_slots WHERE active});
	replication_start($client, 's', publication_names => 'p', 'parallel-decode-num' => 2);
	($ids, $error) = stream($client, $end);
	is("$ids, $error", '4, ', 'idle: nothing is lost');

	close $client->{sock};
	nothing_behind('idle');
}

# 3. Told to go, it is not missed.
{
	my $client = connected();
	sql("SELECT pg_terminate_backend($_)") foreach decoders();
	for (1 .. 200) { last if decoders() == 0; sleep 0.05 }
	sql(q{INSERT INTO t VALUES (5, 'x')});
	my $end = position();
	sql('CHECKPOINT');
	my ($ids, $error) = stream($client, $end);
	is("$ids, $error", '4 5, ', 'terminated: the stream goes on');
	close $client->{sock};
	nothing_behind('terminated');
}

# 4. One that cannot connect.  From 17 on it may do what its walsender could.
SKIP:
{
	skip 'a decoder can connect', 3 if $version >= 170000;

	my $client = replication_connect($node, user => 'weak');
	sql('ALTER ROLE weak NOLOGIN');
	my $error = '';
	eval {
		replication_start($client, 's', publication_names => 'p', 'parallel-decode-num' => 2);
		(undef, $error) = stream($client, 2**62);
		1;
	} or $error = $@;
	like($error, qr/C:28000 M:role "weak" is not permitted to log in.*pgparrep decoder [12] of 2/s,
		'start: the error of the decoder');
	close $client->{sock};
	nothing_behind('start');
}

# 5. A subscription gets on by itself.
{
	my $subscriber = new_node('subscriber', "pgparrep.tuple_format = text\nwal_retrieve_retry_interval = 200ms\n");
	$subscriber->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text)');
	create_subscription($node, $subscriber, worker_number => 2, publication => 'p', name => 'sub');
	wait_synced($subscriber);
	$node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder'});
	limit_memory(decoders());
	sql(q{INSERT INTO t SELECT i, CASE WHEN i % 5 = 0 THEN repeat('x', 10000000) ELSE 'x' END FROM generate_series(1001, 1010) i});
	sql(q{UPDATE t SET v = 'y' WHERE id = 1010});
	wait_caught_up($node, $subscriber);
	compare_tables($node, $subscriber, 'subscriber');
	like(slurp_file($subscriber->logfile), qr/ERROR:.*out of memory/, 'subscriber: its log has the error');
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
	$subscriber->stop;
	nothing_behind('subscriber');
}

$node->stop;
like(slurp_file($node->logfile), qr/walsender|START_REPLICATION/, 'the log says whose error it is');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|server process .* was terminated/, 'no crash');
done_testing();
