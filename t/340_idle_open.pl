# Sessions that stay in a transaction hold up nobody, and a table in its initial
# copy ends equal although the load on it never stops.
#
# If a transaction took a worker when it begins, as many idle sessions as there
# are workers would stop the subscription.  If the position told to table
# synchronisation lay behind transactions already handed out, the copy's last
# changes would be applied by both the sync worker and the pool, or by neither.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE busy (id int PRIMARY KEY, v int);
		CREATE TABLE idle (id int PRIMARY KEY, v text);
		CREATE TABLE late (id int PRIMARY KEY, v int, pad text)});
}
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO busy SELECT i, 0 FROM generate_series(1, 1000) i;
	INSERT INTO late SELECT i, 0, repeat('x', 100) FROM generate_series(1, 100000) i;
	CREATE PUBLICATION pub FOR TABLE busy, idle});
create_subscription($publisher, $subscriber, worker_number => 2);

my $dir = $publisher->basedir;
append_to_file("$dir/busy.sql", "\\set id random(1, 1000)\nUPDATE busy SET v = v + 1 WHERE id = :id;\n");
append_to_file("$dir/late.sql", q{
\set id random(1, 100000)
\set what random(1, 4)
\if :what = 1
DELETE FROM late WHERE id = :id;
\elif :what = 2
INSERT INTO late VALUES (:id, 1, 'again') ON CONFLICT (id) DO UPDATE SET v = late.v + 1;
\else
UPDATE late SET v = v + 1 WHERE id = :id;
\endif
});

sub pgbench
{
	my ($script, @arguments) = @_;
	return ('pgbench', '-n', '-c', 4, '-f', "$dir/$script.sql", '-h', $publisher->host, '-p', $publisher->port,
		@arguments, 'postgres');
}

# Three open transactions for two workers, one of them with many changes.
my @open = map { session($publisher) } 1 .. 3;
foreach my $i (0 .. $#open)
{
	my $rows = $i == 0 ? 5000 : 10;
	$open[$i]->query('BEGIN');
	$open[$i]->query("INSERT INTO idle SELECT $i * 100000 + g, 'open' FROM generate_series(1, $rows) g");
	# a row that the load does not touch
	$open[$i]->query("UPDATE busy SET v = -1 WHERE id = -$i");
}

my $start = time();
$publisher->command_ok([ pgbench('busy', '-t', 1000) ], 'load beside idle sessions');
wait_caught_up($publisher, $subscriber);
my $took = time() - $start;
compare_tables($publisher, $subscriber, 'beside idle sessions');
cmp_ok($took, '<', 60, 'idle sessions hold up nobody');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM idle'), 0, 'nothing of the open transactions is visible');

$open[0]->query('COMMIT');
$open[1]->query('ROLLBACK');
$open[2]->query('COMMIT');
$_->quit for @open;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after their end');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM idle'), 5010, 'what committed is there, the rest is not');

# Initial copy under load; rows come, go and change meanwhile.
foreach my $round (1 .. 3)
{
	my $load = IPC::Run::start([ pgbench('late', '-T', 8, '-R', 1000) ], '<', \undef, '>', '/dev/null', '2>&1');
	my $other = IPC::Run::start([ pgbench('busy', '-T', 8, '-R', 500) ], '<', \undef, '>', '/dev/null', '2>&1');

	$publisher->safe_psql('postgres', 'ALTER PUBLICATION pub ADD TABLE late');
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	wait_synced($subscriber);
	$load->finish;
	$other->finish;
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "initial copy under load, round $round");

	# and out again
	$publisher->safe_psql('postgres', 'ALTER PUBLICATION pub DROP TABLE late');
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	$subscriber->safe_psql('postgres', 'TRUNCATE late');
}

# Without any traffic the copy ends as well.
$publisher->safe_psql('postgres', 'ALTER PUBLICATION pub ADD TABLE late');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_synced($subscriber) && pass('the copy ends without traffic');
compare_tables($publisher, $subscriber, 'without traffic');

$subscriber->stop;
$publisher->stop;
done_testing();
