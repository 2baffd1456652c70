# Every ALTER SUBSCRIPTION under load, with tables in initial copy.
#
# A worker of an earlier leader that still commits after the next one has read
# its position applies something twice.  A table whose copy ends must get each
# change from the copy, from its sync worker or from the pool: exactly once.
# The tables have no key, so that a second copy of a row shows.

use strict;
use warnings;
use feature 'state';

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 20;
srand($seed);
note("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
max_sync_workers_per_subscription = 4
});

my $ntables = 16;
my $create = join ';', map { "CREATE TABLE t$_ (id int, v int)" } 1 .. $ntables;
$_->safe_psql('postgres', $create) for $publisher, $subscriber;
$publisher->safe_psql('postgres', "INSERT INTO t$_ SELECT i, 0 FROM generate_series(1, 2000) i") for 1 .. $ntables;
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR TABLE t1, t2, t3, t4; CREATE PUBLICATION second FOR TABLE t5, t6');

# each transaction inserts into three tables
my $script = $publisher->basedir . '/load.sql';
append_to_file($script, <<'EOS');
\set a random(1, 16)
\set b random(1, 16)
\set c random(1, 6)
BEGIN;
INSERT INTO t:a VALUES (:client_id, 1);
INSERT INTO t:b VALUES (:client_id, 2);
INSERT INTO t:c VALUES (:client_id, 3);
END;
EOS
my ($stdout, $stderr);
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 4, '-j', 1, '-R', 1500, '-T', $seconds + 5, '-h', $publisher->host, '-p', $publisher->port,
		'-f', $script, 'postgres' ],
	'>', \$stdout, '2>', \$stderr);

create_subscription($publisher, $subscriber, worker_number => 8, wait => 0);

my $longest = 0;
my $what = '';
sub alter
{
	my ($sql) = @_;
	my $start = time();

	my ($ret, $out, $err) = $subscriber->psql('postgres', "ALTER SUBSCRIPTION sub $sql");
	note("$sql: $err") if $ret != 0;
	if (time() - $start > $longest)
	{
		$longest = time() - $start;
		$what = $sql;
	}
	return $ret == 0;
}

my $failed = 0;
my $next = 7;
my $n = 0;
my @changes = (
	(map { my $w = $_; sub { stock_only() || alter("SET (worker_number = $w)") } } 2, 8, 1, 4, 3),
	(map { my $b = $_; sub { alter("SET (binary = $b)") } } 'true', 'false'),
	(map { my $s = $_; sub { alter("SET (synchronous_commit = $s)") } } 'on', 'off', 'local'),
	sub { alter('SET (streaming = true)') && alter('SET (streaming = false)') },
	sub { state $added = 0; $added++ || alter('ADD PUBLICATION second') },
	sub { alter('DISABLE') && alter('ENABLE') },
	sub { alter('REFRESH PUBLICATION') },
	sub {
		return 1 if $next > $ntables;
		$publisher->safe_psql('postgres', "ALTER PUBLICATION pub ADD TABLE t$next");
		$next++;
		alter('REFRESH PUBLICATION');
	},
	sub {
		return 1 if $next > $ntables;
		$publisher->safe_psql('postgres', "ALTER PUBLICATION pub ADD TABLE t$next");
		$next++;
		alter('REFRESH PUBLICATION');
	},
	sub { my $pid = leader_pid($subscriber); kill 'TERM', $pid if $pid; 1 },
	sub { my @pids = apply_worker_pids($subscriber); kill 'TERM', $pids[ rand @pids ] if @pids; 1 },
);
my $end = time() + $seconds;
while (time() < $end)
{
	usleep(int rand 400_000);
	# the first ones in order, then at random
	$changes[ $n < @changes ? $n : int rand @changes ]->() or $failed++;
	$n++;
}
is($failed, 0, "$n changes, and none was refused");
cmp_ok($longest, '<', 20, 'each command returns') or diag($what);
note(sprintf 'the longest took %.1f s: %s', $longest, $what);

for (; $next <= $ntables; $next++)
{
	$publisher->safe_psql('postgres', "ALTER PUBLICATION pub ADD TABLE t$next");
}
alter('REFRESH PUBLICATION');
$load->finish;
wait_synced($subscriber);
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_subscription_rel'), $ntables, 'all tables are subscribed and ready');
compare_tables($publisher, $subscriber, 'changes of the subscription under load');
is($publisher->safe_psql('postgres', q{SELECT count(*) FROM pg_replication_slots}), 1, 'no slot of table synchronization is left');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_replication_origin}), 1, 'no origin either');
unlike(slurp_file($subscriber->logfile), qr/PANIC|TRAP|server process .* was terminated|server process .* exited with exit code 2/, 'no crash');

$subscriber->stop;
$publisher->stop;
done_testing();
