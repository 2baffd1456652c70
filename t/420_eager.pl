# A transaction is applied before it commits (pgparrep.eager_threshold), and
# nobody can tell but by the clock.
#
# Without that, a large transaction begins to be applied when it has ended on
# the publisher, and everything that commits after it waits as long again.  With
# it, what is not over yet may abort, in whole or in part, be prepared, or be
# overtaken by what commits before it; nothing of it may show before its turn.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EagerCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 200ms
max_prepared_transactions = 5
pgparrep.eager_threshold = 0
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v text);
		CREATE TABLE other (id int PRIMARY KEY, v int);
		CREATE TABLE emptied (id int PRIMARY KEY)});
}
$publisher->safe_psql('postgres', 'INSERT INTO other SELECT i, 0 FROM generate_series(1, 10) i');
create_subscription($publisher, $subscriber, options => 'two_phase = on');
wait_for($subscriber, q{SELECT subtwophasestate = 'e' FROM pg_subscription}, 'two_phase');

sub ids { return $subscriber->safe_psql('postgres', q{SELECT string_agg(id::text, ' ' ORDER BY id) FROM t}); }

# ---------- one transaction

wait_all_idle($subscriber);
counted($subscriber);
my $s = session($publisher);
$s->query('BEGIN; INSERT INTO t VALUES (1)');
my $worker = wait_state($publisher, $subscriber, $s, 'waiting for changes', 'an open transaction');
is($subscriber->safe_psql('postgres', q{SELECT pg_relation_size('t') > 0}), 't', 'its row is there');
is($subscriber->safe_psql('postgres', "SELECT mode FROM pg_locks WHERE relation = 't'::regclass AND pid = $worker"),
	'RowExclusiveLock', 'its lock, too');
is(ids(), '', 'nothing of it is visible');

# what commits meanwhile is not held up
$publisher->safe_psql('postgres', "UPDATE other SET v = v + 1 WHERE id = $_") for 1 .. 10;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT sum(v) FROM other'), 10, 'others commit beside it');
is(ids(), '', 'still nothing of it');
is($subscriber->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND pid = $worker"),
	1, 'and it is still there');

$s->query('INSERT INTO t VALUES (2); UPDATE other SET v = 0 WHERE id = 1; COMMIT');
wait_caught_up($publisher, $subscriber);
is(ids(), '1 2', 'visible after its commit');
like(counted($subscriber), qr/, 0 rolled back/, 'at the first attempt');

# ---------- its turn

# A transaction before it hangs at a lock; so it must not be visible.
my $local = session($subscriber);
$local->query('BEGIN; SELECT FROM other WHERE id = 5 FOR UPDATE');
$s->query('BEGIN; INSERT INTO t VALUES (3)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before the one that hangs');
$publisher->safe_psql('postgres', 'UPDATE other SET v = 55 WHERE id = 5');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker' AND wait_event_type = 'Lock'},
	'a worker that waits for a lock');
$s->query('COMMIT');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pgparrep.stat_apply_worker WHERE state = 'waiting for turn'}, 'its turn');
is(ids(), '1 2', 'not visible before its turn');
$local->query('COMMIT');
wait_caught_up($publisher, $subscriber);
is(ids(), '1 2 3', 'visible at its turn');
is($subscriber->safe_psql('postgres', 'SELECT v FROM other WHERE id = 5'), 55, 'so is the one before');
like(counted($subscriber), qr/, 0 rolled back/, 'at the first attempt');

# ---------- ends of other kinds

wait_all_idle($subscriber);
$s->query('BEGIN; INSERT INTO t VALUES (4)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction that will abort');
$s->query('ROLLBACK');
wait_all_idle($subscriber);
is(counted($subscriber), '1 begun, 1 rolled back', 'an abort');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass}), 0, 'leaves no lock');

