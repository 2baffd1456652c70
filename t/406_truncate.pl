# TRUNCATE among transactions that write the same tables.
#
# A later transaction that took the exclusive lock and waits for its turn to
# commit would stop an earlier one that needs the table, for ever.  And rows
# must not come to the wrong side of it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use ApplyCases;
use EndToEnd;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(ApplyCases::conf() . "deadlock_timeout = 50ms\n");

for ($publisher, $subscriber)
{
	$_->safe_psql(
		'postgres', q{
		CREATE TABLE a (id bigserial PRIMARY KEY, v int);
		CREATE TABLE b (id bigserial PRIMARY KEY, v int);
		CREATE TABLE fk_a (id bigserial PRIMARY KEY, v int);
		CREATE TABLE fk_b (id bigserial PRIMARY KEY, a bigint REFERENCES fk_a);
		CREATE TABLE gone (id int);
		CREATE TABLE referenced (id int PRIMARY KEY)});
}
$publisher->safe_psql('postgres', q{INSERT INTO gone VALUES (1); INSERT INTO referenced VALUES (1)});
create_subscription($publisher, $subscriber);

my $script = q{
\set what random(1, 60)
\if :what = 1
TRUNCATE b, a;
\elif :what = 2
TRUNCATE fk_a CASCADE;
\elif :what = 3
BEGIN;
INSERT INTO a (v) VALUES (-1);
TRUNCATE a RESTART IDENTITY;
INSERT INTO a (v) VALUES (-2);
INSERT INTO b (v) VALUES (-2);
END;
\elif :what < 20
BEGIN;
INSERT INTO a (v) VALUES (1);
INSERT INTO b (v) VALUES (1);
END;
\elif :what < 40
BEGIN;
INSERT INTO b (v) VALUES (2);
INSERT INTO a (v) VALUES (2);
END;
\else
INSERT INTO fk_a (v) VALUES (3);
\endif
};

for_each_variant(
	$subscriber,
	sub {
		my ($name, $workers, $key_table) = @_;
		my $offset = log_size($subscriber);

		stop_apply($subscriber);
		load($publisher, $script, '-c', 8, '-j', 2, '-t', $key_table ? 150 : 50);
		start_apply($subscriber);
		check_equal($publisher, $subscriber, "backlog, $name", $offset);

		# beside a reader that keeps its lock for a while
		my $reader = session($subscriber);
		$reader->query('BEGIN');
		$reader->query('SELECT count(*) FROM a');
		load($publisher, $script, '-c', 8, '-j', 2, '-t', $key_table ? 80 : 25);
		usleep(1_000_000);
		$reader->query('COMMIT');
		$reader->quit;
		check_equal($publisher, $subscriber, "live, $name", $offset);
	});

# One that cannot be applied: an error that says so, no restarts in quick
# succession, and it can be skipped, or repaired.
$subscriber->safe_psql('postgres', 'DROP TABLE gone');
my $offset = log_size($subscriber);
$publisher->safe_psql('postgres', q{TRUNCATE gone; INSERT INTO a (v) VALUES (100)});
usleep(3_000_000);
my $log = log_since($subscriber, $offset);
my $errors = () = $log =~ /ERROR:  logical replication target relation "public\.gone" does not exist/g;
cmp_ok($errors, '>', 0, 'truncate of a missing table is an error');
cmp_ok($errors, '<', 10, '... not all the time');
my ($lsn) = $log =~ /message type "TRUNCATE".* finished at ([0-9A-F]+\/[0-9A-F]+)/;
ok(defined $lsn, '... with its transaction') or diag($log);
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SKIP (lsn = '$lsn')") if defined $lsn;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'skipped', 'a', 'b');

$subscriber->safe_psql('postgres', q{
	ALTER SUBSCRIPTION sub SET (disable_on_error = true);
	CREATE TABLE outside (id int REFERENCES referenced);
	INSERT INTO outside VALUES (1)});
$offset = log_size($subscriber);
$publisher->safe_psql('postgres', q{TRUNCATE referenced; INSERT INTO a (v) VALUES (101)});
wait_for($subscriber, q{SELECT NOT subenabled FROM pg_subscription}, 'the error');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
like(log_since($subscriber, $offset), qr/cannot truncate a table referenced in a foreign key constraint/, 'truncate of a table referenced from outside is an error');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM a WHERE v = 101'), 0, 'nothing behind it is committed');
$subscriber->safe_psql('postgres', 'DROP TABLE outside');
start_apply($subscriber);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'repaired', qw(a b fk_a fk_b referenced));

$subscriber->stop;
$publisher->stop;
done_testing();
