# Day-to-day operations with several transactions in flight: a conflict, its
# repair in the four ways there are, and every ALTER, DROP and restart.
#
# A pool can get each of these wrong where one process cannot: report the error
# of a transaction that is not the first to fail, commit something behind the
# failed one, skip two transactions or none, leave a worker, slot or origin
# behind, or apply in two lives at once after a change of settings.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE a (id int PRIMARY KEY, v text);
		CREATE TABLE b (id int PRIMARY KEY, v text)});
}
create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 4);

# 18 finds the conflict before the index does
my $error =
  qr/ERROR:  (?:duplicate key value violates unique constraint "a_pkey"|conflict detected on relation "public\.a": conflict=insert_exists)/;

# Ten transactions, all sent before the fifth is found to fail; the sixth
# depends on it, the others on nobody.
sub ten_transactions
{
	my ($base) = @_;
	my $id = sub { return $base + $_[0] };

	$publisher->safe_psql('postgres',
		join ';',
		(map { "INSERT INTO b VALUES (" . $id->($_) . ", 'before')" } 1 .. 4),
		"INSERT INTO a VALUES (" . $id->(5) . ", 'remote')",
		"UPDATE a SET v = 'remote 2' WHERE id = " . $id->(5),
		(map { "INSERT INTO b VALUES (" . $id->($_) . ", 'after')" } 7 .. 10));
	return;
}

sub enabled
{
	return $subscriber->safe_psql('postgres', q{SELECT subenabled FROM pg_subscription WHERE subname = 'sub'});
}

sub disable
{
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
	return;
}

# ---------- disable_on_error, then SKIP

$subscriber->safe_psql('postgres', q{
	ALTER SUBSCRIPTION sub SET (disable_on_error = true);
	INSERT INTO a VALUES (105, 'local')});
my $offset = log_size($subscriber);
disable();
ten_transactions(100);
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_for($subscriber, q{SELECT NOT subenabled FROM pg_subscription WHERE subname = 'sub'}, 'the subscription to be disabled');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');

my $log = log_since($subscriber, $offset);
is(scalar(() = $log =~ /$error/g), 1, 'the error is reported once');
is(scalar(() = $log =~ /ERROR:/g), 1, 'and no other');
my ($xid, $lsn) = $log =~
  /processing remote data for replication origin "pg_\d+" during message type "INSERT" for replication target relation "public\.a" in transaction (\d+), finished at ([0-9A-F]+\/[0-9A-F]+)/;
ok(defined $lsn, 'its context names relation, transaction and position') or diag($log);
is( $subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id > 100'),
	4, 'everything before it is committed, nothing after it');

SKIP:
{
	skip 'no position', 4 unless defined $lsn;

	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
	wait_caught_up($publisher, $subscriber);
	is($subscriber->safe_psql('postgres', 'SELECT v FROM a WHERE id = 105'),
		'remote 2', 'the failing transaction only was skipped, its successor applied to the local row');
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id > 100'), 8, 'the others are there');
	is($subscriber->safe_psql('postgres', q{SELECT subskiplsn FROM pg_subscription WHERE subname = 'sub'}),
		'0/0', 'the position to skip is used up');
	is(enabled(), 't', 'the subscription stays enabled');
}

# ---------- a wrong position skips nothing

disable();
$subscriber->safe_psql('postgres', q{
	ALTER SUBSCRIPTION sub SKIP (lsn = 'FF/0');
	ALTER SUBSCRIPTION sub SET (disable_on_error = false)});
$publisher->safe_psql('postgres', q{INSERT INTO b VALUES (150, 'not skipped'); INSERT INTO b VALUES (151, 'not skipped')});
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM b WHERE v = 'not skipped'}), 2, 'a wrong position skips nothing');
is($subscriber->safe_psql('postgres', q{SELECT subskiplsn FROM pg_subscription WHERE subname = 'sub'}),
	'0/0', 'and is cleared');

# ---------- without disable_on_error: again and again until it is repaired, no progress beyond

$subscriber->safe_psql('postgres', q{INSERT INTO a VALUES (205, 'local')});
$offset = log_size($subscriber);
ten_transactions(200);
wait_for($subscriber, q{SELECT apply_error_count >= 3 FROM pg_stat_subscription_stats WHERE subname = 'sub'}, 'repeated errors');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id > 200'), 4, 'nothing behind the error is committed');
$subscriber->safe_psql('postgres', 'DELETE FROM a WHERE id = 205');
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id > 200'), 8, 'all the rest is, once it is repaired');
$subscriber->safe_psql('postgres', q{DELETE FROM a WHERE id = 105});
$publisher->safe_psql('postgres', q{DELETE FROM a WHERE id = 105});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after conflicts');

