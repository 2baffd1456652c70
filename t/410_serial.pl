# Conflicts that the leader does not know beforehand, over and over again: hot
# rows and unique values without the table of keys, and a row that a trigger of
# the subscriber changes.
#
# Each is found by an attempt that comes to nothing.  If the next transactions
# try the same again, nearly all are applied twice, each after a search for a
# cycle of waits: some hundred a second, with a backlog that only grows.  And
# if the table stays serial for ever after, one conflict costs the parallelism
# for good.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf() . "pgparrep.key_table = off\n");

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE hot (id int PRIMARY KEY, v int);
		CREATE TABLE uniq (id int PRIMARY KEY, u int UNIQUE);
		CREATE TABLE source (id int PRIMARY KEY, v int);
		CREATE TABLE target (id int PRIMARY KEY, v int);
		CREATE TABLE calm (id int PRIMARY KEY, v int);
		CREATE TABLE filler (id serial PRIMARY KEY)});
}
$subscriber->safe_psql(
	'postgres', q{
	CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE public.target SET v = v WHERE id = 2;
		RETURN NULL;
	END $$;
	CREATE TRIGGER touch AFTER UPDATE ON source FOR EACH ROW EXECUTE FUNCTION touch();
	ALTER TABLE source ENABLE ALWAYS TRIGGER touch});
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO hot SELECT i, 0 FROM generate_series(1, 4) i;
	INSERT INTO uniq VALUES (0, 1);
	INSERT INTO source SELECT i, 0 FROM generate_series(1, 4) i;
	INSERT INTO target SELECT i, 0 FROM generate_series(1, 4) i;
	INSERT INTO calm SELECT i, 0 FROM generate_series(1, 4) i});
create_subscription($publisher, $subscriber);
wait_caught_up($publisher, $subscriber);

sub stat_of { return $subscriber->safe_psql('postgres', "SELECT $_[0] FROM pgparrep.stat_subscription"); }

# Transactions of one statement each, each with the number i.
sub loop
{
	my ($n, $body) = @_;

	return $publisher->safe_psql('postgres', "DO \$\$ BEGIN FOR i IN 1 .. $n LOOP $body; COMMIT; END LOOP; END \$\$");
}

my $round = 0;

sub storm
{
	my ($name) = @_;
	my $offset = log_size($subscriber);
	my $n = 3000;
	my $from = 10_000 * ++$round;

	stop_apply($subscriber);
	loop($n, 'UPDATE hot SET v = v + 1 WHERE id = i % 4 + 1');
	loop($n, "DELETE FROM uniq WHERE u = 1; COMMIT; INSERT INTO uniq VALUES ($from + i, 1)");
	loop($n / 2, 'UPDATE source SET v = v + 1 WHERE id = i % 4 + 1; COMMIT; UPDATE target SET v = v + 1 WHERE id = 2');
	start_apply($subscriber);
	check_equal($publisher, $subscriber, $name, $offset);
	SKIP:
	{
		skip 'no leader', 1 if stock_only();
		my $retries = stat_of('retries');

		note("$name: $retries retries");
		cmp_ok($retries, '<', 4 * $n / 20, "$name: few of ${\(4 * $n)} transactions were repeated");
	}
	return;
}

storm('groups');
$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.group_transactions = 1');
$subscriber->reload;
storm('no groups');

if (stock_only())
{
	done_testing();
	exit 0;
}

# From here on step by step, with a leader that knows of no trouble yet.  Of two
# transactions the first waits for a row of "calm" that a local session has.
# Does the other one change its row meanwhile?  It does if nothing is serial.
stop_apply($subscriber);
start_apply($subscriber);
wait_for($subscriber, q{SELECT count(*) = 4 FROM pgparrep.stat_apply_worker WHERE state = 'idle'}, 'the workers');

my $local = session($subscriber);
my $waiting = q{count(*) FILTER (WHERE state LIKE 'waiting for %')};

sub changes_meanwhile
{
	my ($first, $second, $table, $held) = @_;
	my $row = $held // 'calm';

	$local->query("BEGIN; SELECT FROM $row WHERE id = 1 FOR UPDATE");
	$publisher->safe_psql('postgres', $first);
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker' AND wait_event_type = 'Lock'}, 'the first to wait');
	$publisher->safe_psql('postgres', $second);
	wait_for($subscriber, "SELECT $waiting = 1 FROM pgparrep.stat_apply_worker", 'the second to wait');
	my $free = $subscriber->safe_psql('postgres', "SELECT count(*) FROM (SELECT FROM $table WHERE id = 2 FOR UPDATE SKIP LOCKED) s");
	$local->query('COMMIT');
	wait_caught_up($publisher, $subscriber);
	return !$free;
}

# Has the second wait for the row of the first?
sub trouble_ahead
{
	my ($table) = @_;

	return changes_meanwhile(
		"BEGIN; UPDATE calm SET v = v + 1 WHERE id = 1; UPDATE $table SET v = v + 1 WHERE id = 2; COMMIT",
		"UPDATE $table SET v = v + 1 WHERE id = 2", $table);
}

sub is_parallel
{
	my ($table) = @_;

	return changes_meanwhile(
		"BEGIN; UPDATE $table SET v = v + 1 WHERE id = 3; UPDATE calm SET v = v + 1 WHERE id = 1; COMMIT",
		"UPDATE $table SET v = v + 1 WHERE id = 2", $table);
}

# Transactions that meet nobody.
sub go_on { return loop($_[0], 'INSERT INTO filler DEFAULT VALUES'); }

ok(trouble_ahead('hot'), 'in parallel at first');
is(stat_of('yields'), 1, 'the later one gives way');
ok(!is_parallel('hot'), 'then the table is serial');
ok(is_parallel('target'), 'another one is not');
ok(!trouble_ahead('hot'), 'the same again');
is(stat_of('yields'), 1, 'nobody has to give way');
go_on(64);
ok(is_parallel('hot'), 'in parallel again after a while');
ok(trouble_ahead('hot'), 'so that trouble can come again');
is(stat_of('yields'), 2, 'and is found');
go_on(64);
ok(!is_parallel('hot'), 'now it lasts longer');
go_on(64);
ok(is_parallel('hot'), 'but not for ever');

# What the trigger changes the second transaction has changed before, and
# neither knows of the other's table.
ok(changes_meanwhile('UPDATE source SET v = v + 1 WHERE id = 1', 'UPDATE target SET v = v + 1 WHERE id = 2',
		'target', 'source'), 'a trigger changes the row of another transaction');
is(stat_of('yields'), 3, 'the later one gives way');
ok(!is_parallel('hot'), 'then all tables are serial');
go_on(64);
ok(is_parallel('hot'), 'for a while');
ok(is_parallel('target'), 'also the one of the trigger');

$local->quit;
$subscriber->stop;
$publisher->stop;
done_testing();
