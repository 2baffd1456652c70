# Subscriptions with two_phase and a pool of workers, against the server's own apply
# of the same publisher.
#
# A transaction that was prepared on the publisher is prepared on the subscriber:
# its rows cannot be seen, its locks are held, and it outlives whatever happens to
# either server until its end comes.  An end that another worker runs while the
# PREPARE is still being let go of, a PREPARE done twice after a crash, or a
# position that moves without its transaction, would be an error that never
# ends, or lost rows.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = "max_prepared_transactions = 20\nwal_retrieve_retry_interval = 100ms\n";
my ($publisher, $subscriber) = publisher_and_subscriber($conf);
my $stock = new_node('stock', $conf);

$_->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v int, u int UNIQUE, big text);
	ALTER TABLE t ALTER big SET STORAGE EXTERNAL}) for $publisher, $subscriber, $stock;

sub run { $publisher->safe_psql('postgres', join ";\n", @_); }

# What both subscribers show once they have everything.
sub same
{
	my ($what, $prepared) = @_;

	wait_caught_up($publisher, $subscriber, 'parallel');
	wait_caught_up($publisher, $stock, 'serial');
	my $query = q{
		SELECT (SELECT count(*) FROM pg_prepared_xacts),
			(SELECT string_agg(t::text, ' ' ORDER BY id) FROM t)};
	my $expected = $stock->safe_psql('postgres', $query);

	is($subscriber->safe_psql('postgres', $query), $expected, $what);
	is((split /\|/, $expected)[0], $prepared, "$what: prepared transactions") if defined $prepared;
}

