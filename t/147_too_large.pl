# A row that cannot be sent: its text is over 1 GB, which no message can be.
#
# The stream ends with an error that names the relation and the position; what is
# before it is sent, and whoever does not subscribe to the table notices nothing.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher');
sub sql { return $node->safe_psql('postgres', shift) }

# A row with both values cannot be made in one piece either.
sql(q{
	CREATE TABLE half (v text);
	CREATE TABLE whole (id int, v text, w text);
	CREATE TABLE plain (id int);
	CREATE PUBLICATION p FOR TABLE whole, plain;
	CREATE PUBLICATION other FOR TABLE plain;
	INSERT INTO half VALUES (repeat('x', 550000000));
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
	SELECT pg_create_logical_replication_slot('o', 'pgparrep');
	INSERT INTO plain VALUES (1);
	INSERT INTO whole SELECT 2, a.v, b.v FROM half a, half b;
	INSERT INTO plain VALUES (3)});
my $end = sql(q{SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn});

sub receive
{
	my ($slot, %options) = @_;
	my $client = replication_connect($node);
	my $data = '';

	replication_start($client, $slot, %options);
	eval {
		while (my $m = replication_read($client, 60))
		{
			$data .= $m->{data} if $m->{type} eq 'w';
			last if $m->{type} eq 'k' && $m->{lsn} >= $end;
			replication_status($client, 0, 1) if $m->{type} eq 'k' && $m->{reply};
		}
	};
	my $error = $@;
	close $client->{sock};
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
	return ($error, join(' ', map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @{ (fstream_transactions(fstream_parse($data)))[0] }));
}

for my $decoders (1, 2)
{
	my ($error, $ids) = receive('s', publication_names => 'p', 'parallel-decode-num' => $decoders);
	like($error, qr/(?:out of memory|invalid memory alloc|string buffer|too large|exceed)/i, "$decoders: cannot be sent");
	like($error, qr/WAL record at [0-9A-F]+\/[0-9A-F]+/, "$decoders: the error says where");
	like($error, qr/relation "public\.whole"/, "$decoders: and which relation");
	is($ids, 1, "$decoders: what comes before it is sent");
}
my ($error, $ids) = receive('o', publication_names => 'other');
is($error, '', 'nobody else is concerned');
is($ids, '1 3', 'and gets the rest');

$node->stop;
done_testing();
