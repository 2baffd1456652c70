# CREATE SUBSCRIPTION makes its slot with the output plugin that the worker
# number asks for, and tells what to do where the publisher refuses.
#
# A slot is not transactional and keeps its plugin: a wrong one, or one left
# behind by a command that failed, has to be repaired on the publisher by hand.

use strict;
use warnings FATAL => 'all';

use Cwd 'abs_path';
use FindBin;
use lib $FindBin::RealBin;
use InterfaceNodes;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_publisher('publisher', refuse => 1);
my $subscriber = new_subscriber('subscriber');
my $connstr = connstr_of($publisher);
my $version = $subscriber->safe_psql('postgres', 'SHOW server_version_num');
my ($ret, $out, $err);

# CREATE SUBSCRIPTION, without starting to apply.
sub create
{
	my ($name, $options) = @_;

	return $subscriber->psql('postgres',
		"CREATE SUBSCRIPTION $name CONNECTION '$connstr' PUBLICATION p WITH (enabled = false, $options)"
	);
}

sub slots
{
	return $publisher->safe_psql('postgres',
		q(SELECT string_agg(slot_name || ':' || plugin, ' ' ORDER BY slot_name) FROM pg_replication_slots)
	);
}

# A publisher that does not list the plugin.
if ($publisher->safe_psql('postgres',
		"SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'")
	ne '0')
{
	($ret, $out, $err) = create('refused', 'worker_number = 8');
	isnt($ret, 0, 'refused by a publisher that does not list the plugin');
	like(
		$err,
		qr/could not create replication slot "refused": .*may not be used as an output plugin/,
		'the publisher\'s message is shown');
	like(
		$err,
		qr/HINT:  Run this on the publisher.*ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, pgparrep;/,
		'and what to do');
	unlike($err, qr/worker_number = 1/, 'but not the way round it');
	is( $subscriber->safe_psql('postgres',
			'SELECT count(*) FROM pg_subscription'),
		'0', 'no subscription was created');
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_shseclabel'),
		'0', 'no label was stored');

	# Only the default asks for it.
	$subscriber->append_conf('postgresql.conf',
		'pgparrep.default_worker_number = 8');
	$subscriber->reload;
	$subscriber->poll_query_until('postgres',
		"SELECT current_setting('pgparrep.default_worker_number') = '8'");
	($ret, $out, $err) = create('refused', 'binary = false');
	like(
		$err,
		qr/HINT:  Run this on the publisher.*Or create the subscription WITH \(worker_number = 1\)/,
		'the hint says how to do without');
	($ret, $out, $err) = create('serial', 'worker_number = 1');
	is($ret, 0, 'which works');
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION serial');
	$subscriber->append_conf('postgresql.conf',
		'pgparrep.default_worker_number = 1');
	$subscriber->reload;
	$subscriber->poll_query_until('postgres',
		"SELECT current_setting('pgparrep.default_worker_number') = '1'");
}
is(slots(), '', 'no slot was left');

# A publisher that lists it but does not have it: its library path leads to a
# place with the server's own plugin only.
allow_plugin($publisher);
my $libdir = abs_path(PostgreSQL::Test::Utils::tempdir());
my $pkglibdir = $publisher->config_data('--pkglibdir');
symlink("$pkglibdir/pgoutput.so", "$libdir/pgoutput.so") or die $!;
$publisher->append_conf('postgresql.conf', "dynamic_library_path = '$libdir'");
$publisher->reload;
$publisher->poll_query_until('postgres',
	"SELECT current_setting('dynamic_library_path') = '$libdir'");
($ret, $out, $err) = create('missing', 'worker_number = 8');
isnt($ret, 0, 'refused by a publisher without the library');
like(
	$err,
	qr/could not create replication slot "missing".*\n?.*HINT:  pgparrep must be installed on the publisher, too\./,
	'and the hint says so');
$publisher->append_conf('postgresql.conf', "dynamic_library_path = '\$libdir'");
$publisher->reload;
$publisher->poll_query_until('postgres',
	"SELECT current_setting('dynamic_library_path') = '\$libdir'");

# Options are checked before there is a slot.
foreach my $wrong (
	'worker_number = 257',
	'worker_number = -1',
	'worker_number = many',
	'worker_number = 2, worker_number = 2')
{
	($ret, $out, $err) = create('wrong', $wrong);
	isnt($ret, 0, "$wrong is refused");
}
is(slots(), '', 'no slot was left by a wrong option');

# Which plugin.
my %plugin_of = (
	'worker_number = 8' => 'pgparrep',
	'worker_number = 2, copy_data = false' => 'pgparrep',
	"worker_number = '4', slot_name = 'other_name'" => 'pgparrep',
	'worker_number = 1' => 'pgoutput',
	'worker_number = 0' => 'pgoutput',
	'binary = true' => 'pgoutput',
	'two_phase = true' => 'pgoutput',
	'two_phase = true, worker_number = 1' => 'pgoutput',
	'two_phase = true, worker_number = 2, copy_data = false' => 'pgparrep');
