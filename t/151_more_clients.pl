# Clients of other kinds: temporary slots, pg_recvlogical on its own, messages in WAL
# order, and two servers that subscribe to each other with origin = none.
#
# A change that came from the other server and is sent back to it goes round for
# ever, or stops both by a conflict.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use EndToEnd;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

$PgParRep::decoders = 2;		# for pgparrep.force_decoders
my ($east, $west) = map { new_node($_, "pgparrep.force_decoders = on\nwal_retrieve_retry_interval = 200ms\n") } qw(east west);
my $version = $east->safe_psql('postgres', 'SHOW server_version_num');

$_->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE counter (id int PRIMARY KEY, n int);
	CREATE PUBLICATION p FOR TABLE t, counter;
}) for $east, $west;

sub command
{
	my ($client, $text) = @_;
	$client->{sock}->syswrite('Q' . pack('N', 5 + length $text) . "$text\0");
	PgParRep::_wait_for($client, 'Z');
}

# Frames up to a position.
sub frames_to
{
	my ($client, $end) = @_;
	my $data = '';

	while (1)
	{
		my $m = replication_read($client, 30) or die 'nothing comes';
		$data .= $m->{data} if $m->{type} eq 'w';
		last if $m->{type} eq 'k' && $m->{lsn} >= $end;
	}
	return fstream_parse($data);
}

sub position
{
	my $end = $east->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
	$east->safe_psql('postgres', 'CHECKPOINT');
	return $end;
}

# A temporary slot lives until an error or the end of its connection.
{
	my $client = replication_connect($east);
	command($client, 'CREATE_REPLICATION_SLOT temp TEMPORARY LOGICAL pgparrep NOEXPORT_SNAPSHOT');
	$east->safe_psql('postgres', "INSERT INTO t VALUES (1, 'x')");
	my $end = position();
	replication_start($client, 'temp', publication_names => 'p', 'parallel-decode-num' => 2);
	my ($done) = fstream_transactions(frames_to($client, $end));
	is(join(' ', map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done), '1', 'temporary slot: a stream');
	replication_status($client, $end, 0);
	replication_stop($client);
	is($east->safe_psql('postgres', q{SELECT temporary, plugin FROM pg_replication_slots}), 't|pgparrep', 'it is there');
	close $client->{sock};
	ok($east->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_replication_slots}), 'and gone with the connection');
}

# Messages outside of transactions stand where they were written, with decoders
# at work and without.
foreach my $n (1, 4)
{
	my $client = replication_connect($east);
	command($client, 'CREATE_REPLICATION_SLOT temp TEMPORARY LOGICAL pgparrep NOEXPORT_SNAPSHOT');
	$east->safe_psql('postgres', qq{
		BEGIN;
		DO \$\$ BEGIN
			FOR i IN 1 .. 1000 LOOP
				INSERT INTO t VALUES (100000 * $n + i, repeat('x', 200));
				PERFORM pg_logical_emit_message(i % 3 = 0, 'm', i::text);
			END LOOP;
		END \$\$;
		COMMIT});
	my $end = position();
	replication_start($client, 'temp', publication_names => 'p', messages => 'true', 'parallel-decode-num' => $n);
	my (@order, @expected);
	foreach my $f (frames_to($client, $end))
	{
		push @order, 'row ' . ((relation_columns($f->{body}))[0] - 100000 * $n) if $f->{type} eq 'I';
		push @order, ($f->{xid} == 0 ? 'outside ' : 'inside ') . substr($f->{body}, 15) if $f->{type} eq 'M';
	}
	push @expected, "row $_", ($_ % 3 == 0 ? 'inside ' : 'outside ') . $_ for 1 .. 1000;
	is_deeply(\@order, \@expected, "messages and rows in WAL order with $n decoders");
	close $client->{sock};
	# the server drops it when it sees the end of the connection
	ok($east->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_replication_slots}), 'slot dropped');
}

