# A transaction of a million rows is with the client while it runs: its first rows
# before the statement has written the last, all of them before the commit, and
# none of it through files of the publisher.  If changes were left to the reorder
# buffer, they would be spilled to disk and come after the commit.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 1_000_000;
my $node = publisher_node(
	'publisher',
	max_wal_size => '4GB',
	autovacuum => 'off',
	logical_decoding_work_mem => '64kB');

sub sql { return $node->safe_psql('postgres', shift) }

# The large transaction waits where it calls hold() until go has that number.
sql(q{
	CREATE TABLE t (id int);
	CREATE TABLE go (n int);
	CREATE PUBLICATION p FOR TABLE t;
	CREATE PUBLICATION nothing;
	CREATE FUNCTION hold(which int) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
	BEGIN
		WHILE NOT EXISTS (SELECT FROM go WHERE n = which) LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN true;
	END $$;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
	SELECT pg_create_logical_replication_slot('stock', 'pgoutput');
});

my $client = replication_connect($node);
replication_start($client, 's', publication_names => 'p');

my ($in, $out, $err) = (
	"BEGIN;
	 INSERT INTO t SELECT i FROM generate_series(1, $rows) i WHERE i <> $rows / 2 OR hold(1);
	 SELECT hold(2);
	 COMMIT;\n", '', '');
my $load = IPC::Run::start(
	[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') ],
	'<', \$in, '>', \$out, '2>', \$err,
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

# Read until there are so many rows, or a commit.
my ($got, $commits) = (0, 0);

sub read_rows
{
	my ($want) = @_;
	my $silent = 0;

	while ($got < $want && !$commits)
	{
		$load->pump_nb;
		my $m = replication_read($client, 1);
		if (!defined $m)
		{
			die "only $got rows: $err" if ++$silent > $PostgreSQL::Test::Utils::timeout_default;
			# WAL is not flushed up to the end unless somebody commits
			sql('INSERT INTO go VALUES (0)');
			next;
		}
		next if $m->{type} ne 'w';
		$silent = 0;
		for (my $pos = 0; $pos < length $m->{data};)
		{
			my ($len, $type) = unpack("x$pos x5 N a", $m->{data});
			$got++ if $type eq 'I';
			$commits++ if $type eq 'C';
			$pos += 9 + $len;
		}
	}
}

sub spill_files { return scalar(my @files = glob($node->data_dir . '/pg_replslot/s/*.spill')) }

read_rows(1);
cmp_ok($got, '>', 0, 'the first rows have come while the statement runs');
is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%INSERT INTO t %' AND pid <> pg_backend_pid() AND state = 'active'}),
	1, 'it does run');
sql('INSERT INTO go VALUES (1)');

read_rows($rows);
is($got, $rows, 'all rows have come before the commit');
is($commits, 0, 'no commit yet');
is(spill_files(), 0, 'no file of the reorder buffer');
sql('INSERT INTO go VALUES (2)');

read_rows($rows + 1);
is($commits, 1, 'the commit has come');
is($got, $rows, 'and no row twice');
$load->finish;

$node->poll_query_until('postgres',
	q{SELECT total_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = 's'});
is(sql(q{SELECT spill_txns, spill_bytes, stream_txns FROM pg_stat_replication_slots WHERE slot_name = 's'}),
	'0|0|0', 'nothing was spilled');

# What the server does itself, so that the check above can be believed.
sql(q{SELECT count(*) FROM pg_logical_slot_get_binary_changes('stock', NULL, NULL, 'proto_version', '1', 'publication_names', 'nothing')});
ok( $node->poll_query_until('postgres',
		q{SELECT spill_bytes > 0 FROM pg_stat_replication_slots WHERE slot_name = 'stock'}),
	'pgoutput has spilled the same transaction');

close $client->{sock};
$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
done_testing();
