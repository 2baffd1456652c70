# A crash at each step at which one matters.
#
# t/320 and t/490 kill at random moments; most of the steps below last
# microseconds and would hardly ever be hit.  Before and after the commit record,
# the origin, the number that makes a commit known to the other workers, what is
# reported to the publisher, a spill file, a hand-over: a crash in between two
# of them loses or repeats a transaction if they come in the wrong order.
#
# Needs a build with PGPARREP_TEST_POINTS (include/test_points.h); scripts/test
# makes one if it runs all tests, or is asked for this one.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
plan skip_all => 'the library has no crash points'
  unless slurp_file("$libdir/pgparrep.so") =~ /pgparrep_crash_point/;

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
pgparrep.force_decoders = on
pgparrep.cached_changes = 20
max_prepared_transactions = 20
});
$_->safe_psql('postgres', q{
	CREATE TABLE plain (n int, v int);
	CREATE TABLE keyed (id int PRIMARY KEY, v int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'INSERT INTO keyed SELECT i, 0 FROM generate_series(1, 20) i');
create_subscription($publisher, $subscriber, worker_number => 3);

# In every round each row of "plain" appears once and each row of "keyed" goes up
# by the same, so that a transaction that is lost or comes twice shows; one of
# the transactions is spilled.
append_to_file($publisher->basedir . '/load.sql', q{
\set a random(1, 20)
BEGIN;
INSERT INTO plain VALUES (:client_id, :a);
UPDATE keyed SET v = v + 1 WHERE id = :a;
COMMIT;
});
append_to_file($publisher->basedir . '/spill.sql', q{
BEGIN;
INSERT INTO plain SELECT 100, i FROM generate_series(1, 100) i;
COMMIT;
});

for my $end ('COMMIT', 'ROLLBACK')
{
	append_to_file($publisher->basedir . "/$end.sql", qq{
\\set gid random(1, 1000000000)
BEGIN;
INSERT INTO plain VALUES (-:client_id, :gid);
PREPARE TRANSACTION 'g:gid';
$end PREPARED 'g:gid';
});
}

my @points = (
	(map { [ $subscriber, $_ ] }
		  qw(before_hand_out handed_out applied before_commit commit_record_written origin_advanced commit_known
		  before_group group_record_written group_known
		  before_feedback feedback_sent before_spill spilled before_table_sync table_synced)),
	(map { [ $publisher, $_ ] } qw(before_batch batch_handed_over batch_decoded before_send sent)),
	# the last, since with two_phase no table can be added with its rows
	(map { [ $subscriber, $_ ] } qw(before_prepare prepare_record_written prepared prepare_known
		  before_commit_prepared commit_prepared before_rollback_prepared rollback_prepared finish_known)));
my $tables = 0;
my $two_phase = 0;
for (@points)
{
	my ($node, $name) = @$_;
	my $file = $node->data_dir . '/pgparrep_crash_point';

	if ($name =~ /table_sync/)
	{
		my $table = 'new_' . ++$tables;
		$_->safe_psql('postgres', "CREATE TABLE $table (id int)") for $publisher, $subscriber;
		$publisher->safe_psql('postgres', "INSERT INTO $table SELECT generate_series(1, 100)");
	}

	if ($name =~ /prepare|finish/ && !$two_phase++)
	{
		$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
		create_subscription($publisher, $subscriber,
			worker_number => 3,
			options => 'two_phase = true, copy_data = false');
		wait_for($subscriber, q{SELECT subtwophasestate = 'e' FROM pg_subscription}, 'two_phase to be enabled');
	}

	# complete at once, since somebody is looking for it
	append_to_file("$file.new", $name);
	rename "$file.new", $file;
	answer($subscriber, 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION') if $name =~ /table_sync/;
	# groups are for a backlog
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE') if $name =~ /group/;
	my $load = start_load($publisher, "load_$name", 'pgbench', '-n', '-c', 4, '-R', 400,
		'-f', $publisher->basedir . '/load.sql@20', '-f', $publisher->basedir . '/spill.sql',
		$two_phase ? map { ('-f', $publisher->basedir . "/$_.sql\@3") } ('COMMIT', 'ROLLBACK') : (),
		'-h', $publisher->host, '-p', $publisher->port, 'postgres');
	if ($name =~ /group/)
	{
		usleep(1_000_000);
		$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
	}
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(10_000) while -e $file && time() < $until;
	ok(!-e $file, "crash at $name");
	usleep(300_000);
	stop_mix($load);
	wait_until_up($_) for $publisher, $subscriber;
	if ($name =~ /table_sync/)
	{
		$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
		wait_synced($subscriber);
	}
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "after a crash at $name");
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
		$publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
		"prepared transactions after a crash at $name");
}
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');

$subscriber->stop;
$publisher->stop;
done_testing();
