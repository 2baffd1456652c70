# Each row is judged by the publication as of its position in the WAL, whatever
# is changed while its transaction is open.
#
# Stock pgoutput keeps one entry per relation for all transactions: a row of an
# older transaction is judged by an entry that a newer one has made.  So what is
# to come is written down here and not taken from a reference.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v int);
	CREATE TABLE b (id int PRIMARY KEY, v int);
	CREATE PUBLICATION p FOR TABLE a, b;
	INSERT INTO a VALUES (1, 0);
	INSERT INTO b VALUES (1, 0);
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});

# Sessions whose statements alternate.
sub session
{
	my ($in, $out, $err) = ('', '', '');
	my $h = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>', \$err);
	return { h => $h, in => \$in, out => \$out, err => \$err };
}

sub run
{
	my ($s, $sql) = @_;

	${ $s->{out} } = '';
	${ $s->{in} } .= "$sql;\nSELECT 'done';\n";
	$s->{h}->pump until ${ $s->{out} } =~ /done/;
	is(${ $s->{err} }, '', "no error in: $sql");
}

my ($s1, $s2, $s3) = (session(), session(), session());

run($s1, 'BEGIN; UPDATE a SET v = 1');
run($s2, q{ALTER PUBLICATION p SET (publish = 'insert, delete')});
run($s1, 'UPDATE a SET v = 2; UPDATE b SET v = 2');
run($s2, q{ALTER PUBLICATION p SET (publish = 'insert, update, delete')});
run($s1, 'UPDATE a SET v = 3; UPDATE b SET v = 3');
run($s2, 'ALTER PUBLICATION p DROP TABLE a');
run($s1, 'UPDATE a SET v = 4; UPDATE b SET v = 4');
run($s3, 'UPDATE a SET v = 5 WHERE id = 2; UPDATE b SET v = 5 WHERE id = 2');
run($s1, 'COMMIT');
run($s2, 'ALTER PUBLICATION p ADD TABLE a');
run($s3, 'UPDATE a SET v = 6; UPDATE b SET v = 6');
# the transaction that changes the publication, with rows of its own
run($s1, 'BEGIN; UPDATE a SET v = 7');
run($s2, q{BEGIN; UPDATE b SET v = 7; ALTER PUBLICATION p SET (publish = 'insert'); UPDATE b SET v = 8});
run($s1, 'UPDATE a SET v = 8');
run($s2, 'COMMIT');
run($s1, 'UPDATE a SET v = 9; COMMIT');
# not published when written, although it is when the transaction commits and
# another one has been replayed by then
run($s1, 'BEGIN; UPDATE a SET v = 10');
run($s2, q{ALTER PUBLICATION p SET (publish = 'insert, update')});
run($s3, 'UPDATE a SET v = 11 WHERE id = 1 AND false; UPDATE b SET v = 11');
run($s1, 'UPDATE a SET v = 12; COMMIT');
# rolled back, so nothing changes
run($s2, q{BEGIN; ALTER PUBLICATION p SET (publish = 'insert'); ROLLBACK});
run($s1, 'UPDATE a SET v = 13');

my ($done) = fstream_transactions(
	fstream_parse(fstream_receive($node, 's', publication_names => 'p')));
my @got;
foreach my $txn (@$done)
{
	my @changes = map {
		my ($table) = unpack('x4 x7 Z*', $_->[2]);
		"$table=" . (relation_columns($_->[1]))[1]
	} @{ $txn->{changes} };
	push @got, "@changes" if @changes;
}
is(join("\n", @got), <<'EOT' =~ s/\n$//r, 'rows are judged where they were written');
a=1 a=3 b=3 b=4
a=6
b=6
b=7
a=7 a=8
b=11
a=12
a=13
EOT

$_->{h}->finish for map { ${ $_->{in} } .= "\\q\n"; $_ } ($s1, $s2, $s3);
$node->stop;
done_testing();
