# pg_dump, pg_dumpall and pg_upgrade carry the worker number: it is a security
# label, which they know.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use InterfaceNodes;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_subscriber('source');
my $target = new_subscriber('target');
my $stock = new_subscriber('stock', stock => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $labels = q(SELECT subname, label, subwkrnum
	FROM pgparrep.pg_subscription s
	LEFT JOIN pg_shseclabel l ON l.objoid = s.oid AND l.classoid = 'pg_catalog.pg_subscription'::regclass
	ORDER BY subname);
my $expected = qq(eight|worker_number=8|8
none||1
one|worker_number=1|1);

foreach my $option ([ 'eight', ', worker_number = 8' ],
	[ 'one', ', worker_number = 1' ], [ 'none', '' ])
{
	$node->safe_psql('postgres',
		"CREATE SUBSCRIPTION $option->[0] CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false$option->[1])"
	);
}
# the dump brings the table and the extension itself
$target->safe_psql('postgres', 'DROP TABLE t; DROP EXTENSION pgparrep; DROP SCHEMA pgparrep');
$stock->safe_psql('postgres', 'DROP TABLE t');
is($node->safe_psql('postgres', $labels), $expected, 'labels before');

# pg_dump
$node->command_ok(
	[ 'pg_dump', '-f', "$dir/dump.sql", $node->connstr('postgres') ],
	'pg_dump');
my $dump = slurp_file("$dir/dump.sql");
like(
	$dump,
	qr/^SECURITY LABEL FOR pgparrep ON SUBSCRIPTION eight IS 'worker_number=8';$/m,
	'pg_dump writes the label');
like(
	$dump,
	qr/^SECURITY LABEL FOR pgparrep ON SUBSCRIPTION one IS 'worker_number=1';$/m,
	'also of a serial one');
unlike($dump, qr/ON SUBSCRIPTION none IS/, 'but not where there is none');
unlike($dump, qr/CREATE SUBSCRIPTION[^;]*worker_number/,
	'the statement itself is stock');
$target->safe_psql('postgres', $dump);
is($target->safe_psql('postgres', $labels), $expected, 'and it restores');

# custom format with --clean over what is there
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('postgres') ],
	'pg_dump -Fc');
foreach my $name ('eight', 'one', 'none')
{
	$target->safe_psql('postgres',
		"ALTER SUBSCRIPTION $name SET (slot_name = NONE, worker_number = 99)");
}
$target->command_ok(
	[ 'pg_restore', '--clean', '-d', $target->connstr('postgres'), "$dir/dump" ],
	'pg_restore --clean');
is($target->safe_psql('postgres', $labels), $expected, 'restores as well');

# into a server that does not load pgparrep: only the labels fail
my ($ret, $out, $err) = $stock->psql('postgres', $dump, on_error_stop => 0);
like($err, qr/security label provider "pgparrep" is not loaded/,
	'a stock server does not know the provider');
is($stock->safe_psql('postgres', 'SELECT count(*) FROM pg_subscription'),
	'3', 'but has the subscriptions');
$stock->append_conf('postgresql.conf', "shared_preload_libraries = 'pgparrep'");
$stock->restart;
$stock->safe_psql('postgres', join("\n", $dump =~ /^(SECURITY LABEL .*)$/mg));
is($stock->safe_psql('postgres', $labels), $expected, 'and gets them later');

# pg_dumpall, into the other server's place
$node->command_ok([ 'pg_dumpall', '-f', "$dir/all.sql", '-d', $node->connstr('postgres') ],
	'pg_dumpall');
my $all = slurp_file("$dir/all.sql");
is( scalar(() = $all =~ /^SECURITY LABEL FOR pgparrep ON SUBSCRIPTION /mg),
	2, 'pg_dumpall writes each label once');

foreach my $name ('eight', 'one', 'none')
{
	$node->safe_psql('postgres',
		"ALTER SUBSCRIPTION $name SET (slot_name = NONE); DROP SUBSCRIPTION $name"
	);
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_shseclabel'),
	'0', 'no label is left');

$node->stop;
$target->stop;
$stock->stop;
done_testing();
