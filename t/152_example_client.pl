# examples/fstream_client.py, a client in another language that knows only what
# docs/protocol.md says: what it prints adds up to the tables.
#
# An example that does not work is worse than none, and a protocol that only its
# own server can read is none.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use JSON::PP;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($client) = grep { -e } map { "$_/examples/fstream_client.py" } "$FindBin::RealBin/..", "$FindBin::RealBin/../src";
my ($python) = grep { system("$_ -c 'import psycopg2' 2>/dev/null") == 0 } 'python3', '/usr/bin/python3';
plan skip_all => 'needs python3-psycopg2' unless $python;
plan skip_all => 'example not found' unless $client;

my $node = publisher_node('publisher', autovacuum => 'off');
my $dir = $node->basedir;

install_random_work($node);
$node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('s', 'pgparrep')});
system_or_bail('pgbench', '-n', '-c', 4, '-t', 40, '-h', $node->host, '-p', $node->port,
	'-f', "$dir/commit.sql\@4", '-f', "$dir/upsert.sql\@1", 'postgres');
$node->safe_psql('postgres', q{
	TRUNCATE part;
	INSERT INTO part VALUES (1, 1, 'after', NULL);
	INSERT INTO a VALUES (-1, NULL, '', E'ü, "quoted"\n\\\\');
	BEGIN; INSERT INTO a VALUES (-2); ROLLBACK;
	SELECT pg_logical_emit_message(true, 'in', 'transaction');
	BEGIN; SELECT pg_logical_emit_message(true, 'in', 'nothing'); SELECT pg_logical_emit_message(false, 'out of', 'it'); ROLLBACK});
my $end = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$node->safe_psql('postgres', 'CHECKPOINT');

my ($out, $err) = ('', '');
my @command = ($python, $client, $node->connstr('postgres'), 's', 'p', $end);
ok(IPC::Run::run(\@command, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)),
	'the client runs') or diag $err;

my (%rows, %messages);
my $n = 0;
foreach my $line (split /\n/, $out)
{
	my $t = decode_json($line);
	$messages{"$t->{message} $t->{content}"}++ if exists $t->{message};
	foreach my $c (@{ $t->{changes} || [] })
	{
		my ($table) = map { $c->{$_} } grep { exists $c->{$_} } qw(insert update delete);
		$n++;
		$messages{"$c->{message} $c->{content}"}++ if exists $c->{message};
		delete @rows{ @{ $c->{truncate} } } if exists $c->{truncate};
		next unless defined $table;
		my $old = defined $c->{insert} ? {} : delete $rows{$table}{ ($c->{old} || $c->{new})->{id} } || {};
		$rows{$table}{ $c->{new}{id} } = { %$old, %{ $c->{new} } } if $c->{new};
	}
}
cmp_ok($n, '>', 500, "$n changes");
foreach my $table (qw(a b part0 part1))
{
	my $got = $rows{"public.$table"} || {};
	my %expected = map { my $row = decode_json($_); ($row->{id} => $row) }
	  split /\n/, $node->safe_psql('postgres', "SELECT json_build_object('id', id::text, 'v', v::text, 'big', big, 'm', m) FROM $table");
	is_deeply($got, \%expected, "$table: " . keys(%expected) . ' rows');
}
is($messages{'in transaction'}, 1, 'transactional message');
is($messages{'in nothing'}, undef, 'of a transaction that was rolled back');
is($messages{'out of it'}, 1, 'message outside of it');
is($node->safe_psql('postgres', "SELECT confirmed_flush_lsn >= '$end' FROM pg_replication_slots"), 't', 'everything is confirmed');

$node->stop;
done_testing();
