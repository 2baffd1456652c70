
=pod

=head1 NAME

ApplyCases - what the tests of dependent transactions have in common

=head1 DESCRIPTION

Each case runs with four and eight workers, with the key table and without it:
the key table only saves work, so what it does not know must not show in any
row.  Built on EndToEnd.

=cut

package ApplyCases;

use strict;
use warnings;

use Exporter 'import';
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  for_each_variant
  stop_apply
  start_apply
  missing_rows
  check_equal
  load
  worker_log
);

# A small wal_retrieve_retry_interval, since each change of worker_number
# restarts the leader.
sub conf { return "wal_retrieve_retry_interval = 500ms\nsynchronous_commit = off\n"; }

=over

=item for_each_variant(subscriber, function)

Calls the function with a name, the number of workers and whether the key table
is on.

=cut

sub for_each_variant
{
	my ($subscriber, $function) = @_;

	foreach my $key_table (qw(on off))
	{
		foreach my $workers (4, 8)
		{
			if (!stock_only())
			{
				$subscriber->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.key_table = $key_table");
				$subscriber->reload;
				$subscriber->safe_psql('postgres',
					'ALTER SUBSCRIPTION sub SET (' . subscription_options($workers) . ')');
			}
			$function->("$workers workers, key table $key_table", $workers, $key_table eq 'on');
			return if stock_only();
		}
	}
	return;
}

=item stop_apply(subscriber), start_apply(subscriber)

Disable and enable the subscription.  What was committed in between is applied
with all workers busy.

=cut

sub stop_apply
{
	my ($subscriber) = @_;

	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub DISABLE');
	wait_for($subscriber, q{SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL},
		'the leader to go');
	return;
}

sub start_apply
{
	my ($subscriber) = @_;

	$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
	return;
}

=item missing_rows(subscriber)

Rows that the present workers did not find.

=cut

sub missing_rows
{
	my ($subscriber) = @_;

	return $subscriber->safe_psql('postgres',
		'SELECT coalesce(sum(missing_rows), 0) FROM pgparrep.stat_apply_worker');
}

=item worker_log(subscriber, offset)

Lines of the log since then that say that something went wrong, but for a
deadlock whose victim is a session of the test.

=cut

sub worker_log
{
	my ($subscriber, $offset) = @_;

	return join "\n",
	  grep { /\b(?:ERROR|FATAL|PANIC):  (?!terminating)|TRAP|will be tried again: (?!deadlock detected)|exited with exit code [^0]|terminated by signal/ }
	  grep { !/\.pl ERROR:  deadlock detected/ }
	  split /\n/, log_since($subscriber, $offset);
}

=item check_equal(publisher, subscriber, name, offset [, tables])

Waits until everything is applied; then tables are equal, no row was missing
and nothing is in the log.

=cut

sub check_equal
{
	my ($publisher, $subscriber, $name, $offset, @tables) = @_;

	wait_caught_up($publisher, $subscriber);
	compare_tables($publisher, $subscriber, $name, @tables);
	is(missing_rows($subscriber), 0, "$name: no row was missing");
	is(worker_log($subscriber, $offset), '', "$name: no error");
	return;
}

=item load(publisher, script, pgbench arguments)

Runs pgbench with a script.

=back

=cut

my $scripts = 0;

sub load
{
	my ($publisher, $script, @arguments) = @_;
	my $file = $publisher->basedir . '/load' . ++$scripts . '.sql';

	append_to_file($file, $script);
	my ($out, $err);
	IPC::Run::run([ 'pgbench', '-n', '--max-tries', 100, '-f', $file, @arguments, '-h', $publisher->host,
			'-p', $publisher->port, 'postgres' ], '>', \$out, '2>', \$err)
	  or die "pgbench: $err";
	return;
}

1;
