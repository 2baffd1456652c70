# Sessions on the subscriber may change the same rows and tables meanwhile.
#
# A row is updated without being locked first.  If somebody else was faster,
# it has to be found again by its key and the new row made from what is found
# then; made from the version found before, it would undo the other's update
# of a column that exists only here.  Both kinds of updates count, so a lost
# one shows.  Then the tables themselves change: columns come and go, indexes
# are built beside, partitions are taken out, reshaped and put back, triggers
# switched on.  Every apply worker has to notice, not only the one that
# happens to see it; a stale map of columns would put values into wrong ones.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 6;
my ($publisher, $subscriber) = publisher_and_subscriber();

$publisher->safe_psql(
	'postgres', q{
	CREATE TABLE counters (id int PRIMARY KEY, theirs int NOT NULL, big text);
	ALTER TABLE counters ALTER big SET STORAGE EXTERNAL;
	INSERT INTO counters SELECT i, 0, repeat('t', 3000) FROM generate_series(1, 12) i;
	CREATE TABLE shaped (id int PRIMARY KEY, b text, c int);
	INSERT INTO shaped SELECT i, 'b' || i, 0 FROM generate_series(1, 200) i;
	CREATE TABLE parts (id int PRIMARY KEY, b text, c int);
	INSERT INTO parts SELECT i, 'b' || i, 0 FROM generate_series(1, 200) i});
$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE counters (mine int NOT NULL DEFAULT 0, id int PRIMARY KEY, big text, theirs int NOT NULL);
	CREATE TABLE shaped (c int, id int PRIMARY KEY, b text);
	CREATE TABLE parts (id int PRIMARY KEY, b text, c int) PARTITION BY RANGE (id);
	CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (100) TO (1000)});
create_subscription($publisher, $subscriber);

# Background pgbench with one script; finish() gives the transactions done.
sub start_pgbench
{
	my ($node, $name, $script) = @_;
	my $path = $node->basedir . "/$name.sql";
	my $bench = { out => '' };

	append_to_file($path, $script);
	$bench->{run} = IPC::Run::start(
		[
			'pgbench', '-n', '-c', 3, '-T', $seconds, '-h', $node->host, '-p', $node->port, '-f', $path, 'postgres'
		],
		'<', \undef, '>', \$bench->{out}, '2>', \$bench->{err});
	return $bench;
}

sub finish
{
	my ($bench) = @_;

	$bench->{run}->finish;
	my ($done) = $bench->{out} =~ /transactions actually processed: (\d+)/;
	diag($bench->{err}) unless $done;
	return $done // 0;
}

# Updates of the same rows from both sides.
my $theirs = start_pgbench($publisher, 'theirs', q{\set id random(1, 12)
UPDATE counters SET theirs = theirs + 1 WHERE id = :id;
});
my $mine = start_pgbench($subscriber, 'mine', q{\set id random(1, 12)
UPDATE counters SET mine = mine + 1 WHERE id = :id;
});
my ($theirs_done, $mine_done) = map { finish($_) } $theirs, $mine;

wait_caught_up($publisher, $subscriber);
cmp_ok($theirs_done, '>', 100, 'updates from the publisher');
is( $subscriber->safe_psql('postgres', 'SELECT sum(mine) FROM counters'),
	$mine_done, 'no update of a local session is lost');
is($subscriber->safe_psql('postgres', 'SELECT sum(theirs) FROM counters'),
	$theirs_done, 'no update from the publisher is lost');
compare_tables($publisher, $subscriber, 'rows updated from both sides', 'counters');

