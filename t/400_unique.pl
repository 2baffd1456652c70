# A unique value moves from one row to another: the row that has it is deleted
# or updated, and the next transaction gives it to a row with another key.
#
# The message of the delete does not carry the value, so no table of keys can
# tell that the two belong together.  An apply that believes in the unique
# violation of an attempt before its turn would report a failure that a serial
# apply does not have, or disable the subscription.

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
		CREATE TABLE moved (id bigint PRIMARY KEY, u text UNIQUE, pad text);
		CREATE TABLE chain (id int PRIMARY KEY, u text UNIQUE);
		CREATE TABLE here_only (id bigint PRIMARY KEY, u text);
		CREATE SEQUENCE ids});
}
# Names a value that nobody on the publisher has to know about.
$subscriber->safe_psql('postgres', 'CREATE UNIQUE INDEX here_only_u ON here_only (u)');
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO moved VALUES (0, 'k', 'first');
	INSERT INTO here_only VALUES (0, 'k');
	INSERT INTO chain SELECT i, CASE i WHEN 1 THEN 'k' ELSE 'v' || i END FROM generate_series(1, 10) i;

	CREATE PROCEDURE delete_insert(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			DELETE FROM moved WHERE u = 'k';
			COMMIT;
			INSERT INTO moved VALUES (nextval('ids'), 'k', repeat('x', i % 50));
			COMMIT;
			DELETE FROM here_only WHERE u = 'k';
			COMMIT;
			INSERT INTO here_only VALUES (nextval('ids'), 'k');
			COMMIT;
		END LOOP;
	END $$;

	CREATE PROCEDURE hand_on(n int) LANGUAGE plpgsql AS $$
	DECLARE
		has int;
	BEGIN
		FOR i IN 1 .. n LOOP
			has := (SELECT id FROM chain WHERE u = 'k');
			UPDATE chain SET u = 'v' || id WHERE id = has;
			COMMIT;
			UPDATE chain SET u = 'k' WHERE id = has % 10 + 1;
			COMMIT;
		END LOOP;
	END $$});
create_subscription($publisher, $subscriber);

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $n = $key_table ? 1000 : 150;
		my $offset = log_size($subscriber);

		# a backlog, then live
		stop_apply($subscriber);
		$publisher->safe_psql('postgres', "CALL delete_insert($n); CALL hand_on($n)");
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "backlog, $name", $offset);
		$publisher->safe_psql('postgres', "CALL delete_insert($n); CALL hand_on($n)");
		check_equal($publisher, $subscriber, "live, $name", $offset);
	});

# Now a violation that is one: an index that only the subscriber has, and two
# transactions, large and interleaved, that give the same value to two rows.
# It is reported once, with its transaction, nothing hangs, and all goes on
# when the index is gone.
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub SET (disable_on_error = true)');
foreach my $key_table (qw(on off))
{
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.key_table = $key_table");
	$subscriber->reload;

	my $offset = log_size($subscriber);
	my @s = map { session($publisher) } 1 .. 2;
	$s[$_]->query('BEGIN') for 0 .. 1;
	foreach my $round (1 .. 5)
	{
		$s[$_]->query("INSERT INTO here_only SELECT nextval('ids'), 's$_' || g || 'r$round' FROM generate_series(1, 400) g")
		  for 0 .. 1;
		$s[$_]->query("INSERT INTO here_only VALUES (nextval('ids'), 'same')") for $round == 3 ? (0, 1) : ();
	}
	$s[$_]->query('COMMIT') for 1, 0;
	$_->quit for @s;
	$publisher->safe_psql('postgres', q{INSERT INTO moved VALUES (nextval('ids'), 'behind', '')});

	wait_for($subscriber, q{SELECT NOT subenabled FROM pg_subscription}, 'the violation');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
	my $log = log_since($subscriber, $offset);
	is(scalar(() = $log =~ /ERROR:  duplicate key|ERROR:  conflict detected/g), 1, "key table $key_table: the violation is reported once");
	like($log, qr/relation "public\.here_only".* in transaction \d+, finished at/, '... with its transaction');
	is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM here_only WHERE u = 'same'}), 1, 'the first of the two is in');
	is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM moved WHERE u = 'behind'}), 0, 'nothing behind the error is');

	$subscriber->safe_psql('postgres', 'DROP INDEX here_only_u; ALTER SUBSCRIPTION sub ENABLE');
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, 'without the index it goes on');
	$publisher->safe_psql('postgres', q{DELETE FROM here_only WHERE u = 'same'; DELETE FROM moved WHERE u = 'behind'});
	wait_caught_up($publisher, $subscriber);
	$subscriber->safe_psql('postgres', 'CREATE UNIQUE INDEX here_only_u ON here_only (u)');
	$publisher->safe_psql('postgres', q{DELETE FROM here_only WHERE u <> 'k'});
	wait_caught_up($publisher, $subscriber);
}

$subscriber->stop;
$publisher->stop;
done_testing();
