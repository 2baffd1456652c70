# A standby of the publisher is promoted, slots are made anew or moved: a gap between the
# slot and the subscription, or a subscription that has more than its publisher, is an
# error, and nothing goes on until somebody has said how.
#
# The server's own apply starts at the later position in the first case, and waits until
# the publisher has written as much again in the second; rows are missing, or differ,
# without a word.  The opposite must not happen either: a slot moves on over WAL that has
# nothing for the subscription while its origin stays.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => "the server's own apply looks at nothing" if stock_only();

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
});
my ($first, $old);
my $version = $publisher->safe_psql('postgres', 'SHOW server_version_num');
my $id = 0;

sub publish { my ($sql) = @_; return $publisher->safe_psql('postgres', $sql) }
sub subscribe { my ($sql) = @_; return $subscriber->safe_psql('postgres', $sql) }

sub rows
{
	my ($n) = @_;

	publish("INSERT INTO t SELECT " . (++$id) . ", '$n' FROM generate_series(1, 1)") for 1 .. $n;
	return;
}

sub wait_free { my ($node) = @_; return wait_for($node, q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'sub'}, 'the slot is free') }

sub disable
{
	subscribe('ALTER SUBSCRIPTION sub DISABLE');
	wait_free($publisher);
	wait_for($subscriber, 'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL', 'its worker has left');
	return;
}

sub new_slot { publish(q{SELECT pg_create_logical_replication_slot('sub', 'pgparrep')}); return }

