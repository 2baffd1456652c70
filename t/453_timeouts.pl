# Both timeouts at 2 s, and a subscriber or publisher that is busy for longer.
#
# A leader that cannot go on reading, because its workers are blocked, sees no
# keepalive and has to report by itself, and not to take the silence for a dead
# publisher.  A publisher that decodes a large transaction of which nothing is
# published has to give a sign of life.  Otherwise the connection ends and the
# same work begins again, for ever.

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
wal_retrieve_retry_interval = 500ms
logical_decoding_work_mem = 1MB
max_wal_size = 4GB
autovacuum = off
});

$subscriber->safe_psql('postgres', q{
	ALTER SYSTEM SET pgparrep.apply_buffer = '8MB'});
$subscriber->reload;
for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, v text);
		CREATE TABLE slow (id int);
		CREATE TABLE unpublished (id int);
		CREATE TABLE filtered (id int PRIMARY KEY)});
}
$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.id % 1000 = 0 THEN PERFORM pg_sleep(0.1); END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER sleep BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION sleep();
	ALTER TABLE slow ENABLE ALWAYS TRIGGER sleep});
$publisher->safe_psql('postgres', q{
	CREATE PUBLICATION pub FOR TABLE t, slow, filtered WHERE (id < 0);
	INSERT INTO t VALUES (1, 'x')});
create_subscription($publisher, $subscriber, worker_number => 4);
wait_caught_up($publisher, $subscriber);

my $leader = leader_pid($subscriber);
my %offset = map { $_->name => log_size($_) } $publisher, $subscriber;

sub no_reconnect
{
	my ($what) = @_;

	is(leader_pid($subscriber), $leader, "$what: the same leader as ever");
	$leader = leader_pid($subscriber);
	for my $node ($publisher, $subscriber)
	{
		unlike(log_since($node, $offset{ $node->name }), qr/timeout/, "$what: no timeout on the " . $node->name);
		$offset{ $node->name } = log_size($node);
	}
	return;
}

# ---------- a blocked worker, and more behind it than there is room for

my $local = session($subscriber);
$local->query(q{BEGIN; UPDATE t SET v = 'local' WHERE id = 1});
$publisher->safe_psql('postgres', q{UPDATE t SET v = 'remote' WHERE id = 1});
# as many transactions as the ring holds, and far more bytes than the buffer
$publisher->safe_psql('postgres', q{
	DO $$
	BEGIN
		FOR i IN 2 .. 6000 LOOP
			INSERT INTO t VALUES (i, repeat('x', 4000));
			COMMIT;
		END LOOP;
	END $$});
wait_for($subscriber, q{SELECT waiting_for_commit > 100 FROM pgparrep.stat_subscription}, 'the leader to be full');
usleep(6_000_000);
no_reconnect('a blocked pool');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t'), 1, 'all of it waits for one lock');

# the leader still hears of what concerns it
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE '%apply worker%'},
	'leader and workers to end, although a worker waits for a lock');
pass('a blocked leader ends when its subscription is disabled');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader');
usleep(500_000);
$leader = leader_pid($subscriber);
$local->query('ROLLBACK');
wait_caught_up($publisher, $subscriber);
no_reconnect('after it');
compare_tables($publisher, $subscriber, 'a blocked pool', 't');

# ---------- an index that is being rebuilt: no wait of the leader

$local->query('BEGIN; REINDEX INDEX t_pkey');
$publisher->safe_psql('postgres', q{
	ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
	UPDATE t SET v = 'rebuilt' WHERE id < 10;
	INSERT INTO slow VALUES (1)});
usleep(4_500_000);
no_reconnect('a locked index');
$local->query('COMMIT');
$local->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a locked index', 't');

# ---------- a reader that holds a TRUNCATE up

my $reader = session($subscriber);
$reader->query('BEGIN; SELECT count(*) FROM slow');
$publisher->safe_psql('postgres', q{
	INSERT INTO t VALUES (-1, 'before it');
	TRUNCATE slow;
	INSERT INTO t VALUES (-2, 'behind it')});
wait_for($subscriber, q{SELECT count(*) = 1 FROM pgparrep.stat_apply_worker WHERE waits_for LIKE 'Lock: %'},
	'a worker to say that it waits for a lock');
wait_for($subscriber, q{SELECT count(*) = 1 FROM t WHERE id = -1}, 'what is before it');
usleep(4_500_000);
no_reconnect('a reader');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id = -2'), 0, 'what is behind it waits');
is($reader->query('SELECT count(*) FROM slow'), 1, 'the reader reads what it has read before');
$reader->query('COMMIT');
$reader->quit;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'a reader', 't', 'slow');

# ---------- a large transaction that is slow to apply: 8 s

$publisher->safe_psql('postgres', 'INSERT INTO slow SELECT generate_series(1, 80000)');
usleep(4_000_000);
$publisher->safe_psql('postgres', q{INSERT INTO t VALUES (0, 'behind it')});
wait_caught_up($publisher, $subscriber);
no_reconnect('a slow transaction');
compare_tables($publisher, $subscriber, 'a slow transaction', 'slow', 't');

# ---------- large transactions of which nothing is published

$publisher->safe_psql('postgres', 'INSERT INTO unpublished SELECT generate_series(1, 1000000)');
wait_caught_up($publisher, $subscriber);
no_reconnect('nothing published');
$publisher->safe_psql('postgres', 'INSERT INTO filtered SELECT generate_series(1, 1000000)');
wait_caught_up($publisher, $subscriber);
no_reconnect('all filtered');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM filtered'), 0, 'the filter is in force');

$subscriber->stop;
$publisher->stop;
done_testing();