foreach my $two_phase ('true', 'false')
{
	my $open = sub { $two_phase eq 'true' ? $_[0] : 0 };
	my $on = "two_phase $two_phase";

	create_subscription($publisher, $subscriber, name => 'parallel', worker_number => 4,
		options => "two_phase = $two_phase", wait => 0);
	create_subscription($publisher, $stock, name => 'serial', worker_number => 0,
		options => "two_phase = $two_phase", wait => 0);
	foreach my $s ([ $subscriber, 'parallel' ], [ $stock, 'serial' ])
	{
		wait_synced(@$s);
		wait_for($s->[0], q{SELECT subtwophasestate <> 'p' FROM pg_subscription}, 'two_phase to be decided');
	}
	wait_for($publisher, q{
		SELECT count(*) = 2 FROM pg_replication_slots WHERE active AND two_phase = } . $two_phase,
		'both to stream');
	is($publisher->safe_psql('postgres', q{SELECT plugin FROM pg_replication_slots WHERE slot_name = 'parallel'}),
		stock_only() ? 'pgoutput' : 'pgparrep', "$on: slot");

	run(q{BEGIN; INSERT INTO t VALUES (1, 1, 1), (2, 2, 2); PREPARE TRANSACTION 'a'},
		q{INSERT INTO t VALUES (3, 3, 3)});
	same("$on: prepared", $open->(1));
	run(q{INSERT INTO t VALUES (4, 4, 4)}, q{COMMIT PREPARED 'a'}, q{UPDATE t SET v = 10 WHERE id = 1});
	same("$on: committed", 0);

	run(q{BEGIN; UPDATE t SET v = 0, u = NULL; PREPARE TRANSACTION 'b'},
		q{ROLLBACK PREPARED 'b'},
		q{UPDATE t SET v = v + 1},
		q{BEGIN; DELETE FROM t WHERE id = 1; PREPARE TRANSACTION 'b'},
		q{COMMIT PREPARED 'b'},
		q{INSERT INTO t VALUES (1, 1, 1)});
	same("$on: rolled back, and one that depends on the end", 0);

	run(q{BEGIN; INSERT INTO t VALUES (11, 1); SAVEPOINT s; INSERT INTO t VALUES (12, 2); ROLLBACK TO s},
		q{SAVEPOINT r; UPDATE t SET v = 3 WHERE id = 11; SAVEPOINT q; DELETE FROM t WHERE id = 4; RELEASE r},
		q{INSERT INTO t VALUES (13, 3, 13, repeat('x', 10000)); PREPARE TRANSACTION 'c'},
		q{BEGIN; SAVEPOINT s; INSERT INTO t VALUES (14, 1); ROLLBACK TO s; PREPARE TRANSACTION 'none'},
		q{BEGIN; PREPARE TRANSACTION 'empty'},
		q{COMMIT PREPARED 'empty'},
		q{COMMIT PREPARED 'none'},
		q{COMMIT PREPARED 'c'});
	same("$on: subtransactions, empty ones", 0);

	# more than the leader keeps in memory
	run(q{BEGIN; INSERT INTO t SELECT i, i FROM generate_series(1001, 3000) i; UPDATE t SET v = 0 WHERE id > 2000; PREPARE TRANSACTION 'large'},
		q{COMMIT PREPARED 'large'}, q{DELETE FROM t WHERE id > 1000});
	same("$on: large", 0);

	# TRUNCATE is left to core by the publisher and conflicts with everything here.
	run(q{BEGIN; TRUNCATE t; INSERT INTO t VALUES (21, 21); PREPARE TRANSACTION 'd'});
	run(q{COMMIT PREPARED 'd'}, q{INSERT INTO t SELECT i, i, i FROM generate_series(22, 60) i});
	same("$on: truncation", 0);

	# No row of a prepared transaction in the way of the others.
	run(q{BEGIN; UPDATE t SET v = -1 WHERE id = 22; PREPARE TRANSACTION 'e'},
		q{BEGIN; DELETE FROM t WHERE id = 23; PREPARE TRANSACTION 'f'},
		q{BEGIN; INSERT INTO t VALUES (24000, 1, 24000); PREPARE TRANSACTION 'g'},
		map { "UPDATE t SET v = v + $_, u = u WHERE id = 24 + $_ % 30" } 1 .. 100);
	same("$on: others go on", $open->(3));

	# Both servers, in every way, between PREPARE and its end.
	if ($two_phase eq 'true')
	{
		$_->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE relid IS NULL})
		  for $subscriber, $stock;
		run(q{COMMIT PREPARED 'e'}, q{INSERT INTO t VALUES (23001, 1)});
		same("$on: new leader", 2);
		run(q{BEGIN; UPDATE t SET v = 1000 WHERE id = 30; PREPARE TRANSACTION 'h'});
		$subscriber->restart;
		run(q{ROLLBACK PREPARED 'h'});
		same("$on: subscriber restarted", 2);
		kill_9_all($publisher);
		run(q{COMMIT PREPARED 'f'}, q{INSERT INTO t VALUES (23, 2)});
		same("$on: publisher crashed", 1);
		run(q{BEGIN; UPDATE t SET v = v + 1 WHERE id = 31; PREPARE TRANSACTION 'i'});
		same("$on: prepared anew", 2);
		kill_9_all($subscriber);
		run(q{COMMIT PREPARED 'i'}, q{COMMIT PREPARED 'g'}, q{UPDATE t SET v = v + 1 WHERE id IN (31, 24000)});
		same("$on: subscriber crashed", 0);

		# The server's own apply knows the prepared transaction by its name.
		run(q{BEGIN; UPDATE t SET v = v + 1 WHERE id = 32; PREPARE TRANSACTION 'j'},
			q{BEGIN; UPDATE t SET v = v + 1 WHERE id = 33; PREPARE TRANSACTION 'k'});
		same("$on: prepared by workers", 2);
		foreach my $number (0, 4)
		{
			my $pid = leader_pid($subscriber, 'parallel');
			$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION parallel SET (worker_number = $number)")
			  unless stock_only();
			run($number == 0 ? q{COMMIT PREPARED 'j'; UPDATE t SET v = v + 1 WHERE id = 32; BEGIN; UPDATE t SET v = v + 1 WHERE id = 32; PREPARE TRANSACTION 'j'}
				: q{ROLLBACK PREPARED 'j'; COMMIT PREPARED 'k'});
			same("$on: with worker_number $number", $number == 0 ? 2 : 0);
		}
	}
	else
	{
		run(q{COMMIT PREPARED 'e'; COMMIT PREPARED 'f'; ROLLBACK PREPARED 'g'});
		same("$on: at the end", 0);
	}
	$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION parallel');
	$stock->safe_psql('postgres', 'DROP SUBSCRIPTION serial');
	$_->safe_psql('postgres', 'TRUNCATE t') for $publisher, $subscriber, $stock;
}

unlike(slurp_file($_->logfile), qr/TRAP|PANIC|already in use|does not exist/, $_->name . ': no error') for $publisher, $subscriber;
$_->stop for $subscriber, $stock, $publisher;
done_testing();
