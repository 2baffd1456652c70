# Temporary files on a full and on a slow disk, or over a limit, and no room for dynamic shared
# memory: an error that says what to do, at the launcher's pace; no file is
# left; and apply goes on by itself when there is room.
#
# Otherwise a transaction that does not fit would be lost or applied in part,
# its files would keep the disk full, or the leader would spend its days in
# failing; and the administrator would learn no more than "No space left on
# device".

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'stock apply' if stock_only();

# A library makes the disk full: see full_disk.c.
my $dir = PostgreSQL::Test::Utils::tempdir();
my $library = "$dir/full_disk.so";
plan skip_all => 'no compiler'
  if system("cc -O1 -fPIC -shared -o $library $FindBin::RealBin/full_disk.c -ldl >/dev/null 2>&1") != 0;

sub set_disk
{
	my ($name, $value) = @_;

	unlink "$dir/$name";
	append_to_file("$dir/$name.new", $value), rename("$dir/$name.new", "$dir/$name") if defined $value;
	return;
}

my $conf = q{
wal_sender_timeout = 3s
wal_receiver_timeout = 3s
wal_retrieve_retry_interval = 1s
autovacuum = off
max_parallel_workers_per_gather = 0
};
my $publisher = new_node('publisher', $conf);
my $subscriber;
{
	local $ENV{LD_PRELOAD} = join ' ', grep { defined } $ENV{LD_PRELOAD}, $library;
	local $ENV{FULL_DISK_DIR} = $dir;
	$subscriber = new_node('subscriber', $conf . q{
log_line_prefix = '%m [%p] %e '
dynamic_shared_memory_type = posix
min_dynamic_shared_memory = 0
pgparrep.cached_changes = 100
});
}
$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text)') for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 2);
wait_caught_up($publisher, $subscriber);

# Waits for an error, and then some seconds in which it comes again, but not
# at once.
sub fails
{
	my ($what, $from, $error, $hint, $sqlstate) = @_;
	$sqlstate //= 53100;
	my $count = sub { my $n = () = log_since($subscriber, $from) =~ /ERROR:  $error/g; return $n; };

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $count->() > 0;
		usleep(100_000);
	}
	my $before = $count->();
	sleep 2;
	cmp_ok($before, '>', 0, "$what: an error");
	cmp_ok($count->() - $before, '<=', 3, "$what: not tried again at once");
	like(log_since($subscriber, $from), qr/ $sqlstate ERROR:  $error/, "$what: its SQLSTATE");
	like(log_since($subscriber, $from), qr/HINT:  $hint/, "$what: a hint");
	return;
}

sub no_files
{
	my ($what) = @_;

	for (1 .. 100)
	{
		last unless temporary_files($subscriber);
		usleep(100_000);
	}
	is_deeply([ temporary_files($subscriber) ], [], $what);
	return;
}

my $n = 0;

# Rows that are in a file before their commit, with small transactions beside.
sub change
{
	my ($rows) = @_;
	my $s = session($publisher);

	$n += 1_000_000;
	$s->query("BEGIN; INSERT INTO t SELECT $n + i, 'large ' || i FROM generate_series(1, $rows) i");
	$publisher->safe_psql('postgres', "INSERT INTO t VALUES ($n, 'beside it')");
	$s->query("SAVEPOINT a; DELETE FROM t WHERE id > $n; ROLLBACK TO a; UPDATE t SET v = 'again' WHERE id = $n + 1; COMMIT");
	$s->quit;
	return;
}

# ---------- full

for my $limit (0, 100_000)
{
	my $what = $limit ? 'full in the middle of a file' : 'full from the start';
	my $from = log_size($subscriber);

	set_disk('tmp', $limit);
	change(20_000);
	fails($what, $from, qr/could not write to file "[^"]*pgsql_tmp[^"]*": No space left on device/, qr/Make room in the tablespace of temporary files/);
	like(log_since($subscriber, $from), qr/DETAIL:  1 transactions in progress are in files; of this one the file has \d+ of \d+ bytes/, "$what: the numbers");
	set_disk('tmp');
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "$what: with room again");
	no_files("$what: no file is left");
}

$subscriber->safe_psql('postgres', q{ALTER SYSTEM SET temp_file_limit = '1kB'});
$subscriber->reload;
my $from = log_size($subscriber);
change(20_000);
fails('temp_file_limit', $from, qr/temporary file size exceeds "?temp_file_limit"? \(1kB\)/, qr/Raise temp_file_limit/, 53400);
$subscriber->safe_psql('postgres', 'ALTER SYSTEM RESET temp_file_limit');
$subscriber->reload;
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'temp_file_limit: lifted');
no_files('temp_file_limit: no file is left');

# As long as it is full, nothing stays behind of what failed.
set_disk('tmp', 100_000);
$from = log_size($subscriber);
change(20_000);
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if log_since($subscriber, $from) =~ /No space left/;
	usleep(100_000);
}
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
no_files('nothing of it on the full disk');
set_disk('tmp');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'enabled again');

# ---------- slow

# for longer than the timeouts, if all writes are counted
set_disk('slow', 20_000);
my $offset = log_size($publisher);
$from = log_size($subscriber);
change(25_000);
wait_caught_up($publisher, $subscriber);
set_disk('slow');
compare_tables($publisher, $subscriber, 'slow');
unlike(log_since($publisher, $offset), qr/timeout/, 'slow: the publisher waits');
unlike(log_since($subscriber, $from), qr/ERROR/, 'slow: no error');
no_files('slow: no file is left');

# ---------- no dynamic shared memory

$from = log_size($subscriber);
set_disk('shm', '');
$subscriber->safe_psql('postgres', 'ALTER SYSTEM SET pgparrep.cached_changes = 1000000');
$subscriber->reload;
change(50_000);
fails('shared memory for rows', $from, qr/could not resize shared memory segment "[^"]*" to \d+ bytes: No space left on device/,
	qr/Make room for dynamic shared memory/);
set_disk('shm');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'room for rows again');

$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL}, 'the leader to go');
$from = log_size($subscriber);
set_disk('shm', '');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
change(10);
fails('shared memory for a leader', $from, qr/could not resize shared memory segment "[^"]*" to \d+ bytes: No space left on device/,
	qr/Make room for dynamic shared memory/);
set_disk('shm');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'room for a leader again');
no_files('no file is left');

$subscriber->stop;
$publisher->stop;
done_testing();
