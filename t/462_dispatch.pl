# Each transaction finds a worker, as long as one is free: also those that
# arrive together with others, behind one that waits for a local lock.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'about the pool' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber();

$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v int)') for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i');
create_subscription($publisher, $subscriber, worker_number => 8);
wait_caught_up($publisher, $subscriber);
wait_for($subscriber, q{SELECT count(*) = 8 FROM pgparrep.stat_apply_worker WHERE state = 'idle'}, 'eight idle workers');

my $local = session($subscriber);
my $least = 8;
for my $round (1 .. 10)
{
	my $first = $round * 8;

	$local->query("BEGIN; UPDATE t SET v = -1 WHERE id = $first");
	# one message with all of them: nothing is sent before the end of WAL
	$publisher->safe_psql('postgres', "SET synchronous_commit = off; SELECT pg_sleep(0.01);"
		. join ';', map { "UPDATE t SET v = $round WHERE id = $first + $_" } 0 .. 5);
	usleep(500_000);
	my $busy = $subscriber->safe_psql('postgres', q{SELECT count(*) FROM pgparrep.stat_apply_worker WHERE state <> 'idle'});
	note("round $round: $busy of 6 at work");
	$least = $busy if $busy < $least;
	$local->query('ROLLBACK');
	wait_caught_up($publisher, $subscriber);
}
is($least, 6, 'all six transactions were at work');
compare_tables($publisher, $subscriber, 'all applied');
$local->quit;

$subscriber->stop;
$publisher->stop;
done_testing();