# Enables the subscription, which is refused with a message; returns what the hint says
# to run.
sub refused
{
	my ($what, $pattern) = @_;
	my $size = log_size($subscriber);
	my $count = subscribe('SELECT count(*) FROM t');

	subscribe('ALTER SUBSCRIPTION sub ENABLE');
	wait_for($subscriber, 'SELECT NOT subenabled FROM pg_subscription', "$what: subscription is disabled");
	wait_for($subscriber, 'SELECT count(*) = 0 FROM pg_stat_subscription WHERE pid IS NOT NULL', 'its worker has left');
	my $log = log_since($subscriber, $size);
	like($log, $pattern, "$what: the error");
	is(subscribe('SELECT count(*) FROM t'), $count, "$what: nothing was applied");
	return $log =~ /(SELECT pg_replication_origin_advance\(.*? ENABLE;)/ ? $1 : undef;
}

sub goes_on
{
	my ($what) = @_;

	rows(3);
	wait_caught_up($publisher, $subscriber);
	is(subscribe("SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE id > $id - 3"), join(' ', $id - 2 .. $id), "$what: it goes on");
	return;
}

my $ahead_slot = qr/ERROR:  replication slot "sub" is ahead of subscription "sub".*DETAIL:  It would send what commits after.*has been disabled because of an error/s;

$_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE local (i int)') for $publisher, $subscriber;
publish('CREATE PUBLICATION pub FOR TABLE t');
create_subscription($publisher, $subscriber);
goes_on('at the beginning');

# ---------- what is no gap

# the slot follows WAL without anything of ours, and the origin does not
sub idle
{
	publish('INSERT INTO local SELECT generate_series(1, 10000); CHECKPOINT');
	wait_caught_up($publisher, $subscriber);
	my $lsn = publish('SELECT pg_current_wal_insert_lsn()');
	publish(q{INSERT INTO local VALUES (1)});
	wait_for($publisher, "SELECT confirmed_flush_lsn >= '$lsn' FROM pg_replication_slots WHERE slot_name = 'sub'", 'the slot to follow');
	return publish(q{SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'sub'});
}

my $confirmed = idle();
is(subscribe("SELECT '$confirmed' > remote_lsn FROM pg_replication_origin_status"), 't', 'the slot is ahead of the origin');
kill 'TERM', leader_pid($subscriber);
goes_on('a leader after another');

idle();
subscribe('ALTER SUBSCRIPTION sub SET (worker_number = 0)');
wait_for($subscriber, 'SELECT count(*) = 0 FROM pgparrep.stat_subscription', 'serial apply');
idle();
subscribe('ALTER SUBSCRIPTION sub SET (worker_number = 4)');
wait_for($subscriber, 'SELECT count(*) = 1 FROM pgparrep.stat_subscription', 'parallel apply');
goes_on('a leader after serial apply');

idle();
$subscriber->restart;
goes_on('a leader after a restart of the server');

idle();
kill_9_all($subscriber);
wait_until_up($subscriber);
goes_on('a leader after a crash');

idle();
disable();
subscribe('ALTER SUBSCRIPTION sub ENABLE');
goes_on('a leader after a while');

# ---------- a slot that is moved, or made anew

disable();
rows(5);
publish(q{SELECT pg_replication_slot_advance('sub', pg_current_wal_lsn())});
rows(5);
my $accept = refused('a slot is moved', $ahead_slot);
refused('and again', $ahead_slot);
subscribe($_) for split /(?<=;)/, $accept;
goes_on('as the hint says');
is(subscribe("SELECT count(*) FROM t WHERE v = '5'"), 5, 'without what was left out');

disable();
publish(q{SELECT pg_drop_replication_slot('sub')});
rows(2);
new_slot();
$accept = refused('a slot is made anew', $ahead_slot);
subscribe($_) for split /(?<=;)/, $accept;
goes_on('as the hint says');

# ---------- a standby that lacks the last commits

sub attach_standby
{
	my ($name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$publisher->backup($name);
	$standby->init_from_backup($publisher, $name, has_streaming => 1);
	$standby->start;
	wait_for($publisher, "SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$name' AND state = 'streaming'", 'the standby');
	return $standby;
}

sub caught_up_standby
{
	my ($name) = @_;
	my $lsn = publish('SELECT pg_current_wal_flush_lsn()');

	return wait_for($publisher, "SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = '$name' AND replay_lsn >= '$lsn'", 'the standby has all');
}

sub fail_over
{
	my ($standby) = @_;

	$standby->promote;
	$standby->safe_psql('postgres', 'ALTER SYSTEM RESET primary_conninfo');
	$publisher = $standby;
	subscribe("ALTER SUBSCRIPTION sub CONNECTION '" . connection($publisher) . "'");
	return;
}

$first = $publisher;
my $standby = attach_standby('second');
goes_on('with a standby');
caught_up_standby('second');
$standby->safe_psql('postgres', q{ALTER SYSTEM SET primary_conninfo = ''});
$standby->reload;
wait_for($standby, 'SELECT count(*) = 0 FROM pg_stat_wal_receiver', 'the standby to be cut off');
publish('INSERT INTO local SELECT generate_series(1, 10000)');
rows(10);
wait_caught_up($publisher, $subscriber);
is(subscribe("SELECT count(*) FROM t WHERE v = '10'"), 10, 'more than the standby has');
disable();
fail_over($standby);
new_slot();
refused('the publisher has less', qr/ERROR:  subscription "sub" is ahead of its publisher.*DETAIL:  Changes up to .* have been applied, but (the publisher's WAL ends at|from timeline 1, which)/s);
publish('INSERT INTO local SELECT generate_series(1, 100000)');
$accept = refused('the publisher has written more since',
	qr/ERROR:  subscription "sub" is ahead of its publisher.*DETAIL:  Changes up to .* have been applied, but from timeline 1, which the publisher's timeline 2 left at/s);
subscribe($_) for split /(?<=;)/, $accept;
# the slot was made on the new timeline, after the place where it left the old one
wait_for($subscriber, 'SELECT NOT subenabled FROM pg_subscription', 'one after the other');
$accept = refused('a slot after the failover', $ahead_slot);
subscribe($_) for split /(?<=;)/, $accept;
goes_on('with rows that only the subscriber has');
is(subscribe("SELECT count(*) FROM t WHERE v = '10'"), 10, 'which stay');

# ---------- back to the old publisher

disable();
subscribe("ALTER SUBSCRIPTION sub CONNECTION '" . connection($first) . "'");
($old, $publisher) = ($publisher, $first);
publish('INSERT INTO local SELECT generate_series(1, 200000)');
is(refused('the old publisher', qr/ERROR:  subscription "sub" is ahead of its publisher.*of which the publisher's timeline 1 is no continuation/s),
	undef, 'there is no way on');
subscribe("ALTER SUBSCRIPTION sub CONNECTION '" . connection($old) . "'");
$publisher = $old;
subscribe('ALTER SUBSCRIPTION sub ENABLE');
goes_on('with the new one');
$first->stop;

# ---------- a failover without a loss

# with a slot that goes over with the publisher, where the server can do that
SKIP:
{
	skip 'slots do not go over to a standby before 17', 4 if $version < 170000;

	disable();
	subscribe('ALTER SUBSCRIPTION sub SET (failover = true)');
	publish(q{SELECT pg_create_physical_replication_slot('third', true)});
	$publisher->append_conf('postgresql.conf', "synchronized_standby_slots = 'third'");
	$publisher->reload;
	$publisher->backup('third');
	$standby = PostgreSQL::Test::Cluster->new('third');
	$standby->init_from_backup($publisher, 'third', has_streaming => 1);
	$standby->append_conf('postgresql.conf', q{
		hot_standby_feedback = on
		primary_slot_name = 'third'
		sync_replication_slots = on
		synchronized_standby_slots = ''
		primary_conninfo = '} . connection($publisher) . q{ application_name=third'
	});
	$standby->start;
	subscribe('ALTER SUBSCRIPTION sub ENABLE');
	goes_on('with a failover slot');
	wait_for($standby, q{SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots WHERE slot_name = 'sub'}, 'the slot is there, too');
	my $size = log_size($subscriber);
	idle();
	rows(4);
	disable();
	$publisher->stop;
	fail_over($standby);
	subscribe('ALTER SUBSCRIPTION sub ENABLE');
	goes_on('after the failover');
	is(subscribe("SELECT count(*) FROM t WHERE v = '4'"), 4, 'with everything');
	unlike(log_since($subscriber, $size), qr/is ahead of/, 'and no error');
}

unlike(slurp_file($_->logfile), qr/TRAP:|PANIC/, $_->name . ': no crash') for $publisher, $subscriber, $first;
$publisher->stop;
$subscriber->stop;
done_testing();
