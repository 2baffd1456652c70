# Uncommitted work beyond pgparrep.cached_changes and
# pgparrep.cached_transactions goes to temporary files, and these disappear.
#
# Without files a long transaction, or many open ones, would fill the leader's
# memory; and since nothing may be refused before its commit has been read,
# stopping to read is no way out.  Files that nobody removes fill the disk
# instead.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber();

$subscriber->append_conf(
	'postgresql.conf', q{
pgparrep.cached_changes = 100
pgparrep.cached_transactions = 4
});
$subscriber->reload;

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text)');
}
create_subscription($publisher, $subscriber, worker_number => 3);

# Whether there are temporary files, as soon as what was sent has been received.
sub files
{
	my ($wanted, $what) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $n = () = temporary_files($subscriber);
		if ($wanted ? $n > 0 : $n == 0)
		{
			pass($what);
			return;
		}
		usleep(100_000);
	}
	fail($what);
	diag(join ' ', temporary_files($subscriber));
	return;
}

sub no_file_yet
{
	is_deeply([ temporary_files($subscriber) ], [], $_[0]);
	return;
}

# small transactions need none
$publisher->safe_psql('postgres', q{INSERT INTO t SELECT i, 'small' FROM generate_series(1, 50) i});
wait_caught_up($publisher, $subscriber);
no_file_yet('no file for a small transaction');

# ---------- one large transaction

my $s = session($publisher);
$s->query('BEGIN');
$s->query(q{INSERT INTO t SELECT i, 'large ' || i FROM generate_series(1001, 51000) i});
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (100, 'beside it')});
wait_caught_up($publisher, $subscriber);
files(1, 'a file for a large open transaction');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id > 1000'), 0, 'nothing of it is visible');
$s->query('SAVEPOINT s');
$s->query(q{UPDATE t SET v = 'rolled back' WHERE id > 1000});
$s->query('ROLLBACK TO s');
$s->query(q{UPDATE t SET v = 'updated' WHERE id > 50000});
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a large transaction');
files(0, 'its file is gone');

# ---------- one that is rolled back

$s->query('BEGIN');
$s->query(q{DELETE FROM t WHERE id > 1000});
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (101, 'beside it')});
wait_caught_up($publisher, $subscriber);
files(1, 'a file for a large transaction that will be rolled back');
$s->query('ROLLBACK');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'rolled back');
files(0, 'its file is gone');

# ---------- many open at once

my @open = map { session($publisher) } 1 .. 20;
foreach my $i (0 .. $#open)
{
	$open[$i]->query('BEGIN');
	$open[$i]->query("INSERT INTO t SELECT 100000 + $i * 100 + g, 'open $i' FROM generate_series(1, 20) g");
}
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (102, 'beside them')});
wait_caught_up($publisher, $subscriber);
files(1, 'files for more open transactions than are kept in memory');
# the last first, every fourth rolled back
foreach my $i (reverse 0 .. $#open)
{
	$open[$i]->query($i % 4 == 3 ? 'ROLLBACK' : 'COMMIT');
	$open[$i]->quit;
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'many open at once');
files(0, 'their files are gone');

# ---------- the subscription ends, or its publisher dies, before they do

$s->query('BEGIN');
$s->query(q{UPDATE t SET v = 'open' WHERE id > 1000});
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (103, 'beside it')});
wait_caught_up($publisher, $subscriber);
files(1, 'a file again');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
files(0, 'gone with the leader');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_for($publisher, q{SELECT active FROM pg_replication_slots WHERE slot_name = 'sub'}, 'the subscription to come back');
$s->query('COMMIT');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'committed in the leader\'s next life');
files(0, 'no file is left');

$s->query('BEGIN');
$s->query(q{UPDATE t SET v = 'never committed' WHERE id > 1000});
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (104, 'beside it')});
wait_caught_up($publisher, $subscriber);
files(1, 'a file again');
$publisher->stop('immediate');
$publisher->start;
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (105, 'after the crash')});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'the publisher crashed');
files(0, 'the file of a transaction that nobody will ever end is gone');

$subscriber->stop;
$publisher->stop;
done_testing();
