# Changes that have to wait for an earlier transaction are applied after later
# ones of their own transaction, or group.
#
# A worker that waits in front of the first of them does nothing meanwhile,
# and where every transaction changes one of a few rows all would be serial.  But
# whatever order they are applied in, each row must end up as it does on the
# publisher, and a row that is not there has to be counted once.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf() . "pgparrep.key_table = on\npgparrep.eager_threshold = -1\n");

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE hot (id int PRIMARY KEY, n bigint);
		CREATE TABLE own (id int PRIMARY KEY, n bigint);
		CREATE TABLE slow (id int PRIMARY KEY, n bigint);
		CREATE TABLE again (id int PRIMARY KEY, n bigint);
		CREATE TABLE moved (id int PRIMARY KEY, n bigint UNIQUE)});
}
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO hot SELECT i, 0 FROM generate_series(1, 5) i;
	INSERT INTO own SELECT i, 0 FROM generate_series(1, 2000) i;
	INSERT INTO slow VALUES (1, 0);
	INSERT INTO again SELECT i, 0 FROM generate_series(1, 20) i;
	INSERT INTO moved SELECT i, i FROM generate_series(1, 20) i});
create_subscription($publisher, $subscriber, worker_number => 4);

sub set
{
	my ($setting) = @_;

	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.$setting");
	$subscriber->reload;
	return;
}

sub postponed
{
	return $subscriber->safe_psql('postgres', 'SELECT sum(postponed) FROM pgparrep.stat_apply_worker');
}

# ---------- what does not have to wait is done

# One transaction cannot go on; the next one has to wait for it in its first change.
# Returns whether it has made the second one all the same.
sub second_change_is_made
{
	my ($name) = @_;

	my $blocker = session($subscriber);
	$blocker->query('BEGIN');
	$blocker->query('SELECT n FROM slow FOR UPDATE');
	$publisher->safe_psql('postgres', 'BEGIN; UPDATE hot SET n = n + 1 WHERE id = 1; UPDATE slow SET n = n + 1; COMMIT');
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type LIKE '%pgparrep%' AND wait_event_type = 'Lock'},
		'the first transaction to wait for a lock');
	$publisher->safe_psql('postgres', q{
		BEGIN;
		UPDATE hot SET n = n + 10 WHERE id = 1;
		UPDATE own SET n = n + 1 WHERE id = 1;
		UPDATE hot SET n = n * 7 WHERE id = 1;
		COMMIT});
	wait_for($subscriber, q{
		SELECT count(*) = 2 FROM pgparrep.stat_apply_worker
		 WHERE state = 'waiting for dependency' OR waits_for LIKE 'Lock: %'},
		'the second to wait for the first');
	my ($status, undef, $stderr) =
	  $subscriber->psql('postgres', 'SELECT n FROM own WHERE id = 1 FOR UPDATE NOWAIT');
	$blocker->query('ROLLBACK');
	$blocker->quit;
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $name);
	return $status != 0 && $stderr =~ /could not obtain lock/;
}

my $before = postponed();
ok(second_change_is_made('postponed'), 'a change is made while one before it has to wait');
is(postponed() - $before, 2, 'those of the row that has to wait are counted');
set('postpone_changes = off');
ok(!second_change_is_made('not postponed'), 'not with postpone_changes off');
set('postpone_changes = on');

# ---------- every order of changes of a row

my $script = q{
\set k random(1, 20)
\set h 1 + :k % 5
\set r random(1, 1999)
BEGIN;
UPDATE own SET n = n + 1 WHERE id = :r;
UPDATE hot SET n = (n * 31 + :r) % 1000003 WHERE id = :h;
DELETE FROM again WHERE id = :k;
INSERT INTO again VALUES (:k, :r);
UPDATE moved SET id = - id WHERE abs(id) = :k;
UPDATE moved SET n = - n WHERE abs(id) = :k;
UPDATE again SET n = n + 1 WHERE id = :k;
UPDATE own SET n = n * 3 % 1009 WHERE id = :r + 1;
END;
};

foreach my $group (1, 16, 64)
{
	my $offset = log_size($subscriber);

	set("group_transactions = $group");
	stop_apply($subscriber);
	load($publisher, $script, '-c', 8, '-j', 2, '-t', 250);
	start_apply($subscriber);
	check_equal($publisher, $subscriber, "in groups of $group", $offset);
	cmp_ok(postponed(), '>', 100, 'many of them postponed (' . postponed() . ')');
}

# ---------- rows that are not there

$subscriber->safe_psql('postgres', 'DELETE FROM hot WHERE id = 3; DELETE FROM own WHERE id % 10 = 0');
stop_apply($subscriber);
$publisher->safe_psql('postgres', join(";\n",
	map { "BEGIN; UPDATE own SET n = n + 1 WHERE id = $_; UPDATE hot SET n = n + $_ WHERE id = 1 + $_ % 5; COMMIT" } 1 .. 1000));
start_apply($subscriber);
wait_caught_up($publisher, $subscriber);
is(missing_rows($subscriber), 300, 'rows that are not there are counted, each once');
is( $subscriber->safe_psql('postgres', 'SELECT sum(n), count(*) FROM hot'),
	$publisher->safe_psql('postgres', 'SELECT sum(n), count(*) FROM hot WHERE id <> 3'),
	'the others are right');

$subscriber->stop;
$publisher->stop;
done_testing();
