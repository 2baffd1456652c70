# A transaction that is applied before it commits meets others: those that
# commit before it, and sessions of the subscriber.
#
# What it has done already may be in the way of a transaction that commits
# first: without giving way both would wait until something ends the connection,
# and whatever commits later with them.  A session of the subscriber would wait as
# long as somebody on the publisher stays in a transaction.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EagerCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber("pgparrep.eager_threshold = 0\npgparrep.key_table = on\n");

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE line (id int PRIMARY KEY, v int);
		CREATE TABLE uniq (id int PRIMARY KEY, u text UNIQUE);
		CREATE TABLE free (id int PRIMARY KEY, u text);
		CREATE TABLE lone (id int PRIMARY KEY, v int);
		CREATE TABLE away (id int PRIMARY KEY, v int);
		CREATE TABLE quiet (id int PRIMARY KEY)});
}
# only here, so that the publisher does not keep anybody from using it twice
$subscriber->safe_psql('postgres', 'CREATE UNIQUE INDEX ON free (u)');
$publisher->safe_psql('postgres', q{
	INSERT INTO line SELECT i, 0 FROM generate_series(1, 10) i;
	INSERT INTO lone SELECT i, 0 FROM generate_series(1, 10) i;
	INSERT INTO away SELECT i, 0 FROM generate_series(1, 10) i;
	INSERT INTO uniq VALUES (1, 'a'), (2, 'b')});
create_subscription($publisher, $subscriber);
# by then the leader knows that the tables are ready
wait_caught_up($publisher, $subscriber);

my $log = log_size($subscriber);
my $s = session($publisher);
my $local = session($subscriber);

# ---------- what committed before a change is waited for

# a unique value, and a row, that a transaction leaves behind which hangs here
wait_all_idle($subscriber);
counted($subscriber);
$local->query('BEGIN; SELECT FROM uniq WHERE id = 1 FOR UPDATE');
$s->query('BEGIN; INSERT INTO line VALUES (11, 0)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction that takes over');
$publisher->safe_psql('postgres', q{BEGIN; UPDATE line SET v = 1 WHERE id = 1; DELETE FROM uniq WHERE u = 'a'; COMMIT});
$s->query(q{INSERT INTO uniq VALUES (3, 'a'); UPDATE line SET v = v + 1 WHERE id = 1});
wait_state($publisher, $subscriber, $s, 'waiting for dependency', 'a value that is not free yet');
$local->query('COMMIT');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'the value is free');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a unique value moves to a transaction that is open');
is($subscriber->safe_psql('postgres', 'SELECT v FROM line WHERE id = 1'), 2, 'and a row is changed by both');
like(counted($subscriber), qr/, 0 rolled back/, 'at the first attempt');

# ---------- what commits before it, and needs what it has

wait_all_idle($subscriber);
counted($subscriber);
$s->query(q{BEGIN; INSERT INTO free VALUES (1, 'x')});
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction in the way');
my $start = time();
$publisher->safe_psql('postgres', q{INSERT INTO free VALUES (2, 'x')});
$publisher->safe_psql('postgres', q{DELETE FROM free WHERE id = 2});
wait_caught_up($publisher, $subscriber);
cmp_ok(time() - $start, '<', 5, 'an open transaction gives way to one that has committed');
wait_all_idle($subscriber);
# the other one may have been begun early, too, and be rolled back for what it met
like(counted($subscriber), qr/, [12] rolled back/, 'it is rolled back');
is($subscriber->safe_psql('postgres', 'SELECT yields > 0 FROM pgparrep.stat_subscription'), 't', 'and counted as such');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'both are applied');

# the table is left alone for a while
wait_all_idle($subscriber);
counted($subscriber);
$s->query(q{BEGIN; INSERT INTO free VALUES (3, 'y')});
wait_open($publisher, $subscriber, $s, 1);
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
is(counted($subscriber), '0 begun, 0 rolled back', 'the next one is not begun');

# the same through a session of the subscriber: earlier -> session -> open one
wait_all_idle($subscriber);
$s->query('BEGIN; UPDATE line SET v = 100 WHERE id = 3');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction in the way of a session');
$local->send('BEGIN; SELECT FROM line WHERE id = 4 FOR UPDATE; UPDATE line SET v = v WHERE id = 3; COMMIT');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND wait_event_type = 'Lock'},
	'a session that waits');
$start = time();
$publisher->safe_psql('postgres', 'UPDATE line SET v = 4 WHERE id = 4');
wait_caught_up($publisher, $subscriber);
cmp_ok(time() - $start, '<', 5, 'it gives way through a session of the subscriber');
$local->query('SELECT 1');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'all are applied');

# ---------- sessions

wait_all_idle($subscriber);
counted($subscriber);
$s->query('BEGIN; UPDATE lone SET v = 5 WHERE id = 5');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction that keeps a row');
$start = time();
$local->query('UPDATE lone SET v = 50 WHERE id = 5');
cmp_ok(time() - $start, '<', 5, 'a session need not wait for the publisher');
wait_all_idle($subscriber);
is(counted($subscriber), '1 begun, 1 rolled back', 'the transaction is rolled back');
$s->query('UPDATE lone SET v = 6 WHERE id = 6; COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'and applied after its commit');

# it does not wait for sessions either: that row is free again soon
wait_all_idle($subscriber);
$local->query('BEGIN; SELECT FROM away WHERE id = 7 FOR UPDATE');
$s->query('BEGIN; UPDATE away SET v = 8 WHERE id = 8');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction before a lock');
$s->query('UPDATE away SET v = 7 WHERE id = 7');
$start = time();
wait_open($publisher, $subscriber, $s, 1);
wait_all_idle($subscriber);
cmp_ok(time() - $start, '<', 6, 'it does not wait for a lock for long');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_locks WHERE relation = 'away'::regclass AND mode = 'RowExclusiveLock'}),
	0, 'and has none then');
$local->query('COMMIT');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a lock in the way');

# ---------- rows that are not there, and errors

$subscriber->safe_psql('postgres', 'CREATE TABLE local AS SELECT * FROM uniq; DELETE FROM uniq WHERE id = 2');
wait_all_idle($subscriber);
counted($subscriber);
$s->query(q{BEGIN; UPDATE uniq SET u = 'c' WHERE id = 2});
wait_open($publisher, $subscriber, $s, 1);
wait_all_idle($subscriber);
is($subscriber->safe_psql('postgres', 'SELECT sum(missing_rows) FROM pgparrep.stat_apply_worker'),
	0, 'a missing row is not counted before the commit');
$subscriber->safe_psql('postgres', 'INSERT INTO uniq SELECT * FROM local WHERE id = 2');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a row that came back');

unlike(log_since($subscriber, $log), qr/ERROR|FATAL|PANIC|TRAP|WARNING/, 'nobody hears of any of that');

# ---------- silence

wait_all_idle($subscriber);
counted($subscriber);
$s->query('BEGIN; INSERT INTO quiet VALUES (1)');
wait_state($publisher, $subscriber, $s, 'waiting for changes', 'a transaction that stays open');
$start = time();
wait_all_idle($subscriber);
cmp_ok(time() - $start, '<', 14, 'it is given up when nothing comes');
cmp_ok(time() - $start, '>', 8, 'but not at once');
is(counted($subscriber), '1 begun, 1 rolled back', 'it is rolled back');
$s->query('INSERT INTO quiet VALUES (2); COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'and applied after its commit');

$_->quit for $s, $local;
$subscriber->stop;
$publisher->stop;
done_testing();
