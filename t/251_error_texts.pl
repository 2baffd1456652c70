# An error in applying says what stock apply says, and where.
#
# Users read table, column, transaction and LSN from it and paste the LSN into
# ALTER SUBSCRIPTION ... SKIP; tools parse it.  So each error is provoked on a
# subscriber with stock apply and on one with the pool, and message, detail and
# context must be the same to the letter, but for one more line of context that
# names the subscription.  Then the transaction is skipped on both by the LSN
# in the text, and what comes after it must arrive: an LSN that is not that of
# the commit would skip nothing.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "wal_retrieve_retry_interval = 100ms\nlog_min_messages = warning";
my $publisher = new_node('publisher', $conf);
my $stock = new_node('stock', $conf);
my $parallel = new_node('parallel', $conf);

# name => [ table on the publisher, on the subscriber, change that fails ]
my @cases = (
	duplicate => [
		'CREATE TABLE duplicate (a int PRIMARY KEY, b text)',
		"CREATE TABLE duplicate (a int PRIMARY KEY, b text); INSERT INTO duplicate VALUES (5, 'local')",
		"INSERT INTO duplicate VALUES (5, 'remote')"
	],
	duplicate_update => [
		'CREATE TABLE duplicate_update (a int PRIMARY KEY, b text); INSERT INTO duplicate_update VALUES (6)',
		"CREATE TABLE duplicate_update (a int PRIMARY KEY, b text UNIQUE);
		 INSERT INTO duplicate_update VALUES (5, 'local'), (6, 'six')",
		"UPDATE duplicate_update SET b = 'local'"
	],
	conversion => [
		'CREATE TABLE conversion (a int PRIMARY KEY, "B c" text)',
		'CREATE TABLE conversion ("B c" int, a int PRIMARY KEY)',
		"INSERT INTO conversion VALUES (5, 'five')"
	],
	label => [
		"CREATE TYPE e AS ENUM ('a', 'b'); CREATE TABLE label (a int PRIMARY KEY, b e)",
		"CREATE TYPE e AS ENUM ('a'); CREATE TABLE label (a int PRIMARY KEY, b e)",
		"INSERT INTO label VALUES (5, 'b')"
	],
	domain => [
		'CREATE TABLE domain (a int PRIMARY KEY, b int)',
		'CREATE DOMAIN small AS int CHECK (value < 5); CREATE TABLE domain (a int PRIMARY KEY, b small)',
		'INSERT INTO domain VALUES (5, 6)'
	],
	checked => [
		'CREATE TABLE checked (a int PRIMARY KEY, b int)',
		'CREATE TABLE checked (a int PRIMARY KEY, b int CHECK (b < 5))',
		'INSERT INTO checked VALUES (5, 6)'
	],
	not_null => [
		'CREATE TABLE not_null (a int PRIMARY KEY, b int)',
		'CREATE TABLE not_null (a int PRIMARY KEY, b int NOT NULL)',
		'INSERT INTO not_null VALUES (5)'
	],
	missing_columns => [
		'CREATE TABLE missing_columns (a int PRIMARY KEY, b int, c int)',
		'CREATE TABLE missing_columns (a int PRIMARY KEY)',
		'INSERT INTO missing_columns VALUES (5)'
	],
	generated => [
		'CREATE TABLE generated (a int PRIMARY KEY, b int)',
		'CREATE TABLE generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a) STORED)',
		'INSERT INTO generated VALUES (5)'
	],
	no_identity => [
		'CREATE TABLE no_identity (a int PRIMARY KEY, b int); INSERT INTO no_identity VALUES (5)',
		'CREATE TABLE no_identity (a int, b int)',
		'UPDATE no_identity SET b = 1'
	],
	other_identity => [
		'CREATE TABLE other_identity (a int PRIMARY KEY, b int); INSERT INTO other_identity VALUES (5)',
		'CREATE TABLE other_identity (a int, b int PRIMARY KEY)',
		'DELETE FROM other_identity'
	],
	no_partition => [
		'CREATE TABLE no_partition (a int PRIMARY KEY, b int)',
		'CREATE TABLE no_partition (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);
		 CREATE TABLE no_partition1 PARTITION OF no_partition FOR VALUES FROM (0) TO (10)',
		'INSERT INTO no_partition VALUES (50)'
	],
	no_equality => [
		q{CREATE TABLE no_equality (a int, b json); ALTER TABLE no_equality REPLICA IDENTITY FULL;
		  INSERT INTO no_equality VALUES (5, '5')},
		q{CREATE TABLE no_equality (a int, b json); INSERT INTO no_equality VALUES (5, '5')},
		'UPDATE no_equality SET a = 6'
	],
	raised => [
		'CREATE TABLE raised (a int PRIMARY KEY)',
		q{CREATE TABLE raised (a int PRIMARY KEY);
		  CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'not %', new.a USING DETAIL = 'said the trigger', HINT = 'ask it'; END $$;
		  CREATE TRIGGER raise AFTER INSERT ON raised FOR EACH ROW EXECUTE FUNCTION raise();
		  ALTER TABLE raised ENABLE REPLICA TRIGGER raise},
		'INSERT INTO raised VALUES (5)'
	],
	truncated => [
		'CREATE TABLE truncated (a int PRIMARY KEY)',
		'CREATE TABLE truncated (a int PRIMARY KEY); CREATE TABLE referring (a int REFERENCES truncated)',
		'TRUNCATE truncated'
	],
	foreign_leaf => [
		'CREATE TABLE foreign_leaf (a int, b int); ALTER TABLE foreign_leaf REPLICA IDENTITY FULL',
		'CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
		 CREATE TABLE foreign_leaf (a int, b int) PARTITION BY RANGE (a);
		 CREATE FOREIGN TABLE foreign_leaf1 PARTITION OF foreign_leaf FOR VALUES FROM (0) TO (10) SERVER nowhere',
		'INSERT INTO foreign_leaf VALUES (5)'
	]);

