# A client that is cut off again and again gets every transaction complete.
#
# What is open at the start position has been seen in part by the connection
# before; it must come again, as a whole, although its first changes lie before
# the start.  The transactions that a client puts together over many connections
# are compared with pgoutput's.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = publisher_node('publisher',
	logical_decoding_work_mem => '64kB',
	deadlock_timeout => '10ms',
	autovacuum => 'off');
install_random_work($node);
$node->safe_psql(
	'postgres', q{
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
});

my $seconds = $ENV{PGPARREP_TEST_SECONDS} || 8;
my $dir = $node->basedir;
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', '6', '-T', $seconds, '-h', $node->host, '-p', $node->port,
		'-f', "$dir/commit.sql\@20", '-f', "$dir/ddl.sql\@1", 'postgres' ],
	'>', \my $out, '2>', \my $err);

my (%txns, @order);
my ($connections, $again, $wrong, $overtaken) = (0, 0, 0, 0);
my $end;
my $started = time;
my $finished = 0;

while (!$finished)
{
	my $client = replication_connect($node);
	my $tries = 0;
	until (eval { replication_start($client, 'extreme', publication_names => 'p'); 1 })
	{
		die $@ if ++$tries > 500 || $@ !~ /is active/;
		select(undef, undef, undef, 0.02);
		$client = replication_connect($node);
	}
	$connections++;

	my $stop = time + 0.02 + rand(0.3);
	my @frames;
	my $last = 0;
	while (1)
	{
		if (!defined $end && time - $started > $seconds + 1)
		{
			$load->finish;
			$end = $node->safe_psql('postgres',
				"SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
			$node->safe_psql('postgres', 'CHECKPOINT');
		}
		last if !defined $end && time > $stop;

		my $m = replication_read($client, 0.02);
		if (!$m)
		{
			replication_status($client, $last, 1);
			next;
		}
		if ($m->{type} eq 'w')
		{
			my @new = fstream_parse($m->{data});
			push @frames, @new;
			foreach my $f (grep { $_->{type} eq 'C' } @new)
			{
				my ($commit, $after) = unpack('x Q> Q>', $f->{body});
				# whatever came before may have been confirmed
				$overtaken++ if $commit < $last || $m->{lsn} < $after;
			}
		}
		$last = $m->{lsn} if $m->{lsn} > $last;
		# confirm sometimes, so that there is something to come again
		replication_status($client, $last, 0) if rand() < 0.3;
		if (defined $end && $m->{type} eq 'k' && $m->{lsn} >= $end)
		{
			$finished = 1;
			last;
		}
	}
	close $client->{sock};

	my ($done) = fstream_transactions(@frames);
	foreach my $txn (@$done)
	{
		my $have = $txns{ $txn->{commit} };
		if (!$have)
		{
			$txns{ $txn->{commit} } = $txn;
			push @order, $txn;
			next;
		}
		$again++;
		$wrong++
		  if join('|', map { "$_->[0]$_->[1]" } @{ $have->{changes} }) ne
		  join('|', map { "$_->[0]$_->[1]" } @{ $txn->{changes} });
	}
}

note "$connections connections, " . scalar(@order) . " transactions, $again came again";
cmp_ok($connections, '>', 5, 'was cut off several times');
is($overtaken, 0, 'no position was ahead of a commit');
is($wrong, 0, 'what came again was the same');
my ($reference) = pgoutput_transactions($node, 'reference',
	proto_version => 1, publication_names => 'p');
compare_streams(\@order, $reference, 'over all connections');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');

$node->stop;
done_testing();
