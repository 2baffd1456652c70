# Concurrent random work, including DDL while transactions are open: what is
# streamed is what pgoutput replays.
#
# A plan that outlives an invalidation, a transaction queued too late or a row
# under the wrong subtransaction shows up as a difference in bytes.
#
# Changes of the publication itself are in 103_publication.pl: pgoutput is not
# exact there and cannot serve as the reference.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher',
	logical_decoding_work_mem => '64kB',
	max_prepared_transactions => 10,
	deadlock_timeout => '10ms',
	autovacuum => 'off');

install_random_work($node);
$node->safe_psql(
	'postgres', q{
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
});

my $seconds = $ENV{PGPARREP_TEST_SECONDS} || 4;
my $dir = $node->basedir;
foreach my $round (1 .. 4)
{
	# with few concurrent DDL statements, with many, and with none
	my $weight = (1, 10, 0, 0)[ $round - 1 ];
	my $script = $round == 4 ? 'upsert.sql' : 'commit.sql';
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[ 'pgbench', '-n', '-c', '8', '-T', $seconds, '-h', $node->host, '-p', $node->port,
			'-f', "$dir/$script\@20", $weight ? ('-f', "$dir/ddl.sql\@$weight") : (),
			'postgres' ],
		'>', \$out, '2>', \$err);
	my ($processed) = $out =~ /transactions actually processed: (\d+)/;
	note "round $round: $processed scripts";

	my %options = (publication_names => 'p', messages => 'true');
	my $data = fstream_receive($node, 'extreme', %options);
	my ($extreme, $em) = fstream_transactions(fstream_parse($data));
	my ($reference, $rm) = pgoutput_transactions($node, 'reference', proto_version => 1, %options);
	compare_streams($extreme, $reference, "round $round");
	is(scalar(@$em), scalar(@$rm), "round $round: messages outside of transactions");
}

my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP|PANIC/, 'no assertion failed');

$node->stop;
done_testing();
