# A leader that ends leaves everything free for the next one.
#
# The launcher starts the next apply worker as soon as the leader has given up
# its place as the subscription's worker.  Where workers share the replication
# origin with their leader, it has to be free by then: the next one would end
# with an error, and replication pause for wal_retrieve_retry_interval.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber('wal_retrieve_retry_interval = 100ms');
$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY)') for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 2);

foreach my $round (1 .. 40)
{
	my $pid = $subscriber->safe_psql('postgres', 'SELECT leader_pid FROM pgparrep.stat_subscription');

	$publisher->safe_psql('postgres', "INSERT INTO t VALUES ($round)");
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = ' . (2 + $round % 2) . ')');
	wait_for($subscriber, "SELECT count(*) = 1 FROM pgparrep.stat_subscription WHERE leader_pid <> $pid", "leader $round");
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after many restarts');
unlike(slurp_file($subscriber->logfile), qr/ERROR:/, 'each leader starts at once');

$subscriber->stop;
$publisher->stop;
done_testing();
