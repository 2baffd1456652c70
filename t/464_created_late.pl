# A table that the subscriber gets while its rows are already on their way.
#
# The leader decides whether a change of a table is applied, or is the initial
# copy's affair, when it hands the transaction out.  It cannot decide about a
# table that is not there yet.  If a worker that comes to the change later
# applied it to the table that has appeared meanwhile, the rows would be there
# before the table is part of the subscription, and the copy would bring them
# once more: an error where there is a key, wrong where there is none.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber('wal_retrieve_retry_interval = 100ms');
$_->safe_psql('postgres', q{
	CREATE TABLE held (id int PRIMARY KEY, v int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'INSERT INTO held VALUES (1, 0)');
create_subscription($publisher, $subscriber, worker_number => 2);
wait_caught_up($publisher, $subscriber);

# Nothing behind the first transaction can come to its turn.
my $local = session($subscriber);
$local->query('BEGIN; SELECT * FROM held FOR UPDATE');
$publisher->safe_psql('postgres', 'UPDATE held SET v = 1');
$publisher->safe_psql('postgres', q{
	CREATE TABLE late (v int);
	INSERT INTO late VALUES (1), (2)});
wait_for($subscriber, 'SELECT waiting_for_commit >= 2 FROM pgparrep.stat_subscription', 'both transactions')
  unless stock_only();
$subscriber->safe_psql('postgres', 'CREATE TABLE late (v int)');
$local->query('COMMIT');
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM late'), 0, 'no row before the table is part of the subscription');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
wait_synced($subscriber);
compare_tables($publisher, $subscriber, 'a table that was created late');

$local->quit;
$subscriber->stop;
$publisher->stop;
done_testing();
