# A decoder may leave in the middle of a row: each message still has whole frames.
#
# The walsender puts a row that comes in pieces together.  When the decoder leaves
# in between, at a shutdown of the server or because it is told to, the walsender
# formats the batch again and leaves out what it has.  It once sent the beginning of
# a frame when what it made itself filled a message before the row in question, and
# the subscriber could not read it.
#
# The decoder is stopped and continued for moments until it is within such a row.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep usleep);

$PgParRep::decoders = 2;		# for pgparrep.force_decoders
my $node = publisher_node('publisher', autovacuum => 'off');

sub sql { return $node->safe_psql('postgres', shift) }
sub decoders { return split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder' ORDER BY 1}) }

sql(q{
	CREATE EXTENSION pgparrep;
	CREATE TABLE t (id int, v text);
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});

# All of it lies compressed in one batch.  A decoder ships each 128 kB, the walsender
# sends each 256 kB: that is full with row 33, which the decoder ships with row 34.
my ($rows, $small, $huge) = (34, 8000, 16_000_000);
my $insert = "INSERT INTO t SELECT i, repeat('x', CASE WHEN i = $rows THEN $huge ELSE $small END) FROM generate_series(1, $rows) i";
my $before = ($rows - 1) * $small;

my ($ended, $batches) = (0, 0);
for my $attempt (1 .. 10)
{
	my $client = replication_connect($node);
	replication_start($client, 's', publication_names => 'p', 'parallel-decode-num' => 2);
	for (1 .. 200) { last if decoders() == 2; sleep 0.05 }
	my ($pid, $other) = decoders();
	sql("SELECT pg_terminate_backend($other)");
	for (1 .. 200) { last if decoders() == 1; sleep 0.05 }

	# in one batch only if it is read in one go
	my $walsender = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'});
	kill 'STOP', $pid, $walsender;
	sql($insert);
	my $end = sql(q{SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn});
	kill 'CONT', $walsender;

	# the client is busy with reading all the while
	my ($all, $broken, $keepalive) = ('', 0, 0);
	my $receive = sub {
		my ($timeout) = @_;
		while (my $m = replication_read($client, $timeout))
		{
			$keepalive = $m->{lsn} if $m->{type} eq 'k';
			next if $m->{type} ne 'w';
			$all .= $m->{data};
			my $length = 0;
			$length += 10 + length $_->{body} foreach eval { fstream_parse($m->{data}) };
			$broken++ if $length != length $m->{data};
		}
	};

	my $bytes = 0;
	for (1 .. 2000)
	{
		kill 'CONT', $pid;
		usleep(300);
		kill 'STOP', $pid;
		usleep(1000);
		$bytes = sql("SELECT bytes FROM pgparrep.stat_decoder WHERE pid = $pid");
		$receive->(0);
		last if $bytes > $before + 300_000;
	}
	if ($bytes < $before + $huge - 1_000_000)
	{
		note("attempt $attempt: the decoder leaves after $bytes bytes");
		$ended++;
		kill 'TERM', $pid;
	}
	kill 'CONT', $pid;

	for (1 .. 60)
	{
		replication_status($client, 0, 1);
		$receive->(0.5);
		last if $keepalive >= $end;
	}
	is($broken, 0, "attempt $attempt: messages have whole frames");
	my ($done) = fstream_transactions(eval { fstream_parse($all) });
	is_deeply(
		[ map { length((relation_columns($_->[1]))[1]) } map { @{ $_->{changes} } } @$done ],
		[ ($small) x ($rows - 1), $huge ], "attempt $attempt: all rows");

	replication_status($client, $end, 0);
	sleep 0.2;
	close $client->{sock};
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')});
	last if $ended == 2;
}
cmp_ok($ended, '>', 0, 'a decoder left within a row');

$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|server process .* was terminated/, 'no crash');
done_testing();
