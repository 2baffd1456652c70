# Few file descriptors, shared memory in files, and one origin: as little as a server can
# be given.
#
# Every open transaction may have a temporary file, every worker opens the files of all
# tables and indexes that it changes, and attaches to segments of the leader; the
# workers of one subscription have one origin, however many they are.  Where one of them
# held on to what it had opened once, a large schema or many open transactions
# would be an error.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my $open = 300;
my $tables = 100;
my $conf = q{
wal_retrieve_retry_interval = 500ms
max_files_per_process = 64
dynamic_shared_memory_type = mmap
};
my $publisher = new_node('publisher', "$conf\nmax_prepared_transactions = $open");
my $origins = $publisher->pg_version >= 18 ? 'max_active_replication_origins' : 'max_replication_slots';
my $subscriber = new_node('subscriber', qq{$conf
$origins = 1
pgparrep.cached_changes = 10
pgparrep.eager_threshold = -1
});

$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
for ($publisher, $subscriber)
{
	$_->safe_psql('postgres', join ";\n", 'CREATE TABLE t (id int PRIMARY KEY, v text)',
		map { "CREATE TABLE t_$_ (id int PRIMARY KEY, v int UNIQUE, w int); CREATE INDEX ON t_$_ (w)" } 1 .. $tables);
}

# a copy has an origin of its own, for which there is no room
create_subscription($publisher, $subscriber, worker_number => 8, options => 'copy_data = false');

# ---------- more transactions than files

my $prepare = join ";\n", map {
	"BEGIN; INSERT INTO t SELECT $_ * 1000 + i, 'row ' || i FROM generate_series(1, 40) i; UPDATE t SET v = 'again' WHERE id = $_ * 1000 + 1; PREPARE TRANSACTION 'p$_'"
} 1 .. $open;
$publisher->safe_psql('postgres', $prepare);
wait_for($subscriber, "SELECT spilled = $open FROM pgparrep.stat_subscription", 'all of them in files');
cmp_ok(scalar(temporary_files($subscriber)), '>=', $open, 'as many files as transactions');
# not as they were begun
$publisher->safe_psql('postgres', join ";\n", map { ($_ * 7 % $open + 1) % 5 ? "COMMIT PREPARED 'p" . ($_ * 7 % $open + 1) . "'" : "ROLLBACK PREPARED 'p" . ($_ * 7 % $open + 1) . "'" } 1 .. $open);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'more transactions than files', 't');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t'), 40 * ($open - $open / 5), 'all that committed');

# ---------- more tables than files

for my $round (1 .. 3)
{
	$publisher->safe_psql('postgres', join ";\n",
		(map { "INSERT INTO t_$_ SELECT $round * 100 + i, $round * 100 + i, i FROM generate_series(1, 20) i" } 1 .. $tables),
		(map { "UPDATE t_$_ SET w = w + 1, v = - v WHERE id % 3 = 0" } 1 .. $tables),
		# and in one transaction
		'BEGIN', (map { "DELETE FROM t_$_ WHERE id % 100 = 7" } 1 .. $tables), 'COMMIT');
}
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'more tables than files');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_origin_status'), 1, 'with one origin');
unlike(slurp_file($subscriber->logfile), qr/ERROR: |WARNING: |TRAP:|PANIC/, 'without a complaint');

$subscriber->stop;
$publisher->stop;
done_testing();
