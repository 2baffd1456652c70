# Parents and children, each in a transaction of its own, and what a reader of
# the subscriber can see of them.
#
# Foreign keys are not checked for replicated rows.  So with commits in another
# order nobody would complain, but a reader would see children without parent,
# or money twice.  Where the checks are set to fire always, they must not fail,
# since they did not on the publisher.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf());

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE parent (id int PRIMARY KEY, v int);
		CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent ON DELETE CASCADE);
		CREATE INDEX ON child (parent);
		CREATE TABLE purse (id int PRIMARY KEY, money int);
		CREATE TABLE done (n int)});
}
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO purse VALUES (1, 1000), (2, 1000);

	CREATE SEQUENCE rounds;
	CREATE PROCEDURE families(n int, big int) LANGUAGE plpgsql AS $$
	DECLARE
		base int := nextval('rounds') * 100000;
	BEGIN
		FOR i IN base + 1 .. base + n LOOP
			INSERT INTO parent VALUES (i, 0);
			COMMIT;
			INSERT INTO child VALUES (i * 10, i);
			COMMIT;
			-- one puts down before the other takes up: the sum is at most 2000
			UPDATE purse SET money = money - 10 WHERE id = 1 + i % 2;
			COMMIT;
			INSERT INTO child VALUES (i * 10 + 1, i);
			COMMIT;
			UPDATE purse SET money = money + 10 WHERE id = 2 - i % 2;
			COMMIT;
			IF i % 3 > 0 THEN
				DELETE FROM child WHERE id = i * 10;
				COMMIT;
				DELETE FROM child WHERE id = i * 10 + 1;
				COMMIT;
				DELETE FROM parent WHERE id = i;
				COMMIT;
			END IF;
			-- a key that goes and comes
			IF i % 5 = 0 THEN
				DELETE FROM parent WHERE id = base + 1;
				COMMIT;
				INSERT INTO parent VALUES (base + 1, i);
				COMMIT;
				INSERT INTO child VALUES (-i, base + 1);
				COMMIT;
			END IF;
		END LOOP;
		INSERT INTO parent VALUES (base + n + 1, 0);
		COMMIT;
		INSERT INTO child SELECT (base + n + 1) * 1000 + g, base + n + 1 FROM generate_series(1, big) g;
		COMMIT;
		DELETE FROM parent WHERE id = base + n + 1;
		COMMIT;
		INSERT INTO done VALUES (n);
	END $$});
create_subscription($publisher, $subscriber);

sub apply_and_read
{
	my ($name, $n, $big, $missing_ok) = @_;
	my $offset = log_size($subscriber);

	stop_apply($subscriber);
	$publisher->safe_psql('postgres', "CALL families($n, $big)");
	my $wanted = $publisher->safe_psql('postgres', 'SELECT count(*) FROM done');
	start_apply($subscriber);

	my $reader = session($subscriber);
	my %seen;
	my ($orphans, $sums, $done) = (0, 0, 0);
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
	while ($done < $wanted && time() < $deadline)
	{
		# several statements, one snapshot
		$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
		$orphans += $reader->query('SELECT count(*) FROM child WHERE NOT EXISTS (SELECT 1 FROM parent WHERE parent.id = child.parent)');
		my $sum = $reader->query('SELECT sum(money) FROM purse');
		$sums++ if $sum > 2000 || $sum < 1990;
		$seen{ $reader->query(q{SELECT count(*) || '-' || coalesce(max(id), 0) FROM parent}) } = 1;
		$done = $reader->query('SELECT count(*) FROM done');
		$reader->query('COMMIT');
	}
	$reader->quit;
	is($orphans, 0, "$name: no child without parent in " . keys(%seen) . ' states');
	is($sums, 0, "$name: no wrong sum");
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $name);
	is(missing_rows($subscriber), 0, "$name: no row was missing") unless $missing_ok;
	is(worker_log($subscriber, $offset), '', "$name: no error");
	return;
}

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		apply_and_read($name, $key_table ? 300 : 80, 5000);
	});

# The checks fire.  What a cascade of the subscriber has deleted is not there any
# more when the publisher's own deletes come, with stock apply as well.
$subscriber->safe_psql(
	'postgres', q{
	DO $$
	DECLARE
		t record;
	BEGIN
		FOR t IN SELECT tgrelid::regclass AS rel, tgname FROM pg_trigger WHERE tgisinternal LOOP
			EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', t.rel, t.tgname);
		END LOOP;
	END $$});
for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		return if $workers == 4 && $key_table;
		apply_and_read("foreign keys always, $name", $key_table ? 150 : 80, 1000, 1);
	});

$subscriber->stop;
$publisher->stop;
done_testing();
