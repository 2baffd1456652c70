# With nothing published the slot follows the WAL, and an initial copy ends.
#
# A position that is confirmed with published commits only keeps all WAL of a
# server that is busy elsewhere; and a hand-over that is looked at with commits
# only never comes to an end.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_receiver_status_interval = 1s
wal_sender_timeout = 4s
});

my $create = join ';', map { "CREATE TABLE t$_ (id int PRIMARY KEY)" } 1 .. 10;
$_->safe_psql('postgres', $create) for $publisher, $subscriber;
$publisher->safe_psql('postgres', "INSERT INTO t$_ SELECT generate_series(1, 100)") for 1 .. 10;
$publisher->safe_psql('postgres', 'CREATE TABLE unpublished (id int)');
$publisher->safe_psql('postgres', 'CREATE DATABASE other');
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR TABLE ' . join ', ', map { "t$_" } 1 .. 10);
$publisher->safe_psql('other', 'CREATE TABLE load (id int)');

# ---------- an initial copy without a single write here

my $flag = $publisher->basedir . '/goes_on';
append_to_file($flag, '');
my $other = $publisher->connstr('other');
my $load = IPC::Run::start(
	[ 'sh', '-c', qq{while [ -e "$flag" ]; do echo 'INSERT INTO load SELECT generate_series(1, 200);'; sleep 0.05; done | psql -Xq -d "$other"} ]);
my $start = time();
create_subscription($publisher, $subscriber, worker_number => 4);
note(sprintf 'initial copy: %.1f s', time() - $start);
compare_tables($publisher, $subscriber, 'an initial copy without a write');

# ---------- WAL of another database, of unpublished tables, and an open transaction

sub slot_follows
{
	my ($what) = @_;
	my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	my $start = time();

	wait_for($publisher, "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'", $what);
	my $took = time() - $start;
	ok($took < 5, "$what: the slot follows") or diag("took $took s");
	return;
}

slot_follows("another database, $_") for 1 .. 3;
unlink $flag;
$load->finish;

my $session = session($publisher);
for my $i (1 .. 3)
{
	# in this order: nobody reaches a position just behind a page header
	$session->query('SELECT pg_switch_wal()');
	$session->query('INSERT INTO unpublished SELECT generate_series(1, 1000)');
	slot_follows("unpublished, $i");
}

# restart_lsn follows too, with the running transactions that are logged each 15 s
my $restart = $publisher->safe_psql('postgres', q{SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'sub'});
my $end = time() + 40;
my $moved = 0;
while (!$moved && time() < $end)
{
	$session->query('INSERT INTO unpublished VALUES (1); SELECT pg_switch_wal(); CHECKPOINT');
	usleep(500_000);
	$moved = $publisher->safe_psql('postgres', "SELECT restart_lsn > '$restart' FROM pg_replication_slots WHERE slot_name = 'sub'") eq 't';
}
ok($moved, 'the slot gives WAL free');

# a transaction in progress keeps what it needs, and no more
my $open = session($publisher);
$open->query('BEGIN; INSERT INTO t1 VALUES (1000)');
$session->query('INSERT INTO unpublished SELECT generate_series(1, 1000)');
slot_follows('with a transaction in progress');
kill_9_all($subscriber);
$open->query('INSERT INTO t1 VALUES (1001); COMMIT');
$open->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a transaction in progress', 't1');

# ---------- with status reports only on demand

$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET wal_receiver_status_interval = 0');
$subscriber->reload;
my $leader = leader_pid($subscriber);
my $offset = log_size($publisher);
usleep(9_000_000);
is(leader_pid($subscriber), $leader, 'without status interval the same leader');
unlike(log_since($publisher, $offset), qr/timeout/, 'and no timeout');
$session->query('INSERT INTO t2 VALUES (1000)');
$session->quit;
wait_for($subscriber, 'SELECT count(*) = 1 FROM t2 WHERE id = 1000', 'a row');

$subscriber->stop;
$publisher->stop;
done_testing();
