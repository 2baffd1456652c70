# The same key is the same for the leader, whether it came natively or as text.
#
# A transaction whose values came natively is stopped on the subscriber after it
# has written a row for each type of key.  Each of the others changes one of
# these rows and comes as text, since it creates a temporary table and so is
# replayed by the publisher's server.  They have to wait for the commit of the
# first; with hashes that differ they would run into its row and wait for a lock.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
pgparrep.group_transactions = 1
pgparrep.key_table = on
});

# publisher's type, subscriber's type, value
my @keys = (
	[ 'int', 'int', '-7' ],
	[ 'int', 'bigint', '-7' ],
	[ 'oid', 'bigint', '4294967295' ],
	[ 'smallint', 'text', '12' ],
	[ 'text', 'text', 'word' ],
	[ 'char(8)', 'char(8)', 'word' ],
	[ 'varchar(20)', 'varchar(30)', 'word' ],
	[ 'text', 'text', 'word' x 600 ],		# compressed
	[ 'uuid', 'uuid', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11' ],
	[ 'numeric', 'numeric', '1.50' ],
	[ 'numeric', 'numeric(10,1)', '1.50' ],
	[ 'timestamptz', 'timestamptz', '2020-01-01 12:34:56.7+03' ],
	[ 'timestamp', 'timestamp(0)', '2020-01-01 12:34:56.7' ],
	[ 'date', 'timestamp', '2020-02-29' ],
	[ 'float8', 'float8', '0.1' ],
	[ 'bytea', 'bytea', '\x00ff' ],
	[ 'inet', 'inet', '10.0.0.1/8' ],
	[ 'interval', 'interval', '1 day' ]);

for my $i (0 .. $#keys)
{
	$publisher->safe_psql('postgres', "CREATE TABLE key$i (k $keys[$i][0] PRIMARY KEY, v int)");
	$subscriber->safe_psql('postgres', "CREATE TABLE key$i (k $keys[$i][1] PRIMARY KEY, v int)");
}
$_->safe_psql('postgres', 'CREATE TABLE stop (a int PRIMARY KEY)') for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => @keys + 2, options => 'copy_data = false');

my $session = session($subscriber);
$session->query('BEGIN; LOCK TABLE stop IN EXCLUSIVE MODE');

$publisher->safe_psql('postgres', join(";\n", 'BEGIN',
	(map { "INSERT INTO key$_ VALUES ('$keys[$_][2]', 1)" } 0 .. $#keys), 'INSERT INTO stop VALUES (1)', 'COMMIT'));
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'stop'::regclass AND NOT granted}, 'the first to be stopped');
$publisher->safe_psql('postgres', "BEGIN; CREATE TEMP TABLE tmp () ON COMMIT DROP; UPDATE key$_ SET v = 2; COMMIT") for 0 .. $#keys;
wait_for($subscriber, 'SELECT waiting_for_commit > ' . @keys . ' FROM pgparrep.stat_subscription', 'the others to arrive');
usleep(500_000);

my $in_lock = $subscriber->safe_psql('postgres', q{
	SELECT string_agg(DISTINCT a.pid::text, ' ') FROM pg_stat_activity a JOIN pg_locks l USING (pid)
	WHERE backend_type = 'pgparrep apply worker' AND l.locktype = 'transactionid' AND NOT l.granted});
is($in_lock, '', 'no worker runs into the row of another');

$session->query('COMMIT');
$session->quit;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', join(' UNION ALL ', map { "SELECT $_ WHERE (SELECT v FROM key$_) IS DISTINCT FROM 2" } 0 .. $#keys)),
	'', 'all updated');

done_testing();
