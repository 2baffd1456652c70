# The subscriber as synchronous standby of its publisher: nobody there hangs,
# whatever it is that commits, and nothing is confirmed before it is there.

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
wal_sender_timeout = 5s
});

$_->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v int);
	CREATE TABLE b (id int PRIMARY KEY, v int);
	CREATE TABLE filtered (id int PRIMARY KEY);
	CREATE TABLE unpublished (id int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR TABLE a, b, filtered WHERE (id < 0)');

# default: nothing is flushed on the subscriber for the sake of a commit
create_subscription($publisher, $subscriber, worker_number => 4);

my $session;
sub timed
{
	my ($what, $sql, $limit) = @_;
	my $start = time();

	$session->query($sql);
	my $took = time() - $start;
	ok($took < ($limit // 3), $what) or diag("took $took s");
	return $took;
}

for my $level ('on', 'remote_write', 'remote_apply')
{
	for my $own ('off', 'on')
	{
		my $set = "publisher $level, subscription $own";

		$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SET (synchronous_commit = $own)");
		$publisher->safe_psql('postgres', "SET synchronous_commit = local;
			ALTER SYSTEM SET synchronous_standby_names = 'sub'");
		$publisher->safe_psql('postgres', "ALTER SYSTEM SET synchronous_commit = '$level'");
		$publisher->reload;
		wait_for($publisher, q{SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'}, 'sub to be synchronous');
		$session = session($publisher);
		$session->query("SET synchronous_commit = $level");

		timed("$set: truncate one", 'TRUNCATE a');
		timed("$set: truncate several", 'TRUNCATE a, b, filtered, unpublished');
		timed("$set: nothing published", 'INSERT INTO unpublished SELECT generate_series(1, 1000)');
		timed("$set: only DDL", 'CREATE TABLE ddl (id int); ALTER TABLE ddl ADD c int; DROP TABLE ddl');
		timed("$set: all filtered", 'INSERT INTO filtered SELECT generate_series(1, 1000)');
		timed("$set: locked catalog", 'BEGIN; LOCK pg_class IN SHARE MODE; INSERT INTO a VALUES (0, 0); COMMIT');
		timed("$set: aborted", 'BEGIN; INSERT INTO a VALUES (1, 1); ROLLBACK');
		timed("$set: rolled back to a savepoint", 'BEGIN; SAVEPOINT s; INSERT INTO a VALUES (1, 1); ROLLBACK TO s; COMMIT');

		my $missed = 0;
		for my $i (1 .. 10)
		{
			$session->query("INSERT INTO a VALUES ($i, $i)");
			$missed++ if $level eq 'remote_apply'
			  && $subscriber->safe_psql('postgres', "SELECT count(*) FROM a WHERE id = $i") ne '1';
		}
		is($missed, 0, "$set: what has been applied is visible") if $level eq 'remote_apply';
		my $took = timed("$set: 30 transactions in a row", join(';', map { "INSERT INTO b VALUES ($_, 0)" } 1 .. 30), 30);
		note(sprintf '%s: %.0f transactions/s', $set, 30 / $took);
		$session->quit;
	}
}

# ---------- what a client was told to be flushed there is flushed there

$subscriber->safe_psql('postgres', q{ALTER SUBSCRIPTION sub SET (synchronous_commit = on)});
$session = session($publisher);
$session->query('SET synchronous_commit = on; TRUNCATE a, b');
my $lost = 0;
for my $i (1 .. 4)
{
	$session->query("INSERT INTO a VALUES ($i, 1)");
	kill_9_all($subscriber);
	$lost++ if $subscriber->safe_psql('postgres', "SELECT count(*) FROM a WHERE id = $i") ne '1';
}
is($lost, 0, 'a flushed commit survives a crash');

# ---------- down for a while: sessions wait as long, not longer

$subscriber->stop('fast');
$session->send(q{INSERT INTO a VALUES (100, 100)});
usleep(1_000_000);
is($publisher->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}), 1, 'waits for its standby');
$subscriber->start;
timed('and goes on when that is back', 'SELECT 1', 20);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM a WHERE id = 100'), 1, 'with the row');
$session->quit;

$publisher->safe_psql('postgres', 'SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names');
$publisher->reload;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'synchronous', 'a', 'b');

$subscriber->stop;
$publisher->stop;
done_testing();
