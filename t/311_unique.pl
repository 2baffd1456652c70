# A unique value that one transaction frees and the next one takes.
#
# The message of a DELETE carries the key only, so that nobody can know from it
# which other unique values become free: an insert that takes one may run before
# the delete that frees it.  Without going back and waiting for its turn it would
# fail on the unique index, and the subscription with it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, pad text);
		CREATE TABLE chain (id int PRIMARY KEY, u int UNIQUE);
		CREATE TABLE keys (id int PRIMARY KEY, v text);
		CREATE TABLE here_only (id int PRIMARY KEY, u text)});
}
$subscriber->safe_psql('postgres', 'CREATE UNIQUE INDEX ON here_only (u)');
$publisher->safe_psql('postgres', q{
	INSERT INTO t VALUES (0, 'k', 'x');
	INSERT INTO here_only VALUES (0, 'k');
	INSERT INTO chain SELECT i, CASE WHEN i > 1 THEN i END FROM generate_series(1, 11) i});
create_subscription($publisher, $subscriber, worker_number => 8);

# Every statement is a transaction.
my $dir = $publisher->basedir;
my $sql = '';
my $rounds = 3000;
foreach my $i (1 .. $rounds)
{
	my $before = $i - 1;
	$sql .= "DELETE FROM t WHERE id = $before;\nINSERT INTO t VALUES ($i, 'k', 'x');\n";
	$sql .= "DELETE FROM here_only WHERE id = $before;\nINSERT INTO here_only VALUES ($i, 'k');\n";
	# given away, and given to another row
	$sql .= "UPDATE t SET u = 'other' WHERE id = $i;\nUPDATE t SET u = 'k' WHERE id = $i;\n" if $i % 3 == 0;
	# the primary key itself
	$sql .= "INSERT INTO keys VALUES (1, 'r$i');\nUPDATE keys SET id = 2 WHERE id = 1;\nUPDATE keys SET id = 3 WHERE id = 2;\n"
	  . "INSERT INTO keys VALUES (1, 's$i');\nDELETE FROM keys WHERE id = 3;\nDELETE FROM keys WHERE id = 1;\n"
	  if $i % 10 == 0;
	# a hole that moves through ten rows: each takes the value of its successor
	$sql .= join('', map { "UPDATE chain SET u = NULL WHERE id = " . ($_ + 1) . ";\nUPDATE chain SET u = " . ($_ + 1)
		  . " WHERE id = $_;\n" } 1 .. 10)
	  . join('', map { "UPDATE chain SET u = NULL WHERE id = " . ($_ - 1) . ";\nUPDATE chain SET u = $_ WHERE id = $_;\n" }
		  reverse 2 .. 11)
	  if $i % 100 == 0;
}
append_to_file("$dir/rounds.sql", $sql);

my $offset = log_size($subscriber);

sub rounds
{
	$publisher->command_ok(
		[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $publisher->connstr('postgres'), '-c',
			'SET synchronous_commit = off', '-f', "$dir/rounds.sql" ],
		'rounds');
	return;
}

# while they come in, and as a backlog
rounds();
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'as they come in');

$publisher->safe_psql('postgres', "UPDATE t SET id = 0; UPDATE here_only SET id = 0");
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
rounds();
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'as a backlog');

unlike(log_since($subscriber, $offset), qr/ERROR:|duplicate key/, 'nothing failed on the subscriber');

$subscriber->stop;
$publisher->stop;
done_testing();
