# A transaction that is applied before it commits, while its buffer moves to a
# file, its worker falls behind, is cancelled or ended, and the subscription is
# changed under it.
#
# The worker reads what the leader is still writing.  If the leader freed a chunk
# under it, or told it of more than is there, rows would be lost or doubled; if it
# waited for the worker, everything would.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EagerCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 200ms
pgparrep.eager_threshold = 0
pgparrep.cached_changes = 100
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v text);
		ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
		CREATE TABLE other (id int PRIMARY KEY, v int);
		CREATE TABLE late (id int PRIMARY KEY, v int)});
}
$publisher->safe_psql('postgres', q{
	INSERT INTO other SELECT i, 0 FROM generate_series(1, 10) i;
	INSERT INTO late SELECT i, 0 FROM generate_series(1, 1000) i;
	CREATE PUBLICATION pub FOR TABLE t, other});
create_subscription($publisher, $subscriber);
# by then the leader knows that the tables are ready
wait_caught_up($publisher, $subscriber);

my $log = log_size($subscriber);
my $s = session($publisher);
my $n = 0;
sub rows { my ($rows) = @_; $n += $rows; return 'INSERT INTO t SELECT i, md5(i::text) FROM generate_series(' . ($n - $rows + 1) . ", $n) i"; }

# ---------- to a file, in pieces, also with values larger than a chunk

wait_all_idle($subscriber);
counted($subscriber);
$s->query('BEGIN');
foreach my $piece (1 .. 12)
{
	$s->query($piece % 4 == 0 ? "INSERT INTO t VALUES (-$piece, repeat('large', 100000))" : rows($piece * 40));
	wait_state($publisher, $subscriber, $s, 'waiting for changes', "piece $piece") if $piece % 3;
}
is($subscriber->safe_psql('postgres', 'SELECT spilled FROM pgparrep.stat_subscription'), 1, 'it is in a file');
$s->query('UPDATE t SET v = v || 1 WHERE id < 100');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'read while it goes to a file', 't');
is(counted($subscriber), '1 begun, 0 rolled back', 'at the first attempt');
is(join(' ', temporary_files($subscriber)), '', 'no file is left');

# ... from which a part is cut off again
wait_all_idle($subscriber);
$s->query('BEGIN; ' . rows(500) . '; SAVEPOINT one; ' . rows(500));
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a savepoint');
$s->query('ROLLBACK TO one; ' . rows(500) . '; COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a savepoint that is cut off in the file', 't');
is(counted($subscriber), '1 begun, 1 rolled back', 'it is applied after the commit');

# ... and begun when there is a file already
$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.eager_threshold = 300');
$subscriber->reload;
wait_all_idle($subscriber);
sleep(1);    # until the leader knows
$s->query('BEGIN; ' . rows(250));
wait_open($publisher, $subscriber, $s, 1);
wait_all_idle($subscriber);
is($subscriber->safe_psql('postgres', 'SELECT spilled FROM pgparrep.stat_subscription'), 1, 'a file before it is begun');
$s->query(rows(100));
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction begun from its file');
$s->query(rows(10) . '; COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'begun from its file', 't');
is(counted($subscriber), '1 begun, 0 rolled back', 'at the first attempt');
$subscriber->safe_psql('postgres', 'ALTER SYSTEM RESET pgparrep.eager_threshold');
$subscriber->reload;
sleep(1);

# ---------- a worker that is much slower than the leader

wait_all_idle($subscriber);
$s->query('BEGIN; ' . rows(10));
my $worker = wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before its worker stops');
kill 'STOP', $worker;
$s->query(rows(20000));
$publisher->safe_psql('postgres', 'UPDATE other SET v = v + 1');
wait_caught_up($publisher, $subscriber);
pass('the leader, and others, go on beside a worker that does not');
kill 'CONT', $worker;
$s->query(rows(100) . '; COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'the worker comes after', 't', 'other');
like(counted($subscriber), qr/, 0 rolled back/, 'at the first attempt');

# the same, but the transaction is over before the worker goes on
foreach my $end ('COMMIT', 'ROLLBACK')
{
	wait_all_idle($subscriber);
	counted($subscriber);
	$s->query('BEGIN; ' . rows(10));
	$worker = wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before its worker stops');
	kill 'STOP', $worker;
	$s->query(rows(3000) . "; $end");
	$publisher->safe_psql('postgres', 'UPDATE other SET v = v + 1');
	if ($end eq 'COMMIT')
	{
		wait_for($subscriber, 'SELECT waiting_for_commit >= 2 FROM pgparrep.stat_subscription', 'both to be handed out');
	}
	else
	{
		wait_caught_up($publisher, $subscriber);
		is(join(' ', temporary_files($subscriber)), '', 'its file is gone while the worker stands still');
	}
	kill 'CONT', $worker;
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "$end while the worker stands still", 't', 'other');
	wait_all_idle($subscriber);
	like(counted($subscriber), $end eq 'COMMIT' ? qr/, 0 rolled back/ : qr/, 1 rolled back/, 'as many attempts as needed');
}

# ---------- signals

wait_all_idle($subscriber);
$s->query('BEGIN; ' . rows(10));
$worker = wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before its worker is cancelled');
$subscriber->safe_psql('postgres', "SELECT pg_cancel_backend($worker)");
wait_all_idle($subscriber);
is(counted($subscriber), '1 begun, 1 rolled back', 'a cancelled worker gives it up');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'cancelled', 't');
unlike(log_since($subscriber, $log), qr/ERROR|FATAL|PANIC|TRAP|WARNING/, 'nobody hears of that');