$s->query('BEGIN; INSERT INTO t VALUES (5); SAVEPOINT one; INSERT INTO t VALUES (6)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction with a savepoint');
$s->query('ROLLBACK TO one; INSERT INTO t VALUES (7)');
wait_all_idle($subscriber);
is(counted($subscriber), '1 begun, 1 rolled back', 'a rolled back savepoint');
$s->query('SAVEPOINT two; INSERT INTO t VALUES (8); RELEASE two; COMMIT');
wait_caught_up($publisher, $subscriber);
is(ids(), '1 2 3 5 7 8', 'it is applied without that part');
is(counted($subscriber), '0 begun, 0 rolled back', 'and not begun again');

# one that is over before anything of it is begun does not matter
$s->query('BEGIN; SAVEPOINT one; INSERT INTO t VALUES (9); ROLLBACK TO one; INSERT INTO t VALUES (10); SAVEPOINT two; INSERT INTO t VALUES (11); RELEASE two; COMMIT');
wait_caught_up($publisher, $subscriber);
is(ids(), '1 2 3 5 7 8 10 11', 'savepoints at once');
counted($subscriber);

$publisher->safe_psql('postgres', 'INSERT INTO emptied VALUES (1), (2)');
wait_caught_up($publisher, $subscriber);
wait_all_idle($subscriber);
counted($subscriber);
$s->query('BEGIN; INSERT INTO t VALUES (12)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before its TRUNCATE');
$s->query('TRUNCATE emptied');
$s->query('INSERT INTO emptied VALUES (3)');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT id FROM emptied'), 3, 'TRUNCATE in the middle');
is(ids(), '1 2 3 5 7 8 10 11 12', 'and what was before');
is(counted($subscriber), '1 begun, 1 rolled back', 'is applied after the commit');

wait_all_idle($subscriber);
$s->query('BEGIN; INSERT INTO t VALUES (13)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before it is prepared');
$s->query(q{PREPARE TRANSACTION 'p'});
wait_for($subscriber, 'SELECT count(*) = 1 FROM pg_prepared_xacts', 'the prepared transaction');
is(counted($subscriber), '1 begun, 1 rolled back', 'PREPARE');
$publisher->safe_psql('postgres', q{COMMIT PREPARED 'p'});
wait_caught_up($publisher, $subscriber);
is(ids(), '1 2 3 5 7 8 10 11 12 13', 'and COMMIT PREPARED');

# ---------- how many at a time, and from when on

wait_all_idle($subscriber);
counted($subscriber);
my @many = map { session($publisher) } 1 .. 4;
$many[$_]->query("BEGIN; INSERT INTO t VALUES (100 + $_)") for 0 .. 3;
wait_open($publisher, $subscriber, $s, 4);
$publisher->safe_psql('postgres', "UPDATE other SET v = v + 1 WHERE id = $_") for 1 .. 10;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pgparrep.stat_apply_worker WHERE state = 'waiting for changes'}),
	2, 'half of the workers are kept for those that have committed');
$_->query('COMMIT') for @many;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'all committed');
$_->quit for @many;

foreach my $threshold (-1, 5)
{
	my $base = 1000 * ($threshold + 2);

	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.eager_threshold = $threshold");
	$subscriber->reload;
	wait_all_idle($subscriber);
	sleep(1);    # until the leader knows
	counted($subscriber);
	$s->query("BEGIN; INSERT INTO t SELECT $base + i FROM generate_series(1, 4) i");
	wait_open($publisher, $subscriber, $s, 1);
	wait_all_idle($subscriber);
	is(counted($subscriber), '0 begun, 0 rolled back', "threshold $threshold, four changes");
	$s->query("INSERT INTO t VALUES ($base + 5)");
	if ($threshold < 0)
	{
		wait_open($publisher, $subscriber, $s, 1);
	}
	else
	{
		wait_state($publisher, $subscriber, $s, 'waiting for changes', 'the fifth change');
	}
	$s->query('COMMIT');
	wait_caught_up($publisher, $subscriber);
	is(counted($subscriber), ($threshold < 0 ? 0 : 1) . ' begun, 0 rolled back', "threshold $threshold, five changes");
	compare_tables($publisher, $subscriber, "threshold $threshold");
}

$_->quit for $s, $local;
$subscriber->stop;
$publisher->stop;
done_testing();
