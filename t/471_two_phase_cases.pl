# Corners of subscriptions with two_phase and a pool of workers.
#
# A server that cannot prepare must say so and not try all the time.  SKIP of a
# transaction that fails at its PREPARE has to leave something that its COMMIT
# PREPARED can end.  Two subscriptions of one server get the same transaction of the
# publisher.  What was prepared before two_phase was on comes late, with positions
# that lie before what is done already, or only its end comes.  A PREPARE that was
# done before a connection was lost may come again.  And what follows the end of a
# prepared transaction, and waits for its locks, must not be what that end waits for.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $publisher = new_node('publisher', "max_prepared_transactions = 20\n");
my $subscriber = new_node('subscriber', "max_prepared_transactions = 0\nwal_retrieve_retry_interval = 500ms\n");
$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');

$_->safe_psql('postgres', q{
	CREATE TABLE t1 (id int PRIMARY KEY, v int);
	CREATE TABLE t2 (id int PRIMARY KEY, v int)}) for $publisher, $subscriber;
$publisher->safe_psql('postgres', q{
	CREATE PUBLICATION pub1 FOR TABLE t1;
	CREATE PUBLICATION pub2 FOR TABLE t2;
	INSERT INTO t1 VALUES (1, 1);
	INSERT INTO t2 VALUES (1, 1)});

sub run { $publisher->safe_psql('postgres', join ";\n", @_); }
sub prepared { return $subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'); }
sub caught_up { wait_caught_up($publisher, $subscriber, $_) for 'sub1', 'sub2'; }

# ---------- prepared while the initial copy holds two_phase up

$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
	CREATE TRIGGER hold BEFORE INSERT ON t1 FOR EACH ROW EXECUTE FUNCTION hold();
	ALTER TABLE t1 ENABLE ALWAYS TRIGGER hold});
my $session = session($subscriber);
$session->query('SELECT pg_advisory_lock(1)');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION sub1 CONNECTION '" . connection($publisher)
	  . "' PUBLICATION pub1, pub2 WITH (" . subscription_options(4, 'two_phase = true') . ')');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'advisory'}, 'the copy to be held up');
wait_for($subscriber, q{SELECT count(*) = 1 FROM pg_subscription_rel WHERE srsubstate = 'r'}, 'the other one to be ready');
run(q{BEGIN; INSERT INTO t2 VALUES (2, 1); PREPARE TRANSACTION 'early'},
	q{BEGIN; INSERT INTO t2 VALUES (3, 1); PREPARE TRANSACTION 'early rolled back'},
	q{BEGIN; INSERT INTO t2 VALUES (4, 1); PREPARE TRANSACTION 'old style'},
	q{COMMIT PREPARED 'old style'});
is($subscriber->safe_psql('postgres', 'SELECT subtwophasestate FROM pg_subscription'), 'p', 'pending during the copy');
$session->query('SELECT pg_advisory_unlock(1)');
$session->quit;
wait_for($subscriber, q{SELECT subtwophasestate = 'e' FROM pg_subscription}, 'two_phase to be on');
$subscriber->safe_psql('postgres', 'DROP TRIGGER hold ON t1');
wait_for($subscriber, q{SELECT count(*) > 0 FROM pg_stat_subscription WHERE relid IS NULL AND pid IS NOT NULL}, 'the new leader');

# ---------- a subscriber that cannot prepare

my $mark = log_size($subscriber);
run(q{COMMIT PREPARED 'early'}, q{INSERT INTO t2 VALUES (5, 1)});
wait_for($subscriber, q{SELECT apply_error_count > 0 FROM pg_stat_subscription_stats}, 'the error');
usleep(3_000_000);
my $errors = () = log_since($subscriber, $mark) =~ /ERROR:  prepared transactions are disabled/g;
cmp_ok($errors, '>', 0, 'it says what is wrong');
cmp_ok($errors, '<', 12, 'and does not try all the time');
like(log_since($subscriber, $mark), qr/HINT:  Set "?max_prepared_transactions"? to a nonzero value/, 'with a hint');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t2 WHERE id IN (2, 5)'), 0, 'nothing goes past it');
$subscriber->append_conf('postgresql.conf', 'max_prepared_transactions = 20');
$subscriber->restart;
run(q{ROLLBACK PREPARED 'early rolled back'}, q{INSERT INTO t2 VALUES (6, 1)});
wait_caught_up($publisher, $subscriber, 'sub1');
compare_tables($publisher, $subscriber, 'prepared before two_phase was on');
is(prepared(), 0, 'and ended');

# ---------- SKIP at PREPARE