# pg_recvlogical makes the slot, streams, is interrupted, goes on, drops the slot.
{
	my $file = $east->basedir . '/received';
	my @base = ('pg_recvlogical', '-d', $east->connstr('postgres'), '-S', 'recv');
	my @start = (@base, '--start', '-f', $file, '-F', 0, '-s', 1, '-o', 'proto_version=1', '-o', 'publication_names=p',
		'-o', 'streaming=extreme', '-o', 'parallel-decode-num=2');
	my ($out, $err, @pattern);

	system_or_bail(@base, '--create-slot', '-P', 'pgparrep');
	foreach my $round (1 .. 2)
	{
		my $h = IPC::Run::start(\@start, '>', \$out, '2>', \$err);
		$east->safe_psql('postgres', "INSERT INTO t SELECT 1000000 * $round + i, 'recv' FROM generate_series(1, 1000) i");
		my $until = time + 30;
		my @ids;
		while (time < $until)
		{
			my ($done) = fstream_transactions(fstream_parse(-e $file ? read_binary($file) : ''));
			@ids = map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done;
			last if grep { $_ == 1000000 * $round + 1000 } @ids;
			sleep 0.1;
		}
		push @pattern, map { 1000000 * $round + $_ } 1 .. 1000;
		is("@ids", "@pattern", "pg_recvlogical: round $round");
		# so that it does not come again
		my $end = position();
		ok($east->poll_query_until('postgres', "SELECT confirmed_flush_lsn - '0/0'::pg_lsn >= $end FROM pg_replication_slots"),
			'it confirms') or diag $err;
		$h->signal('INT');
		ok($h->finish, 'ends when it is told to') or diag $err;
		$east->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_replication});
	}
	system_or_bail(@base, '--drop-slot');
	is($east->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'), '0', 'pg_recvlogical: slot dropped');
}

# Two servers, each a subscriber of the other.
SKIP:
{
	skip 'subscriptions have no origin option before 16', 6 if $version < 160000;

	$_->safe_psql('postgres', 'TRUNCATE t; INSERT INTO counter VALUES (1, 0), (2, 0)') for $east, $west;
	create_subscription($east, $west, name => 'from_east', publication => 'p', options => 'origin = none, copy_data = false');
	create_subscription($west, $east, name => 'from_west', publication => 'p', options => 'origin = none, copy_data = false');

	my @loads;
	foreach my $side ([ $east, 1 ], [ $west, 2 ])
	{
		my ($node, $n) = @$side;
		my $script = $node->basedir . '/load.sql';
		append_to_file($script, qq{
			\\set id random(1, 500000000)
			BEGIN;
			INSERT INTO t VALUES (2 * :id + $n % 2, 'x') ON CONFLICT DO NOTHING;
			UPDATE counter SET n = n + 1 WHERE id = $n;
			COMMIT;
		});
		push @loads, IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-t', 250, '-f', $script,
				'-h', $node->host, '-p', $node->port, 'postgres' ], '>', \my $out, '2>', \my $err);
	}
	$_->finish for @loads;
	wait_caught_up($east, $west, 'from_east');
	wait_caught_up($west, $east, 'from_west');
	compare_tables($east, $west, 'both have everything');
	is($east->safe_psql('postgres', 'SELECT string_agg(n::text, $$ $$ ORDER BY id) FROM counter'), '1000 1000', 'each once');

	# nothing goes round: no more WAL with rows is written
	my @before = map { $_->safe_psql('postgres', q{SELECT sum(n_tup_ins + n_tup_upd) FROM pg_stat_user_tables}) } $east, $west;
	sleep 1;
	$_->safe_psql('postgres', q{SELECT pg_stat_clear_snapshot()}) for $east, $west;
	my @after = map { $_->safe_psql('postgres', q{SELECT sum(n_tup_ins + n_tup_upd) FROM pg_stat_user_tables}) } $east, $west;
	is("@after", "@before", 'and nothing goes round');
	unlike(slurp_file($_->logfile), qr/ERROR|conflict/, 'no conflict') for $east, $west;
	$west->safe_psql('postgres', 'DROP SUBSCRIPTION from_east');
	$east->safe_psql('postgres', 'DROP SUBSCRIPTION from_west');
	is($east->safe_psql('postgres', 'SELECT count(*) FROM pg_replication_slots'), '0', 'no slot is left');
}

$_->stop for $east, $west;
unlike(slurp_file($_->logfile), qr/TRAP|PANIC|was terminated by signal/, 'no crash') for $east, $west;
done_testing();
