# A physical standby of the subscriber is promoted in the middle of the load and goes on
# exactly where the subscriber was.
#
# The position to go on from travels in the commit records, so that the standby has it
# with whatever it has replayed.  What must not happen is that the publisher has been told
# of a commit as flushed that the standby does not have: it would never send it
# again.  That is what synchronous_commit of the subscription is for; with "on" and
# "remote_apply" the pool has to report no more than the synchronous standby has, while it
# commits asynchronously itself.  With "off" the server's own apply reports what
# is on the subscriber's own disk, and so does the pool.
#
# history and entry have no key, so that a second copy shows.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;

srand($seed);
diag("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
});

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 4, options => 'synchronous_commit = on');
my $mix = start_mix($publisher, '-R', 600);

# what happens between the last that the standby gets and the end of the subscriber: a leader that
# starts again must not report what it finds committed either
my %meanwhile = (
	on => sub { kill_9_all($subscriber); wait_until_up($subscriber) },
	remote_apply => sub { kill 'TERM', leader_pid($subscriber) },
	remote_write => sub { });

foreach my $synchronous_commit ('on', 'remote_apply', 'remote_write')
{
	my $name = "standby_$synchronous_commit";
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SET (synchronous_commit = $synchronous_commit)");
	$subscriber->backup('copy');
	$standby->init_from_backup($subscriber, 'copy', has_streaming => 1);
	$standby->start;
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = '$name'");
	$subscriber->reload;
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'},
		'a synchronous standby');
	# the subscriber's changes come from a pool, and all of them wait for the standby
	wait_for($subscriber, q{SELECT count(*) > 1 FROM pgparrep.stat_apply_worker WHERE state <> 'stopped'},
		'apply workers')
	  unless stock_only();
	usleep(1_500_000 + int rand 2_000_000);

	# While the standby gets nothing the subscriber goes on committing, but must not say so.
	my $receiver = $standby->safe_psql('postgres', 'SELECT pid FROM pg_stat_wal_receiver');
	kill 'STOP', $receiver;
	usleep(500_000);
	$meanwhile{$synchronous_commit}->();
	usleep(1_000_000);
	$subscriber->stop('immediate');
	my $confirmed = $publisher->safe_psql('postgres',
		q{SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'sub'});
	kill 'CONT', $receiver;
	$standby->promote;
	$standby->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
	$standby->reload;
	my $before = $standby->safe_psql('postgres', 'SELECT count(*) FROM history');
	$subscriber = $standby;
	wait_for($subscriber, "SELECT count(*) > $before FROM history",
		"$synchronous_commit: the standby goes on, the publisher having been told of $confirmed");
}

stop_mix($mix);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'in the end');
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM history'), '>', 1000, 'there was a load');
unlike(slurp_file($subscriber->logfile), qr/ERROR:  duplicate key|TRAP:|PANIC/, 'no error');

$subscriber->stop;
$publisher->stop;
done_testing();
