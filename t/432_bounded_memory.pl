# What leader and workers take, at most: many open transactions, a long one,
# many subtransactions, large rows, and a worker that stands still.
#
# Each of these is work that the leader must take in, since the commit that
# allows it to be given away comes behind; one of them that it keeps in memory
# fills the machine.  The bounds are those in docs/architecture.md.
#
# PGPARREP_TEST_FULL_SIZE=1 makes it 1,000 open transactions, 10,000,000 rows,
# 50,000 subtransactions, rows of 200 MB and a minute.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'stock apply' if stock_only();

my $full = $ENV{PGPARREP_TEST_FULL_SIZE};
my ($open, $rows, $subtransactions, $megabytes, $seconds) = $full ? (1000, 10_000_000, 50_000, 200, 60) : (100, 300_000, 5_000, 20, 4);
my $workers = 3;
my $buffer = 32;

my $publisher = new_node('publisher', "max_connections = 1100\nautovacuum = off\nmax_wal_size = 8GB");
my $subscriber = new_node('subscriber', qq{
autovacuum = off
max_wal_size = 8GB
pgparrep.apply_buffer = '${buffer}MB'
pgparrep.cached_transactions = 50
});
$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
$_->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE large (id int PRIMARY KEY, v text);
	ALTER TABLE large ALTER v SET STORAGE EXTERNAL}) for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => $workers);
$publisher->safe_psql('postgres', q{INSERT INTO t SELECT -i, 'x' FROM generate_series(1, 1000) i});
wait_caught_up($publisher, $subscriber);
my @pids = (leader_pid($subscriber), apply_worker_pids($subscriber));

# MB of memory of its own, and of pieces of dynamic shared memory.
sub memory_of
{
	my ($pid) = @_;
	my ($private, $dynamic, $where) = (0, 0, '');

	foreach my $line (split /\n/, slurp_file("/proc/$pid/smaps"))
	{
		$where = $1 if $line =~ /^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)/;
		my ($what, $kb) = $line =~ /^(Rss|Private_Dirty):\s+(\d+) kB/ or next;
		if ($where =~ m{^/dev/shm/PostgreSQL})
		{
			$dynamic += $kb if $what eq 'Rss';
		}
		elsif ($what eq 'Private_Dirty' && $where !~ m{^/dev/zero|^/SYSV})
		{
			$private += $kb;
		}
	}
	return ($private / 1024, $dynamic / 1024);
}

my (@most, @before);

sub measure
{
	foreach my $i (0 .. $#pids)
	{
		my ($private, $dynamic) = memory_of($pids[$i]);
		$most[$i][0] = $private if $private > ($most[$i][0] // 0);
		$most[$i][1] = $dynamic if $dynamic > ($most[$i][1] // 0);
	}
	return;
}

# Until what has been committed is applied, with a look at the memory.
sub catch_up
{
	my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$publisher->safe_psql('postgres', q{SELECT pg_logical_emit_message(true, 'end', '')});
	my $end = time() + ($full ? 1800 : $PostgreSQL::Test::Utils::timeout_default);

	while (time() < $end)
	{
		measure();
		return if $publisher->safe_psql('postgres', "SELECT count(*) > 0 FROM pg_stat_replication WHERE application_name = 'sub' AND replay_lsn >= '$lsn'") eq 't';
		usleep(50_000);
	}
	die 'does not catch up';
}

# Runs something, and looks at its memory against a bound for each process.
sub bounded
{
	my ($what, $own, $dynamic, $work) = @_;

	@most = ();
	$work->();
	catch_up();
	foreach my $i (0 .. $#pids)
	{
		my $who = $i == 0 ? 'leader' : "worker $i";

		note(sprintf '%s: %s had %.1f MB of its own, up to %.1f, and %.1f of dynamic shared memory', $what, $who, $before[$i], @{ $most[$i] });
		cmp_ok($most[$i][0] - $before[$i], '<', $own, "$what: memory of the $who");
		cmp_ok($most[$i][1], '<', $dynamic, "$what: dynamic shared memory of the $who");
	}
	return;
}

catch_up();
@before = map { $most[$_][0] } 0 .. $#pids;

# What the leader has beside the buffer: table of keys, ring of transactions.
my $fixed = 16;

bounded("$open open transactions", 8, $buffer + $fixed, sub {
	my @sessions = map { session($publisher) } 1 .. $open;

	foreach my $i (0 .. $#sessions)
	{
		my $from = 1_000_000 + 1000 * $i;
		$sessions[$i]->query("BEGIN; INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series($from, $from + 500) i");
		measure() if $i % 10 == 0;
	}
	catch_up();
	$_->query('COMMIT') foreach @sessions;
	$_->quit foreach @sessions;
});

bounded("$rows rows", 8, $buffer + $fixed, sub {
	my $s = session($publisher);

	$s->send("INSERT INTO t SELECT 10000000 + i, 'a row' FROM generate_series(1, $rows) i");
	$s->quit;
});

bounded("$subtransactions subtransactions", 8, $buffer + $fixed, sub {
	$publisher->safe_psql('postgres', qq{
		DO \$\$ BEGIN FOR i IN 1 .. $subtransactions LOOP
			BEGIN INSERT INTO t VALUES (5000000 + i, 'sub'); EXCEPTION WHEN unique_violation THEN NULL; END;
		END LOOP; END \$\$});
});

# Others commit behind it, so the buffer fills up and the leader stops reading.
bounded('a worker that stands still', 8, $buffer + $fixed, sub {
	my $s = session($subscriber);

	$s->query('BEGIN; LOCK large');
	$publisher->safe_psql('postgres', q{INSERT INTO large VALUES (0, 'waits')});
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pgparrep.stat_apply_worker WHERE waits_for = 'Lock: relation'}, 'a worker to wait for the lock');
	my ($pid) = $subscriber->safe_psql('postgres', q{SELECT pid FROM pgparrep.stat_apply_worker WHERE waits_for = 'Lock: relation'});
	kill 'STOP', $pid;
	$s->query('COMMIT');
	$s->quit;
	foreach my $i (1 .. 10 * $seconds)
	{
		my $from = 7_000_000 + 1000 * $i;
		$publisher->safe_psql('postgres', "INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series($from, $from + 899) i");
		measure();
		usleep(50_000);
	}
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id BETWEEN 7000000 AND 7999999'), 0, 'all wait for their turn');
	cmp_ok($most[0][1], '>', $buffer / 2, 'the buffer is full');
	kill 'CONT', $pid;
});

# A row is in memory as a whole, several times over.
bounded("rows of $megabytes MB", 5 * $megabytes + 8, $buffer + $fixed + 3 * $megabytes, sub {
	$publisher->safe_psql('postgres', "INSERT INTO large SELECT i, repeat('z', $megabytes * 1024 * 1024) FROM generate_series(1, 3) i");
});

compare_tables($publisher, $subscriber, 'all of it', 't');
is($subscriber->safe_psql('postgres', 'SELECT count(*), min(length(v)), max(length(v)) FROM large WHERE id > 0'),
	join('|', 3, ($megabytes * 1024 * 1024) x 2), 'the large rows');
is_deeply([ leader_pid($subscriber), apply_worker_pids($subscriber) ], \@pids, 'the same processes as ever');

$subscriber->stop;
$publisher->stop;
done_testing();
