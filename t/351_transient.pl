# Trouble that passes by itself: deadlocks with local sessions, lock timeouts,
# terminated workers, a hot row among others.
#
# Taken for errors of the data, these would disable the subscription, or repeat
# without a pause.  And a wait for one's turn to commit is invisible to the lock
# manager: a later transaction that holds what an earlier one needs would stop
# the subscription for ever, without a deadlock that anybody could detect.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
deadlock_timeout = 200ms
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE hot (id int PRIMARY KEY, v int)');
}
$publisher->safe_psql('postgres', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i; INSERT INTO hot VALUES (1, 0)');
$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE totals (n bigint);
	INSERT INTO totals VALUES (0);
	CREATE TABLE counted (id int PRIMARY KEY);
	CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE public.totals SET n = n + 1;
		RETURN NEW;
	END $$;
	CREATE TRIGGER count AFTER INSERT ON counted FOR EACH ROW EXECUTE FUNCTION count_up();
	ALTER TABLE counted ENABLE ALWAYS TRIGGER count});
$publisher->safe_psql('postgres', 'CREATE TABLE counted (id int PRIMARY KEY)');
create_subscription($publisher, $subscriber, worker_number => 8, options => 'disable_on_error = true')
  unless stock_only();
create_subscription($publisher, $subscriber) if stock_only();

my $dir = $publisher->basedir;
append_to_file("$dir/load.sql", q{
\set a random(1, 100)
\set b random(1, 100)
\set id random(1, 1000000000)
\set hot random(1, 2)
BEGIN;
\if :hot = 1
UPDATE hot SET v = v + 1;
\endif
INSERT INTO counted VALUES (:id) ON CONFLICT DO NOTHING;
UPDATE t SET v = v + 1 WHERE id = least(:a, :b);
UPDATE t SET v = v + 1 WHERE id = greatest(:a, :b);
COMMIT;
});

sub load
{
	my ($seconds) = @_;

	return IPC::Run::start(
		[
			'pgbench', '-n', '-c', 4, '-T', $seconds, '-R', 500, '-f', "$dir/load.sql", '-h', $publisher->host, '-p',
			$publisher->port, 'postgres'
		],
		'<', \undef, '>', '/dev/null', '2>&1');
}

# Rows locked here in the order against the publisher's, over and over; the
# totals row is held for a while.  Locks only: the rows stay the publisher's.
my $load = load(10);
my $s = session($subscriber);
for (1 .. 40)
{
	$s->query('BEGIN');
	$s->query("SELECT 1 FROM t WHERE id = 90 FOR UPDATE");
	usleep(20_000);
	$s->query("SELECT 1 FROM t WHERE id = 10 FOR UPDATE");
	$s->query('ROLLBACK');
	next if $_ % 10;
	$s->query('BEGIN');
	$s->query('SELECT 1 FROM totals FOR UPDATE');
	usleep(500_000);
	$s->query('COMMIT');
}
$load->finish;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'deadlocks with a local session', qw(t hot counted));
is( $subscriber->safe_psql('postgres', 'SELECT n FROM totals'),
	$publisher->safe_psql('postgres', 'SELECT count(*) FROM counted'),
	'the trigger counted every row once');

# Timeouts set for the owner must not end the subscription.
my $owner = $subscriber->safe_psql('postgres', q{SELECT subowner::regrole FROM pg_subscription WHERE subname = 'sub'});
$subscriber->safe_psql(
	'postgres', qq{
	ALTER ROLE $owner SET lock_timeout = '200ms';
	ALTER ROLE $owner SET statement_timeout = '300ms';
	ALTER ROLE $owner SET idle_in_transaction_session_timeout = '200ms';
	ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'});
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
$load = load(6);
for (1 .. 2)
{
	$s->query('SET lock_timeout = 0');
	$s->query('SET statement_timeout = 0');
	$s->query('BEGIN ISOLATION LEVEL READ COMMITTED');
	$s->query('LOCK t IN EXCLUSIVE MODE');
	usleep(1_500_000);
	$s->query('COMMIT');
	usleep(500_000);
}
$load->finish;
$subscriber->safe_psql(
	'postgres', qq{
	ALTER ROLE $owner RESET ALL;
	ALTER DATABASE postgres RESET default_transaction_isolation});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a lock timeout', qw(t hot counted));

# Workers and leader told to end, or cancelled.
$load = load(8);
foreach my $i (1 .. 12)
{
	usleep(500_000);
	my $function = $i % 3 ? 'pg_terminate_backend' : 'pg_cancel_backend';
	my $pattern = $i % 4 ? 'pgparrep apply worker' : 'logical replication%';
	$subscriber->safe_psql('postgres',
		"SELECT $function(pid) FROM pg_stat_activity WHERE backend_type LIKE '$pattern' AND backend_type NOT LIKE '%launcher' LIMIT 1");
}
$load->finish;
$s->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'terminated and cancelled', qw(t hot counted));
is( $subscriber->safe_psql('postgres', 'SELECT n FROM totals'),
	$publisher->safe_psql('postgres', 'SELECT count(*) FROM counted'),
	'the trigger counted every row once');
is($subscriber->safe_psql('postgres', q{SELECT subenabled FROM pg_subscription WHERE subname = 'sub'}),
	't', 'nothing of this disabled the subscription');

$subscriber->stop;
$publisher->stop;
done_testing();
