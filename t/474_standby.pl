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
max_prepared_transactions = 10
});

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 4, options => 'synchronous_commit = on, two_phase = true');
my $mix = start_mix($publisher, '-R', 600);

# what happens between the last that the standby gets and the end of the subscriber: a leader that
# starts again must not report what it finds committed either
my %meanwhile = (
	on => sub { kill_9_all($subscriber); wait_until_up($subscriber) },
	remote_apply => sub { kill 'TERM', leader_pid($subscriber) },
	remote_write => sub { });

sub attach_standby
{
	my ($name, $synchronous_commit) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SET (synchronous_commit = $synchronous_commit)");
	$subscriber->backup('copy');
	$standby->init_from_backup($subscriber, 'copy', has_streaming => 1);
	$standby->start;
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = '$name'");
	$subscriber->reload;
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'},
		'a synchronous standby');
	wait_for($subscriber, q{SELECT count(*) > 1 FROM pgparrep.stat_apply_worker WHERE state <> 'stopped'},
		'apply workers')
	  unless stock_only();
	return $standby;
}

# The standby gets nothing of what $meanwhile does, and takes over.
sub fail_over
{
	my ($standby, $meanwhile) = @_;

	$standby->safe_psql('postgres', q{ALTER SYSTEM SET primary_conninfo = ''});
	$standby->reload;
	wait_for($standby, 'SELECT count(*) = 0 FROM pg_stat_wal_receiver', 'the standby to be cut off');
	$meanwhile->();
	usleep(1_500_000);			# more than one status report
	$subscriber->stop('immediate');
	$standby->promote;
	$standby->safe_psql('postgres', "ALTER SYSTEM RESET $_") for 'synchronous_standby_names', 'primary_conninfo';
	$standby->reload;
	$subscriber = $standby;
	return;
}

foreach my $synchronous_commit ('on', 'remote_apply', 'remote_write')
{
	my $standby = attach_standby("standby_$synchronous_commit", $synchronous_commit);

	usleep(1_500_000 + int rand 1_500_000);
	fail_over($standby, $meanwhile{$synchronous_commit});
	my $before = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM history');
	wait_for($subscriber, "SELECT count(*) > $before FROM history", "$synchronous_commit: the standby to go on");
}
stop_mix($mix);

# A PREPARE and the end of one have no ordinary commit record, but are to be waited for
# all the same.
sub prepare { $publisher->safe_psql('postgres', "BEGIN; INSERT INTO history VALUES (0, 0, 0); PREPARE TRANSACTION '$_'") for @_ }
prepare('earlier');
wait_caught_up($publisher, $subscriber);
my $earlier = $subscriber->safe_psql('postgres', 'SELECT transaction FROM pg_prepared_xacts');
my $standby = attach_standby('standby_prepared', 'on');
wait_for($subscriber, q{SELECT pg_current_wal_lsn() = flush_lsn FROM pg_stat_replication}, 'the standby to have everything');
fail_over($standby, sub
	{
		prepare('later');
		$publisher->safe_psql('postgres', q{COMMIT PREPARED 'earlier'});
		wait_for($subscriber, "SELECT count(*) = 1 AND min(transaction::text) <> '$earlier' FROM pg_prepared_xacts",
			'the subscriber to follow');
	});
$publisher->safe_psql('postgres', q{COMMIT PREPARED 'later'});

wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'in the end');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is left prepared');
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM history'), '>', 1000, 'there was a load');
unlike(slurp_file($subscriber->logfile), qr/ERROR:  duplicate key|TRAP:|PANIC/, 'no error');

$subscriber->stop;
$publisher->stop;
done_testing();
