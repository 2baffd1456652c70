# The subscriber as synchronous standby of the publisher.
#
# A commit of the publisher then waits for the subscriber's answer.  If an
# answer waited for the next flush of the subscriber's WAL writer, there would
# be five commits a second; if transactions without any published change were
# never confirmed, or decoding needed a lock that the waiting session holds,
# none at all.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE a (v int); CREATE TABLE b (v int)');
}
$publisher->safe_psql('postgres',
	'CREATE TABLE unpublished (v int); CREATE PUBLICATION pub FOR TABLE t WHERE (id <> 13), a, b');
create_subscription($publisher, $subscriber, worker_number => 4);
$publisher->append_conf('postgresql.conf', "synchronous_standby_names = 'sub'");
$publisher->reload;
wait_for($publisher, q{SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = 'sub'}, 'sub to be synchronous');

foreach my $level (qw(on remote_apply remote_write))
{
	my $s = session($publisher);
	my $start = time();

	$s->query("SET synchronous_commit = $level");
	$s->query('TRUNCATE t');
	$s->query('INSERT INTO t VALUES (1, 1), (2, 2)');
	$s->query('TRUNCATE a');
	$s->query('TRUNCATE a, b');
	$s->query('INSERT INTO unpublished VALUES (1)');
	$s->query('CREATE TABLE ddl_only (v int)');
	$s->query('DROP TABLE ddl_only');
	$s->query('INSERT INTO t VALUES (13, 0)');
	$s->query('BEGIN; LOCK a, t; INSERT INTO a VALUES (1); COMMIT');
	$s->query('BEGIN; SAVEPOINT s; INSERT INTO a VALUES (2); ROLLBACK TO s; COMMIT');
	cmp_ok(time() - $start, '<', 30, "$level: no session hangs");
	if ($level eq 'remote_apply')
	{
		$s->query("INSERT INTO a VALUES (1000 + $_)"),
		  is($subscriber->safe_psql('postgres', "SELECT count(*) FROM a WHERE v = 1000 + $_"), 1, "$level: visible at once")
		  for 1 .. 5;
	}

	$start = time();
	$s->query("UPDATE t SET v = v + 1 WHERE id = 1 + $_ % 2") for 1 .. 100;
	my $rate = 100 / (time() - $start);
	note(sprintf('%s: %.0f commits a second', $level, $rate));
	cmp_ok($rate, '>', 40, "$level: commits are confirmed at once") unless stock_only();
	$s->quit;
}

# A subscriber that is away stops commits for that long, not longer.
my $s = session($publisher);
$s->query('SET synchronous_commit = on');
$subscriber->stop('fast');
$s->send('INSERT INTO t VALUES (100, 100)');
usleep(500_000);
$subscriber->start;
is($s->query('SELECT count(*) FROM t WHERE id = 100'), 1, 'a commit that waited for the subscriber to come back');
$s->quit;

$publisher->adjust_conf('postgresql.conf', 'synchronous_standby_names', "''");
$publisher->reload;
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT string_agg(t::text, $$ $$ ORDER BY id) FROM t'),
	$publisher->safe_psql('postgres', 'SELECT string_agg(t::text, $$ $$ ORDER BY id) FROM t WHERE id <> 13'),
	'equal rows');

$subscriber->stop;
$publisher->stop;
done_testing();
