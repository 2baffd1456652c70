# The server's own apply worker goes on with a parallel subscription, and back,
# from wherever a crash left it.
#
# Whoever applies finds out where to begin from the subscription's replication
# origin alone.  If the pool left the origin elsewhere than at its last commit
# (before it, after it, or at the start of the commit record), what takes over would
# apply a transaction twice or never; entry and history have no key, so that a second
# copy shows.  What is prepared has to be found under the same name by either.
#
# The subscriber is stopped without a checkpoint, or killed, in the middle of the
# load, loses pgparrep from shared_preload_libraries, is stopped again, and gets it
# back, a few times.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'nothing to take over without pgparrep' if stock_only();

my $changes = $ENV{PGPARREP_TEST_CHANGES} // 6;
my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;

srand($seed);
diag("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber(q{
max_prepared_transactions = 20
wal_retrieve_retry_interval = 100ms
# what is large is streamed to either of them
logical_decoding_work_mem = 64kB
});

create_mix_tables($publisher, $subscriber);
$_->safe_psql('postgres', q{
	CREATE TABLE entry (who int, i int, pad text);
	CREATE TABLE mark (gid text)}) for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 4, options => 'two_phase = true');
wait_for($subscriber, q{SELECT subtwophasestate = 'e' FROM pg_subscription}, 'two_phase to be enabled');

my $mix = start_mix($publisher, '-R', 400);
my $script = $publisher->basedir . '/large.sql';
append_to_file($script, q{
\set who random(1, 1000000)
BEGIN;
INSERT INTO entry SELECT :who, i, repeat('x', 100) FROM generate_series(1, 2000) i;
SAVEPOINT s;
INSERT INTO entry SELECT -:who, i, repeat('y', 100) FROM generate_series(1, 500) i;
ROLLBACK TO s;
COMMIT;
});
my $large = start_load($publisher, 'large', 'pgbench', '-n', '-c', 2, '-R', 3, '-f', $script,
	'-h', $publisher->host, '-p', $publisher->port, 'postgres');

my $parallel = 1;
for my $n (1 .. $changes)
{
	usleep(1_000_000 + int rand 1_500_000);
	# one that is prepared with the one and ended with the other, for each kind of end
	$publisher->safe_psql('postgres', "BEGIN; INSERT INTO mark VALUES ('$_$n'); PREPARE TRANSACTION '$_$n'")
	  for 'commit', 'rollback';
	usleep(int rand 400_000);

	if (rand() < 0.5)
	{
		$subscriber->stop('immediate');
	}
	else
	{
		kill_9_all($subscriber);
		wait_until_up($subscriber);
		$subscriber->stop('immediate');
	}
	$parallel = !$parallel;
	$subscriber->adjust_conf('postgresql.conf', 'shared_preload_libraries', $parallel ? "'pgparrep'" : "''");
	$subscriber->start;

	$publisher->safe_psql('postgres', "COMMIT PREPARED 'commit$n'");
	$publisher->safe_psql('postgres', "ROLLBACK PREPARED 'rollback$n'");

	# it streams, and it is the one that it should be
	wait_for($publisher, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'sub'},
		'somebody to stream');
	my $pool = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'};
	if ($parallel)
	{
		wait_for($subscriber, "SELECT ($pool) > 1", 'apply workers');
	}
	else
	{
		is($subscriber->safe_psql('postgres', $pool), 0, "change $n: the server's own apply");
		is( $subscriber->safe_psql('postgres', q{SELECT label FROM pg_seclabels WHERE provider = 'pgparrep'}),
			'worker_number=4',
			"change $n: the label stays");
	}
	# time for some progress
	my $before = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM history');
	wait_for($subscriber, "SELECT count(*) > $before FROM history", "change $n: progress");
}

stop_mix($mix);
stop_mix($large);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, "after $changes changes");
is( $subscriber->safe_psql('postgres', 'SELECT count(*), (SELECT count(*) FROM pg_prepared_xacts) FROM mark'),
	"$changes|0", 'prepared transactions ended as on the publisher');
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM history'), '>', 1000, 'there was a load');
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM entry'), '>', 10000, 'with large transactions');
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');
unlike(slurp_file($subscriber->logfile), qr/ERROR:  duplicate key|TRAP:|PANIC/, 'no error');

$subscriber->stop;
$publisher->stop;
done_testing();
