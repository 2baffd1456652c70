# Rows that every transaction needs: a total kept by a trigger of the
# subscriber, and a row that every second transaction updates.
#
# A later transaction that finished early holds what the earlier one needs, and
# waits for the commit of that one: without a way out both wait for ever.  And
# commits in another order than the publisher's would show states that never
# existed there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf());

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE item (id bigserial PRIMARY KEY, v int);
		CREATE TABLE hot (id int PRIMARY KEY, n int);
		CREATE TABLE seq (id int PRIMARY KEY);
		CREATE TABLE bulk (id int, n int);
		CREATE TABLE seq_hot (id int PRIMARY KEY, n int)});
}
$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE totals (n bigint);
	INSERT INTO totals VALUES (0);
	CREATE FUNCTION count_item() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE public.totals SET n = n + 1;
		RETURN NULL;
	END $$;
	CREATE TRIGGER count_item AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION count_item();
	ALTER TABLE item ENABLE ALWAYS TRIGGER count_item});
$publisher->safe_psql(
	'postgres', q{
	INSERT INTO hot VALUES (1, 0);
	INSERT INTO seq VALUES (0);
	INSERT INTO seq_hot VALUES (1, 0);
	CREATE PROCEDURE in_order(n int) LANGUAGE plpgsql AS $$
	DECLARE
		last int := (SELECT max(id) FROM seq);
	BEGIN
		FOR i IN last + 1 .. last + n LOOP
			-- some have much to do before
			IF i % 10 = 0 THEN
				INSERT INTO bulk SELECT i, g FROM generate_series(1, 500) g;
			END IF;
			INSERT INTO seq VALUES (i);
			IF i % 2 = 0 THEN
				UPDATE seq_hot SET n = seq_hot.n + 1;
			END IF;
			COMMIT;
		END LOOP;
	END $$});
create_subscription($publisher, $subscriber);

# Two inserts, often with a pause in between, and the hot row in every second.
my $script = q{
\set what random(1, 4)
\set us random(0, 3000)
BEGIN;
INSERT INTO item (v) VALUES (1);
\if :what = 1
\sleep :us us
\endif
\if :what > 2
UPDATE hot SET n = n + 1;
\endif
INSERT INTO item (v) VALUES (2);
END;
};

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		# beside it a session on the subscriber that takes both rows now and then,
		# in the same order, so that nobody has to be the victim of a deadlock
		stop_apply($subscriber);
		load($publisher, $script, '-c', 20, '-j', 2, '-t', $key_table ? 40 : 15);
		start_apply($subscriber);
		foreach (1 .. 3)
		{
			$subscriber->safe_psql('postgres', 'BEGIN; UPDATE totals SET n = n; UPDATE hot SET n = n; SELECT pg_sleep(0.3); COMMIT');
			load($publisher, $script, '-c', 20, '-j', 2, '-t', $key_table ? 10 : 5);
		}
		check_equal($publisher, $subscriber, "hot rows, $name", $offset);
		is($subscriber->safe_psql('postgres', 'SELECT n FROM totals'),
			$publisher->safe_psql('postgres', 'SELECT count(*) FROM item'), "the trigger's total, $name");

		# what a reader sees is always what was there after some commit
		stop_apply($subscriber);
		my $n = $key_table ? 1500 : 400;
		$publisher->safe_psql('postgres', "CALL in_order($n)");
		my $wanted = $publisher->safe_psql('postgres', 'SELECT count(*) FROM seq');
		start_apply($subscriber);
		my $reader = session($subscriber);
		my %seen;
		my $wrong = 0;
		my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
		while (time() < $deadline)
		{
			my $row = $reader->query(
				q{SELECT count(*), max(id), (SELECT n FROM seq_hot), (SELECT count(*) FROM bulk) FROM seq});
			my ($count, $max, $hot, $bulk) = split /\|/, $row;
			$seen{$count} = 1;
			$wrong++ if $count != $max + 1 || $hot != int($max / 2) || $bulk != int($max / 10) * 500;
			last if $count == $wanted;
		}
		$reader->quit;
		is($wrong, 0, "a reader sees a prefix of the publisher's commits, $name (" . keys(%seen) . ' of them)');
		check_equal($publisher, $subscriber, "in order, $name", $offset);
	});

cmp_ok($subscriber->safe_psql('postgres', 'SELECT retries FROM pgparrep.stat_subscription'),
	'>', 0, 'repeated attempts are counted')
  unless stock_only();

$subscriber->stop;
$publisher->stop;
done_testing();
