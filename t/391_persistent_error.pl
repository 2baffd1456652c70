# An error that stays until somebody does something about it.
#
# Each new leader comes to the same transaction again.  If it handed out what
# follows as well, every attempt would write hundreds of transactions into the
# tables only to roll them back, and a subscription left alone over night would
# leave tables and indexes full of dead rows.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'stock apply' if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber("autovacuum = off");

$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text)')
  for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 4);
$subscriber->safe_psql('postgres', q{INSERT INTO t VALUES (13, 'in the way')});

sub errors
{
	my ($n) = @_;
	wait_for($subscriber,
		"SELECT apply_error_count >= $n FROM pg_stat_subscription_stats WHERE subname = 'sub'",
		"$n errors");
	return;
}

sub size { return $subscriber->safe_psql('postgres', q{SELECT pg_relation_size('t')}); }

# the failing one, and much that follows it
$publisher->safe_psql('postgres', join ";\n",
	q{INSERT INTO t VALUES (13, 'row')},
	map { "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series($_ * 100, $_ * 100 + 19) i" } 1 .. 200);
errors(2);
my $before = size();
errors(6);
cmp_ok(size() - $before, '<=', 8192, 'attempts leave no dead rows behind');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t'), 1, 'and nothing else');

$subscriber->safe_psql('postgres', 'DELETE FROM t WHERE id = 13');
wait_caught_up($publisher, $subscriber);
compare_tables($publisher, $subscriber, 'after repair');

# ---------- however many attempts there are, one error

# in the middle of a group, of which the first attempt is at all of it
$subscriber->safe_psql('postgres', q{
	ALTER SUBSCRIPTION sub DISABLE;
	ALTER SUBSCRIPTION sub SET (disable_on_error = true);
	INSERT INTO t VALUES (100020, 'in the way')});
wait_for($publisher, 'SELECT NOT active FROM pg_replication_slots', 'the slot is free');
$publisher->safe_psql('postgres', join ";\n", map { "INSERT INTO t VALUES (100000 + $_, 'row')" } 1 .. 40);
my $offset = log_size($subscriber);
$subscriber->safe_psql('postgres', 'SELECT pg_stat_reset_subscription_stats(oid) FROM pg_subscription');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
wait_for($subscriber, 'SELECT NOT subenabled FROM pg_subscription', 'the subscription is disabled');
errors(1);
my $log = log_since($subscriber, $offset);
is(scalar(() = $log =~ /ERROR:  .*(duplicate key|conflict=insert_exists)/g), 1, 'logged once') or diag $log;
is($subscriber->safe_psql('postgres', 'SELECT apply_error_count FROM pg_stat_subscription_stats'), 1, 'counted once');
is($subscriber->safe_psql('postgres', 'SELECT confl_insert_exists FROM pg_stat_subscription_stats'), 1, 'as a conflict, too')
  if $publisher->pg_version >= 18;
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM t WHERE id BETWEEN 100001 AND 100040 AND id <> 100020'), 19,
	'all before it is there, and nothing after it');

done_testing();
