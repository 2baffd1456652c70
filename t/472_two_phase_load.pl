# Prepared transactions among a concurrent load, over crashes of both servers, with
# and without the table of keys.
#
# Transactions that wait for the locks of a prepared one, here or on the publisher,
# must not hold what its end has to wait for: the apply would stop for ever.  A lost
# or repeated PREPARE shows as a difference, or as a prepared transaction that is
# left.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber(
	"max_prepared_transactions = 50\nwal_retrieve_retry_interval = 200ms\n");

create_mix_tables($publisher, $subscriber);
create_subscription($publisher, $subscriber, options => 'two_phase = true');
wait_for($subscriber, q{SELECT subtwophasestate = 'e' FROM pg_subscription}, 'two_phase to be on');

# Few rows, so that most transactions depend on a prepared one.
my $dir = $publisher->basedir;
append_to_file("$dir/prepare.sql", q{
\set a random(1, 30)
\set k random(1, 50)
\set x random(1, 1000000000)
\set r random(1, 100)
BEGIN;
UPDATE account SET balance = balance + 7 WHERE id = :a;
INSERT INTO history VALUES (:client_id, :a, 7);
SAVEPOINT s;
SELECT move_unique('k' || :k);
\if :r <= 20
ROLLBACK TO s;
\endif
PREPARE TRANSACTION 'p:x';
UPDATE big SET n = n + 1 WHERE id = :client_id;
\if :r <= 60
COMMIT PREPARED 'p:x';
\else
ROLLBACK PREPARED 'p:x';
\endif
});

# What a crash has left holds locks that the load waits for.
sub end_leftovers
{
	my ($node) = @_;

	foreach my $gid (split /\n/, $node->safe_psql('postgres',
		q{SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - interval '0.5 s' ORDER BY 1}))
	{
		$node->psql('postgres', (rand() < 0.5 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
}

foreach my $key_table ('on', 'off')
{
	$subscriber->append_conf('postgresql.conf', "pgparrep.key_table = $key_table");
	$subscriber->reload;

	my $mix = start_mix($publisher, '-f', "$dir/prepare.sql\@400");
	usleep(2_000_000);
	if ($key_table eq 'on')
	{
		kill_9_all($publisher);
		end_leftovers($publisher);
		usleep(700_000);
		end_leftovers($publisher);
		kill_9_all($subscriber);
		usleep(500_000);
		kill 'TERM', $_ for apply_worker_pids($subscriber);
		usleep(700_000);
	}
	stop_mix($mix);
	usleep(600_000);
	end_leftovers($publisher);

	is($publisher->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, "key_table $key_table: all ended");
	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, "key_table $key_table");
	is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, "key_table $key_table: here as well");
}
cmp_ok($publisher->safe_psql('postgres', 'SELECT count(*) FROM history WHERE delta = 7'), '>', 20, 'some were committed');

unlike(slurp_file($_->logfile), qr/TRAP|PANIC:/, $_->name . ': no assertion failed') for $publisher, $subscriber;
unlike(slurp_file($subscriber->logfile), qr/ERROR:  (?:transaction identifier|prepared transaction)/, 'no error about prepared transactions');
$_->stop for $subscriber, $publisher;
done_testing();
