# DDL that gives tables other files, other columns and other indexes goes on while
# they are written to, and while decoders lag behind.
#
# A row in a batch is formatted from the plan that travels with it, which is of
# the row's moment; decoders that looked at the catalogs, or rows bound to a file
# that is gone, would end up with other columns or with nothing.  Rewrites copy
# rows through files of relations that are published, and must send none of it.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $trio = trio("wal_retrieve_retry_interval = 100ms\nlogical_decoding_work_mem = 64kB\npgparrep.force_decoders = on",
	'pgparrep.parallel_decode_num = 3');
my $publisher = $trio->{publisher};
my $pool = $trio->{pool};

trio_sql($trio, map { qq{
	CREATE TABLE load (id int PRIMARY KEY, n $_, big text, c text, mine int DEFAULT 5);
	ALTER TABLE load ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE full_load (a int, n $_, big text);
	ALTER TABLE full_load REPLICA IDENTITY FULL;
	CREATE TABLE lagging (id int PRIMARY KEY, v text, n int DEFAULT 1, x text DEFAULT 'added', y numeric DEFAULT 2.50)} } qw(int bigint));
$publisher->safe_psql(
	'postgres', q{
	ALTER TABLE load DROP mine;
	ALTER TABLE lagging DROP n, DROP x, DROP y;
	INSERT INTO load SELECT i, i, repeat(md5(i::text), 100), 'c' || i FROM generate_series(1, 200) i;
	INSERT INTO full_load SELECT i, i, repeat(md5(i::text), 100) FROM generate_series(1, 100) i});
trio_subscribe($trio);

# ---- Under load ---------------------------------------------------------

my $script = $publisher->basedir . '/load.sql';
append_to_file($script, q{
\set a random(1, 200)
\set b random(1, 1000000)
\set c random(1, 100)
BEGIN;
UPDATE load SET n = n + 1 WHERE id = :a;
SAVEPOINT a;
UPDATE full_load SET big = repeat(md5(:b::text), 110) WHERE a = :c;
ROLLBACK TO a;
UPDATE full_load SET n = :b WHERE a = :c;
COMMIT;
UPDATE load SET big = repeat(md5(:b::text), 90), c = :b WHERE id = :a;
DELETE FROM load WHERE id = :c;
INSERT INTO load (id, n, big) VALUES (:c, :b % 1000, repeat('n', 3000)) ON CONFLICT (id) DO UPDATE SET n = 3;
});
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 4, '-T', 4, '--max-tries', 100, '-h', $publisher->host, '-p', $publisher->port, '-f', $script, 'postgres' ],
	'<', \undef, '>', \my $out, '2>', \my $err);
foreach my $ddl (
	'VACUUM FULL load', 'CLUSTER load USING load_pkey', 'VACUUM FULL full_load',
	'REINDEX TABLE load', 'REINDEX TABLE CONCURRENTLY full_load',
	'ALTER TABLE load ALTER n TYPE bigint', 'ALTER TABLE full_load ALTER n TYPE bigint',
	'ALTER TABLE load ALTER big SET STORAGE EXTENDED', 'VACUUM FULL pg_class',
	'ALTER TABLE load ADD mine int DEFAULT 5', 'ALTER TABLE load ALTER mine TYPE bigint',
	'ALTER TABLE load ALTER n TYPE int', 'ALTER TABLE full_load ALTER n TYPE int', 'VACUUM FULL pg_attribute',
	'ALTER TABLE load DROP mine', 'ALTER TABLE load ALTER big SET STORAGE EXTERNAL',
	'ALTER TABLE load DROP CONSTRAINT load_pkey, ADD CONSTRAINT load_pkey PRIMARY KEY (id)')
{
	is($publisher->psql('postgres', $ddl), 0, "under load: $ddl");
}
$load->finish;
like($out, qr/number of failed transactions: 0 /, 'no transaction of the load has failed') or diag($err);
trio_equal($trio, 'under load', 'load', 'full_load');

# ---- Decoders that lag behind -------------------------------------------

# Stopped, they have batches that nobody else may touch; the reader goes on until
# all batches are used.
my @pids = split /\n/, $publisher->safe_psql('postgres', 'SELECT pid FROM pgparrep.stat_decoder');
is(scalar @pids, 3, 'three decoders');
kill 'STOP', @pids;
END { kill 'CONT', @pids if @pids }
$publisher->safe_psql('postgres', $_)
  for q{INSERT INTO lagging SELECT i, 'v' || i FROM generate_series(1, 300) i},
  q{ALTER TABLE lagging ADD n int DEFAULT 1},
  q{UPDATE lagging SET v = NULL WHERE id < 10},
  q{INSERT INTO lagging SELECT i, repeat('w', 1000), i FROM generate_series(301, 500) i},
  q{ALTER TABLE lagging DROP v, ADD x text DEFAULT 'added'},
  q{UPDATE lagging SET n = n + 1 WHERE id BETWEEN 295 AND 310},
  q{ALTER TABLE lagging ADD v text, ADD y numeric DEFAULT 2.50},
  q{UPDATE lagging SET v = 'new'},
  q{VACUUM FULL lagging},
  q{ALTER TABLE lagging RENAME TO lagged},
  q{CREATE TABLE lagging (id int PRIMARY KEY, v text)},
  q{INSERT INTO lagging VALUES (1000, 'of another table')},
  q{DROP TABLE lagging},
  q{ALTER TABLE lagged RENAME TO lagging},
  q{ALTER TABLE lagging ALTER n TYPE text USING n::text || '0'},
  q{UPDATE lagging SET n = '7' WHERE id = 7};
usleep(1_000_000);
kill 'CONT', @pids;
# the rewritten column is the publisher's alone
$publisher->safe_psql('postgres', q{ALTER TABLE lagging ALTER n TYPE int USING n::int; UPDATE lagging SET n = n});
trio_wait($trio);
$_->safe_psql('postgres', 'DELETE FROM lagging WHERE id = 1000') for $pool, $trio->{serial};
trio_equal($trio, 'decoders lag behind', 'lagging');

unlike(slurp_file($_->logfile), qr/TRAP|PANIC|leak/, $_->name . ': no assertion failed') for values %$trio;
done_testing();
