# Decoders may be missing, die, or be slow; the stream is complete all the same,
# the client does not time out, and nothing stays behind.
#
# A server that is shut down ends background workers long before walsenders, which
# still have to send everything: a switchover would lose the connection, or hang,
# if a walsender could not do without its decoders.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $node = publisher_node('publisher',
	wal_sender_timeout => '3s',
	max_worker_processes => 8,
	dynamic_shared_memory_type => 'mmap',
	autovacuum => 'off');
my $logstart = 0;

sub sql { return $node->safe_psql('postgres', shift) }

sub force
{
	sql(q{LOAD 'pgparrep'; ALTER SYSTEM SET pgparrep.force_decoders = } . shift);
	$node->reload;
	sleep 0.2;
}

sub decoders { return split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder' ORDER BY 1}) }
sub segments { return scalar(() = glob($node->data_dir . '/pg_dynshmem/mmap.*')) }

sub gone
{
	my ($name) = @_;
	ok($node->poll_query_until('postgres',
			q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')}),
		"$name: no process stays behind");
}

sub position { return sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn") }

# Reads up to a position, calling a function once in a while; replies as a
# subscriber does.
sub read_to
{
	my ($client, $end, $seconds, $sub) = @_;
	my ($data, $last, $n) = ('', 0, 0);
	my $until = time + $seconds;

	while (time < $until)
	{
		my $m = replication_read($client, 0.1);
		if ($m)
		{
			$data .= $m->{data} if $m->{type} eq 'w';
			$last = $m->{lsn};
			replication_status($client, 0, 0) if $m->{type} eq 'k';
			return ($data, 1) if $m->{type} eq 'k' && $last >= $end;
		}
		$sub->($n++) if $sub;
	}
	return ($data, 0);
}

sub count_rows
{
	my ($done, undef, $open) = fstream_transactions(fstream_parse(shift));
	my $n = 0;
	$n += @{ $_->{changes} } for @$done;
	return $n;
}

sub start
{
	my ($slot, $n, %settings) = @_;
	my $client = replication_connect($node, %settings);
	my $tries = 0;
	until (eval { replication_start($client, $slot, publication_names => 'p', 'parallel-decode-num' => $n); 1 })
	{
		die $@ if ++$tries > 200 || $@ !~ /is active/;
		sleep 0.05;
		$client = replication_connect($node, %settings);
	}
	return $client;
}

sub backlog
{
	my ($rows) = @_;
	sql("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, $rows) i");
	my $end = position();
	sql('CHECKPOINT');
	return $end;
}

sql(q{
	CREATE TABLE t (id int, v text);
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});
my $before = segments();

# Fewer slots than asked for.
{
	my $end = backlog(50000);
	my $client = start('s', 20);
	my @pids;
	for (1 .. 200) { @pids = decoders(); last if @pids == 7; sleep 0.05 }
	is(scalar(@pids), 7, 'as many decoders as there are slots');
	my ($data) = read_to($client, $end, 60);
	is(count_rows($data), 50000, 'and all rows');
	close $client->{sock};
	gone('few slots');
	my $log = slurp_file($node->logfile);
	is(scalar(() = $log =~ /WARNING:  started only 7 of 20 decoders/g), 1, 'one warning');
}

# Terminated while they work: the walsender does their batches.
force('on');
{
	my $end = backlog(200000);
	my $client = start('s', 3);
	my ($data, $all) = read_to($client, $end, 60, sub {
		my $n = shift;
		return unless $n == 20 || $n == 40 || $n == 60;
		my ($pid) = decoders();
		sql("SELECT pg_terminate_backend($pid)") if $pid;
	});
	ok($all, 'stream goes on after the end of decoders');
	is(count_rows($data), 250000, 'nothing is lost or doubled');
	is(scalar(decoders()), 0, 'decoders are gone');
	close $client->{sock};
	gone('terminated');
}

# Slow: the walsender waits, and talks to the client meanwhile.
{
	my $end = backlog(20000);
	my $client = start('s', 2);
	my @pids;
	my ($stopped, $keepalives) = (0, 0);
	for (1 .. 200) { @pids = decoders(); last if @pids == 2; sleep 0.05 }
	kill 'STOP', @pids;
	my $until = time + 8;
	my $data = '';
	while (time < $until)
	{
		my $m = replication_read($client, 0.1) or next;
		$data .= $m->{data} if $m->{type} eq 'w';
		next unless $m->{type} eq 'k';
		$keepalives++;
		replication_status($client, 0, 0);
	}
	cmp_ok($keepalives, '>', 0, "$keepalives keepalives while decoders sleep");
	kill 'CONT', @pids;
	my ($more, $all) = read_to($client, $end, 60);
	ok($all, 'goes on when they wake up');
	is(count_rows($data . $more), 270000, 'with all rows');
	close $client->{sock};
	gone('slow');

	# while it waits it can be ended
	$client = start('s', 2);
	for (1 .. 200) { @pids = decoders(); last if @pids == 2; sleep 0.05 }
	kill 'STOP', @pids;
	# it must wait for decoders, not for us
	1 while replication_read($client, 0.5);
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'});
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'walsender'}),
		'walsender ends while it waits');
	kill 'CONT', @pids;
	gone('ended');
}

# The client vanishes in the middle; another walsender error.
{
	my $client = start('s', 4);
	read_to($client, 2**62, 0.5);
	close $client->{sock};
	gone('client vanished');
	$client = start('s', 4);
	sql(q{DROP PUBLICATION p});
	sql(q{CREATE PUBLICATION p FOR TABLE t});
	eval { replication_stop($client) };
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder'});
	is(scalar(decoders()), 0, 'end of the stream ends decoders, the connection goes on');
	close $client->{sock};
	gone('stopped');
}
is(segments(), $before, 'no segment stays behind');
sql(q{ALTER SYSTEM SET wal_sender_timeout = '60s'});	# not the subject of what follows
force('off');

# Shut down with a backlog: everything is sent first.
{
	sql(q{SELECT pg_create_logical_replication_slot('down', 'pgparrep')});
	backlog(300000);
	my $client = start('down', 4);
	my $pid = fork;
	if ($pid == 0)
	{
		sleep 0.1;
		$node->stop('fast');
		require POSIX;
		POSIX::_exit(0);
	}
	my ($data, $done) = ('', 0);
	my $until = time + 120;
	my $last = 0;
	# the walsender goes when the client has confirmed all
	eval {
		while (time < $until)
		{
			my $m = replication_read($client, 1);
			last if !$m && $done;
			next unless $m;
			$data .= $m->{data} if $m->{type} eq 'w';
			$last = $m->{lsn} if $m->{lsn} > $last;
			$done = 1 if count_end($data);
			replication_status($client, $last, 0) if $m->{type} eq 'k';
		}
	};
	close $client->{sock};
	waitpid $pid, 0;
	is($?, 0, 'the server stops');
	$node->_update_pid(0);
	is(count_rows($data), 300000, 'after everything has been sent');
}

# A commit at the end of the data.
sub count_end
{
	my $data = shift;
	return length $data > 36 && substr($data, -35, 1) eq 'F' && substr($data, -26, 1) eq 'C';
}

unlike(slurp_file($node->logfile), qr/TRAP|PANIC|server process .* was terminated/, 'no crash');
done_testing();