$subscriber->safe_psql('postgres', 'INSERT INTO t2 VALUES (10, 100)');
$mark = log_size($subscriber);
run(q{BEGIN; INSERT INTO t2 VALUES (9, 1), (10, 1); PREPARE TRANSACTION 'conflict'}, q{INSERT INTO t2 VALUES (11, 1)});
wait_for($subscriber, q{SELECT count(*) = 0 FROM t2 WHERE id = 11}, 'nothing to pass');
my $lsn;
for (1 .. 300)
{
	($lsn) = log_since($subscriber, $mark) =~ /during message type "INSERT" .*finished at ([0-9A-F\/]+)/;
	last if $lsn;
	usleep(100_000);
}
ok($lsn, 'the error has the position of the PREPARE');
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub1 SKIP (lsn = '$lsn')");
wait_caught_up($publisher, $subscriber, 'sub1');
is($subscriber->safe_psql('postgres', q{SELECT subskiplsn FROM pg_subscription}), '0/0', 'skipped, once');
is(prepared(), 1, 'something is prepared');
run(q{COMMIT PREPARED 'conflict'}, q{UPDATE t2 SET v = 2 WHERE id = 11});
wait_caught_up($publisher, $subscriber, 'sub1');
is(prepared(), 0, 'and can be ended');
is($subscriber->safe_psql('postgres', 'SELECT string_agg(id || $$:$$ || v, $$ $$ ORDER BY id) FROM t2 WHERE id > 6'), '10:100 11:2',
	'without the rows');
run('DELETE FROM t2 WHERE id IN (9, 10)');

# ---------- an error that comes at the PREPARE itself

wait_caught_up($publisher, $subscriber, 'sub1');
$subscriber->safe_psql('postgres', q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN RAISE 'refused'; END $$;
	CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON t1 DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION refuse();
	ALTER TABLE t1 ENABLE ALWAYS TRIGGER refuse});
$mark = log_size($subscriber);
run(q{BEGIN; INSERT INTO t1 VALUES (20, 20); PREPARE TRANSACTION 'deferred'});
for (1 .. 300)
{
	last if log_since($subscriber, $mark) =~ /during message type "PREPARE" in transaction \d+, finished at/;
	usleep(100_000);
}
like(log_since($subscriber, $mark), qr/refused.*during message type "PREPARE" in transaction \d+, finished at/s,
	'a deferred trigger fires at PREPARE');
$subscriber->safe_psql('postgres', 'DROP TRIGGER refuse ON t1');
run(q{COMMIT PREPARED 'deferred'});
wait_caught_up($publisher, $subscriber, 'sub1');
compare_tables($publisher, $subscriber, 'after that');

# ---------- locks that a prepared transaction holds

# Without the table of keys nothing but its locks tells who depends on it.
$subscriber->append_conf('postgresql.conf', 'pgparrep.key_table = off');
$subscriber->reload;
wait_for($subscriber, q{SELECT current_setting('pgparrep.key_table') = 'off'}, 'the setting');
run(q{INSERT INTO t2 VALUES (12, 0), (13, 0), (14, 0)}, q{BEGIN; UPDATE t2 SET v = 1 WHERE id = 12; PREPARE TRANSACTION 'locks'});
wait_caught_up($publisher, $subscriber, 'sub1');
$session = session($subscriber);
$session->query('BEGIN; UPDATE t2 SET v = v WHERE id = 14');
run(q{BEGIN; UPDATE t2 SET v = 2 WHERE id = 14; UPDATE t2 SET v = 2 WHERE id = 13; COMMIT},
	q{COMMIT PREPARED 'locks'},
	q{BEGIN; UPDATE t2 SET v = 3 WHERE id = 13; UPDATE t2 SET v = 3 WHERE id = 12; COMMIT});
wait_for($subscriber, q{
	SELECT count(*) > 0 FROM pg_stat_activity
	WHERE backend_type = 'pgparrep apply worker' AND wait_event_type = 'Lock'}, 'the first to wait for the session');
usleep(500_000);
$session->query('COMMIT');
$session->quit;
wait_caught_up($publisher, $subscriber, 'sub1');
compare_tables($publisher, $subscriber, 'locks of a prepared transaction');
$subscriber->append_conf('postgresql.conf', 'pgparrep.key_table = on');
$subscriber->reload;

# ---------- two subscriptions, one transaction

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub1 SET PUBLICATION pub1 WITH (refresh = true, copy_data = false)');
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION sub2 CONNECTION '" . connection($publisher)
	  . "' PUBLICATION pub2 WITH (" . subscription_options(2, 'two_phase = true, copy_data = false') . ')');
