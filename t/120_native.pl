# Native values are sent to who asks for them with the right signature, byte by
# byte as docs/protocol.md says, and to nobody else.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher');
my $version = $node->safe_psql('postgres', "SELECT current_setting('server_version_num')::int / 10000");
my $signature = native_signature($node, 'postgres');
my ($same, $abilities) = split /;/, $signature, 2;
my $lz4 = $abilities =~ /lz4/;

$node->safe_psql(
	'postgres', q{
	CREATE TABLE account (id int PRIMARY KEY, name text);
	CREATE TABLE many (id int PRIMARY KEY, e interval, ea interval[], a int[], n name, j jsonb, l text, p text, x text);
	ALTER TABLE many ALTER x SET STORAGE EXTERNAL;
	CREATE DOMAIN dom AS int;
	CREATE TABLE typed (id int PRIMARY KEY, d dom, r regclass, m money, v varchar(5));
	CREATE PUBLICATION p FOR ALL TABLES});
$node->safe_psql('postgres', 'ALTER TABLE many ALTER l SET COMPRESSION lz4') if $lz4;
my @slots = qw(s1 s2 s3 s4 s5 s6 s7 s8 s9 s10);
$node->safe_psql('postgres', "SELECT pg_create_logical_replication_slot('$_', 'pgparrep')") for @slots;
$node->safe_psql(
	'postgres', q{
	INSERT INTO account VALUES (1, 'ann');
	INSERT INTO many VALUES (1, '1 day', '{1 day}', '{1}', 'n', '{}', repeat('l', 10000), repeat('p', 10000), repeat('x', 10000));
	UPDATE many SET n = 'm';
	INSERT INTO typed VALUES (1, 2, 'pg_class', 1, 'v')});

# Tuples of the changes of a stream, each a list of [kind, bytes].
sub tuples
{
	my ($data) = @_;
	my @tuples;

	foreach my $f (fstream_parse($data))
	{
		next unless $f->{type} =~ /^[IU]$/;
		my $pos = 5;
		my ($n) = unpack('n', substr($f->{body}, $pos, 2));
		$pos += 2;
		my @columns;
		for (1 .. $n)
		{
			my $kind = substr($f->{body}, $pos++, 1);
			my $bytes;
			if ($kind !~ /[nu]/)
			{
				my $len = unpack('N', substr($f->{body}, $pos, 4));
				$bytes = substr($f->{body}, $pos + 4, $len);
				$pos += 4 + $len;
			}
			push @columns, [ $kind, $bytes ];
		}
		push @tuples, \@columns;
	}
	return @tuples;
}

sub kinds { return join(' ', map { join('', map { $_->[0] } @$_) } @_); }

sub receive
{
	my ($slot, %options) = @_;
	return fstream_receive($node, $slot, publication_names => 'p', %options);
}

my $data = receive('s1', 'native-signature' => $signature);
my @t = tuples($data);
is(kinds(@t), 'dd ddddttddd ddddttddu dtttd', 'native where the type allows it');

SKIP:
{
	skip 'the example is little-endian', 1 unless $same =~ /,le,/;
	my $doc = slurp_file("$FindBin::RealBin/../docs/protocol.md");
	my ($hex) = $doc =~ /^```native-hex\n(.*?)^```/ms or die 'no example in docs/protocol.md';
	$hex =~ s/#.*//g;
	$hex =~ s/\s//g;
	my ($example) = fstream_parse(pack('H*', $hex));
	my ($insert) = grep { $_->{type} eq 'I' } fstream_parse($data);
	is(unpack('H*', substr($insert->{body}, 4)), unpack('H*', substr($example->{body}, 4)),
		'the plugin sends the worked example');
}

cmp_ok(length $t[1][6][1], '<', 1000, 'an inline compressed value stays compressed') if $lz4;
cmp_ok(length $t[1][7][1], '<', 1000, 'with pglz as well');
is(substr($t[1][8][1], 4), 'x' x 10000, 'an out-of-line value comes whole');

# Each part of the signature counts, and abilities limit only what they are for.
my @wrong = map { my @parts = split /,/, $same; $parts[$_] .= 'x'; join(',', @parts) . ";$abilities" } 0, 1, 3, 6;
my @slot = qw(s2 s3 s4 s5);
foreach my $wrong (@wrong)
{
	is(kinds(tuples(receive(shift @slot, 'native-signature' => $wrong))),
		'tt ttttttttt ttttttttu ttttt', "signature $wrong gets text");
}
@t = tuples(receive('s6', 'native-signature' => "$same;" . ($version >= 17 ? '' : 'infinite-interval,')));
is(kinds(@t), 'dd dttdttddd dttdttddu dtttd', 'no native intervals for the other kind of server');
is(substr($t[1][6][1], 4), 'l' x 10000, 'lz4 is decompressed for who cannot') if $lz4;

is(kinds(tuples(receive('s8'))), 'tt ttttttttt ttttttttu ttttt', 'text for who does not ask');

{
	local $ENV{PGCLIENTENCODING} = $same =~ /UTF8$/ ? 'LATIN1' : 'UTF8';
	is(kinds(tuples(receive('s10', 'native-signature' => $signature))),
		'tt ttttttttt ttttttttu ttttt', 'text for a client of another encoding');
}

my $sql = $node->safe_psql('postgres',
	"SELECT string_agg(encode(data, 'hex'), '') FROM pg_logical_slot_get_binary_changes('s9', NULL, NULL, "
	. "'proto_version', '1', 'publication_names', 'p', 'streaming', 'extreme')");
is(kinds(tuples(pack('H*', $sql))), 'tt ttttttttt ttttttttu ttttt', 'text in SQL functions');

$node->stop;
done_testing();
