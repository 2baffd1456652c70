# The bounds on memory are real: walsender and decoders together stay within them
# while a transaction that is much larger goes through.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'needs /proc' unless -r '/proc/self/status';

my $bound = 8;					# MB
my $megabytes = $ENV{PGPARREP_TEST_MEGABYTES} || 2000;
my $rows = $megabytes * 10;
my $node = publisher_node('publisher', max_wal_size => '4GB', autovacuum => 'off');

sub sql { return $node->safe_psql('postgres', shift) }


# Of processes of this node: private memory of all and, once, what they share
# beyond the server's own shared memory.
sub resident
{
	my ($pids) = @_;
	my ($private, $segments) = (0, 0);
	my %seen;

	foreach my $pid (@$pids)
	{
		open(my $fh, '<', "/proc/$pid/smaps") or next;
		my $dsm;
		while (<$fh>)
		{
			$dsm = m{/dev/shm/PostgreSQL} ? $_ : undef if /^[0-9a-f]+-[0-9a-f]+ /;
			$private += $1 if /^(?:Anonymous):\s+(\d+) kB/ && !$dsm;
			if ($dsm && /^Rss:\s+(\d+) kB/)
			{
				my $size = $1;
				my ($name) = $dsm =~ /(PostgreSQL\S+)/;
				$seen{$name} = $size if $size > ($seen{$name} // 0);
			}
		}
	}
	$segments += $_ for values %seen;
	return ($private + $segments) / 1024;
}

sql(q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
	CREATE PUBLICATION p FOR TABLE t;
});

foreach my $n (1, 4)
{
	sql("SELECT pg_create_logical_replication_slot('s$n', 'pgparrep')");
}
sql("INSERT INTO t SELECT i, repeat(md5(i::text), 3200) FROM generate_series(1, $rows) i");
my $end = sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
sql('CHECKPOINT');

foreach my $n (1, 4)
{
	my $client = replication_connect($node);
	my ($bytes, $most) = (0, 0);
	my $processes = $n == 1 ? 1 : $n + 1;
	my @pids;
	my $looked = 0;

	replication_start($client, "s$n", publication_names => 'p',
		'parallel-decode-num' => $n,
		'max-recordbuffer-in-memory' => $bound,
		'max-txn-in-memory' => $bound);
	while (1)
	{
		my $m = replication_read($client, 60) or die 'timeout';
		if ($m->{type} eq 'w')
		{
			$bytes += length $m->{data};
			if (time - $looked > 0.1)
			{
				# the walsender does not wait for its decoders to start
				@pids = split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')})
				  if @pids != $processes;
				$looked = time;
				my $now = resident(\@pids);
				$most = $now if $now > $most;
			}
		}
		# so that the server goes on if all takes longer than wal_sender_timeout
		replication_status($client, 0, 0) if $m->{type} eq 'k';
		last if $m->{type} eq 'k' && $m->{lsn} >= $end;
	}
	cmp_ok($bytes, '>', $rows * 100000, "$n: everything has come");
	is(scalar(@pids), $processes, "$n: watched all processes");
	cmp_ok($most, '<', $bound + 64, sprintf("$n: at most %.0f MB resident", $most));
	close $client->{sock};
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')})
	  or die 'a walsender stays';
}

# Parts of a row beyond the bound go through the reorder buffer.
{
	sql(q{SELECT pg_create_logical_replication_slot('large', 'pgparrep')});
	sql("INSERT INTO t VALUES (-1, repeat('x', 1500000)), (-2, 'y')");
	my $data = fstream_receive($node, 'large', publication_names => 'p',
		'parallel-decode-num' => 2, 'max-recordbuffer-in-memory' => 1);
	my ($done) = fstream_transactions(fstream_parse($data));
	is(join(' ', map { length((relation_columns($_->[1]))[1]) } @{ $done->[0]{changes} }),
		'1500000 1', 'a value beyond the bound');
}

$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
done_testing();
