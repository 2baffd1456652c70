# Clients in their surroundings: a synchronous standby, a clean shutdown, lag and
# statistics, a stock subscriber, decoding on a standby.
#
# A transaction of which nothing is published must be confirmed, too, or its
# session hangs.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = publisher_node('publisher', max_prepared_transactions => 5);
my $version = $node->safe_psql('postgres', 'SHOW server_version_num');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE noise (id int, v text);
	CREATE TABLE filtered (id int PRIMARY KEY, v int);
	CREATE PUBLICATION p FOR TABLE t, filtered WHERE (id > 100);
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});

# A child process that confirms everything as soon as it comes, and writes the
# ids that it got to a file when the server says good-bye.
my $file = $node->basedir . '/ids';
sub spawn_client
{
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	return $pid if $pid;

	my @frames;
	eval {
		local $SIG{ALRM} = sub { die "timeout\n" };
		alarm 120;
		my $client = replication_connect($node, application_name => 'sub');
		my $last = 0;
		replication_start($client, 's', publication_names => 'p');
		while (1)
		{
			my $m = replication_read($client, 60) or last;
			push @frames, fstream_parse($m->{data}) if $m->{type} eq 'w';
			# two replies with one position would reset the lag
			next if $m->{lsn} <= $last && !$m->{reply};
			$last = $m->{lsn} if $m->{lsn} > $last;
			replication_status($client, $last, 0);
		}
	};
	my ($done) = fstream_transactions(@frames);
	open(my $fh, '>', $file) or die;
	print $fh join(' ', map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done);
	close $fh;
	require POSIX;
	POSIX::_exit(0);
}

my $pid = spawn_client();
$node->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'sub'})
  or die 'no client';
$node->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'sub'});
$node->reload;
$node->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication});

my $t = time;
foreach my $sql (
	'INSERT INTO t VALUES (1)',
	'INSERT INTO noise VALUES (1)',
	'INSERT INTO filtered VALUES (1, 1)',
	'INSERT INTO filtered VALUES (101, 1)',
	'CREATE TABLE x (id int)',
	'DROP TABLE x',
	'BEGIN; INSERT INTO t VALUES (2); SAVEPOINT a; INSERT INTO t VALUES (3); ROLLBACK TO a; COMMIT',
	'BEGIN; SAVEPOINT a; INSERT INTO t VALUES (3); ROLLBACK TO a; INSERT INTO noise VALUES (2); COMMIT',
	'BEGIN; CREATE TEMP TABLE x (id int); INSERT INTO noise VALUES (3); COMMIT',
	q{SELECT pg_logical_emit_message(true, 'a', 'b')},
	q{BEGIN; INSERT INTO t VALUES (4); PREPARE TRANSACTION 'g'},
	q{COMMIT PREPARED 'g'},
	'TRUNCATE filtered',
	'TRUNCATE noise',
	'DELETE FROM t WHERE id = 4')
{
	my $timed_out;
	$node->psql('postgres', $sql, timeout => 20, timed_out => \$timed_out);
	ok(!$timed_out, "synchronous: $sql");
}
note sprintf('%.2f s', time - $t);

# Lag is tracked once a second at most.
sleep 1;
$node->safe_psql('postgres', 'INSERT INTO t VALUES (5)');
ok($node->poll_query_until('postgres', q{SELECT flush_lag IS NOT NULL FROM pg_stat_replication}),
	'lag is reported');
ok($node->poll_query_until('postgres',
	q{SELECT total_txns >= 3 AND total_bytes > 0 FROM pg_stat_replication_slots WHERE slot_name = 's'}),
	'streamed transactions are counted');

# A clean shutdown sends everything, and does not wait for ever.
$node->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
$node->reload;
$node->poll_query_until('postgres', q{SELECT current_setting('synchronous_standby_names') = ''});
$node->safe_psql('postgres', 'INSERT INTO t SELECT generate_series(1000, 3000)');
$t = time;
$node->stop('fast');
cmp_ok(time - $t, '<', 20, 'shutdown with a connected client');
waitpid($pid, 0);
is(slurp_file($file), join(' ', 1, 101, 2, 4, 4, 5, 1000 .. 3000),
	'everything was received before the shutdown');
$node->start;

# A stock subscriber with a slot of this plugin.
{
	my $sub = PostgreSQL::Test::Cluster->new('subscriber');
	$sub->init(allows_streaming => 'logical');
	$sub->start;
	$sub->safe_psql('postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v text);
		CREATE TABLE filtered (id int PRIMARY KEY, v int)});
	$node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('stock', 'pgparrep')});
	my $connstr = $node->connstr . ' dbname=postgres';
	$sub->safe_psql('postgres', qq{
		CREATE SUBSCRIPTION stock CONNECTION '$connstr' PUBLICATION p
		WITH (create_slot = false, streaming = on)});
	$node->wait_for_catchup('stock');
	$node->safe_psql('postgres', q{INSERT INTO t VALUES (9999, 'x'); UPDATE t SET v = 'y' WHERE id = 5});
	$node->wait_for_catchup('stock');
	$sub->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'});
	$node->wait_for_catchup('stock');
	is($sub->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'),
		$node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'),
		'a stock subscriber works with the plugin');
	$sub->safe_psql('postgres', 'DROP SUBSCRIPTION stock');
	$sub->stop;
}

# Logical decoding on a standby, possible since 16.
SKIP:
{
	skip 'no logical decoding on a standby before 16', 1 if $version < 160000;

	$node->backup('b');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'b', has_streaming => 1);
	$node->safe_psql('postgres', q{SELECT pg_create_physical_replication_slot('phys')});
	$standby->append_conf('postgresql.conf', "primary_slot_name = 'phys'\nhot_standby_feedback = on\n");
	$standby->start;
	$node->wait_for_replay_catchup($standby);
	my $h = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $standby->connstr('postgres'), '-c',
			q{SELECT pg_create_logical_replication_slot('onstandby', 'pgparrep')} ],
		'>', \my $out, '2>', \my $err);
	# it waits for a list of running transactions from the primary
	for (1 .. 50)
	{
		select(undef, undef, undef, 0.1);
		$node->safe_psql('postgres', 'SELECT pg_log_standby_snapshot()');
		last if $standby->safe_psql('postgres',
			q{SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL}) == 1;
	}
	$h->finish;
	my $client = replication_connect($standby);
	replication_start($client, 'onstandby', publication_names => 'p');
	$node->safe_psql('postgres', q{INSERT INTO t VALUES (20000, 'for the standby')});
	my $got = '';
	my $until = time + 20;
	while (time < $until && $got !~ /20000/)
	{
		my $m = replication_read($client, 1) or next;
		$got .= $m->{data} if $m->{type} eq 'w';
	}
	like($got, qr/20000.*for the standby/s, 'decodes on a standby');
	close $client->{sock};
	unlike(slurp_file($standby->logfile), qr/TRAP/, 'no assertion failed on the standby');
	$standby->stop;
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
$node->stop;
done_testing();
