# worker_number in all the ways a command can reach the server: simple and
# extended protocol, a prepared statement executed again and again, event
# triggers, users that are no superusers; and with the options of later
# releases.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use InterfaceNodes;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_publisher('publisher', conf => "max_prepared_transactions = 5\n");
my $subscriber = new_subscriber('subscriber', conf => "max_prepared_transactions = 5\n");
my $connstr = connstr_of($publisher);
my $version = $subscriber->safe_psql('postgres', 'SHOW server_version_num');
my ($ret, $out, $err);

sub worker_number
{
	my ($name) = @_;

	return $subscriber->safe_psql('postgres',
		"SELECT subwkrnum FROM pgparrep.pg_subscription WHERE subname = '$name'");
}

$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (enabled = false, worker_number = 2)"
);

# The server keeps the tree of a prepared statement and executes it again.
foreach my $protocol ('simple', 'extended', 'prepared')
{
	my $script = PostgreSQL::Test::Utils::tempdir() . "/$protocol.sql";

	append_to_file($script, <<'EOS');
ALTER SUBSCRIPTION s SET (worker_number = 2, binary = true);
SELECT 1 / (subwkrnum = 2 AND subbinary)::int FROM pgparrep.pg_subscription WHERE subname = 's';
ALTER SUBSCRIPTION s SET (binary = false, worker_number = '5');
SELECT 1 / (subwkrnum = 5 AND NOT subbinary)::int FROM pgparrep.pg_subscription WHERE subname = 's';
EOS
	$subscriber->command_ok(
		[   'pgbench', '-n', '-t', '5', '-M', $protocol, '-f', $script,
			$subscriber->connstr('postgres')
		],
		"protocol $protocol");
	is(worker_number('s'), '5', "protocol $protocol: result");
}

# An event trigger that uses the same commands does not disturb the outer one.
$subscriber->safe_psql(
	'postgres', q(
	CREATE FUNCTION nested() RETURNS event_trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF current_setting('test.inside', true) IS DISTINCT FROM 'yes' THEN
			PERFORM set_config('test.inside', 'yes', false);
			CREATE SUBSCRIPTION inner_one CONNECTION 'dbname=none' PUBLICATION p
				WITH (connect = false, worker_number = 1, slot_name = NONE);
		END IF;
	END $$;
	CREATE EVENT TRIGGER nested ON ddl_command_start WHEN TAG IN ('CREATE SUBSCRIPTION') EXECUTE FUNCTION nested();
));
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION outer_one CONNECTION '$connstr' PUBLICATION p WITH (enabled = false, worker_number = 6)"
);
is(worker_number('inner_one'), '1', 'subscription of the event trigger');
is(worker_number('outer_one'), '6', 'subscription around it');
is( $publisher->safe_psql('postgres',
		"SELECT plugin FROM pg_replication_slots WHERE slot_name = 'outer_one'"),
	'pgparrep',
	'and its plugin');
$subscriber->safe_psql('postgres',
	'DROP EVENT TRIGGER nested; DROP SUBSCRIPTION inner_one');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION outer_one');

# Within a transaction block the server refuses what makes a slot; nothing of
# ours comes before that.
($ret, $out, $err) = $subscriber->psql('postgres',
	"BEGIN; CREATE SUBSCRIPTION block CONNECTION '$connstr' PUBLICATION p WITH (worker_number = 3); COMMIT;"
);
like(
	$err,
	qr/CREATE SUBSCRIPTION \.\.\. WITH \(create_slot = true\) cannot run inside a transaction block/,
	'transaction block');
is( $publisher->safe_psql('postgres',
		"SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'block'"),
	'0',
	'made no slot');

# A role that is no superuser.
$subscriber->safe_psql('postgres', 'CREATE ROLE simple LOGIN');
($ret, $out, $err) = $subscriber->psql(
	'postgres',
	"CREATE SUBSCRIPTION denied CONNECTION '$connstr' PUBLICATION p WITH (connect = false, worker_number = 3)",
	extra_params => [ '-U', 'simple' ]);
isnt($ret, 0, 'no permission to create');
like($err, qr/must be superuser|permission denied/, 'is the server\'s error');
($ret, $out, $err) = $subscriber->psql(
	'postgres',
	'ALTER SUBSCRIPTION s SET (worker_number = 3)',
	extra_params => [ '-U', 'simple' ]);
like($err, qr/must be owner of subscription s/, 'no permission to alter');
is(worker_number('s'), '5', 'unchanged');

SKIP:
{
	skip 'pg_create_subscription came with 16', 3 if $version < 160000;

	$subscriber->safe_psql('postgres',
		'GRANT pg_create_subscription TO simple; GRANT CREATE ON DATABASE postgres TO simple'
	);
	$publisher->safe_psql('postgres',
		"CREATE ROLE repl REPLICATION LOGIN PASSWORD 'secret'");
	($ret, $out, $err) = $subscriber->psql(
		'postgres',
		"CREATE SUBSCRIPTION own CONNECTION '$connstr user=repl password=secret' PUBLICATION p
			WITH (connect = false, slot_name = NONE, worker_number = 3);
		 ALTER SUBSCRIPTION own SET (worker_number = 4);",
		extra_params => [ '-U', 'simple' ]);
	is($ret, 0, 'subscription of a role that is no superuser') or diag($err);
	is(worker_number('own'), '4', 'and its worker number');
	($ret, $out, $err) = $subscriber->psql(
		'postgres',
		'DROP SUBSCRIPTION own',
		extra_params => [ '-U', 'simple' ]);
	is($ret, 0, 'which it can drop') or diag($err);
}

SKIP:
{
	skip 'two_phase can be altered since 18', 6 if $version < 180000;

	my $state = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 's'";
	my $slot = 'SELECT two_phase FROM pg_replication_slots';

	($ret, $out, $err) = $subscriber->psql('postgres',
		'ALTER SUBSCRIPTION s SET (two_phase = true)');
	is($ret, 0, 'two_phase for a parallel subscription') or diag($err);
	is($subscriber->safe_psql('postgres', $state), 'p', 'it is pending');
	($ret, $out, $err) = $subscriber->psql('postgres',
		'ALTER SUBSCRIPTION s SET (worker_number = 5, two_phase = false)');
	is($ret, 0, 'and off, together with another number') or diag($err);
	is(worker_number('s'), '5', 'worker number after that');
	is($publisher->safe_psql('postgres', $slot), 'f', 'and the slot');
	($ret, $out, $err) = $subscriber->psql('postgres',
		'ALTER SUBSCRIPTION s SET (failover = true, worker_number = 7)');
	is( $publisher->safe_psql('postgres',
			'SELECT failover, two_phase FROM pg_replication_slots'),
		't|f',
		'an option that changes the slot');
}

$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
is( $subscriber->safe_psql(
		'postgres',
		"SELECT (SELECT count(*) FROM pg_shseclabel), (SELECT count(*) FROM pg_replication_origin)"
	),
	'0|0',
	'nothing is left on the subscriber');
is($publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'),
	'0', 'or on the publisher');

$subscriber->stop;
$publisher->stop;
done_testing();
