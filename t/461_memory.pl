# Leader and workers do not grow: over many small transactions, over thousands
# of versions of a relation, over subtransactions, errors and changes of the
# subscription.  Nor does the leader with the length of a transaction: if it
# notes something for each change, it has no room for the longest ones, and
# fails at them again and again.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $scale = $ENV{PGPARREP_TEST_SCALE} // 1;

my ($publisher, $subscriber) = publisher_and_subscriber(q{
autovacuum = off
});

$_->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v text);
	CREATE TABLE ddl (id int PRIMARY KEY, v text);
	CREATE TABLE late (id int PRIMARY KEY DEFERRABLE);
	CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', q{INSERT INTO a SELECT i, '' FROM generate_series(1, 1000) i});
create_subscription($publisher, $subscriber, worker_number => 2);
wait_caught_up($publisher, $subscriber);

# Bytes of a process's memory contexts, and of what it uses of shared memory.
sub memory_of
{
	my ($pid) = @_;
	my $offset = log_size($subscriber);
	my $end = time() + 30;

	$subscriber->safe_psql('postgres', "SELECT pg_log_backend_memory_contexts($pid)");
	while (time() < $end)
	{
		if (log_since($subscriber, $offset) =~ /Grand total: \d+ bytes in \d+ blocks; \d+ free \(\d+ chunks\); (\d+) used/)
		{
			my $total = $1;
			my ($shared) = slurp_file("/proc/$pid/status") =~ /^RssShmem:\s+(\d+) kB/m;
			return ($total, 1024 * ($shared // 0));
		}
		usleep(20_000);
	}
	die 'no memory contexts in the log';
}

sub does_not_grow
{
	my ($what, $work, $limit) = @_;
	my (@before, @after);

	# the first time fills caches
	$work->(0);
	wait_caught_up($publisher, $subscriber);
	my @pids = (leader_pid($subscriber), stock_only() ? () : apply_worker_pids($subscriber));
	@before = map { [ memory_of($_) ] } @pids;
	$work->($_) for 1 .. 3;
	wait_caught_up($publisher, $subscriber);
	@after = map { [ memory_of($_) ] } @pids;
	for my $i (0 .. $#pids)
	{
		my $who = $i == 0 ? 'leader' : "worker $i";
		my $grown = $after[$i][0] - $before[$i][0];
		my $shared = $after[$i][1] - $before[$i][1];

		note("$what: $who has $after[$i][0], grown by $grown, shared by $shared");
		cmp_ok($grown, '<', $limit // 50_000, "$what: the $who does not grow");
		# shared buffers come into view one by one, at most all of them
		cmp_ok($shared, '<', 72 * 1024 * 1024, "$what: nor its share of shared memory");
	}
	return;
}

sub loop
{
	my ($n, $body) = @_;
	$n *= $scale;
	return $publisher->safe_psql('postgres', "DO \$\$ BEGIN FOR i IN 1 .. $n LOOP $body; COMMIT; END LOOP; END \$\$");
}

does_not_grow('small transactions', sub {
	# thousands of them are in flight at times, each with a buffer in the leader
	loop(15000, q{UPDATE a SET v = i WHERE id = i % 1000 + 1});
});

does_not_grow('transactions that roll back', sub {
	loop(3000, q{
		INSERT INTO a VALUES (100000 + i, 'x');
		BEGIN INSERT INTO a VALUES (200000 + i, 'y'); RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN NULL; END;
		DELETE FROM a WHERE id > 100000;
		IF i % 2 = 0 THEN ROLLBACK; END IF});
});

does_not_grow('versions of a relation', sub {
	loop(500, q{
		ALTER TABLE ddl ALTER v SET STATISTICS -1;
		INSERT INTO ddl VALUES (i, 'x');
		DELETE FROM ddl});
});

# More tables in a transaction than a worker keeps from one to the next.
$_->safe_psql('postgres', q{
	CREATE SCHEMA many;
	DO $$ BEGIN FOR i IN 1 .. 600 LOOP EXECUTE format('CREATE TABLE many.t%s (id int PRIMARY KEY, v int)', i); END LOOP; END $$})
	for $publisher, $subscriber;
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION WITH (copy_data = false)');
$publisher->safe_psql('postgres', q{
	DO $$ BEGIN FOR i IN 1 .. 600 LOOP EXECUTE format('INSERT INTO many.t%s VALUES (1, 1)', i); END LOOP; END $$});
does_not_grow('versions of many relations', sub {
	my ($round) = @_;
	my $identity = $round % 2 ? 'FULL' : 'DEFAULT';

	# the first with new versions, the others with what is known
	for my $n (1 .. 4)
	{
		$publisher->safe_psql('postgres', qq{
			DO \$\$ BEGIN FOR i IN 1 .. 600 LOOP EXECUTE format('ALTER TABLE many.t%s REPLICA IDENTITY $identity', i); END LOOP; END \$\$}) if $n == 1;
		$publisher->safe_psql('postgres', q{
			DO $$ BEGIN FOR i IN 1 .. 600 LOOP EXECUTE format('UPDATE many.t%s SET v = v + 1', i); END LOOP; END $$});
	}
}, 600_000);

does_not_grow('tables that come and go', sub {
	my ($round) = @_;
	for my $i (1 .. 30)
	{
		$_->safe_psql('postgres', "CREATE TABLE new_${round}_$i (id int PRIMARY KEY)") for $publisher, $subscriber;
		$publisher->safe_psql('postgres', "INSERT INTO new_${round}_$i VALUES (1)");
	}
	# new tables are not subscribed, so their rows are not applied; but announced
	wait_caught_up($publisher, $subscriber);
	$_->safe_psql('postgres', join ';', map { "DROP TABLE new_${round}_$_" } 1 .. 30) for $publisher, $subscriber;
	# nobody says that a table will not come again: 2 kB each, as with serial apply
}, 90 * 3_000);

does_not_grow('local changes of the table', sub {
	for my $i (1 .. 60)
	{
		$subscriber->safe_psql('postgres', 'ALTER TABLE a ALTER v SET STATISTICS -1');
		$publisher->safe_psql('postgres', "UPDATE a SET v = 'again' WHERE id < 3");
	}
});

does_not_grow('changes of the subscription', sub {
	for my $i (1 .. 60)
	{
		$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (synchronous_commit = ' . ($i % 2 ? 'on' : 'off') . ')');
		$publisher->safe_psql('postgres', "UPDATE a SET v = 'again' WHERE id < 3");
	}
});

does_not_grow('attempts that are repeated', sub {
	my $local = session($subscriber);

	$subscriber->safe_psql('postgres', q{ALTER SYSTEM SET lock_timeout = '5ms'});
	$subscriber->reload;
	$local->query(q{BEGIN; UPDATE a SET v = 'held' WHERE id <= 10});
	$publisher->safe_psql('postgres', join ';', map { "UPDATE a SET v = 'waits' WHERE id = $_" } 1 .. 10);
	usleep(1_500_000);
	$local->query('COMMIT');
	$local->quit;
	wait_caught_up($publisher, $subscriber);
});
# Each of its changes conflicts with everything.
SKIP:
{
	skip 'no leader', 2 if stock_only();
	my $long = session($publisher);
	my $rows = 200_000 * $scale;
	my ($before) = memory_of(leader_pid($subscriber));

	$long->query("BEGIN; INSERT INTO late SELECT generate_series(1, $rows)");
	$publisher->safe_psql('postgres', "UPDATE a SET v = 'behind it' WHERE id = 1");
	wait_caught_up($publisher, $subscriber);
	is($subscriber->safe_psql('postgres', 'SELECT spilled FROM pgparrep.stat_subscription'), 1,
		'a long transaction is in a file');
	my ($during) = memory_of(leader_pid($subscriber));
	cmp_ok($during - $before, '<', 1_500_000, 'a long transaction: the leader does not grow');
	$long->query('COMMIT');
	$long->quit;
	wait_caught_up($publisher, $subscriber);
}
compare_tables($publisher, $subscriber, 'all of it', 'a', 'ddl', 'late');

$subscriber->stop;
$publisher->stop;
done_testing();
