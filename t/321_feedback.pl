# What is confirmed to the publisher is on the subscriber's disk.
#
# The end of WAL that the publisher names in its keepalives lies beyond
# transactions that are still in a decoder, on the way or in the pool.  If the
# subscriber confirmed it, or confirmed commits that its own WAL writer has not
# flushed, a crash right then would lose them for good: the publisher does not
# send again what is confirmed.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_sender_timeout = 2s
wal_receiver_timeout = 2s
wal_receiver_status_interval = 1s
wal_writer_delay = 10s
});

for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', 'CREATE TABLE slow (id int PRIMARY KEY); CREATE TABLE fast (id serial, v int)');
}
$publisher->safe_psql('postgres', 'CREATE TABLE unpublished (v text); CREATE PUBLICATION pub FOR TABLE slow, fast');
$subscriber->safe_psql(
	'postgres', q{
	CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock_shared(1);
		RETURN NEW;
	END $$;
	CREATE TRIGGER wait BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION wait();
	ALTER TABLE slow ENABLE ALWAYS TRIGGER wait});
create_subscription($publisher, $subscriber, worker_number => 4);
# the end of the initial copy is committed without a flush, by stock too
$subscriber->safe_psql('postgres', 'CHECKPOINT');

# A session that holds up the transactions that insert into "slow".
sub hold
{
	my $s = session($subscriber);
	$s->query('SELECT pg_advisory_lock(1)');
	return $s;
}

# ---------- one transaction takes long, the others wait behind it; WAL goes on elsewhere

my $offset = log_size($publisher);
my $held = hold();

$publisher->safe_psql('postgres', 'INSERT INTO slow VALUES (1)');
$publisher->safe_psql('postgres', "INSERT INTO fast (v) VALUES ($_)") for 1 .. 20;
my $behind = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
for (1 .. 15)
{
	$publisher->safe_psql('postgres', q{INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 50)});
	usleep(200_000);
}
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM fast'), 0, 'nothing overtakes the slow one');
is( $publisher->safe_psql(
		'postgres', "SELECT confirmed_flush_lsn < '$behind' FROM pg_replication_slots WHERE slot_name = 'sub'"),
	't', 'nothing of it is confirmed');
kill_9_all($subscriber);
$held->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'killed while one was slow', qw(slow fast));

# ---------- longer than both timeouts: nobody gives up

my $leader = leader_pid($subscriber);
$offset = log_size($publisher);
$held = hold();
$publisher->safe_psql('postgres', 'INSERT INTO slow VALUES (2)');
$publisher->safe_psql('postgres', "INSERT INTO fast (v) VALUES ($_)") for 21 .. 40;
usleep(6_000_000);
$held->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'slower than the timeouts', qw(slow fast));
if (!stock_only())
{
	unlike(log_since($publisher, $offset), qr/terminating walsender process due to replication timeout/,
		'the publisher was not left waiting');
	is(leader_pid($subscriber), $leader, 'the subscription never restarted');
}

# ---------- crashes right after a commit has been reported; the WAL writer sleeps

foreach my $i (1 .. 5)
{
	$publisher->safe_psql('postgres', "INSERT INTO fast (v) SELECT $i * 1000 + g FROM generate_series(1, 10) g") for 1 .. 10;
	wait_caught_up($publisher, $subscriber);
	kill_9_all($subscriber);
}
$publisher->safe_psql('postgres', 'INSERT INTO fast (v) VALUES (0)');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'killed right after catching up', qw(slow fast));

# ---------- WAL of others moves the slot, although nothing is published

my $lsn = $publisher->safe_psql('postgres',
	q{INSERT INTO unpublished VALUES ('last'); SELECT pg_switch_wal(); SELECT pg_current_wal_lsn()});
($lsn) = $lsn =~ /\n(.*)$/;
$publisher->safe_psql('postgres', q{INSERT INTO unpublished VALUES ('behind it')});
wait_for($publisher, "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'",
	'the slot to follow WAL that is not published') && pass('the slot follows WAL that is not published');

$subscriber->stop;
$publisher->stop;
done_testing();
