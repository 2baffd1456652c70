# Fewer worker slots than a subscription asks for: it runs with what there is,
# says so once, and takes more when they come free; with none it fails with an
# error that says what to do, and is tried again at the launcher's pace.
#
# Otherwise a full server would mean a subscription that hangs without a word,
# a log that fills with the same error, or an initial copy that never starts
# because the pool has taken the slot of its worker.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my $publisher = new_node('publisher');
my $subscriber = new_node('subscriber',
	"max_worker_processes = 4\nwal_retrieve_retry_interval = '3s'");

$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text)')
  for $publisher, $subscriber;
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (0, 'copied')});

sub workers
{
	my ($name) = @_;
	return "SELECT coalesce(sum(workers), 0) FROM pgparrep.stat_subscription WHERE subname = '$name'";
}

sub set_slots
{
	my ($n) = @_;
	$subscriber->adjust_conf('postgresql.conf', 'max_worker_processes', $n);
	my $from = log_size($subscriber);
	$subscriber->restart;
	return $from;
}

$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
my $from = log_size($subscriber);
create_subscription($publisher, $subscriber, worker_number => 8);
pass('initial copy with few slots');

# launcher and leader take two of the four
wait_for($subscriber, 'SELECT 2 = (' . workers('sub') . ')', 'a pool of two');
$publisher->safe_psql('postgres',
	q{INSERT INTO t SELECT i, 'inserted' FROM generate_series(1, 100) i});
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'two of eight workers');
sleep 6;	# it has tried again by then
my @warnings = log_since($subscriber, $from) =~
  /WARNING:  subscription "sub" runs with \d apply workers instead of 8/g;
is(scalar @warnings, 1, 'one warning');
like(
	log_since($subscriber, $from),
	qr/HINT:  Increase max_worker_processes or lower worker_number/,
	'with a hint');

$from = set_slots(2);
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (101, 'no worker')});
sleep 8;
my @errors = log_since($subscriber, $from) =~
  /ERROR:  could not start an apply worker for subscription "sub"/g;
cmp_ok(scalar @errors, '>=', 1, 'no slot: an error');
cmp_ok(scalar @errors, '<=', 3, 'no slot: not tried again at once');
like(
	log_since($subscriber, $from),
	qr/DETAIL:  All 2 slots of max_worker_processes are in use/,
	'the error has the number');

set_slots(12);
wait_caught_up($publisher, $subscriber);
wait_for($subscriber, 'SELECT 8 = (' . workers('sub') . ')', 'the whole pool');
compare_tables($publisher, $subscriber, 'all workers');

# another subscription's slots, when it is dropped
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (worker_number = 2)');
set_slots(6);
wait_for($subscriber, 'SELECT 2 = (' . workers('sub') . ')', 'a pool of two');
$publisher->safe_psql('postgres', 'CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION pub_u FOR TABLE u');
$subscriber->safe_psql('postgres', 'CREATE TABLE u (id int PRIMARY KEY)');
$subscriber->safe_psql('postgres',
	    "CREATE SUBSCRIPTION second CONNECTION '"
	  . connection($publisher)
	  . "' PUBLICATION pub_u WITH (worker_number = 4, copy_data = off)");
wait_for($subscriber, 'SELECT 1 = (' . workers('second') . ')', 'the one slot that is left');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
wait_for($subscriber, 'SELECT 4 = (' . workers('second') . ')', 'slots that came free');
$publisher->safe_psql('postgres', 'INSERT INTO u SELECT generate_series(1, 1000)');
wait_caught_up($publisher, $subscriber, 'second');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM u'), 1000, 'the other subscription');

done_testing();
