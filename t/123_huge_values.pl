# Values of hundreds of megabytes go through queues of one megabyte, whoever formats
# them and in whatever form: out of line, compressed, as bytea and as text.
#
# A queue that waits until a whole value fits never moves again.
#
# One value of the routine test has 300 MB, the others 15; with
# PGPARREP_TEST_MEGABYTES=300 there is one of 300 MB of each kind in each case.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $megabytes = $ENV{PGPARREP_TEST_MEGABYTES};
my $publisher = new_node('publisher', "autovacuum = off\nmax_wal_size = 8GB\npgparrep.force_decoders = on\n");
my $subscriber = new_node('subscriber', "autovacuum = off\nmax_wal_size = 8GB\nwal_retrieve_retry_interval = 100ms\n"
	  . "pgparrep.apply_buffer = 8MB\npgparrep.cached_changes = 0\npgparrep.cached_transactions = 0\n");

$_->safe_psql(
	'postgres', q{
	CREATE TABLE t (id text PRIMARY KEY, n int, b bytea, t text, c text);
	ALTER TABLE t ALTER b SET STORAGE EXTERNAL, ALTER t SET STORAGE EXTERNAL;
}) for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 2);

# Values whose megabytes differ, so that a piece in the wrong place shows.
my $sums = q{SELECT id, n, length(b), md5(b), length(t), md5(t), length(c), md5(c) FROM t ORDER BY id};
my $large = q{(SELECT string_agg(md5((%d + i)::text) || filler, '')
	FROM generate_series(1, %d) i, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 32767) i) AS f(filler))};

# bounded: beyond 1 MB the server's reorder buffer has the value until the commit
foreach my $case (
	[ 'native', tuple_format => 'auto', decode_buffer => '0', parallel_decode_num => 4, 300 ],
	[ 'native inline', tuple_format => 'auto', decode_buffer => '0', parallel_decode_num => 1 ],
	[ 'text', tuple_format => 'text', decode_buffer => '0', parallel_decode_num => 4 ],
	[ 'text inline', tuple_format => 'text', decode_buffer => '0', parallel_decode_num => 1 ],
	[ 'bounded', tuple_format => 'auto', decode_buffer => '1', parallel_decode_num => 4 ])
{
	my ($name, %settings) = @$case[ 0 .. 6 ];
	my $mb = $megabytes // $case->[7] // 15;

	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.$_ = '$settings{$_}'") for sort keys %settings;
	$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.decode_txn_buffer = '$settings{decode_buffer}'");
	$subscriber->reload;
	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');

	my $value = sprintf($large, 1, $mb);
	my $small = $megabytes // 15;
	$publisher->safe_psql('postgres', "INSERT INTO t (id, n, t) SELECT '$name', 1, $value");
	$value = sprintf($large, 7, $small);
	$publisher->safe_psql('postgres', "
		BEGIN;
		INSERT INTO t SELECT '$name, company ' || i, i FROM generate_series(1, 100) i;
		INSERT INTO t SELECT '$name, two', 2, decode(v, 'hex'), v, v FROM $value AS f(v);
		INSERT INTO t (id, b) SELECT '$name, bytes', convert_to($value, 'UTF8');
		INSERT INTO t (id, c) VALUES ('$name, compressed', repeat('compressed', $small * 100000));
		UPDATE t SET n = n + 1 WHERE id LIKE '$name%';
		COMMIT");
	wait_caught_up($publisher, $subscriber);
	is($subscriber->safe_psql('postgres', $sums), $publisher->safe_psql('postgres', $sums), "$name: $mb MB");
	$publisher->safe_psql('postgres', 'TRUNCATE t');
}

$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
$_->stop for $subscriber, $publisher;
unlike(slurp_file($_->logfile), qr/TRAP|PANIC|was terminated by signal|ERROR/, 'no error') for $publisher, $subscriber;
done_testing();