my @names = grep { !ref } @cases;
my %case = @cases;

foreach my $name (@names)
{
	my ($there, $here) = @{ $case{$name} };
	$publisher->safe_psql('postgres', $there);
	$_->safe_psql('postgres', $here) for $stock, $parallel;
}
for my $node ($publisher, $stock, $parallel)
{
	$node->safe_psql('postgres', 'CREATE TABLE fine (name text PRIMARY KEY)');
}
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR ALL TABLES');
create_subscription($publisher, $stock, name => 'serial', worker_number => 1, options => 'copy_data = false');
create_subscription($publisher, $parallel, name => 'pool', worker_number => 4, options => 'copy_data = false');

# The first error with its detail, hint and context, without what differs.
sub first_error
{
	my ($node, $offset) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $deadline)
	{
		my $log = log_since($node, $offset);

		# complete when the process has said that it ends, or something else
		if ($log =~ /^\S+ \S+ \S+ \[(\d+)\] ERROR:  (.*?)\n(?=\S+ \S+ \S+ \[\d+\] (?:\S+ )?(?:LOG|ERROR|WARNING|FATAL))/ms)
		{
			my $text = $2;
			$text =~ s/^\S+ \S+ \S+ \[\d+\] //mg;
			$text =~ s/"pg_\d+"/"pg_N"/g;
			# row versions of each server
			$text =~ s/modified in transaction \d+/modified in transaction N/g;
			return $text;
		}
		select undef, undef, undef, 0.05;
	}
	return 'no error';
}

foreach my $name (@names)
{
	my $change = $case{$name}->[2];
	my ($stock_offset, $parallel_offset) = map { log_size($_) } $stock, $parallel;

	$publisher->safe_psql('postgres', $change);
	$publisher->safe_psql('postgres', "INSERT INTO fine VALUES ('$name')");

	my $expected = first_error($stock, $stock_offset);
	my $found = first_error($parallel, $parallel_offset);
	my ($lsn) = $found =~ m{finished at ([0-9A-F]+/[0-9A-F]+)};

	like($found, qr/^\s*apply worker of subscription "pool"$/m, "$name: subscription named");
	$found =~ s/^\s*apply worker of subscription "pool"\n?//m;
	chomp $_ for $expected, $found;

	# More than stock says: which relation it was, where stock had not yet got so far.
	$expected =~ s/(during message type "\w+") in transaction/$1 for replication target relation "public.$name" in transaction/
	  if $found =~ /relation "public.$name" in transaction/;
	is($found, $expected, "$name: error text");

	ok($lsn, "$name: LSN");
	next unless $lsn;
	$stock->safe_psql('postgres', "ALTER SUBSCRIPTION serial SKIP (lsn = '$lsn')");
	$parallel->safe_psql('postgres', "ALTER SUBSCRIPTION pool SKIP (lsn = '$lsn')");
	wait_for($_, "SELECT count(*) = 1 FROM fine WHERE name = '$name'", "$name to be skipped")
	  for $stock, $parallel;
}

my $query = join ' UNION ALL ', map { "SELECT '$_', count(*) FROM $_" } grep { $_ ne 'foreign_leaf' } @names;
is($parallel->safe_psql('postgres', $query), $stock->safe_psql('postgres', $query), 'equal tables');

done_testing();
