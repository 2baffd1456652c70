# Runs of inserts are stored several rows at a time.
#
# A row that is kept back must be there before anything else happens that could
# miss it: an update or delete of it, a TRUNCATE, an insert elsewhere, the commit.
# An error that shows when the rows are stored still names the relation and the
# transaction, and nothing of it stays.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber("wal_retrieve_retry_interval = 100ms\n");

$_->safe_psql('postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v text);
	CREATE TABLE b (id int PRIMARY KEY, v text NOT NULL);
	CREATE TABLE c (id int, v text);
	ALTER TABLE c REPLICA IDENTITY FULL;
	CREATE TABLE d (id int PRIMARY KEY, v text, u int UNIQUE, g int GENERATED ALWAYS AS (u * 2) STORED, CHECK (u < 100000))})
  for $publisher, $subscriber;
$subscriber->safe_psql('postgres', 'CREATE EXTENSION pg_walinspect');
create_subscription($publisher, $subscriber, worker_number => 3);

sub apply
{
	my ($name, @statements) = @_;

	$publisher->safe_psql('postgres', join(";\n", 'BEGIN', @statements, 'COMMIT'));
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $name);
	return;
}

sub rows { my ($from, $to) = @_; return "SELECT i, 'row ' || i FROM generate_series($from, $to) i"; }

my $begin = $subscriber->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
apply('a run', 'INSERT INTO a ' . rows(1, 1000));
# a commit that is flushed, and with it all before
$subscriber->safe_psql('postgres', 'SET synchronous_commit = on; CREATE TABLE flushed ()');
my $n = $subscriber->safe_psql('postgres', qq{
	SELECT count(*) FROM pg_get_wal_records_info('$begin', pg_current_wal_flush_lsn())
	 WHERE resource_manager = 'Heap2' AND record_type LIKE 'MULTI_INSERT%'});
cmp_ok($n, '>', 5, "1000 rows in $n records of several") unless stock_only();
cmp_ok($n, '<', 40, 'and not one for each') unless stock_only();

apply('rows that are changed at once',
	'INSERT INTO a ' . rows(2001, 2100),
	'UPDATE a SET v = v || 1 WHERE id = 2100', 'DELETE FROM a WHERE id = 2099',
	'INSERT INTO a ' . rows(2101, 2110), 'UPDATE a SET id = id + 10000 WHERE id BETWEEN 2108 AND 2110');
apply('tables by turns', map { ('INSERT INTO a ' . rows(3000 + $_ * 10, 3002 + $_ * 10), 'INSERT INTO b ' . rows($_ * 10, 4 + $_ * 10)) } 1 .. 20);
apply('TRUNCATE', 'INSERT INTO b ' . rows(10001, 10100), 'TRUNCATE b', 'INSERT INTO b ' . rows(1, 10));
apply('no key', 'INSERT INTO c ' . rows(1, 300), 'INSERT INTO c ' . rows(1, 300), 'DELETE FROM c WHERE id = 300');
apply('expressions', "INSERT INTO d (id, v, u) SELECT i, 'x', i FROM generate_series(1, 300) i");
apply('large values', "INSERT INTO a SELECT i, repeat(md5(i::text), 4000) FROM generate_series(5001, 5020) i");
apply('a table that changes', 'INSERT INTO c ' . rows(400, 500), 'ALTER TABLE c SET (fillfactor = 90)', 'INSERT INTO c ' . rows(501, 600), 'UPDATE c SET v = 1 WHERE id > 590');

# each by itself
$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.insert_runs = off');
$subscriber->restart;
$begin = $subscriber->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
apply('no runs', 'INSERT INTO a ' . rows(20001, 20100), "UPDATE a SET v = 'x' WHERE id = 20100");
$subscriber->safe_psql('postgres', 'SET synchronous_commit = on; CREATE TABLE flushed_again ()');
is($subscriber->safe_psql('postgres', qq{
	SELECT count(*) FROM pg_get_wal_records_info('$begin', pg_current_wal_flush_lsn())
	 WHERE resource_manager = 'Heap2' AND record_type LIKE 'MULTI_INSERT%'
	   AND block_ref ~ (SELECT 'rel [0-9]+/[0-9]+/' || pg_relation_filenode('a') || '\\y')}), 0, 'each row has its record') unless stock_only();
$subscriber->safe_psql('postgres', 'ALTER SYSTEM RESET pgparrep.insert_runs');
$subscriber->restart;

# an error in the middle of a run, of one row that nobody has sent
sub fails
{
	my ($name, $table, $pattern, $statement, $repair) = @_;
	my $offset = log_size($subscriber);
	my $before = $subscriber->safe_psql('postgres', "SELECT count(*) FROM $table");

	$publisher->safe_psql('postgres', $statement);
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000) while log_since($subscriber, $offset) !~ /ERROR:  $pattern/ && time() < $deadline;
	usleep(20_000) while log_since($subscriber, $offset) !~ /CONTEXT/ && time() < $deadline;
	my $log = log_since($subscriber, $offset);
	like($log, qr/ERROR:  $pattern/, "$name: an error");
	like($log, qr/message type "INSERT" for replication target relation "public\.$table".* in transaction \d+, finished at/, "$name: which names the relation");
	is($subscriber->safe_psql('postgres', "SELECT count(*) FROM $table"), $before, "$name: nothing is left");
	$subscriber->safe_psql('postgres', $repair);
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $name);
	return;
}

$subscriber->safe_psql('postgres', q{INSERT INTO a VALUES (7050, 'mine')});
fails('a duplicate', 'a', $subscriber->pg_version < 18 ? 'duplicate key' : 'conflict detected',
	'INSERT INTO a ' . rows(7001, 7100), 'DELETE FROM a WHERE id = 7050');
$subscriber->safe_psql('postgres', q{ALTER TABLE a ADD CONSTRAINT short CHECK (v <> 'row 8050')});
fails('a constraint', 'a', 'new row for relation "a" violates check constraint',
	'INSERT INTO a ' . rows(8001, 8100), 'ALTER TABLE a DROP CONSTRAINT short');

$subscriber->stop;
$publisher->stop;
done_testing();
