# DROP SUBSCRIPTION returns or fails within seconds, whatever the workers are
# doing, and leaves nothing behind.
#
# It holds locks while it waits for the leader to end, and the leader waits for
# its workers; a worker can at the same time wait for a lock of the very session
# that drops, for a commit, or for nothing at all.  No deadlock detector sees
# such a circle.

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
});

$_->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v int);
	CREATE TABLE other (id int PRIMARY KEY, v int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i');

sub nothing_left
{
	my ($what) = @_;

	is($subscriber->safe_psql('postgres', q{
		SELECT (SELECT count(*) FROM pg_subscription),
		       (SELECT count(*) FROM pg_replication_origin),
		       (SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE '%apply worker%' OR backend_type LIKE 'logical replication worker%'),
		       (SELECT count(*) FROM pgparrep.stat_subscription),
		       (SELECT count(*) FROM pg_shseclabel)}),
		'0|0|0|0|0', "$what: no subscription, origin, worker, slot in shared memory or label");
	is_deeply([ temporary_files($subscriber) ], [], "$what: no temporary file");
	return;
}

sub no_slot
{
	my ($what) = @_;

	wait_for($publisher, 'SELECT count(*) = 0 FROM pg_replication_slots', 'slots to go');
	pass("$what: no slot");
	return;
}

# Runs statements in a session and says how long they took.
sub timed
{
	my ($what, $session, @statements) = @_;
	my $start = time();

	$session->query($_) for @statements;
	my $took = time() - $start;
	ok($took < 5, "$what: within seconds") or diag("took $took s");
	return;
}

sub fresh
{
	$_->safe_psql('postgres', 'TRUNCATE other') for $publisher, $subscriber;
	$subscriber->safe_psql('postgres', 'TRUNCATE t');
	create_subscription($publisher, $subscriber, worker_number => 8);
	wait_caught_up($publisher, $subscriber);
	return;
}

sub wait_for_blocked_worker
{
	return wait_for($subscriber, q{
		SELECT count(*) > 0 FROM pg_stat_activity
		WHERE backend_type IN ('pgparrep apply worker', 'logical replication worker') AND wait_event_type = 'Lock'},
		'a worker to wait for a lock');
}

# ---------- workers wait for a lock of the dropping session, for their turn and for each other

for my $disable (0, 1)
{
	my $what = $disable ? 'disabled and dropped by who holds the lock' : 'dropped by who holds the lock';

	fresh();
	my $session = session($subscriber);
	$session->query('BEGIN; UPDATE t SET v = -1 WHERE id = 1');
	$publisher->safe_psql('postgres', join ';', 'UPDATE t SET v = v + 1 WHERE id = 1',
		map { "INSERT INTO other VALUES ($_, 0); UPDATE t SET v = v + 1 WHERE id = 1" } 1 .. 20);
	# one in progress, too, and large enough for a file
	my $open = session($publisher);
	$open->query('BEGIN; INSERT INTO other SELECT i, 0 FROM generate_series(1000, 5000) i');
	wait_for_blocked_worker();
	if ($disable)
	{
		timed($what, $session,
			'ALTER SUBSCRIPTION sub DISABLE',
			'ALTER SUBSCRIPTION sub SET (slot_name = NONE)',
			'DROP SUBSCRIPTION sub',
			'COMMIT');
		# in a transaction: workers go when that has committed
		wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'},
			'workers to go');
		wait_for($publisher, q{SELECT count(*) = 1 FROM pg_replication_slots WHERE NOT active}, 'the slot');
		$publisher->safe_psql('postgres', q{SELECT pg_drop_replication_slot('sub')});
	}
	else
	{
		# dropping with a slot is no business of a transaction block
		$session->query('COMMIT');
		$session->query('BEGIN; LOCK t IN ACCESS EXCLUSIVE MODE; COMMIT');
		my $holder = session($subscriber);
		$holder->query('BEGIN; UPDATE t SET v = -1 WHERE id = 1');
		$publisher->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 1');
		wait_for_blocked_worker();
		timed($what, $session, 'DROP SUBSCRIPTION sub');
		$holder->query('ROLLBACK');
		$holder->quit;
	}
	nothing_left($what);
	no_slot($what);
	$open->quit;
	$session->quit;
}

# ---------- while all are busy

for my $round (1 .. 4)
{
	my $what = "busy, round $round";

	fresh();
	my $load = session($publisher);
	$load->send("INSERT INTO other SELECT g, $round FROM generate_series(1, 30000) g; ");
	$load->send(q{DO $$ BEGIN FOR i IN 1 .. 20000 LOOP UPDATE t SET v = v + 1 WHERE id = i % 100 + 1; COMMIT; END LOOP; END $$});
	usleep(100_000 + 150_000 * $round);
	my $session = session($subscriber);
	timed($what, $session, 'DROP SUBSCRIPTION sub');
	$session->quit;
	nothing_left($what);
	no_slot($what);
	$load->query('SELECT 1');
	$load->quit;
}

# ---------- just started, and never

for my $round (1 .. 3)
{
	my $what = "just created, round $round";

	$subscriber->safe_psql('postgres', 'TRUNCATE t, other');
	create_subscription($publisher, $subscriber, worker_number => 8, wait => 0);
	usleep(30_000 * $round);
	my $session = session($subscriber);
	timed($what, $session, 'DROP SUBSCRIPTION sub');
	$session->quit;
	nothing_left($what);
	no_slot($what);
}

# ---------- the publisher is down

fresh();
$publisher->stop;
my ($ret, $out, $err) = $subscriber->psql('postgres', 'DROP SUBSCRIPTION sub');
isnt($ret, 0, 'without its publisher a subscription cannot be dropped');
like($err, qr/could not connect/, 'it says so');
like($err, qr/SET \(slot_name = NONE\)/, 'and what to do');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
$subscriber->safe_psql('postgres', 'BEGIN; ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub; COMMIT');
nothing_left('without publisher');
$publisher->start;
$publisher->safe_psql('postgres', q{SELECT pg_drop_replication_slot('sub')});

# ---------- from a server to another database of itself

$publisher->safe_psql('postgres', 'CREATE DATABASE copy');
$publisher->safe_psql('copy', q{
	CREATE TABLE t (id int PRIMARY KEY, v int);
	CREATE TABLE other (id int PRIMARY KEY, v int)});
$publisher->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('self', 'pgparrep')});
$publisher->safe_psql('copy', "CREATE SUBSCRIPTION self CONNECTION '" . connection($publisher) . "' PUBLICATION pub WITH ("
	. subscription_options(4, 'create_slot = false, slot_name = self') . ')');
wait_for($publisher, q{SELECT active FROM pg_replication_slots WHERE slot_name = 'self'}, 'it to stream');
$publisher->safe_psql('postgres', 'UPDATE t SET v = v + 1');
wait_for($publisher, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'self'}, 'the walsender');
my $start = time();
$publisher->safe_psql('copy', 'DROP SUBSCRIPTION self');
cmp_ok(time() - $start, '<', 5, 'to itself: within seconds');
is($publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'), 0, 'to itself: no slot');
is($publisher->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'}),
	0, 'to itself: no worker');

$subscriber->stop;
$publisher->stop;
done_testing();
