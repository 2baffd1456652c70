# Rows that are inserted, updated, deleted and inserted again, each in its own
# transaction; keys that change in a row of transactions; a large transaction
# and small ones that need its rows.
#
# An update that runs before its insert finds nothing, a delete that does is
# skipped and its insert then fails or stays.  Neither is an error at the moment
# of the mistake, so both leave a difference that nobody notices.

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
		CREATE TABLE t (id int PRIMARY KEY, v int, who int);
		CREATE TABLE walk (id int PRIMARY KEY, v text);
		CREATE TABLE large (id int PRIMARY KEY, v int)});
}
$publisher->safe_psql(
	'postgres', q{
	CREATE PROCEDURE walk(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			INSERT INTO walk VALUES (1, 'a' || i) ON CONFLICT DO NOTHING;
			COMMIT;
			UPDATE walk SET id = 2 WHERE id = 1;
			COMMIT;
			UPDATE walk SET id = 3 WHERE id = 2;
			COMMIT;
			INSERT INTO walk VALUES (1, 'b' || i);
			COMMIT;
			DELETE FROM walk WHERE id = 3;
			COMMIT;
			UPDATE walk SET id = 3, v = 'c' || i WHERE id = 1;
			COMMIT;
			DELETE FROM walk WHERE id = 3;
			COMMIT;
		END LOOP;
	END $$});
create_subscription($publisher, $subscriber);

my $script = q{
\set id random(1, 12)
INSERT INTO t VALUES (:id, 1, :client_id) ON CONFLICT DO NOTHING;
UPDATE t SET v = v + 1 WHERE id = :id;
DELETE FROM t WHERE id = :id;
INSERT INTO t VALUES (:id, 1, :client_id) ON CONFLICT DO NOTHING;
UPDATE t SET v = v + 1, who = :client_id WHERE id = :id;
};

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		stop_apply($subscriber);
		load($publisher, $script, '-c', 30, '-j', 2, '-t', $key_table ? 60 : 10);
		$publisher->safe_psql('postgres', 'CALL walk(' . ($key_table ? 500 : 100) . ')');
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "backlog, $name", $offset);
		load($publisher, $script, '-c', 30, '-j', 2, '-t', $key_table ? 60 : 10);
		check_equal($publisher, $subscriber, "live, $name", $offset);

		# the large one is applied for a while, the small ones are not
		my $last = $publisher->safe_psql('postgres', 'SELECT coalesce(max(id), 0) FROM large');
		my $s = session($publisher);
		$s->query('BEGIN');
		$s->query("INSERT INTO large SELECT $last + g, 0 FROM generate_series(1, 20000) g");
		$s->query("UPDATE large SET v = 1 WHERE id > $last");
		$s->query('COMMIT');
		$s->query("UPDATE large SET v = v + 1 WHERE id = $last + 20000");
		$s->query("UPDATE large SET v = v + 1 WHERE id = $last + 20000");
		$s->query("DELETE FROM large WHERE id = $last + 1");
		$s->quit;
		check_equal($publisher, $subscriber, "behind a large transaction, $name", $offset);
	});

$subscriber->stop;
$publisher->stop;
done_testing();
