# The mixed load while workers, the leader, the walsender and the whole
# subscriber are killed with -9, at random.
#
# Progress is one position per subscription.  If a commit were recorded out of
# order, or confirmed to the publisher before it is durable, a crash in the gap
# would lose a transaction; if the position were that of the commit record's
# start, a crash would apply one twice.  "history" has no key of any kind, so
# that a second copy shows.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $kills = $ENV{PGPARREP_TEST_KILLS} // 24;
my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;

srand($seed);
note("PGPARREP_TEST_SEED=$seed");

my ($publisher, $subscriber) = publisher_and_subscriber();

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, worker_number => 4);

# paced: a subscriber that is down most of the time has to catch up as well
my $mix = start_mix($publisher, '-R', 800);

my %killed;
my $done = 0;
for (my $attempts = 0; $done < $kills && $attempts < 4 * $kills; $attempts++)
{
	# each once, then at random
	my $what = (qw(worker leader walsender subscriber))[ $done < 4 ? $done : int rand 4 ];

	usleep(300_000 + int rand 1_200_000);
	if ($what eq 'subscriber')
	{
		kill_9_all($subscriber);
	}
	else
	{
		my ($node, $pid);
		if ($what eq 'walsender')
		{
			$node = $publisher;
			$pid = $publisher->safe_psql('postgres',
				q{SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'sub' AND active});
		}
		elsif ($what eq 'leader' || stock_only())
		{
			$node = $subscriber;
			$pid = leader_pid($subscriber);
		}
		else
		{
			my @pids = apply_worker_pids($subscriber);
			$node = $subscriber;
			$pid = $pids[ rand @pids ] if @pids;
		}
		next unless $pid && kill_9($node, $pid);
	}
	$killed{$what}++;
	$done++;
}
note(join ', ', map { "$killed{$_} times the $_" } sort keys %killed);

is($done, $kills, "killed $kills times");

stop_mix($mix);
wait_until_up($publisher);
wait_until_up($subscriber);
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, "after $kills kills");
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM history'), '>', 1000, 'there was a load');

# What was open when somebody died must not linger.
is_deeply([ temporary_files($subscriber) ], [], 'no temporary file is left');
is( $subscriber->safe_psql(
		'postgres', q{SELECT count(*) FROM pg_replication_origin_status WHERE external_id !~ '^pg_\d+$'}),
	0, 'no origin but the subscription\'s own');

$subscriber->stop;
$publisher->stop;
done_testing();
