# Who applies: the server's apply worker or ours, decided at each start of the
# worker by worker number and slot, and decided anew when the number changes.
#
# Without the checks here, worker_number on an existing subscription would end
# in an endless loop (pgoutput does not know our options), or would do nothing
# until somebody happened to restart the apply worker.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use InterfaceNodes;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_publisher('publisher',
	conf => "log_line_prefix = '%m [%p] <%a> '\n");
my $subscriber = new_subscriber('subscriber');
my $connstr = connstr_of($publisher);

my $parallel_start = qr/<s> LOG:  received replication command: START_REPLICATION SLOT "s"[^\n]*'extreme'/;
my $plugin_query = qr/<s> LOG:  statement: SELECT plugin FROM pg_catalog\.pg_replication_slots/;
my $restart = qr/logical replication apply worker for subscription "s" will restart because of a parameter change/;
my $report = qr/subscription "s" is applied serially because its replication slot "s" uses output plugin "pgoutput"/;

sub sub_sql
{
	return $subscriber->safe_psql('postgres', shift);
}

# Change all rows on the publisher and see them on the subscriber.
sub applies
{
	my ($value, $test) = @_;

	$publisher->safe_psql('postgres', "UPDATE t SET b = '$value'");
	ok( $subscriber->poll_query_until('postgres',
			"SELECT count(*) = 10 FROM t WHERE b = '$value'"),
		$test);
}

# The pid of the running apply worker.
# From parallel to serial: the leader may still be there when the command returns,
# and would start as one again if the number changed once more.
sub make_serial
{
	my ($number) = @_;
	my $leader = apply_pid();

	sub_sql("ALTER SUBSCRIPTION s SET (worker_number = $number)");
	ok( $subscriber->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 's' AND pid <> $leader"),
		"another apply worker for worker_number = $number");
}

sub apply_pid
{
	$subscriber->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 's' AND pid IS NOT NULL AND relid IS NULL"
	) or die 'no apply worker';
	return sub_sql(
		"SELECT pid FROM pg_stat_subscription WHERE subname = 's' AND relid IS NULL");
}

sub wait_other_pid
{
	my ($pid) = @_;

	$subscriber->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_subscription WHERE subname = 's' AND pid <> $pid AND relid IS NULL"
	) or die 'apply worker did not restart';
}

sub set_default
{
	my ($value) = @_;

	$subscriber->append_conf('postgresql.conf',
		"pgparrep.default_worker_number = $value");
	$subscriber->reload;
}

# A parallel subscription: its slot is asked for its plugin, then ours starts.
my $from = -s $publisher->logfile;
sub_sql("CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (worker_number = 4)");
ok(wait_for_text($publisher, $parallel_start, $from), 'parallel apply starts');
ok(count_text($publisher, $plugin_query, $from), 'after a look at the slot');

# Back to serial: its slot serves the server's own apply, too.
make_serial(1);
applies('serial on a pgparrep slot', 'serial apply from a slot of pgparrep');
my $subscriber_from = -s $subscriber->logfile;
$from = -s $publisher->logfile;
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 3)');
ok(wait_for_text($subscriber, $restart, $subscriber_from),
	'ALTER SUBSCRIPTION ends the serial worker');
ok(wait_for_text($publisher, $parallel_start, $from),
	'and the next one is parallel');

# The same by the label alone.
make_serial(0);
applies('serial again', 'serial again');
$subscriber_from = -s $subscriber->logfile;
$from = -s $publisher->logfile;
sub_sql(q(SECURITY LABEL FOR pgparrep ON SUBSCRIPTION s IS 'worker_number=2'));
ok(wait_for_text($subscriber, $restart, $subscriber_from),
	'SECURITY LABEL ends the serial worker');
ok(wait_for_text($publisher, $parallel_start, $from),
	'and the next one is parallel');
sub_sql(q(SECURITY LABEL FOR pgparrep ON SUBSCRIPTION s IS NULL));
applies('no label', 'serial without a label');

# The same by the default; only where there is no label.
$subscriber_from = -s $subscriber->logfile;
$from = -s $publisher->logfile;
set_default(2);
ok(wait_for_text($subscriber, $restart, $subscriber_from),
	'the default ends the serial worker');
ok(wait_for_text($publisher, $parallel_start, $from),
	'and the next one is parallel');
make_serial(1);
applies('own number', 'the own number is stronger');
my $pid = apply_pid();
set_default(6);
$subscriber->poll_query_until('postgres',
	"SELECT current_setting('pgparrep.default_worker_number') = '6'");
# changes that do not matter: a number for a number, an option of another kind
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 0)');
sub_sql('ALTER SUBSCRIPTION s SET (synchronous_commit = local)');
applies('nothing to do', 'applies on');
is(apply_pid(), $pid, 'no restart without need');
set_default(1);
sub_sql('DROP SUBSCRIPTION s');

# A subscription from before pgparrep: its slot belongs to pgoutput.
sub_sql('TRUNCATE t');
$from = -s $publisher->logfile;
sub_sql("CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p");
$subscriber->wait_for_subscription_sync($publisher, 's');
is(count_text($publisher, $plugin_query, $from),
	0, 'a serial subscription is not asked for its slot');