wait_for($subscriber, q{SELECT count(*) = 2 FROM pg_subscription WHERE subtwophasestate = 'e'}, 'two_phase of both to be on');
run(q{BEGIN; INSERT INTO t1 VALUES (30, 30); INSERT INTO t2 VALUES (30, 30); PREPARE TRANSACTION 'both'});
caught_up();
is(prepared(), 2, 'each has its own');
run(q{COMMIT PREPARED 'both'},
	q{BEGIN; INSERT INTO t1 VALUES (31, 31); INSERT INTO t2 VALUES (31, 31); PREPARE TRANSACTION 'both'},
	q{ROLLBACK PREPARED 'both'});
caught_up();
is(prepared(), 0, 'each ends its own');
compare_tables($publisher, $subscriber, 'two subscriptions');

# ---------- a PREPARE that was done already

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub2 DISABLE');
wait_for($publisher, q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub2'}, 'it to stop');
run(q{CHECKPOINT}, q{BEGIN; INSERT INTO t2 VALUES (40, 1); PREPARE TRANSACTION 'again'});
my ($xid, $time, $end) = split /\|/, $publisher->safe_psql('postgres',
	'SELECT transaction, prepared, pg_current_wal_insert_lsn() FROM pg_prepared_xacts');
my $subid = $subscriber->safe_psql('postgres', q{SELECT oid FROM pg_subscription WHERE subname = 'sub2'});
$subscriber->safe_psql('postgres', qq{
	SELECT pg_replication_origin_create('other'), pg_replication_origin_session_setup('other');
	BEGIN;
	SELECT pg_replication_origin_xact_setup('$end', '$time');
	INSERT INTO t2 VALUES (41, 1);
	PREPARE TRANSACTION 'pg_gid_${subid}_$xid'});
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub2 ENABLE');
run(q{COMMIT PREPARED 'again'});
wait_caught_up($publisher, $subscriber, 'sub2');
is($subscriber->safe_psql('postgres', 'SELECT string_agg(id::text, $$ $$) FROM t2 WHERE id >= 40'), '41',
	'it is not done again');
is(prepared(), 0, 'and ended');

# ---------- a slot that was copied has lost two-phase decoding

$subscriber->safe_psql('postgres', "DROP SUBSCRIPTION $_") for 'sub1', 'sub2';
$_->safe_psql('postgres', 'TRUNCATE t1, t2') for $publisher, $subscriber;
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION sub3 CONNECTION '" . connection($publisher)
	  . "' PUBLICATION pub1, pub2 WITH (worker_number = 0, two_phase = true, copy_data = false)");
run(q{BEGIN; INSERT INTO t1 VALUES (50, 1); PREPARE TRANSACTION 'copied'},
	q{BEGIN; INSERT INTO t1 VALUES (51, 1); PREPARE TRANSACTION 'copied, rolled back'});
wait_caught_up($publisher, $subscriber, 'sub3');
is(prepared(), 2, 'prepared by the server itself');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub3 DISABLE');
wait_for($publisher, q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub3'}, 'it to stop');
$publisher->safe_psql('postgres', q{SELECT pg_copy_logical_replication_slot('sub3', 'copy', false, 'pgparrep')});
$subscriber->safe_psql('postgres', q{
	ALTER SUBSCRIPTION sub3 SET (slot_name = 'copy', worker_number = 4);
	ALTER SUBSCRIPTION sub3 ENABLE});
wait_for($publisher, q{SELECT active AND two_phase FROM pg_replication_slots WHERE slot_name = 'copy'}, 'two-phase decoding');
$publisher->safe_psql('postgres', q{SELECT pg_drop_replication_slot('sub3')});
run(q{COMMIT PREPARED 'copied'}, q{ROLLBACK PREPARED 'copied, rolled back'}, q{UPDATE t1 SET v = 2 WHERE id = 50});
wait_caught_up($publisher, $subscriber, 'sub3');
compare_tables($publisher, $subscriber, 'prepared by the server itself, ended by workers');
is(prepared(), 0, 'all ended');

# ---------- the publisher waits for its synchronous standby at all of them

$publisher->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'sub3'});
$publisher->reload;
wait_for($publisher, q{SELECT sync_state = 'sync' FROM pg_stat_replication}, 'the synchronous standby');
my $started = time();
run(map {; "BEGIN; INSERT INTO t1 VALUES (60 + $_, 1); PREPARE TRANSACTION 's'",
	$_ % 2 ? q{COMMIT PREPARED 's'} : q{ROLLBACK PREPARED 's'} } 1 .. 10);
cmp_ok(time() - $started, '<', 9, 'flushed positions are told at once');

unlike(slurp_file($_->logfile), qr/TRAP|PANIC/, $_->name . ': no assertion failed') for $publisher, $subscriber;
$_->stop for $subscriber, $publisher;
done_testing();