$plugin_of{'failover = true, worker_number = 3'} = 'pgparrep'
  if $version >= 170000;

foreach my $options (sort keys %plugin_of)
{
	my $slot = $options =~ /slot_name/ ? 'other_name' : 's';

	($ret, $out, $err) = create('s', $options);
	is($ret, 0, "CREATE SUBSCRIPTION with $options") or diag($err);
	is(slots(), "$slot:$plugin_of{$options}", "plugin with $options");
	if ($options =~ /failover/)
	{
		is( $publisher->safe_psql('postgres',
				'SELECT failover FROM pg_replication_slots'),
			't',
			'failover was passed on');
	}
	if ($options =~ /two_phase.*copy_data/)
	{
		# not on later, as with an initial copy
		is( $publisher->safe_psql('postgres',
				'SELECT two_phase FROM pg_replication_slots'),
			't',
			'two_phase was passed on');
	}
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
}

# The default alone: parallel.
$subscriber->append_conf('postgresql.conf',
	'pgparrep.default_worker_number = 4');
$subscriber->reload;
$subscriber->poll_query_until('postgres',
	"SELECT current_setting('pgparrep.default_worker_number') = '4'");
%plugin_of = (
	'binary = true' => ['pgparrep', 4],
	'worker_number = 1' => ['pgoutput', 1],
	'worker_number = 0' => ['pgoutput', 0],
	'worker_number = 9' => ['pgparrep', 9],
	'two_phase = true' => ['pgparrep', 4]);
foreach my $options (sort keys %plugin_of)
{
	my ($plugin, $worker_number) = @{ $plugin_of{$options} };

	($ret, $out, $err) = create('s', $options);
	is($ret, 0, "default 4, CREATE SUBSCRIPTION with $options") or diag($err);
	is(slots(), "s:$plugin", "default 4, plugin with $options");
	is( $subscriber->safe_psql('postgres',
			'SELECT subwkrnum FROM pgparrep.pg_subscription'),
		$worker_number,
		"default 4, effective worker number with $options");
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s');
}

# The flag that chooses the plugin belongs to one command only: not to the next
# one of the same session, and not to one after an error.
$subscriber->append_conf('postgresql.conf',
	'pgparrep.default_worker_number = 1');
$subscriber->reload;
$subscriber->poll_query_until('postgres',
	"SELECT current_setting('pgparrep.default_worker_number') = '1'");
$subscriber->psql(
	'postgres', qq(
	CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (enabled = false, worker_number = 8, slot_name = 'Wrong');
	CREATE SUBSCRIPTION s CONNECTION 'port=1 host=/nowhere' PUBLICATION p WITH (worker_number = 8);
	CREATE SUBSCRIPTION s1 CONNECTION '$connstr' PUBLICATION p WITH (enabled = false);
	CREATE SUBSCRIPTION s2 CONNECTION '$connstr' PUBLICATION p WITH (enabled = false, worker_number = 2);
	CREATE SUBSCRIPTION s3 CONNECTION '$connstr' PUBLICATION p WITH (enabled = false);),
	on_error_stop => 0);
is(slots(), 's1:pgoutput s2:pgparrep s3:pgoutput',
	'each command has its own plugin');

# A subscription dropped while pgparrep was not loaded leaves its label; a later
# subscription with the same OID must not inherit it.
my $oid = $subscriber->safe_psql('postgres',
	"SELECT oid FROM pg_subscription WHERE subname = 's2'");
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s1');
$subscriber->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$subscriber->restart;
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s2');
is( $subscriber->safe_psql('postgres',
		"SELECT label FROM pg_shseclabel WHERE objoid = $oid"),
	'worker_number=2',
	'stock server leaves the label');
isnt(
	(   $subscriber->psql(
			'postgres',
			"CREATE SUBSCRIPTION s CONNECTION '$connstr' PUBLICATION p WITH (worker_number = 2)"
		))[0],
	0,
	'without the library worker_number is no option');
# An OID is not given again while a dead row has it.
$subscriber->safe_psql('postgres', 'VACUUM pg_subscription');
$subscriber->append_conf('postgresql.conf',
	"shared_preload_libraries = 'pgparrep'");
$subscriber->stop;
$subscriber->command_ok(
	[ 'pg_resetwal', '-o', $oid, '-D', $subscriber->data_dir ],
	'OID counter back');
$subscriber->start;
($ret, $out, $err) = create('twin', 'binary = false');
is( $subscriber->safe_psql('postgres',
		"SELECT oid, subwkrnum FROM pgparrep.pg_subscription WHERE subname = 'twin'"
	),
	"$oid|1",
	'the twin of the OID is serial');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION s3');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION twin');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_shseclabel'),
	'0', 'no label is left');
is(slots(), '', 'no slot is left');

$subscriber->stop;
$publisher->stop;
done_testing();
