# Resources that local sessions have used up, prepared transactions and locks:
# a WARNING that says what to do, at a pace that leaves the log readable, and
# apply goes on by itself as soon as they are free.
#
# Otherwise subscriptions would be disabled for what is no error of the data, or
# repeat the same attempt for ever while nobody is told why.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'stock apply' if stock_only();

my $publisher = new_node('publisher', 'max_prepared_transactions = 10');
my $subscriber = new_node('subscriber', q{
max_prepared_transactions = 1
max_locks_per_transaction = 10
autovacuum = off
});
$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
$_->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE SCHEMA many;
	DO $$ BEGIN FOR i IN 1 .. 100 LOOP EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY)', i); END LOOP; END $$})
  for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 4, options => 'two_phase = true, disable_on_error = true');
wait_caught_up($publisher, $subscriber);
my $leader = leader_pid($subscriber);

# Waits until the warning has come; then it may not come often.
sub warns
{
	my ($what, $from, $message, $hint) = @_;
	my $count = sub { my $n = () = log_since($subscriber, $from) =~ /WARNING:  remote transaction \d+, finished at \S+, will be tried again: $message/g; return $n; };

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $count->() > 0;
		usleep(100_000);
	}
	cmp_ok($count->(), '>', 0, "$what: a warning");
	wait_for($subscriber, q{SELECT count(*) > 0 FROM pgparrep.stat_apply_worker WHERE state = 'waiting to retry'}, "$what: state of the worker");
	sleep 4;
	# a pause that doubles, from 0.1 s on
	cmp_ok($count->(), '<=', 10, "$what: at a pace");
	like(log_since($subscriber, $from), qr/HINT:  $hint/, "$what: a hint");
	return;
}

# ---------- prepared transactions

my $from = log_size($subscriber);
$subscriber->safe_psql('postgres', q{BEGIN; PREPARE TRANSACTION 'local'});
$publisher->safe_psql('postgres', q{BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION 'remote'});
$publisher->safe_psql('postgres', q{INSERT INTO t SELECT i, 'behind it' FROM generate_series(11, 20) i});
warns('prepared transactions', $from, 'maximum number of prepared transactions reached', qr/Increase "?max_prepared_transactions"? \(currently 1\)/);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t'), 0, 'nothing of what comes behind it');
$subscriber->safe_psql('postgres', q{ROLLBACK PREPARED 'local'});
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 1, 'prepared when there is room');
$publisher->safe_psql('postgres', q{COMMIT PREPARED 'remote'});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'committed', 't');

# ---------- locks

$from = log_size($subscriber);
my $s = session($subscriber);
# All there are, held whatever the error; and some given back, enough for us to
# connect and for small transactions.
$s->query('SELECT pg_advisory_lock(i) FROM generate_series(1, 1000000) i');
$s->query('SELECT pg_advisory_unlock(i) FROM generate_series(1, 60) i');
$publisher->safe_psql('postgres', q{
	DO $$ BEGIN FOR i IN 1 .. 100 LOOP EXECUTE format('INSERT INTO many.t%s VALUES (1)', i); END LOOP; END $$});
warns('locks', $from, 'out of shared memory', qr/You might need to increase "?max_locks_per_transaction"?/);
$s->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'locks');

is(leader_pid($subscriber), $leader, 'the same leader as ever');
is($subscriber->safe_psql('postgres', q{SELECT subenabled FROM pg_subscription WHERE subname = 'sub'}), 't', 'enabled');

$subscriber->stop;
$publisher->stop;
done_testing();
