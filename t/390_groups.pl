# Small transactions of a backlog are applied several in one local transaction.
#
# Nobody may see that but by the speed: an error has to name the one transaction
# that fails, with all before it committed and nothing after it; SKIP has to
# skip that one alone; a trigger has to see what a serial apply would show it,
# and in a transaction of its own.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v int);
		CREATE TABLE watched (id int PRIMARY KEY, v int);
		INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i});
}
$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE seen (id int, rows bigint, sum bigint, xid bigint);
	CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.seen
			SELECT NEW.id, count(*), sum(v), pg_catalog.txid_current() FROM public.t;
		RETURN NEW;
	END$$;
	CREATE TRIGGER see BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION see();
	ALTER TABLE watched ENABLE ALWAYS TRIGGER see});
create_subscription($publisher, $subscriber, worker_number => 3,
	options => 'copy_data = off');

# Makes a backlog of the statements, each a transaction of its own.
sub backlog
{
	my @statements = @_;
	my $from = $subscriber->safe_psql('postgres', 'SELECT pg_catalog.txid_current()');

	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
	wait_for($subscriber, 'SELECT count(*) = 0 FROM pgparrep.stat_subscription', 'the leader to end');
	$publisher->safe_psql('postgres', join(";\n", @statements));
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
	return $from;
}

# Local transaction ids used since.
sub xids_since { return $subscriber->safe_psql('postgres', 'SELECT pg_catalog.txid_current()') - $_[0]; }

my $from = backlog(map { "UPDATE t SET v = v + 1 WHERE id = 1 + $_ % 10" } 1 .. 2000);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'grouped', 't');
my $grouped = xids_since($from);
cmp_ok($grouped, '<', 1500, "fewer local transactions than remote ones ($grouped)");

$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.group_transactions = 1');
$subscriber->reload;
$from = backlog(map { "UPDATE t SET v = v + 1 WHERE id = 1 + $_ % 10" } 1 .. 2000);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'one by one', 't');
cmp_ok(xids_since($from), '>=', 2000, 'a local transaction for each remote one');

$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.group_transactions = 64');
$subscriber->reload;

# a trigger in the middle: rows 11, 12 ... of t are inserted around it
backlog(
	map { $_ % 7 == 0 ? "INSERT INTO watched VALUES ($_, 0)" : "INSERT INTO t VALUES (10 + $_, 1)" } 1 .. 700);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'with a trigger', 't', 'watched');
is( $subscriber->safe_psql('postgres',
		'SELECT count(*) FROM seen WHERE rows <> 10 + id - id / 7'),
	0, 'the trigger has seen what was committed before it, and no more');
is( $subscriber->safe_psql('postgres', 'SELECT count(DISTINCT xid) FROM seen'),
	100, 'each in a transaction of its own');

# an error in the middle
$subscriber->safe_psql('postgres', 'INSERT INTO t VALUES (5000, -1)');
my $log = log_size($subscriber);
backlog(
	(map { "INSERT INTO t VALUES (4000 + $_, 1)" } 1 .. 100),
	'INSERT INTO t VALUES (5000, 1)',
	(map { "INSERT INTO t VALUES (6000 + $_, 1)" } 1 .. 100));
wait_for($subscriber, 'SELECT apply_error_count > 0 FROM pg_stat_subscription_stats', 'the error');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id BETWEEN 4001 AND 4100'),
	100, 'all before the failing transaction has committed');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id BETWEEN 6001 AND 6100'),
	0, 'nothing after it has');
my ($lsn) = log_since($subscriber, $log) =~
  /(?:duplicate key value|conflict=insert_exists).*?finished at ([0-9A-F]+\/[0-9A-F]+)/s;
ok($lsn, 'the error has its position');
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id BETWEEN 6001 AND 6100'),
	100, 'after SKIP the rest has come');
is($subscriber->safe_psql('postgres', 'SELECT v FROM t WHERE id = 5000'),
	-1, 'only the failing transaction was skipped');

# commit times are kept one by one where somebody wants them
$subscriber->append_conf('postgresql.conf', 'track_commit_timestamp = on');
$subscriber->restart;
$from = backlog(map { "UPDATE t SET v = v + 1 WHERE id = 1 + $_ % 10" } 1 .. 500);
wait_caught_up($publisher, $subscriber);
cmp_ok(xids_since($from), '>=', 500, 'no group with track_commit_timestamp');

done_testing();
