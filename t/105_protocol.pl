# The worked examples of docs/protocol.md are what the plugin sends.
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
my ($sql) = $doc =~ /^## A worked example.*?^(    BEGIN;\n.*?    COMMIT;\n)/ms;
my ($prepared_hex) = $doc =~ /^```two-phase-hex\n(.*?)^```/ms or die 'no two-phase example in docs/protocol.md';
my ($prepared_sql) = $doc =~ /^(    BEGIN;\n[^`]*?    ROLLBACK PREPARED 'g2';\n)/ms;
my ($setup) = $doc =~ /^(    CREATE TABLE account.*?;\n.*?;\n)/ms;
foreach ($hex, $prepared_hex)
{
	s/#.*//g;
	s/\s//g;
}

my $node = publisher_node('publisher', max_prepared_transactions => 2);
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
		$body =~ s/^((?:..)?)((?:.{16}){3,4})(.{8})(673.00)$/$1 . _positions($name, $f->{type}, $2) . $name->('xid', $3) . $4/e
		  if $f->{type} =~ /[bPKr]/;
		my $xid = $f->{xid} == 0 ? '0' : $name->('xid', sprintf('%08x', $f->{xid}));
		push @lines, "$xid " . (1 + length $f->{body}) . " $f->{type} $body";
	}
	return join("\n", @lines);
}

# Positions that are equal, and times that are, get equal names.
sub _positions
{
	my ($name, $type, $hex) = @_;
	my @values = unpack('(a16)*', $hex);

	return join('', map { $name->($_ < 2 ? 'lsn' : 'time', $values[$_]) } 0 .. $#values);
}

my $example = pack('H*', $hex);
is(join('', map { $_->{type} } fstream_parse($example)), 'RIXUAXDC', 'example can be parsed');
is(normalize($data), normalize($example), 'the plugin sends the worked example');

$node->safe_psql('postgres', "SELECT pg_create_logical_replication_slot('prepared', 'pgparrep', false, true)");
$node->safe_psql('postgres', $prepared_sql);
$data = fstream_receive($node, 'prepared', publication_names => 'p', proto_version => 3);
$example = pack('H*', $prepared_hex);
is(join('', map { $_->{type} } fstream_parse($example)), 'IbPKDbPr', 'two-phase example can be parsed');
is(normalize($data) =~ s/^[^\n]* R [^\n]*\n//r, normalize($example), 'the plugin sends the two-phase example');

$node->stop;
done_testing();
