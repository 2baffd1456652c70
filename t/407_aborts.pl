# Transactions that abort as a whole or in part, or never end.
#
# A pool that gave each transaction a worker when it begins would be full of
# such that never end; a publisher that crashed never says that its open
# transactions are over; and what they wrote to files must not stay.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(
	ApplyCases::conf() . "logical_decoding_work_mem = 64kB\npgparrep.cached_changes = 50\n");

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE small (id serial PRIMARY KEY, v text)});
}
create_subscription($publisher, $subscriber);

sub clean
{
	my ($name) = @_;

	wait_for($subscriber, 'SELECT in_progress = 0 AND waiting_for_commit = 0 FROM pgparrep.stat_subscription', "$name: the end of all transactions")
	  unless stock_only();
	is(join(' ', temporary_files($subscriber)), '', "$name: no file is left");
	return;
}

my $base = 0;
for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		# as a whole, and after DDL
		$base += 100000;
		$publisher->safe_psql('postgres', "BEGIN; INSERT INTO t SELECT $base + g, 'rolled back' FROM generate_series(1, 3000) g; ROLLBACK");
		$publisher->safe_psql('postgres', "BEGIN; INSERT INTO t SELECT $base + g, 'rolled back' FROM generate_series(1, 500) g; ALTER TABLE t ADD COLUMN w int; INSERT INTO t SELECT $base + 1000 + g, 'rolled back', 1 FROM generate_series(1, 500) g; ROLLBACK");

		# to each of three savepoints
		foreach my $to (qw(a b c))
		{
			$publisher->safe_psql('postgres', qq{
				BEGIN;
				INSERT INTO t SELECT $base + g, 'top $to' FROM generate_series(1, 300) g;
				SAVEPOINT a;
				INSERT INTO t SELECT $base + 1000 + g, 'a $to' FROM generate_series(1, 300) g;
				SAVEPOINT b;
				UPDATE t SET v = 'b $to' WHERE id BETWEEN $base + 1 AND $base + 200;
				SAVEPOINT c;
				DELETE FROM t WHERE id BETWEEN $base + 100 AND $base + 1200;
				ROLLBACK TO $to;
				INSERT INTO t SELECT $base + 3000 + g, 'behind $to' FROM generate_series(1, 100) g;
				COMMIT;
				INSERT INTO small (v) VALUES ('$to');
				DELETE FROM t WHERE id > $base});
		}
		check_equal($publisher, $subscriber, "rollbacks, $name", $offset);

		# more open ones than there are workers; half of them commit
		my @open = map { session($publisher) } 1 .. 20;
		foreach my $i (0 .. $#open)
		{
			$open[$i]->query('BEGIN');
			$open[$i]->query("INSERT INTO t SELECT $base + 10000 + $i * 1000 + g, 'open' FROM generate_series(1, 200) g");
		}
		$publisher->safe_psql('postgres', q{INSERT INTO small (v) VALUES ('beside open ones')});
		wait_caught_up($publisher, $subscriber);
		is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM t WHERE v = 'open'}),
			$publisher->safe_psql('postgres', q{SELECT count(*) FROM t WHERE v = 'open'}), "nothing of open transactions, $name");
		$open[$_]->query($_ % 2 ? 'COMMIT' : 'ROLLBACK') for 0 .. $#open;
		$_->quit for @open;
		check_equal($publisher, $subscriber, "many open ones, $name", $offset);
		clean($name);
	});

# The publisher crashes with open transactions: their end is never told.
my @open = map { session($publisher) } 1 .. 6;
foreach my $i (0 .. $#open)
{
	$open[$i]->query('BEGIN');
	$open[$i]->query("INSERT INTO t SELECT -$i * 10000 - g, 'lost' FROM generate_series(1, 2000) g");
}
wait_for($subscriber, 'SELECT in_progress = 6 FROM pgparrep.stat_subscription', 'changes of all') unless stock_only();
$publisher->stop('immediate');
$publisher->start;
$_->quit for @open;
$publisher->safe_psql('postgres', q{INSERT INTO small (v) VALUES ('after the crash')});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after a crash of the publisher');
# the publisher looks for such transactions every now and then, by WAL read
$publisher->safe_psql('postgres', q{
	CHECKPOINT;
	SELECT pg_logical_emit_message(false, '', repeat('x', 1000000));
	CHECKPOINT;
	SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))});
clean('after a crash of the publisher');

# A worker is ended in the middle of a large transaction.
if (!stock_only())
{
	$publisher->safe_psql('postgres', q{INSERT INTO t SELECT 10000000 + g, 'large' FROM generate_series(1, 100000) g; INSERT INTO small (v) VALUES ('behind it')});
	wait_for($subscriber, q{SELECT count(*) > 0 FROM pgparrep.stat_apply_worker WHERE state = 'applying'}, 'a worker to apply it');
	$subscriber->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pgparrep.stat_apply_worker WHERE state = 'applying'});
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, 'after the end of a worker');
	clean('after the end of a worker');
}

$subscriber->stop;
$publisher->stop;
done_testing();
