# SKIP and disable_on_error where the failing transaction is not just one small
# one: in a file, two of them at once, a connection that is lost right after the
# failure, wrong positions close to the right one.
#
# The position of a transaction is that of its commit record's start in SKIP and
# in messages, and of its end everywhere else; one that is taken for the other
# skips nothing, or the neighbour.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
});

$_->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v text);
	CREATE TABLE b (id int)}) for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 4, options => 'disable_on_error = true');

my $offset = log_size($subscriber);

# Waits for the subscription to be disabled; returns the position to skip.
sub failed_at
{
	my ($what) = @_;

	wait_for($subscriber, q{SELECT NOT subenabled FROM pg_subscription}, 'the subscription to be disabled');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('pgparrep apply worker', 'logical replication worker')}, 'workers to go');
	my $log = log_since($subscriber, $offset);
	is(scalar(() = $log =~ /ERROR: /g), 1, "$what: one error");
	is(scalar(() = $log =~ /has been disabled because of an error/g), 1, "$what: disabled once");
	$offset = log_size($subscriber);
	return $log =~ /in transaction \d+, finished at ([0-9A-F]+\/[0-9A-F]+)/ ? $1 : undef;
}

sub skip_and_go_on
{
	my ($lsn) = @_;

	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')") if defined $lsn;
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
	return;
}

sub hold
{
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
	return;
}

# ---------- two failing transactions in flight, another in between

$subscriber->safe_psql('postgres', q{INSERT INTO a VALUES (1, 'local'), (2, 'local')});
hold();
$publisher->safe_psql('postgres', join ';',
	q{INSERT INTO b VALUES (1)}, q{BEGIN; INSERT INTO b VALUES (-1); INSERT INTO a VALUES (1, 'remote'); COMMIT},
	q{INSERT INTO b VALUES (2)}, q{BEGIN; INSERT INTO a VALUES (2, 'remote'); INSERT INTO b VALUES (-2); COMMIT},
	q{UPDATE a SET v = v || ' updated'}, q{INSERT INTO b VALUES (3)});
skip_and_go_on();
my $lsn = failed_at('the first of two');
is($subscriber->safe_psql('postgres', 'SELECT array_agg(id ORDER BY id) FROM b'), '{1}', 'what is before the first is in');
skip_and_go_on($lsn);
my $second = failed_at('the second of two');
isnt($second, $lsn, 'another position');
is($subscriber->safe_psql('postgres', 'SELECT array_agg(id ORDER BY id) FROM b'), '{1,2}', 'what is between them is in');
is($subscriber->safe_psql('postgres', 'SELECT subskiplsn FROM pg_subscription'), '0/0', 'the position is used up');

# ---------- a wrong position close to the right one; the error comes again

for my $wrong ("'$second'::pg_lsn + 1", "'$second'::pg_lsn + 32", "'$second'::pg_lsn - 1")
{
	my $at = $subscriber->safe_psql('postgres', "SELECT $wrong");
	my ($ret, $out, $err) = $subscriber->psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$at')");
	next if $ret != 0;		# not possible before what has been applied
	skip_and_go_on();
	is(failed_at("skip $wrong"), $second, "skip $wrong: the same error");
	is($subscriber->safe_psql('postgres', 'SELECT array_agg(id ORDER BY id) FROM b'), '{1,2}', "skip $wrong: nothing is skipped");
}
skip_and_go_on($second);
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT array_agg(id ORDER BY id) FROM b'), '{1,2,3}', 'only these two were skipped');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM a WHERE v = 'local'}), 0, 'the update came to both rows');
is($subscriber->safe_psql('postgres', 'SELECT subenabled, subskiplsn FROM pg_subscription'), 't|0/0', 'no state is left');

# ---------- in a file

$subscriber->safe_psql('postgres', q{INSERT INTO a VALUES (15000, 'local')});
hold();
$publisher->safe_psql('postgres', join ';',
	q{INSERT INTO a SELECT i, 'large' FROM generate_series(10001, 20000) i}, q{INSERT INTO b VALUES (4)});
$offset = log_size($subscriber);
skip_and_go_on();
$lsn = failed_at('in a file');
is_deeply([ temporary_files($subscriber) ], [], 'in a file: it is gone');
# the connection is lost as well
$publisher->restart;
skip_and_go_on($lsn);
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM a WHERE v = 'large'}), 0, 'in a file: skipped as a whole');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM b WHERE id = 4}), 1, 'in a file: its successor is not');

# ---------- an error that says nothing of the data does not disable

my $local = session($subscriber);
$local->query(q{BEGIN; UPDATE a SET v = 'held' WHERE id = 1});
$subscriber->safe_psql('postgres', q{ALTER SYSTEM SET lock_timeout = '300ms'});
$subscriber->reload;
$publisher->safe_psql('postgres', q{UPDATE a SET v = 'waits' WHERE id = 1; INSERT INTO b VALUES (5)});
usleep(1_500_000);
$publisher->safe_psql('postgres', q{SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active});
usleep(1_000_000);
is($subscriber->safe_psql('postgres', 'SELECT subenabled FROM pg_subscription'), 't', 'a lock timeout and a lost connection disable nothing');
$local->query('COMMIT');
$local->quit;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT v FROM a WHERE id = 1'), 'waits', 'and the update comes in the end');

# ---------- set while all is well: for the next transaction or none

# again and again: the one that follows must not believe that it is still set
for my $round (1 .. 15)
{
	$subscriber->safe_psql('postgres', q{ALTER SUBSCRIPTION sub SKIP (lsn = 'FF/0')});
	$publisher->safe_psql('postgres', join ';', map { "INSERT INTO b VALUES (100 + $_)" } 1 .. 20);
	wait_caught_up($publisher, $subscriber);
}
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM b WHERE id > 100'), 15 * 20, 'set while it runs: nothing is skipped');
is($subscriber->safe_psql('postgres', 'SELECT subenabled, subskiplsn FROM pg_subscription'), 't|0/0', 'and it is cleared');
unlike(log_since($subscriber, $offset), qr/ERROR:  tuple concurrently updated/, 'by one transaction');

$subscriber->stop;
$publisher->stop;
done_testing();
