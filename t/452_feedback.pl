# What is reported as flushed is on disk, whatever happens to be in the pool,
# and the publisher gets its answers in time all the same.
#
# Keepalives carry the end of the publisher's WAL.  A subscriber that answers
# with that while transactions are still in its pool, or committed but not yet
# flushed, moves the slot past them: after a crash they are gone.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_sender_timeout = 2s
});

$_->safe_psql('postgres', q{
	CREATE TABLE slow (id int);
	CREATE TABLE quick (id int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'CREATE DATABASE other');
$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_sleep(1.5);
		RETURN NEW;
	END $$;
	CREATE TRIGGER sleep BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION sleep();
	ALTER TABLE slow ENABLE ALWAYS TRIGGER sleep});
create_subscription($publisher, $subscriber, worker_number => 4);
wait_caught_up($publisher, $subscriber);

sub confirmed
{
	my ($lsn) = @_;
	return $publisher->safe_psql('postgres',
		"SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'") eq 't';
}

# ---------- transactions in the pool, and keepalives

my $offset = log_size($publisher);
my $first;
for my $i (1 .. 6)
{
	$publisher->safe_psql('postgres', "INSERT INTO slow VALUES ($i)");
	$first //= $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$publisher->safe_psql('postgres', "INSERT INTO quick VALUES ($i)");
}
my $last = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
my $early = 0;
my ($start, $applied) = (time(), 0);
# the crash comes long before the last one, however slow the machine
while (time() - $start < 6 && $applied < 4)
{
	# WAL of another database brings keepalives
	$publisher->safe_psql('other', 'CREATE TABLE IF NOT EXISTS t (i int); INSERT INTO t SELECT generate_series(1, 100)');
	$applied = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM slow');
	# in this order: what was confirmed before it was looked for
	$early++ if confirmed($last) && $subscriber->safe_psql('postgres', 'SELECT count(*) FROM slow') < 6;
	usleep(100_000);
}
is($early, 0, 'nothing is confirmed before it is applied');
my $count = $subscriber->safe_psql('postgres', 'SELECT count(*) FROM slow');
note("$count of 6 applied");
cmp_ok($count, '<', 6, 'the pool is still busy');
kill_9_all($subscriber);
unlike(log_since($publisher, $offset), qr/terminating walsender process due to replication timeout/, 'no timeout meanwhile');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a crash with transactions in the pool');

# ---------- committed, but not flushed

$subscriber->safe_psql('postgres', 'DROP TRIGGER sleep ON slow');
for my $round (1 .. 6)
{
	$publisher->safe_psql('postgres', join ';', map { "INSERT INTO quick VALUES ($round * 1000 + $_)" } 1 .. 200);
	my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	if ($round % 3 == 0)
	{
		# right after the feedback
		usleep(2_000) until confirmed($lsn);
	}
	else
	{
		usleep(int rand 150_000);
	}
	kill_9_all($subscriber);
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'crashes around the feedback');

# ---------- the same by way of restarted leaders

for my $round (1 .. 3)
{
	$publisher->safe_psql('postgres', join ';', map { "INSERT INTO quick VALUES ($round * 100000 + $_)" } 1 .. 100);
	usleep(int rand 30_000);
	my $pid = leader_pid($subscriber);
	kill 'TERM', $pid if $pid;
	usleep(100_000 + int rand 100_000);
	kill_9_all($subscriber);
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'crashes after the leader has restarted');

# ---------- stops that are no crash

$offset = log_size($subscriber);
$publisher->safe_psql('postgres', join ';', map { "INSERT INTO quick VALUES (-$_)" } 1 .. 200);
$publisher->stop('fast');
$publisher->start;
my $log = log_since($subscriber, $offset);
$log =~ s/.*(?:could not connect|could not receive|the database system is|Connection refused|server running).*\n//g;
unlike($log, qr/could not send/, 'the leader does not report to a publisher that has gone');
wait_caught_up($publisher, $subscriber);
$subscriber->restart;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'clean stops');

$subscriber->stop;
$publisher->stop;
done_testing();
