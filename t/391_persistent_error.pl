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

done_testing();
