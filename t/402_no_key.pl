# Tables without a key, with rows that are equal to each other.
#
# A delete that starts before the insert has committed does not see the rows
# and would take them for missing; two changes that are each meant for one of
# several equal rows must not both take the same one.

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
		CREATE TABLE t (a int, b text);
		CREATE TABLE twins (a int, n numeric, b text);
		CREATE TABLE indexed (a int, b text);
		CREATE INDEX ON indexed (a);
		ALTER TABLE t REPLICA IDENTITY FULL;
		ALTER TABLE twins REPLICA IDENTITY FULL;
		ALTER TABLE indexed REPLICA IDENTITY FULL});
}
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO twins SELECT g % 5, 1.0, NULL FROM generate_series(1, 20) g;

	CREATE PROCEDURE come_and_go(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			INSERT INTO t VALUES (5, 'x'), (6, 'x'), (7, NULL);
			COMMIT;
			DELETE FROM t;
			COMMIT;
			INSERT INTO indexed VALUES (5, 'x'), (5, 'x'), (5, 'y');
			COMMIT;
			UPDATE indexed SET b = 'z' WHERE ctid = (SELECT min(ctid) FROM indexed WHERE b = 'x');
			COMMIT;
			DELETE FROM indexed WHERE ctid = (SELECT min(ctid) FROM indexed WHERE b = 'x');
			COMMIT;
			DELETE FROM indexed;
			COMMIT;
			-- three equal rows: one goes, one changes, one stays
			INSERT INTO t VALUES (1, 'same'), (1, 'same'), (1, 'same');
			COMMIT;
			DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t);
			COMMIT;
			UPDATE t SET b = 'other' WHERE ctid = (SELECT min(ctid) FROM t);
			COMMIT;
			IF i < n THEN
				DELETE FROM t;
				COMMIT;
			END IF;
		END LOOP;
		INSERT INTO indexed VALUES (n, 'last');
	END $$});
create_subscription($publisher, $subscriber);

# Each session takes one of several equal rows.
my $script = q{
\set a random(0, 4)
\set what random(1, 4)
\if :what = 1
INSERT INTO twins VALUES (:a, 1.0, NULL);
\elif :what = 2
DELETE FROM twins WHERE ctid = (SELECT ctid FROM twins WHERE a = :a LIMIT 1 FOR UPDATE SKIP LOCKED);
\else
UPDATE twins SET b = CASE WHEN b IS NULL THEN 'b' END WHERE ctid = (SELECT ctid FROM twins WHERE a = :a LIMIT 1 FOR UPDATE SKIP LOCKED);
\endif
};

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $n = $key_table ? 200 : 40;
		my $offset = log_size($subscriber);

		stop_apply($subscriber);
		$publisher->safe_psql('postgres', "CALL come_and_go($n)");
		load($publisher, $script, '-c', 8, '-j', 2, '-t', $key_table ? 150 : 40);
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "backlog, $name", $offset);

		$publisher->safe_psql('postgres', "CALL come_and_go($n)");
		load($publisher, $script, '-c', 8, '-j', 2, '-t', $key_table ? 150 : 40);
		check_equal($publisher, $subscriber, "live, $name", $offset);
	});

$subscriber->stop;
$publisher->stop;
done_testing();
