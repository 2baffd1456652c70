# Eight sessions on few rows, with everything that makes the order of
# transactions matter: deletes and inserts of the same key, key changes, unique
# values that move from one row to another, tables without a key, savepoints
# rolled back, aborts, TRUNCATE.
#
# Without commit order and dependencies an update would run before its insert,
# a delete be skipped before its insert (both leave a difference and no error),
# or an insert fail on a unique value that an earlier transaction frees.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use Test::More;

my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 20;

my ($publisher, $subscriber) = publisher_and_subscriber();

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 2);

foreach my $workers (2, 4, 8)
{
	my $offset = log_size($subscriber);

	$subscriber->safe_psql('postgres',
		'ALTER SUBSCRIPTION sub SET (' . subscription_options($workers) . ')')
	  unless stock_only();
	run_mix($publisher, $seconds);
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "worker_number = $workers");

	# nobody else writes to the subscriber: nothing may fail there
	unlike(log_since($subscriber, $offset), qr/\b(?:ERROR|FATAL|PANIC):  (?!terminating)/,
		"worker_number = $workers: no error in the subscriber's log");
}

# The table of keys only spares waits.  Without it workers find each other's rows
# and unique values by waiting and by doing a transaction again.
if (!stock_only())
{
	my $offset = log_size($subscriber);

	$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.key_table = off');
	$subscriber->restart;
	run_mix($publisher, $seconds / 2);
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, 'without the table of keys');
	unlike(log_since($subscriber, $offset), qr/\b(?:ERROR|PANIC):  /, "without the table of keys: no error in the subscriber's log");
}

# A wrong result that both sides have in common would not show above.
is( $publisher->safe_psql('postgres', 'SELECT count(*) FROM history WHERE delta >= 1000000'),
	0, 'what was rolled back is nowhere');

$subscriber->stop;
$publisher->stop;
done_testing();
