# Constraints that are checked at the commit.
#
# Their violation appears only while the local transaction commits, after all
# that the apply worker thinks of as its work.  It must be an error like any
# other: nothing behind it is committed, the position does not move, and the
# report names the transaction, or nobody could skip it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use Test::More;

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf());

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE other (id serial PRIMARY KEY, v int)});
}
$publisher->safe_psql('postgres', 'CREATE TABLE weak (id int PRIMARY KEY, v int)');
$subscriber->safe_psql('postgres', 'CREATE TABLE weak (id int PRIMARY KEY DEFERRABLE, v int)');
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO t SELECT g, g FROM generate_series(1, 10) g;
	CREATE SEQUENCE swaps;
	CREATE PROCEDURE swap(n int) LANGUAGE plpgsql AS $$
	DECLARE
		i int;
	BEGIN
		FOR r IN 1 .. n LOOP
			i := nextval('swaps');
			-- two swap; the next transaction gives a freed value to a third
			UPDATE t SET u = 3 - u WHERE u IN (1, 2);
			COMMIT;
			UPDATE t SET u = -i WHERE u = 1;
			COMMIT;
			UPDATE t SET u = 1 WHERE id = 3 + i % 7;
			COMMIT;
			-- and for a moment two have the same
			UPDATE t SET u = 2 WHERE id = 10;
			UPDATE t SET u = 100 + id + 10 * i WHERE id < 10 AND u = 2;
			COMMIT;
			UPDATE t SET u = 2 WHERE id = 1 + i % 3 AND u <> 1;
			UPDATE t SET u = 100 + i * 10 WHERE id = 10;
			COMMIT;
			INSERT INTO other (v) VALUES (i);
			COMMIT;
		END LOOP;
	END $$});
create_subscription($publisher, $subscriber);

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);
		my $n = $key_table ? 300 : 80;

		stop_apply($subscriber);
		$publisher->safe_psql('postgres', "CALL swap($n)");
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "backlog, $name", $offset);
		$publisher->safe_psql('postgres', "CALL swap($n)");
		check_equal($publisher, $subscriber, "live, $name", $offset);
	});

# Replicated rows do not fire the trigger that makes the check, here as with the
# server's own apply, unless told to.
$subscriber->safe_psql(
	'postgres', q{
	DO $$
	BEGIN
		EXECUTE (SELECT format('ALTER TABLE t ENABLE ALWAYS TRIGGER %I', tgname) FROM pg_trigger WHERE tgrelid = 't'::regclass);
	END $$});
for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		stop_apply($subscriber);
		$publisher->safe_psql('postgres', 'CALL swap(80)');
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "checked, $name", $offset);
	});

# A true violation, with transactions behind it that need nothing of it.
sub disabled
{
	wait_for($subscriber, q{SELECT NOT subenabled FROM pg_subscription}, 'the error');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
	return;
}

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (disable_on_error = true)');
my $behind = 0;
foreach my $remedy ('repair', 'skip')
{
	my $offset = log_size($subscriber);
	my $before = $subscriber->safe_psql('postgres', 'SELECT remote_lsn FROM pg_replication_origin_status');

	$subscriber->safe_psql('postgres', 'INSERT INTO t VALUES (100, -77777)');
	stop_apply($subscriber);
	$publisher->safe_psql('postgres', 'INSERT INTO other (v) VALUES (-1)');
	my $failing = $publisher->safe_psql('postgres', 'BEGIN; SELECT pg_current_xact_id(); INSERT INTO t VALUES (50, -77777); COMMIT');
	$publisher->safe_psql('postgres', 'INSERT INTO other (v) VALUES (-2)') for 1 .. 10;
	start_apply($subscriber);
	disabled();

	my $log = log_since($subscriber, $offset);
	is(scalar(() = $log =~ /ERROR:/g), 1, "$remedy: one error");
	like($log, qr/duplicate key value violates unique constraint "t_u_key"/, "$remedy: that of the constraint");
	my ($xid, $lsn) = $log =~ /during message type "COMMIT" in transaction (\d+), finished at ([0-9A-F]+\/[0-9A-F]+)/;
	is($xid, $failing, "$remedy: it names the transaction") or diag($log);
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM other WHERE v = -2'), $behind, "$remedy: nothing behind it is committed");
	isnt($subscriber->safe_psql('postgres', 'SELECT count(*) FROM other WHERE v = -1'), 0, "$remedy: what was before it is");
	if (defined $lsn)
	{
		is( $subscriber->safe_psql('postgres', "SELECT remote_lsn <= '$lsn' AND remote_lsn >= '$before' FROM pg_replication_origin_status"),
			't', "$remedy: the position is before it");
	}

	if ($remedy eq 'repair')
	{
		$subscriber->safe_psql('postgres', 'DELETE FROM t WHERE id = 100');
	}
	elsif (defined $lsn)
	{
		$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')");
	}
	start_apply($subscriber);
	wait_caught_up($publisher, $subscriber);
	is($subscriber->safe_psql('postgres', 'SELECT id FROM t WHERE u = -77777'),
		$remedy eq 'repair' ? 50 : 100, "$remedy: it goes on");
	$publisher->safe_psql('postgres', 'DELETE FROM t WHERE id = 50');
	wait_caught_up($publisher, $subscriber);
	$subscriber->safe_psql('postgres', 'DELETE FROM t WHERE id = 100');
	compare_tables($publisher, $subscriber, "$remedy: all the rest");
	$behind += 10;
}

# A deferrable primary key identifies nothing.
$publisher->safe_psql('postgres', 'INSERT INTO weak VALUES (1, 1)');
wait_caught_up($publisher, $subscriber);
my $offset = log_size($subscriber);
$publisher->safe_psql('postgres', 'UPDATE weak SET v = 2');
disabled();
like(log_since($subscriber, $offset),
	qr/ERROR: .* "public\.weak" has neither REPLICA IDENTITY index nor PRIMARY KEY|ERROR:  publisher did not send replica identity column/,
	'an update without identity is an error');
$subscriber->safe_psql('postgres', 'ALTER TABLE weak DROP CONSTRAINT weak_pkey; ALTER TABLE weak ADD PRIMARY KEY (id)');
start_apply($subscriber);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'with an identity it goes on');

$subscriber->stop;
$publisher->stop;
done_testing();
