# A leader ends while a table is copied; nothing of that table is lost.
#
# What commits meanwhile is left to the table's sync worker, which goes on from its copy
# to where a leader tells it to end.  A leader that begins at a position before what an
# earlier one has left out, and the publisher does not send again, would have it end too
# early.  So would one that goes on applying while a sync worker ends on the word of an earlier
# leader.  Both are lost rows that nobody hears of.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => "the server's own apply has these holes" if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
});

# Rows of a table whose number is that of a lock wait for it; applied, too.
$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock_shared(NEW.id);
		RETURN NEW;
	END $$});
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub');
create_subscription($publisher, $subscriber, worker_number => 2);
my $lock = session($subscriber);
my $round = 0;
my $table;

sub publish { my ($sql) = @_; return $publisher->safe_psql('postgres', $sql) }
sub subscribe { my ($sql) = @_; return $subscriber->safe_psql('postgres', $sql) }

# A table whose copy begins, and waits at row 1; what is inserted from now on is not in it.
sub begin_copy
{
	$table = 't' . ++$round;
	$_->safe_psql('postgres', "CREATE TABLE $table (id int, v text)") for $publisher, $subscriber;
	subscribe("CREATE TRIGGER hold BEFORE INSERT ON $table FOR EACH ROW EXECUTE FUNCTION hold(); ALTER TABLE $table ENABLE ALWAYS TRIGGER hold");
	publish("INSERT INTO $table VALUES (1, 'copied'); ALTER PUBLICATION pub ADD TABLE $table");
	$lock->query('SELECT pg_advisory_lock(1)');
	subscribe('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'}, 'the copy to wait');
	return;
}

sub equal
{
	my ($what) = @_;

	wait_synced($subscriber);
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $what, $table);
	return;
}

# Ends the leader, and holds the next one up as soon as it is there.
sub next_leader_stopped
{
	my $old = leader_pid($subscriber);
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $new;

	kill 'TERM', $old;
	do
	{
		$new = answer($subscriber, q{SELECT pid FROM pg_stat_subscription WHERE relid IS NULL AND pid IS NOT NULL});
	} until $new && $new ne $old || time() > $until;
	kill 'STOP', $new;
	return $new;
}

# ---------- what was left out does not come again

# as long as nothing else moves the origin, or with a change that does not: it finds no row
for my $beside ('', 'and a row that is missing')
{
	begin_copy();
	my $missing = $beside ? 'UPDATE ready SET v = v WHERE id = 7' : '';
	my $before = publish('SELECT pg_current_wal_insert_lsn()');
	publish("BEGIN; INSERT INTO $table VALUES (10, 'left out'); $missing; COMMIT") for 1 .. 3;
	my $lsn = publish('SELECT pg_current_wal_insert_lsn()');
	publish(q{SELECT pg_logical_emit_message(true, 'x', 'y')});
	wait_for($publisher, "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'", 'the slot to move');
	# what makes it true for every leader to come, and for the server's own apply
	is(subscribe("SELECT bool_or(remote_lsn > '$before') FROM pg_replication_origin_status"), 't', "the origin has moved, too $beside");
	my $leader = next_leader_stopped();
	$lock->query('SELECT pg_advisory_unlock_all()');
	wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'LogicalSyncStateChange'}, 'the copy to be done');
	kill 'CONT', $leader;
	equal("left out by the last leader $beside");
	last if $beside;
	# for the second round
	$_->safe_psql('postgres', 'CREATE TABLE ready (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
	publish(q{INSERT INTO ready VALUES (7, 'x'); ALTER PUBLICATION pub ADD TABLE ready});
	subscribe('ALTER SUBSCRIPTION sub REFRESH PUBLICATION');
	wait_synced($subscriber);
	subscribe('DELETE FROM ready');
}

# ---------- a sync worker that ends on the word of an earlier leader

begin_copy();
publish("INSERT INTO $table VALUES (2, 'caught up with')");
wait_caught_up($publisher, $subscriber);
my $second = session($subscriber);
$second->query('SELECT pg_advisory_lock(2)');
$lock->query('SELECT pg_advisory_unlock_all()');
# told how far to go, and waiting at row 2 before it is there
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'}, 'the sync worker to wait');
my $old = leader_pid($subscriber);
wait_for($subscriber, "SELECT wait_event = 'LogicalSyncStateChange' FROM pg_stat_activity WHERE pid = $old", 'the leader to wait for it');
kill 'TERM', $old;
wait_for($subscriber, "SELECT count(*) = 1 FROM pg_stat_subscription WHERE relid IS NULL AND pid <> $old", 'the next leader');
publish("INSERT INTO $table VALUES ($_, 'behind the end')") for 3 .. 6;
usleep(1_500_000);
$second->query('SELECT pg_advisory_unlock_all()');
equal('behind the place that an earlier leader has named');

unlike(slurp_file($_->logfile), qr/TRAP:|PANIC/, $_->name . ': no crash') for $publisher, $subscriber;
$_->quit for $lock, $second;
$subscriber->stop;
$publisher->stop;
done_testing();
