# Without a parallel worker number a server with pgparrep is a stock server: the
# publisher gets the same commands, in the same order, from CREATE SUBSCRIPTION,
# table synchronization, the apply worker, ALTER and DROP.
#
# A query more per start of an apply worker would not be wrong, but "nothing
# changes unless you ask for it" is what makes preloading the library safe.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use InterfaceNodes;
use Test::More;

my $publisher = new_publisher('publisher',
	conf => "log_line_prefix = '%m [%p] <%a> '\n");
my $stock = new_subscriber('stock', stock => 1);
my $preloaded = new_subscriber('preloaded');
my $connstr = connstr_of($publisher);

# The whole life of a subscription.  Table synchronization runs beside the apply
# worker under another application_name, so it does not mix with what is
# compared.
sub life_of_subscription
{
	my ($subscriber, $name, $options) = @_;

	$subscriber->safe_psql('postgres', 'TRUNCATE t');
	$subscriber->safe_psql('postgres',
		"CREATE SUBSCRIPTION $name CONNECTION '$connstr' PUBLICATION p$options");
	$subscriber->wait_for_subscription_sync($publisher, $name);
	# the worker restarts by itself when two_phase becomes enabled
	$subscriber->poll_query_until('postgres',
		"SELECT subtwophasestate <> 'p' FROM pg_subscription");
	$publisher->safe_psql('postgres', "UPDATE t SET b = '$name'");
	$publisher->wait_for_catchup($name);
	is( $subscriber->safe_psql(
			'postgres', 'SELECT count(*), min(b), max(b) FROM t'),
		"10|$name|$name",
		"$name: applied");

	# a restart of the apply worker
	my $pid = $subscriber->safe_psql('postgres',
		"SELECT pid FROM pg_stat_subscription WHERE subname = '$name' AND relid IS NULL"
	);
	$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION $name SET (binary = true)");
	$subscriber->poll_query_until('postgres',
		"SELECT pid <> $pid FROM pg_stat_subscription WHERE subname = '$name' AND relid IS NULL"
	);
	$publisher->safe_psql('postgres', "UPDATE t SET b = 'again'");
	$publisher->wait_for_catchup($name);
	$subscriber->safe_psql('postgres',
		"ALTER SUBSCRIPTION $name REFRESH PUBLICATION WITH (copy_data = false)");
	$subscriber->safe_psql('postgres', "DROP SUBSCRIPTION $name");

	my @commands = replication_commands($publisher, $name);
	s/\b$name\b/NAME/g foreach @commands;
	return @commands;
}

sub wait_gone
{
	$publisher->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_replication");
}

my @expected = life_of_subscription($stock, 'plain', '');
wait_gone();
note($_) foreach @expected;
cmp_ok(scalar @expected, '>', 6, 'the log has the commands');
like(join("\n", @expected),
	qr/CREATE_REPLICATION_SLOT "NAME" LOGICAL pgoutput/, 'of the slot');
like(join("\n", @expected), qr/START_REPLICATION SLOT "NAME"/,
	'and of the apply worker');

my @got = life_of_subscription($preloaded, 'absent', '');
wait_gone();
is_deeply(\@got, \@expected, 'worker_number absent');

@got = life_of_subscription($preloaded, 'zero', ' WITH (worker_number = 0)');
wait_gone();
is_deeply(\@got, \@expected, 'worker_number 0');

@got = life_of_subscription($preloaded, 'one', " WITH (worker_number = '1')");
wait_gone();
is_deeply(\@got, \@expected, 'worker_number 1');

# with other options on the way
my $options = ' WITH (binary = false, synchronous_commit = local, copy_data = true, streaming = on)';
@expected = life_of_subscription($stock, 'options_stock', $options);
wait_gone();
$options =~ s/\(/(worker_number = 1, /;
@got = life_of_subscription($preloaded, 'options_one', $options);
is_deeply(\@got, \@expected, 'other options pass through');

# two_phase, for which the worker restarts by itself
$publisher->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
$publisher->restart;
@expected = life_of_subscription($stock, 'two_phase_stock',
	' WITH (two_phase = true)');
wait_gone();
@got = life_of_subscription($preloaded, 'two_phase_one',
	' WITH (two_phase = true, worker_number = 1)');
is_deeply(\@got, \@expected, 'two_phase');

$stock->stop;
$preloaded->stop;
$publisher->stop;
done_testing();