# ---------- transient trouble is no error: a local session holds a lock for a while

my $local = session($subscriber);
$local->query('BEGIN');
$local->query('UPDATE a SET v = v WHERE id = 205');
$publisher->safe_psql('postgres', q{UPDATE a SET v = 'behind a lock' WHERE id = 205; INSERT INTO b VALUES (250, 'x')});
usleep(2_000_000);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id = 250'), 0, 'commits wait for the one that is blocked');

# and meanwhile the subscription can be disabled; a stock worker would notice
# it only behind the lock
my $start = time();
if (!stock_only())
{
	disable();
	cmp_ok(time() - $start, '<', 30, 'DISABLE does not wait for the lock');
}
$local->query('COMMIT');
$local->quit;
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after a lock');

# ---------- everything under load

my $mix = start_mix($publisher, '-R', 800);
$offset = log_size($subscriber);

sub ddl
{
	my ($sql) = @_;
	my $began = time();
	my ($ret, $out, $err) = $subscriber->psql('postgres', $sql);

	# a command that waits for the leader may meet it just starting again
	is($ret, 0, "$sql") or diag($err);
	cmp_ok(time() - $began, '<', 60, '... in time');
	usleep(700_000);
	return;
}

foreach my $round (1 .. 2)
{
	ddl('ALTER SUBSCRIPTION sub DISABLE');
	ddl('ALTER SUBSCRIPTION sub ENABLE');
	ddl('ALTER SUBSCRIPTION sub SET (binary = ' . ($round == 1 ? 'true' : 'false') . ')');
	ddl('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	ddl('ALTER SUBSCRIPTION sub SET (worker_number = ' . ($round == 1 ? 8 : 2) . ')') unless stock_only();
	ddl('ALTER SUBSCRIPTION sub SET (synchronous_commit = ' . ($round == 1 ? 'local' : 'off') . ')');
}

# owner: to another superuser, and back
$subscriber->safe_psql('postgres', 'CREATE ROLE other SUPERUSER LOGIN');
my $owner = $subscriber->safe_psql('postgres', q{SELECT subowner::regrole FROM pg_subscription WHERE subname = 'sub'});
ddl('ALTER SUBSCRIPTION sub OWNER TO other');
ddl("ALTER SUBSCRIPTION sub OWNER TO $owner");

# name: the walsender is known by it
ddl('ALTER SUBSCRIPTION sub RENAME TO renamed');
ddl('ALTER SUBSCRIPTION renamed RENAME TO sub');

# a new table while the others go on
for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', 'CREATE TABLE added (id int PRIMARY KEY)');
}
$publisher->safe_psql('postgres', 'INSERT INTO added SELECT generate_series(1, 10000)');
ddl('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
$publisher->safe_psql('postgres', 'INSERT INTO added SELECT generate_series(10001, 10100)');
wait_synced($subscriber);

# restarts
foreach my $mode (qw(fast immediate))
{
	$subscriber->stop($mode);
	$subscriber->start;
	usleep(1_500_000);
	$publisher->stop($mode);
	$publisher->start;
	usleep(1_500_000);
}
stop_mix($mix);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after every ALTER and restart');
unlike(log_since($subscriber, $offset), qr/PANIC|was terminated by signal|TRAP/, 'nothing crashed');

# ---------- a clean stop leaves nothing to apply again, and loses nothing

$subscriber->stop('fast');
$publisher->safe_psql('postgres', q{INSERT INTO b VALUES (300, 'while the subscriber was down')});
$subscriber->start;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after a clean stop');

# ---------- DROP, with transactions in flight

$mix = start_mix($publisher, '-R', 800);
usleep(2_000_000);
$start = time();
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
cmp_ok(time() - $start, '<', 60, 'DROP SUBSCRIPTION returns');
stop_mix($mix);

is($publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'), 0, 'no slot is left');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_origin'), 0, 'no origin is left');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_shseclabel'), 0, 'no label is left');
is(scalar(apply_worker_pids($subscriber)), 0, 'no worker is left');
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');

# and one may begin anew
$subscriber->safe_psql('postgres', "TRUNCATE $_")
  for split /\n/, $subscriber->safe_psql('postgres', q{SELECT tablename FROM pg_tables WHERE schemaname = 'public'});
create_subscription($publisher, $subscriber, worker_number => 3);
$publisher->safe_psql('postgres', q{UPDATE b SET v = 'anew'});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'begun anew');

$subscriber->stop;
$publisher->stop;
done_testing();
