# Crashes with a large transaction in front of many small ones, and with a large
# one received in part, in memory and in a file.
#
# One position per subscription says what is in.  If small transactions
# committed before the large one, a crash would lose that or repeat them; if
# what was received in part survived a reconnect, its first half would come
# twice.  Positions of the slot never go back, or WAL that is still needed may
# be gone.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
my $rounds = $ENV{PGPARREP_TEST_ROUNDS} // 8;
srand($seed);
note("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
max_wal_size = 64MB
min_wal_size = 32MB
max_slot_wal_keep_size = 2GB
});

$_->safe_psql('postgres', q{
	CREATE TABLE large (id int, round int);
	CREATE TABLE small (id int, round int);
	CREATE TABLE keyed (id int PRIMARY KEY, round int)}) for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 4);
wait_caught_up($publisher, $subscriber);

my ($restart_lsn, $confirmed) = ('0/0', '0/0');
my $backwards = 0;
sub sample
{
	my $out = answer($publisher, qq{
		SELECT restart_lsn, confirmed_flush_lsn, restart_lsn < '$restart_lsn' OR confirmed_flush_lsn < '$confirmed', wal_status = 'lost'
		FROM pg_replication_slots WHERE slot_name = 'sub'});

	return unless defined $out && $out =~ /^(\S+)\|(\S+)\|(.)\|(.)$/;
	($restart_lsn, $confirmed) = ($1, $2);
	$backwards++ if $3 eq 't' || $4 eq 't';
	return;
}

# sleeps, sampling
sub pause
{
	my ($time) = @_;
	my $end = time() + $time;

	while (time() < $end)
	{
		sample();
		usleep(30_000);
	}
	return;
}

sub crash
{
	my ($round) = @_;
	my @what = (
		sub { kill_9_all($subscriber); 'subscriber' },
		sub {
			my @pids = apply_worker_pids($subscriber);
			kill_9($subscriber, $pids[ rand @pids ]) if @pids;
			'worker';
		},
		sub { $subscriber->restart; 'restart' },
		sub {
			$publisher->psql('postgres', q{SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active});
			'walsender';
		},
		sub { my $pid = leader_pid($subscriber); kill 'TERM', $pid if $pid; 'leader' },
		sub {
			$publisher->stop('immediate');
			$publisher->start;
			# back to what it had last written
			($restart_lsn, $confirmed) = ('0/0', '0/0');
			'publisher';
		});
	return $what[ $round < @what ? $round : int rand @what ]->();
}

# ---------- a large one in front of small ones

for my $round (0 .. $rounds - 1)
{
	$publisher->safe_psql('postgres', "INSERT INTO large SELECT i, $round FROM generate_series(1, 60000) i;"
		. join ';', map { "INSERT INTO small VALUES ($_, $round)" } 1 .. 200);
	pause(rand 0.5);
	my $what = crash($round);
	note("round $round: $what");
	pause(0.1);
	crash($round) if $round % 3 == 2;
	$publisher->safe_psql('postgres', 'CHECKPOINT') if $round % 2;
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'crashes with a large transaction in front');

# ---------- a large one received in part

for my $cached (100, 10_000_000)
{
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.cached_changes = $cached");
	$subscriber->reload;
	for my $round (0 .. 5)
	{
		my $open = session($publisher);
		my $id = 1000 * ($round + 1) + ($cached > 100 ? 100_000 : 0);

		$open->query("BEGIN; INSERT INTO large SELECT i, 100 + $round FROM generate_series(1, 5000) i");
		$open->query("SAVEPOINT s; INSERT INTO large SELECT i, -1 FROM generate_series(1, 3000) i; ROLLBACK TO s");
		$open->query("INSERT INTO keyed SELECT $id + i, $round FROM generate_series(1, 300) i");
		$publisher->safe_psql('postgres', "INSERT INTO small VALUES (0, 100 + $round)");
		pause(rand 0.3);
		# a publisher that crashes takes the transaction with it
		my $what = crash($round % 5);
		pause(rand 0.2) if $round % 2;
		$open->query("INSERT INTO keyed SELECT $id + i, $round FROM generate_series(301, 600) i");
		$open->query("UPDATE keyed SET round = round + 1 WHERE id > $id AND id <= $id + 600");
		$open->query($round == 4 ? 'ROLLBACK' : 'COMMIT');
		$open->quit;
	}
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber,
		'crashes with a large transaction received in part, ' . ($cached > 100 ? 'in memory' : 'in a file'));
}
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');

# ---------- when there is nothing to do

for my $round (0 .. 2)
{
	$publisher->safe_psql('postgres', "INSERT INTO small VALUES (0, 200 + $round)");
	wait_caught_up($publisher, $subscriber);
	$round == 0 ? $subscriber->restart : crash($round == 1 ? 0 : 4);
	pause(0.3);
}
$publisher->safe_psql('postgres', 'INSERT INTO small VALUES (0, 300)');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'restarts when caught up', 'small');

is($backwards, 0, 'the positions of the slot never go back');
unlike(slurp_file($publisher->logfile), qr/has already been removed|invalidating obsolete/, 'no WAL was removed too early');

$subscriber->stop;
$publisher->stop;
done_testing();