$subscriber_from = -s $subscriber->logfile;
set_default(2);
ok(wait_for_text($subscriber, qr/LOG:  $report/, $subscriber_from),
	'default with a slot of pgoutput: a line in the log');
like(log_of($subscriber, $subscriber_from),
	qr/pgparrep\.default_worker_number is 2, but/, 'with its reason');
applies('log', 'and serial apply');
set_default(1);
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 8)');
ok(wait_for_text($subscriber, qr/WARNING:  $report/, $subscriber_from),
	'own number with a slot of pgoutput: a warning');
like(
	log_of($subscriber, $subscriber_from),
	qr/pg_copy_logical_replication_slot\('s', 'new_slot', false, 'pgparrep'\)/,
	'that says what to do');
applies('warning', 'and serial apply');
foreach my $binary ('true', 'false')
{
	$pid = apply_pid();
	sub_sql("ALTER SUBSCRIPTION s SET (binary = $binary)");
	wait_other_pid($pid);
	applies("binary $binary", "binary $binary applied");
}
is(count_text($subscriber, $report, $subscriber_from),
	2, 'no more reports with further starts');
ok(count_text($publisher, $plugin_query, $from) >= 3, 'though it looked again');

# Change the number while the worker is inside a remote transaction.
$pid = apply_pid();
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 1)');
applies('settled', 'back to 1');
is(apply_pid(), $pid,
	'for which a worker that is serial anyway does not restart');
my $stdin = '';
my $stdout = '';
my $stderr = '';
my $psql = IPC::Run::start(
	[   'psql', '-XAtq', '-d', $subscriber->connstr('postgres'), '-f', '-'
	],
	'<', \$stdin, '>', \$stdout, '2>', \$stderr,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

$stdin .= "BEGIN; SELECT 'locked' FROM t WHERE a = 5 FOR UPDATE;\n";
$psql->pump_nb;
$psql->pump until $stdout =~ /locked/;
$publisher->safe_psql('postgres', q(
	BEGIN;
	UPDATE t SET b = 'blocked' WHERE a = 1;
	UPDATE t SET b = 'blocked' WHERE a = 5;
	UPDATE t SET b = 'blocked' WHERE a <> 5 AND a <> 1;
	COMMIT;));
ok( $subscriber->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"),
	'the apply worker waits within a transaction');
$subscriber_from = -s $subscriber->logfile;
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 2)');
sleep(2);
is(count_text($subscriber, $restart, $subscriber_from),
	0, 'no restart within the transaction');
$stdin .= "COMMIT;\n\\q\n";
$psql->finish;
ok( $subscriber->poll_query_until('postgres',
		"SELECT count(*) = 10 FROM t WHERE b = 'blocked'"),
	'which was applied as a whole');
ok(wait_for_text($subscriber, $restart, $subscriber_from),
	'before the worker restarts');

# Convert the slot as the hint says.
sub_sql('ALTER SUBSCRIPTION s DISABLE');
$publisher->poll_query_until('postgres',
	"SELECT NOT active FROM pg_replication_slots WHERE slot_name = 's'");
$publisher->safe_psql('postgres', "UPDATE t SET b = 'before'");
$publisher->safe_psql('postgres',
	"SELECT pg_copy_logical_replication_slot('s', 'new_slot', false, 'pgparrep')"
);
$publisher->safe_psql('postgres', "UPDATE t SET b = 'between'");
sub_sql("ALTER SUBSCRIPTION s SET (slot_name = 'new_slot')");
$from = -s $publisher->logfile;
sub_sql('ALTER SUBSCRIPTION s ENABLE');
$publisher->safe_psql('postgres', "SELECT pg_drop_replication_slot('s')");
ok( wait_for_text(
		$publisher, qr/<s> LOG:  received replication command: START_REPLICATION SLOT "new_slot"[^\n]*'extreme'/, $from),
	'parallel with the converted slot');
sub_sql('ALTER SUBSCRIPTION s SET (worker_number = 1)');
ok( $subscriber->poll_query_until('postgres',
		"SELECT count(*) = 10 FROM t WHERE b = 'between'"),
	'nothing was lost by the conversion');
applies('converted', 'and it goes on');
sub_sql('DROP SUBSCRIPTION s');

# A slot that does not exist is reported by the server as ever.
sub_sql("CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (worker_number = 2, create_slot = false, copy_data = false, slot_name = 'no_such_slot')");
$subscriber_from = -s $subscriber->logfile;
ok( wait_for_text(
		$subscriber,
		qr/could not start WAL streaming: ERROR:  replication slot "no_such_slot" does not exist/,
		$subscriber_from),
	'a missing slot');
sub_sql('ALTER SUBSCRIPTION s DISABLE');
sub_sql('ALTER SUBSCRIPTION s SET (slot_name = NONE)');
sub_sql('DROP SUBSCRIPTION s');

$subscriber->stop;
$publisher->stop;
done_testing();
