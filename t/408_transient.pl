# Trouble that says nothing about the data: deadlocks with local sessions, lock
# timeouts, cancelled workers, and settings of role and database that end
# sessions of people.
#
# Taken for an error of the transaction it would disable the subscription,
# which one has to look after, or be repeated without a pause.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) =
  publisher_and_subscriber(ApplyCases::conf() . "deadlock_timeout = 100ms\n");

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE other (id serial PRIMARY KEY)});
}
$publisher->safe_psql('postgres', 'INSERT INTO t SELECT g, 0 FROM generate_series(1, 20) g');
create_subscription($publisher, $subscriber, options => 'disable_on_error = true');

my $owner = $subscriber->safe_psql('postgres', 'SELECT subowner::regrole FROM pg_subscription');
my $unexpected = qr/^(?!.*(?:STATEMENT|t\/|408_transient)).*\b(?:ERROR|FATAL|PANIC):|TRAP|has been disabled/m;

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		# against the order of the publisher's transactions
		my $local = IPC::Run::start([ 'pgbench', '-n', '-c', 2, '-T', 3, '--max-tries', 1000, '-h', $subscriber->host,
				'-p', $subscriber->port, '-f', local_script(), 'postgres' ], '<', \undef, '>', '/dev/null', '2>&1');
		load($publisher, q{
BEGIN;
UPDATE t SET v = v + 1 WHERE id = 1;
UPDATE t SET v = v + 1 WHERE id = 2;
UPDATE t SET v = v + 1 WHERE id = 3;
END;
INSERT INTO other DEFAULT VALUES;
}, '-c', 2, '-T', 2, '-R', 100);
		$local->finish;
		wait_caught_up($publisher, $subscriber);
		compare_tables($publisher, $subscriber, "local deadlocks, $name");
		is($subscriber->safe_psql('postgres', 'SELECT subenabled FROM pg_subscription'), 't', "still enabled, $name");
		is(missing_rows($subscriber), 0, "no row was missing, $name");
		unlike(log_since($subscriber, $offset), $unexpected, "no error, $name");
	});

sub local_script
{
	my $file = $subscriber->basedir . '/local.sql';

	append_to_file($file, q{
BEGIN;
UPDATE t SET v = v WHERE id = 3;
UPDATE t SET v = v WHERE id = 2;
UPDATE t SET v = v WHERE id = 1;
END;
\sleep 20 ms
}) unless -e $file;
	return $file;
}

# A deadlock with a local session that does not look for it: the worker is the victim.
SKIP:
{
	skip 'stock has no counts', 2 if stock_only();
	my $deadlocks = 'SELECT deadlocks FROM pgparrep.stat_subscription';
	my $before = $subscriber->safe_psql('postgres', $deadlocks);
	my $local = session($subscriber);

	$local->query(q{SET deadlock_timeout = '1h'});
	$local->query('BEGIN');
	$local->query('UPDATE t SET v = v WHERE id = 3');
	$publisher->safe_psql('postgres', 'BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; UPDATE t SET v = v + 1 WHERE id = 3; COMMIT');
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker' AND wait_event_type = 'Lock'},
		'a worker at the locked row');
	$local->query('UPDATE t SET v = v WHERE id = 1');
	$local->query('COMMIT');
	$local->quit;
	wait_caught_up($publisher, $subscriber);
	cmp_ok($subscriber->safe_psql('postgres', $deadlocks), '>', $before, 'a deadlock is counted');
	compare_tables($publisher, $subscriber, 'a deadlock with a session');
}

# Settings of role and database
$subscriber->safe_psql(
	'postgres', qq{
	ALTER ROLE $owner SET lock_timeout = '200ms';
	ALTER ROLE $owner SET statement_timeout = '100ms';
	ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '100ms';
	ALTER DATABASE postgres SET idle_session_timeout = '100ms';
	ALTER DATABASE postgres SET default_transaction_read_only = on;
	ALTER DATABASE postgres SET default_transaction_isolation = serializable;
	ALTER SUBSCRIPTION sub DISABLE});
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
my $free = q{SET default_transaction_read_only = off; SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0};
$subscriber->safe_psql('postgres', "$free; ALTER SUBSCRIPTION sub ENABLE");

my $offset = log_size($subscriber);
my @pids;
wait_for($subscriber, q{SELECT count(*) = 8 FROM pgparrep.stat_apply_worker WHERE pid > 0}, 'the workers') unless stock_only();
@pids = sort(apply_worker_pids($subscriber));

my $local = session($subscriber);
$local->query($free);
$local->query('BEGIN');
$local->query('LOCK TABLE t');
$publisher->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 5');
$publisher->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 5');
$publisher->safe_psql('postgres', 'INSERT INTO other DEFAULT VALUES');
usleep(2_000_000);
$local->query('COMMIT');
wait_caught_up($publisher, $subscriber);
my $log = log_since($subscriber, $offset);
SKIP:
{
	skip 'stock has no retries', 3 if stock_only();
	my $retries = () = $log =~ /will be tried again: canceling statement due to lock timeout/g;
	cmp_ok($retries, '>', 0, 'a lock timeout is met');
	cmp_ok($retries, '<', 10, '... and the attempt repeated with a pause');
	is(join(' ', sort(apply_worker_pids($subscriber))), "@pids", 'no worker ended');
}

# One that is blocked is cancelled, then the blocker ends; then idle ones are.
$local->query('BEGIN');
$local->query('UPDATE t SET v = v WHERE id = 6');
$publisher->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 6');
usleep(100_000);
kill 'INT', @pids;
usleep(500_000);
my ($pid) = $local->query('SELECT pg_backend_pid()');
$subscriber->psql('postgres', "SELECT pg_terminate_backend($pid)");
$local->quit;
wait_caught_up($publisher, $subscriber);
kill 'INT', @pids;
usleep(300_000);
$publisher->safe_psql('postgres', 'INSERT INTO other DEFAULT VALUES');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after timeouts and cancels');
is(join(' ', sort(apply_worker_pids($subscriber))), "@pids", 'no worker ended by a cancel');
is($subscriber->safe_psql('postgres', 'SELECT subenabled FROM pg_subscription'), 't', 'the subscription is still enabled');
unlike(log_since($subscriber, $offset), $unexpected, 'no error');

$subscriber->stop;
$publisher->stop;
done_testing();