$s->query('BEGIN; ' . rows(200));
$worker = wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before its worker is ended');
my $leader = leader_pid($subscriber);
$subscriber->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
wait_for($subscriber, "SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 'sub' AND pid <> $leader", 'another leader');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a worker that was ended', 't');

# ---------- changes of the subscription

sub begin
{
	my ($what) = @_;

	wait_all_idle($subscriber);
	counted($subscriber);
	$s->query('BEGIN; ' . rows(200));
	return wait_state($publisher, $subscriber, $s, 'waiting for changes', "a transaction before $what");
}

begin('SKIP');
my ($skip) = $subscriber->safe_psql('postgres', q{SELECT '0/0'::pg_lsn + 1000000000000});
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$skip')");
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'SKIP set for another one', 't');
is($subscriber->safe_psql('postgres', 'SELECT subskiplsn FROM pg_subscription'), '0/0', 'SKIP is over');
is(counted($subscriber), '1 begun, 1 rolled back', 'a transaction that SKIP may be about begins at its turn');

begin('REFRESH');
$publisher->safe_psql('postgres', 'ALTER PUBLICATION pub ADD TABLE late');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_all_idle($subscriber);
is(counted($subscriber), '1 begun, 1 rolled back', 'nothing is open while tables are copied');
$s->query('UPDATE late SET v = 1 WHERE id < 10; COMMIT');
wait_synced($subscriber);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'it is applied, and the table is copied', 't', 'late');

begin('its table changes');
$publisher->safe_psql('postgres', 'ALTER TABLE late ADD w int');
$subscriber->safe_psql('postgres', 'ALTER TABLE late ADD w int');
$s->query('UPDATE late SET w = 1 WHERE id < 10');
$publisher->safe_psql('postgres', 'ALTER TABLE other ADD w int');
$subscriber->safe_psql('postgres', 'ALTER TABLE other ADD w int');
$s->query('UPDATE other SET w = 1');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'tables change beside it', 't', 'other', 'late');

begin('fewer workers');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 2)');
wait_for($subscriber, 'SELECT workers = 2 FROM pgparrep.stat_subscription', 'two workers');
$s->query(rows(10) . '; COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'fewer workers', 't');

# the last one of all cannot be spared
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 4)');
begin('the end');
my $start = time();
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE '%apply worker'}, 'all workers to be gone');
$s->query(rows(10) . '; COMMIT');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'disabled and enabled', 't');
begin('DROP');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE '%apply worker'}), 0, 'dropped');
$s->query('ROLLBACK');
is(join(' ', temporary_files($subscriber)), '', 'no file is left');
cmp_ok(time() - $start, '<', 60, 'in time');

$s->quit;
$subscriber->stop;
$publisher->stop;
done_testing();
