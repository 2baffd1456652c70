# SKIP of a transaction that is tried again and again.
#
# What fails for a reason that is not in its data, such as a lock that somebody
# does not let go of, is repeated until it works, without an end of the leader.
# Somebody who cannot wait has to get past it all the same, while what comes
# after it is in the hands of other workers already.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
max_prepared_transactions = 2
});

$_->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v int);
	CREATE TABLE b (id int PRIMARY KEY, v int);
	INSERT INTO a VALUES (1, 0), (2, 0);
	INSERT INTO b VALUES (1, 0)}) for $publisher, $subscriber;
$subscriber->safe_psql('postgres', q{ALTER SYSTEM SET lock_timeout = '300ms'});
$subscriber->reload;
create_subscription($publisher, $subscriber, worker_number => 3, options => 'copy_data = false, two_phase = true');

# Waits until the transaction is tried again; returns the position to skip.
sub tried_again
{
	my ($offset, $why) = @_;

	my $wanted = stock_only() ? qr/ERROR:  .*$why/ : qr/will be tried again: .*$why/;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000) while log_since($subscriber, $offset) !~ $wanted && time() < $deadline;
	my ($lsn) = log_since($subscriber, $offset) =~ /finished at ([0-9A-F]+\/[0-9A-F]+)/;
	return $lsn;
}

my $offset = log_size($subscriber);
my $locker = session($subscriber);
$locker->query('BEGIN');
$locker->query('SELECT v FROM a WHERE id = 1 FOR UPDATE');
$publisher->safe_psql('postgres', 'BEGIN; UPDATE b SET v = 1; UPDATE a SET v = 1 WHERE id = 1; COMMIT');
$publisher->safe_psql('postgres', 'UPDATE a SET v = 2 WHERE id = 2');
$publisher->safe_psql('postgres', 'UPDATE b SET v = v + 1');
my $lsn = tried_again($offset, 'lock timeout');
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT * FROM a ORDER BY id'), "1|0\n2|2", 'one transaction was skipped, the next was not');
is($subscriber->safe_psql('postgres', 'SELECT * FROM b'), '1|2', 'nor the one after it, which waited for it');
is($subscriber->safe_psql('postgres', 'SELECT subskiplsn FROM pg_subscription'), '0/0', 'the position is cleared');
my $log = log_since($subscriber, $offset);
like($log, qr/completed skipping/, 'the log says so');
unlike($log, qr/WARNING:  skip-LSN/, 'no other transaction has cleared it');
$locker->query('COMMIT');

# the same, of one that is to be prepared; its end does nothing
$offset = log_size($subscriber);
$locker->query('BEGIN');
$locker->query('SELECT v FROM a WHERE id = 1 FOR UPDATE');
$publisher->safe_psql('postgres', q{BEGIN; UPDATE a SET v = 3 WHERE id = 1; PREPARE TRANSACTION 'p'});
$publisher->safe_psql('postgres', 'UPDATE a SET v = 4 WHERE id = 2');
$lsn = tried_again($offset, 'lock timeout');
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
wait_caught_up($publisher, $subscriber);
$publisher->safe_psql('postgres', q{COMMIT PREPARED 'p'});
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT * FROM a ORDER BY id'), "1|0\n2|4", 'a prepared transaction was skipped');
is($subscriber->safe_psql('postgres', 'SELECT subskiplsn FROM pg_subscription'), '0/0', 'the position is cleared again');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'and nothing left prepared');
$locker->quit;

$subscriber->stop;
$publisher->stop;
done_testing();