# Tables that change shape under the load.
my $load = start_pgbench($publisher, 'load', q{\set id random(1, 200)
\set to random(1, 999)
UPDATE shaped SET c = c + 1, b = 'u' || :to WHERE id = :id;
UPDATE parts SET id = :to, c = c + 1 WHERE id = :id AND NOT EXISTS (SELECT FROM parts WHERE id = :to);
UPDATE parts SET id = :id, b = 'back' WHERE id = :to AND NOT EXISTS (SELECT FROM parts WHERE id = :id);
});
my $rounds = 0;
my $end = time() + $seconds - 1;
while (time() < $end)
{
	foreach my $change (
		'ALTER TABLE shaped ADD extra text DEFAULT \'e\'',
		'CREATE INDEX CONCURRENTLY shaped_c ON shaped (c)',
		'BEGIN; ALTER TABLE shaped DROP b; ALTER TABLE shaped ADD b text; COMMIT',
		'ALTER TABLE shaped DROP extra',
		'DROP INDEX CONCURRENTLY shaped_c',
		'ANALYZE shaped',
		q{BEGIN;
		  ALTER TABLE parts DETACH PARTITION parts2;
		  CREATE TABLE new (junk int, c int, b text, id int NOT NULL);
		  INSERT INTO new (c, b, id) SELECT c, b, id FROM parts2;
		  DROP TABLE parts2;
		  ALTER TABLE new DROP junk;
		  ALTER TABLE new RENAME TO parts2;
		  ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES FROM (100) TO (1000);
		  COMMIT},
		q{BEGIN;
		  ALTER TABLE parts DETACH PARTITION parts2;
		  ALTER TABLE parts2 RENAME TO parts3;
		  CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (100) TO (500);
		  WITH moved AS (DELETE FROM parts3 WHERE id < 500 RETURNING id, b, c)
		  INSERT INTO parts2 (id, b, c) SELECT id, b, c FROM moved;
		  ALTER TABLE parts ATTACH PARTITION parts3 DEFAULT;
		  COMMIT},
		q{BEGIN;
		  ALTER TABLE parts DETACH PARTITION parts2;
		  ALTER TABLE parts DETACH PARTITION parts3;
		  INSERT INTO parts3 (id, b, c) SELECT id, b, c FROM parts2;
		  DROP TABLE parts2;
		  ALTER TABLE parts3 RENAME TO parts2;
		  ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES FROM (100) TO (1000);
		  COMMIT})
	{
		my $ok = 0;
		for my $try (1 .. 20)
		{
			my ($ret, $out, $err) = $subscriber->psql('postgres', "SET statement_timeout = '20s';\n$change");
			if ($ret == 0) { $ok = 1; last; }
			# deadlocks between local DDL and the apply workers are allowed
			diag($err), last if $err !~ /deadlock detected|canceling statement/;
		}
		ok(0, "DDL: $change") unless $ok;
	}
	$rounds++;
}
cmp_ok(finish($load), '>', 50, "updates during $rounds rounds of DDL");
cmp_ok($rounds, '>', 0, 'rounds of DDL');
# what was in a column when it was dropped
$publisher->safe_psql('postgres', "UPDATE shaped SET b = 'last' || id");
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'tables that changed shape', 'shaped', 'parts');

# An index that is built beside must get what is stored after it was scanned.
# Workers that hold on to what they knew of it when it was not ready would
# leave that out.  The build is held up twice: before its scan, for workers to
# see the index that is not ready, and behind it.
SKIP:
{
	skip 'no amcheck', 1
	  unless $subscriber->safe_psql('postgres', "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'");
	$subscriber->safe_psql('postgres', 'CREATE EXTENSION amcheck');

	my ($locker, $reader, $builder) = map { session($subscriber) } 1 .. 3;
	my $phase = sub {
		wait_for($subscriber, "SELECT count(*) = 1 FROM pg_stat_progress_create_index WHERE phase = '$_[0]'", $_[0]);
	};
	my $update_all = sub {
		$publisher->safe_psql('postgres', join '', map { "UPDATE shaped SET c = c + 1000 WHERE id = $_;\n" } 1 .. 100);
		wait_caught_up($publisher, $subscriber);
	};

	$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
	$locker->query('BEGIN; LOCK TABLE shaped IN ROW EXCLUSIVE MODE');
	$builder->send('CREATE INDEX CONCURRENTLY shaped_c ON shaped (c)');
	$phase->('waiting for writers before build');
	$update_all->();
	$locker->query('COMMIT');
	$phase->('waiting for old snapshots');
	$update_all->();
	$reader->query('COMMIT');
	$builder->query('SELECT 1');
	my ($ret, $out, $err) = $subscriber->psql('postgres', q{SELECT bt_index_check('shaped_c', true)});
	is($err, '', 'the index built beside has everything');
	$_->quit for $locker, $reader, $builder;
}

# A trigger that is switched on counts for the next transaction, whichever
# worker applies it.
$subscriber->safe_psql(
	'postgres', q{
	CREATE TABLE seen (id int);
	CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.seen VALUES (new.id); RETURN new; END $$;
	CREATE TRIGGER see AFTER UPDATE ON shaped FOR EACH ROW EXECUTE FUNCTION see()});
$publisher->safe_psql('postgres', join '', map { "UPDATE shaped SET c = 1 WHERE id = $_;\n" } 1 .. 20);
wait_caught_up($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM seen'), 0, 'an ordinary trigger does not fire');
$subscriber->safe_psql('postgres', 'ALTER TABLE shaped ENABLE ALWAYS TRIGGER see');
$publisher->safe_psql('postgres', join '', map { "UPDATE shaped SET c = 2 WHERE id = $_;\n" } 1 .. 20);
wait_caught_up($publisher, $subscriber);
is( $subscriber->safe_psql('postgres', "SELECT count(*) || ' ' || sum(id) FROM seen"),
	'20 210', 'after ENABLE ALWAYS every worker fires it');

unlike(slurp_file($subscriber->logfile), qr/leak|TRAP|terminated by signal/, 'no leaks or crashes');

done_testing();
