# Decoding that fails again and again, in one process.
#
# A row filter that fails stops the stream at the transaction's commit, at each
# attempt, until it is repaired.  What was held for the transaction then, rows of
# ON CONFLICT and out-of-line values, has to go with the attempt: a client that
# tries for a night must not fill the publisher's memory.  Both a walsender and a
# session that calls the SQL functions go on after the error.
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

sql(q{
	CREATE TABLE u (k int PRIMARY KEY, v int, big text);
	ALTER TABLE u ALTER big SET STORAGE EXTERNAL;
	ALTER TABLE u REPLICA IDENTITY FULL;
	CREATE TABLE plain (id int);
	CREATE PUBLICATION p FOR TABLE u WHERE (10 / (v - 5) > -100), plain;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
	INSERT INTO plain VALUES (1);
	BEGIN;
	INSERT INTO plain SELECT generate_series(1, 1000);
	INSERT INTO u SELECT i, i, repeat('x', 20000) FROM generate_series(1, 100) i
	ON CONFLICT (k) DO UPDATE SET v = excluded.v;
	INSERT INTO u SELECT i, 7, repeat('y', 20000) FROM generate_series(1, 110) i
	ON CONFLICT (k) DO UPDATE SET v = excluded.v, big = excluded.big;
	COMMIT;
	INSERT INTO plain VALUES (2)});

sub resident
{
	my ($pid) = @_;
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
	return $kb / 1024;
}

my ($attempts, $warm, $most) = (100, 10, 8);

# ---------- a walsender

my $client = replication_connect($node);
my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'});
my $before;
my $errors = 0;
for my $attempt (1 .. $attempts)
{
	replication_start($client, 's', publication_names => 'p');
	eval { 1 while replication_read($client, 30) };
	$errors++ if $@ =~ /division by zero/;
	PgParRep::_wait_for($client, 'Z');
	$before = resident($pid) if $attempt == $warm;
}
is($errors, $attempts, "a walsender fails $attempts times in the same way");
cmp_ok(resident($pid) - $before, '<', $most, "and needs no more memory for it than $most MB");
close $client->{sock};
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');

# ---------- SQL functions

my $memory = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts;';
my $one = q{
	SELECT count(*) FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'streaming', 'extreme');};
my ($ret, $out, $err) = $node->psql('postgres', $one x $warm . $memory . $one x $attempts . $memory, on_error_stop => 0);
my ($first, $last) = split /\n/, $out;
is(scalar(() = $err =~ /division by zero/g), $warm + $attempts, 'a session fails each time, too');
cmp_ok($last - $first, '<', 1024 * 1024, 'and its memory stays what it was');

# ---------- the repair

# the filter holds for what was written under it, which is passed by
sql(q{SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())});
sql(q{ALTER PUBLICATION p SET TABLE u, plain; INSERT INTO u VALUES (200, 5, repeat('z', 20000)); INSERT INTO plain VALUES (3)});
is(sql(q{
	SELECT string_agg(chr(get_byte(data, 9)), '') FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'streaming', 'extreme')}) =~ tr/I//, 2, 'and it goes on');

$node->stop;
done_testing();
