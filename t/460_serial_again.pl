# The server's own apply can take over at any moment, and hand back.
#
# All there is of progress is the subscription's own replication origin, as the
# server keeps it.  With worker_number taken away, after a crash in the middle
# of a load, with or without the library, serial apply goes on where the pool
# stopped: without loss, without repetition.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
srand($seed);
note("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
});

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 4);
my $mix = start_mix($publisher, '-R', 800);

sub set_number
{
	my ($n) = @_;

	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub SET (worker_number = $n)") unless stock_only();
	return;
}

for my $round (1 .. 4)
{
	usleep(500_000 + int rand 700_000);
	if ($round % 2)
	{
		set_number(1);
		# the pool's last commits may be in memory only
		usleep(150_000 + int rand 100_000);
	}
	kill_9_all($subscriber);
	set_number(1) unless $round % 2;
	wait_for($subscriber, q{
		SELECT count(*) = 1 FROM pg_stat_subscription s
		WHERE pid IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pgparrep.stat_subscription)}, 'serial apply');
	usleep(int rand 700_000);
	kill_9_all($subscriber) if $round == 3;
	set_number(4);
}
usleep(500_000);

# without the library: a label of a provider that is not there means nothing
$subscriber->stop('immediate');
$subscriber->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$subscriber->start;
usleep(1_500_000);
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'}),
	0, 'no pool without the library');
$subscriber->stop('immediate');
$subscriber->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'pgparrep'");
$subscriber->start;
usleep(1_000_000);

stop_mix($mix);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'from the pool to serial apply and back');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pgparrep.stat_subscription'), stock_only() ? 0 : 1, 'parallel in the end');

$subscriber->stop;
$publisher->stop;
done_testing();
