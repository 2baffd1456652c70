# DROP DATABASE waits for every process of the server to close the database's
# files, so a decoder or an apply worker that never looked for that request
# would hold it up for ever, even for a database that is not its own.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

# so that there are decoders although there is little to decode
my ($publisher, $subscriber) = publisher_and_subscriber('pgparrep.force_decoders = on');

$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY)') for $publisher, $subscriber;
create_subscription($publisher, $subscriber, worker_number => 3);
$publisher->safe_psql('postgres', 'INSERT INTO t SELECT generate_series(1, 1000)');
wait_caught_up($publisher, $subscriber);
ok($publisher->poll_query_until('postgres', "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder'"),
	'there are decoders')
  unless stock_only();
for ($publisher, $subscriber)
{
	my ($out, $err) = answer($_, "SET statement_timeout = '30s'", 'CREATE DATABASE other', 'DROP DATABASE other');
	is($err, '', 'DROP DATABASE on the ' . $_->name);
}

$subscriber->stop;
$publisher->stop;
done_testing();
