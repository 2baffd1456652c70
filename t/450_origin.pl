# The replication origin moves with each commit, and with nothing else.
#
# A rollback that takes the origin along loses the transaction that failed: it
# is not sent again.  An exception that a trigger raises and catches must not
# make later commits forget theirs, or they are applied twice after a crash.
# And what is in memory of the origin may be ahead of the WAL on disk: a new
# leader that confirms that position at once loses the difference in a crash.
# Nor may the end of an initial copy be lost in one when its slot is gone: the
# table would never become ready again.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# nothing but commits that wait for it, and checkpoints, flushes the WAL
my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_writer_delay = 10s
wal_writer_flush_after = 0
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE failing (id int);
		CREATE TABLE caught (id int);
		CREATE TABLE plain (id int)});
}
$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION fail_13() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.id = 13 THEN RAISE 'unlucky'; END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER fail BEFORE INSERT ON failing FOR EACH ROW EXECUTE FUNCTION fail_13();
	ALTER TABLE failing ENABLE ALWAYS TRIGGER fail;

	CREATE FUNCTION catch() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			RAISE 'caught at once';
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
		RETURN NEW;
	END $$;
	CREATE TRIGGER catch BEFORE INSERT ON caught FOR EACH ROW EXECUTE FUNCTION catch();
	ALTER TABLE caught ENABLE ALWAYS TRIGGER catch});
create_subscription($publisher, $subscriber, worker_number => 4);

sub remote_lsn
{
	return $subscriber->safe_psql('postgres', q{
		SELECT remote_lsn FROM pg_replication_origin_status
		JOIN pg_subscription ON external_id = 'pg_' || oid WHERE subname = 'sub'});
}

# ---------- a crash just after the initial copy

kill_9_all($subscriber);
wait_synced($subscriber);

# ---------- an exception that was caught

my $before = remote_lsn();
$publisher->safe_psql('postgres', "INSERT INTO caught VALUES ($_)") for 1 .. 10;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', "SELECT '" . remote_lsn() . "'::pg_lsn > '$before'"),
	't', 'the origin moves although an exception was caught');
$subscriber->stop('immediate');
$subscriber->start;
$publisher->safe_psql('postgres', 'INSERT INTO caught VALUES (11)');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'caught exceptions and a crash', 'caught');

# ---------- a transaction that fails for a while

$publisher->safe_psql('postgres', join ';', map { "INSERT INTO failing VALUES ($_); INSERT INTO plain VALUES ($_)" } 1 .. 30);
wait_for($subscriber, q{SELECT apply_error_count >= 2 FROM pg_stat_subscription_stats WHERE subname = 'sub'}, 'errors');
for my $signal (qw(TERM INT TERM INT TERM INT))
{
	usleep(20_000 + int rand 150_000);
	my $leader = leader_pid($subscriber);
	my @workers = apply_worker_pids($subscriber);
	kill $signal, $_ for grep { $_ } $leader, @workers;
}
$subscriber->stop('immediate');
$subscriber->start;
usleep(500_000);
my $walsender = $publisher->safe_psql('postgres',
	q{SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active});
usleep(500_000);
is($subscriber->safe_psql('postgres', 'SELECT count(*), max(id) FROM failing'), '12|12', 'nothing behind the failing one');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM plain'), '12', 'in the other table neither');
$subscriber->restart;
$subscriber->safe_psql('postgres', 'DROP TRIGGER fail ON failing');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a failing transaction, signals and a crash');

# ---------- signals to workers in the middle of work and of waiting

my $local = session($subscriber);
$publisher->safe_psql('postgres', q{
	CREATE TABLE keyed (id int PRIMARY KEY, v int);
	INSERT INTO keyed VALUES (1, 0)});
$subscriber->safe_psql('postgres', q{
	CREATE TABLE keyed (id int PRIMARY KEY, v int);
	ALTER SUBSCRIPTION sub REFRESH PUBLICATION});
wait_synced($subscriber);
for my $signal (qw(INT TERM))
{
	$local->query('BEGIN; UPDATE keyed SET v = v WHERE id = 1');
	$publisher->safe_psql('postgres', join ';', 'UPDATE keyed SET v = v + 1 WHERE id = 1',
		map { "INSERT INTO plain VALUES (100 + $_)" } 1 .. 10);
	wait_for($subscriber, q{
		SELECT count(*) > 0 FROM pg_stat_activity
		WHERE backend_type = 'pgparrep apply worker' AND wait_event_type = 'Lock'}, 'a worker to wait for the lock');
	usleep(100_000);
	for my $pid (apply_worker_pids($subscriber))
	{
		kill $signal, $pid;
		usleep(50_000);
	}
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM plain WHERE id > 100'),
		$publisher->safe_psql('postgres', 'SELECT count(*) - 10 FROM plain WHERE id > 100'),
		"SIG$signal does not let a later transaction pass");
	$local->query('COMMIT');
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "SIG$signal while waiting for a lock and for the turn");
}
$local->quit;
is($subscriber->safe_psql('postgres', 'SELECT v FROM keyed'), 2, 'each update once');

# ---------- a new leader and what the old one had not flushed

$subscriber->safe_psql('postgres', 'CHECKPOINT');
$publisher->safe_psql('postgres', 'INSERT INTO plain VALUES (1000)');
wait_for($subscriber, 'SELECT count(*) = 1 FROM plain WHERE id = 1000', 'the row');
my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
my $pid = leader_pid($subscriber);
kill 'TERM', $pid;
wait_for($subscriber, qq{
	SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 'sub' AND relid IS NULL AND pid <> $pid}, 'a new leader');
wait_for($publisher, q{SELECT active FROM pg_replication_slots WHERE slot_name = 'sub'}, 'it to stream');
usleep(1_000_000);
note('confirmed: ', $publisher->safe_psql('postgres', "SELECT confirmed_flush_lsn, '$lsn' FROM pg_replication_slots"));
kill_9_all($subscriber);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after the crash of a server whose leader had restarted');

$subscriber->stop;
$publisher->stop;
done_testing();
