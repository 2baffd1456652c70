# Readers of the subscriber see only states that a serial apply would show.
#
# Every transaction of the publisher takes a number and commits in the order of
# the numbers: it draws the number from a counter row, last thing before COMMIT,
# and the row lock keeps the next one out until then.  The counter itself is not
# published, so that to the subscriber the transactions are independent of each
# other and every worker may run one.  Large ones are followed by small ones.
#
# If a worker committed without waiting for its turn, a reader would see number
# n+1 without n.  The sabotage build that leaves out that wait
# (PGPARREP_SABOTAGE_NO_COMMIT_WAIT) must fail here: see scripts/sabotage.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 15;

my ($publisher, $subscriber) = publisher_and_subscriber();

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE ledger (n bigint PRIMARY KEY, entries int NOT NULL);
		CREATE TABLE entry (n bigint, i int)});
}
$publisher->safe_psql(
	'postgres', q{
	CREATE TABLE counter (n bigint);
	INSERT INTO counter VALUES (0);
	CREATE SEQUENCE ids;
	CREATE PUBLICATION pub FOR TABLE ledger, entry});

$subscriber->safe_psql(
	'postgres', q{
	CREATE FUNCTION check_prefix() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
	DECLARE
		number bigint;
		last bigint;
		promised bigint;
		found bigint;
	BEGIN
		SELECT count(*), coalesce(max(n), 0), coalesce(sum(entries), 0) INTO number, last, promised FROM ledger;
		IF number <> last THEN
			RAISE EXCEPTION 'not a prefix: % rows up to number %', number, last;
		END IF;
		SELECT count(*) INTO found FROM entry;
		IF found <> promised THEN
			RAISE EXCEPTION 'not a prefix: % entries of %', found, promised;
		END IF;
		RETURN number;
	END $$});

create_subscription($publisher, $subscriber, worker_number => 4);

my $dir = $publisher->basedir;
append_to_file("$dir/load.sql", q{
\set entries random(1, 10)
\set large random(1, 20)
\if :large = 1
\set entries 300
\endif
\set key random(1, 1000000)
BEGIN;
INSERT INTO entry SELECT :key, i FROM generate_series(1, :entries) i;
UPDATE counter SET n = n + 1;
INSERT INTO ledger SELECT n, :entries FROM counter;
COMMIT;
});
append_to_file("$dir/sample.sql", q{
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT check_prefix();
SELECT check_prefix();
COMMIT;
});

# The samplers go on while there is something to apply: through the load, and
# once more through a backlog, when the workers are busiest.
sub sample
{
	my ($for, $what) = @_;

	my ($out, $err);
	my $run = IPC::Run::run(
		[
			'pgbench', '-n', '-c', 2, '-T', $for, '-f', "$dir/sample.sql", '-h', $subscriber->host, '-p',
			$subscriber->port, 'postgres'
		],
		'<', \undef, '>', \$out, '2>', \$err);
	my ($violation) = $err =~ /(not a prefix: .*)/;
	is($violation, undef, "$what: every state is a prefix");
	like($out, qr/actually processed: [1-9]\d/, "$what: there were samples");
	return;
}

sub load
{
	my ($for) = @_;

	return IPC::Run::start(
		[
			'pgbench', '-n', '-c', 8, '-j', 2, '-T', $for, '-R', 1500, '-f', "$dir/load.sql", '-h',
			$publisher->host, '-p', $publisher->port, 'postgres'
		],
		'<', \undef, '>', "$dir/load.log", '2>', "$dir/load.log");
}

my $load = load($seconds);
sample($seconds, 'under load');
$load->finish;

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
load(5)->finish;
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
sample(5, 'with a backlog');

wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'in the end');
is( $subscriber->safe_psql('postgres', 'SELECT check_prefix()'),
	$publisher->safe_psql('postgres', 'SELECT n FROM counter'),
	'the whole ledger is there');
cmp_ok($publisher->safe_psql('postgres', 'SELECT n FROM counter'), '>', 1000, 'there was a load');

$subscriber->stop;
$publisher->stop;
done_testing();
