# Subtransactions in all shapes, in memory and in files: nested, released,
# rolled back with or without those below them, writing before or after their
# children.  Rolling one back cuts a buffer (or a file) off at its beginning,
# which goes wrong if the beginning is not where it is believed to be.
#
# And a hundred thousand in one transaction: the leader handles those of all
# transactions, so nothing it does may cost more the more there have been.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
note("PGPARREP_TEST_SEED=$seed");

# a slow publisher of such transactions must not end the test
my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_sender_timeout = 0
wal_receiver_timeout = 0
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE t (id bigserial PRIMARY KEY, path text, pad text);
		CREATE TABLE nokey (path text)});
}
# sessions must not wait for each other, or the test would for both
$publisher->safe_psql('postgres', q{
	CREATE FUNCTION put(p text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE r float := random();
	BEGIN
		IF r < 0.4 THEN
			INSERT INTO t (path, pad) SELECT p, repeat('x', (random() * 300)::int) FROM generate_series(1, 1 + (random() * 4)::int);
		ELSIF r < 0.6 THEN
			INSERT INTO nokey VALUES (p);
		ELSIF r < 0.7 THEN
			UPDATE t SET path = path || '+' WHERE id = (SELECT id FROM t ORDER BY id DESC LIMIT 1 FOR UPDATE SKIP LOCKED);
		ELSIF r < 0.8 THEN
			DELETE FROM t WHERE id = (SELECT id FROM t ORDER BY id DESC LIMIT 1 FOR UPDATE SKIP LOCKED);
		END IF;
	END $$;
	CREATE FUNCTION nest(p text, depth int) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM put(p || '<');
		FOR i IN 1 .. (random() * 4)::int LOOP
			BEGIN
				IF depth > 0 THEN
					PERFORM nest(p || i, depth - 1);
				ELSE
					PERFORM put(p || i);
				END IF;
				IF random() < 0.4 THEN
					RAISE EXCEPTION 'roll back';
				END IF;
			EXCEPTION WHEN raise_exception THEN
				PERFORM put(p || '!');
			END;
			PERFORM put(p || '|');
		END LOOP;
		PERFORM put(p || '>');
	END $$});
create_subscription($publisher, $subscriber, worker_number => 4);

sub random_transactions
{
	my ($n) = @_;

	for my $i (1 .. $n)
	{
		$publisher->safe_psql('postgres',
			'SELECT setseed(' . (($seed * 31 + $i * 7) % 1000) / 1000 . "); SELECT nest('$i.', 3)");
	}
	return;
}

random_transactions(20);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'random subtransactions in memory');

$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.cached_changes = 3');
$subscriber->reload;
random_transactions(40);
# two of them interleaved
my @sessions = map { session($publisher) } 1 .. 2;
$_->query('BEGIN') for @sessions;
for my $i (1 .. 10)
{
	$sessions[$_]->query("SELECT nest('$_/$i', 2); SAVEPOINT s$i") for 0, 1;
	$sessions[ $i % 2 ]->query('ROLLBACK TO s' . int(1 + $i / 2)) if $i % 4 == 3;
}
$_->query('COMMIT') for @sessions;
$_->quit for @sessions;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'random subtransactions in files');
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');

# ---------- very many

$subscriber->safe_psql('postgres', 'ALTER SYSTEM RESET pgparrep.cached_changes');
$subscriber->reload;

# each is rolled back once; 100,000 are released, in siblings and below one parent
sub many
{
	my ($n) = @_;
	my $start = time();
	my $leader = leader_pid($subscriber);
	my $cpu = cpu_time($leader);

	$publisher->safe_psql('postgres', qq{
		DO \$\$
		BEGIN
			FOR i IN 1 .. $n LOOP
				BEGIN
					INSERT INTO t (path) VALUES ('many');
					IF i % 10 = 0 THEN RAISE EXCEPTION 'roll back'; END IF;
				EXCEPTION WHEN raise_exception THEN NULL;
				END;
			END LOOP;
		END \$\$;
		DO \$\$
		BEGIN
			BEGIN
				INSERT INTO t (path) VALUES ('parent');
				FOR i IN 1 .. $n LOOP
					BEGIN
						INSERT INTO t (path) VALUES ('child');
					EXCEPTION WHEN raise_exception THEN NULL;
					END;
					UPDATE t SET pad = 'parent' WHERE id = 0;
					INSERT INTO nokey VALUES ('parent');
				END LOOP;
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END \$\$});
	note(sprintf 'publisher: %.1f s', time() - $start);

	wait_caught_up($publisher, $subscriber);
	$cpu = cpu_time($leader) - $cpu;
	note(sprintf '%d: %.1f s in all, leader %.2f s', $n, time() - $start, $cpu);
	return $cpu;
}

sub cpu_time
{
	my ($pid) = @_;
	my @stat = split ' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //r;

	return ($stat[11] + $stat[12]) / 100;
}

my $few = many(10_000);
my $many = many(100_000);
cmp_ok($many, '<', 20 * $few + 3, 'ten times as many subtransactions do not take a hundred times as long');
compare_tables($publisher, $subscriber, 'a hundred thousand subtransactions');

$subscriber->stop;
$publisher->stop;
done_testing();
