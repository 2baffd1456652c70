# The worked example of docs/protocol.md is what the plugin sends.
#
# Transaction ids, OIDs, positions and times differ from run to run; each is
# replaced by its rank among the different ones, in the document and in the
# stream alike.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $doc = slurp_file("$FindBin::RealBin/../docs/protocol.md");
my ($hex) = $doc =~ /^```hex\n(.*?)^```/ms or die 'no example in docs/protocol.md';
my ($sql) = $doc =~ /^(    BEGIN;\n.*?    COMMIT;\n)/ms;
my ($setup) = $doc =~ /^(    CREATE TABLE account.*?;\n.*?;\n)/ms;
$hex =~ s/#.*//g;
$hex =~ s/\s//g;

my $node = publisher_node('publisher');
$node->safe_psql('postgres', $setup);
$node->safe_psql('postgres', "SELECT pg_create_logical_replication_slot('s', 'pgparrep')");
$node->safe_psql('postgres', $sql);
my $data = fstream_receive($node, 's', publication_names => 'p');

sub normalize
{
	my @frames = fstream_parse(shift);
	my (%rank, @lines);
	my $name = sub {
		my ($kind, $value) = @_;
		$rank{$kind}{$value} //= 1 + keys %{ $rank{$kind} };
		return "<$kind$rank{$kind}{$value}>";
	};

	foreach my $f (@frames)
	{
		my $body = unpack('H*', $f->{body});
		$body =~ s/^(.{8})/$name->('oid', $1)/e if $f->{type} =~ /[IUDR]/;
		$body =~ s/^(.{8})/$name->('xid', $1)/e if $f->{type} eq 'X';
		$body =~ s/^(.{8})(.{16})(.{16})$/$name->('xid', $1) . '<lsn><time>'/e
		  if $f->{type} eq 'A';
		$body =~ s/^(..)(.{16})(.{16})(.{16})$/$1 . ($2 lt $3 ? '<lsn><later lsn>' : 'positions') . '<time>'/e
		  if $f->{type} eq 'C';
		my $xid = $f->{xid} == 0 ? '0' : $name->('xid', sprintf('%08x', $f->{xid}));
		push @lines, "$xid " . (1 + length $f->{body}) . " $f->{type} $body";
	}
	return join("\n", @lines);
}

my $example = pack('H*', $hex);
is(join('', map { $_->{type} } fstream_parse($example)), 'RIXUAXDC', 'example can be parsed');
is(normalize($data), normalize($example), 'the plugin sends the worked example');

$node->stop;
done_testing();
