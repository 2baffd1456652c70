# A client that confirms every position it hears of and is cut off at random
# loses no commit.
#
# The walsender's keepalives announce the end of the last record that it has
# decoded.  While frames are batched, that lies beyond commits that have not been
# sent; a client that has nothing else to wait for confirms it, and after a
# reconnect those commits are skipped.  Without the cap in sender.c about one
# commit in eight is overtaken here.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = publisher_node('publisher', wal_sender_timeout => '2s');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE ledger (id bigserial PRIMARY KEY, v text);
	CREATE TABLE noise (id int, v text);
	CREATE PUBLICATION p FOR TABLE ledger;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
});

my $script = $node->basedir . '/load.sql';
append_to_file($script, q{
INSERT INTO ledger (v) VALUES ('x');
INSERT INTO noise VALUES (1, repeat('n', 500));
BEGIN; INSERT INTO ledger (v) VALUES ('y'); INSERT INTO ledger (v) VALUES ('z'); COMMIT;
BEGIN; INSERT INTO ledger (v) VALUES ('rolled back'); ROLLBACK;
});
my $seconds = $ENV{PGPARREP_TEST_SECONDS} || 10;
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', '4', '-T', $seconds, '-f', $script,
		'-h', $node->host, '-p', $node->port, 'postgres' ],
	'>', \my $out, '2>', \my $err);

my %seen;				# ids of committed rows
my %cut = (connections => 0, keepalives => 0, header => 0);
my ($overtaken_k, $overtaken_w, $back) = (0, 0, 0);
my $end_of_load;
my $caught_up = 0;
my $started = time;

while (!$caught_up)
{
	my $client = eval { replication_connect($node) } or next;
	# the walsender of the connection just cut may still own the slot
	my $tries = 0;
	until (eval { replication_start($client, 's', publication_names => 'p'); 1 })
	{
		die $@ if ++$tries > 200 || $@ !~ /is active/;
		select(undef, undef, undef, 0.05);
		$client = replication_connect($node);
	}
	$cut{connections}++;

	my $stop = time + 0.05 + rand(0.6);
	my ($keepalive, $header) = (0, 0);
	my @frames;
	my $n = 0;

	while (1)
	{
		if (!defined $end_of_load && time - $started > $seconds + 1)
		{
			$load->finish;
			$end_of_load = $node->safe_psql('postgres',
				"SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
			$node->safe_psql('postgres', 'CHECKPOINT');
		}
		last if !defined $end_of_load && time > $stop;

		# ask for a keepalive now and then: at any moment
		my $m = replication_read($client, 0.01);
		if (!defined $m)
		{
			last if !$client->{sock}->connected;
			replication_status($client, $keepalive > $header ? $keepalive : $header, 1);
			next;
		}
		if ($m->{type} eq 'k')
		{
			$cut{keepalives}++;
			$keepalive = $m->{lsn} if $m->{lsn} > $keepalive;
			replication_status($client, $keepalive, 0);
			if (defined $end_of_load && $keepalive >= $end_of_load)
			{
				$caught_up = 1;
				last;
			}
		}
		else
		{
			$back++ if $m->{lsn} < $header;
			push @frames, fstream_parse($m->{data});
			foreach my $f (fstream_parse($m->{data}))
			{
				next if $f->{type} ne 'C';
				my ($commit, $end) = unpack('x Q> Q>', $f->{body});
				# confirming a position skips commits that begin before it
				$overtaken_k++ if $commit < $keepalive;
				$overtaken_w++ if $commit < $header || $m->{lsn} < $end;
			}
			$header = $m->{lsn};
			# confirm at once what the header says
			replication_status($client, $header, ++$n % 5 == 0);
		}
	}

	my ($done) = fstream_transactions(@frames);
	foreach my $txn (@$done)
	{
		$seen{ (relation_columns($_->[1]))[0] }++ for @{ $txn->{changes} };
	}
	close $client->{sock};
}

note "$cut{connections} connections, $cut{keepalives} keepalives, "
  . scalar(keys %seen) . " rows";
cmp_ok($cut{connections}, '>', 5, 'was cut off several times');
cmp_ok($cut{keepalives}, '>', 50, 'got keepalives');
is($overtaken_k, 0, 'no commit came after a keepalive beyond it');
is($overtaken_w, 0, 'message headers cover the commits in the message, and none behind it');
is($back, 0, 'header positions never go back');

my @committed = split /\n/, $node->safe_psql('postgres', 'SELECT id FROM ledger ORDER BY id');
my @lost = grep { !$seen{$_} } @committed;
is(scalar(@lost), 0, 'no committed row was lost');
my %committed = map { $_ => 1 } @committed;
is(scalar(grep { !$committed{$_} } keys %seen), 0, 'nothing was invented');
my @twice = grep { $seen{$_} > 1 } keys %seen;
note scalar(@twice) . ' rows came again after a reconnect';

# An idle publisher: a commit arrives at once, not with the next status message.
{
	my $client = replication_connect($node);
	my $tries = 0;
	until (eval { replication_start($client, 's', publication_names => 'p'); 1 })
	{
		die $@ if ++$tries > 200 || $@ !~ /is active/;
		select(undef, undef, undef, 0.05);
		$client = replication_connect($node);
	}
	my $worst = 0;
	for (1 .. 10)
	{
		select(undef, undef, undef, 0.05);
		while (replication_read($client, 0.01)) { }
		$node->safe_psql('postgres', q{INSERT INTO ledger (v) VALUES ('idle')});
		my $t = time;
		my $m;
		do { $m = replication_read($client, 5) } until !$m || $m->{type} eq 'w';
		my $latency = time - $t;
		$worst = $latency if $latency > $worst;
	}
	cmp_ok($worst, '<', 1, 'commits on an idle server arrive at once');
	note "worst latency behind the INSERT's session: $worst s";
}

# Positions follow WAL of which nothing is published.
{
	my $client = replication_connect($node);
	my $tries = 0;
	until (eval { replication_start($client, 's', publication_names => 'p'); 1 })
	{
		die $@ if ++$tries > 200 || $@ !~ /is active/;
		select(undef, undef, undef, 0.05);
		$client = replication_connect($node);
	}
	$node->safe_psql('postgres', q{INSERT INTO noise SELECT 1, repeat('n', 100) FROM generate_series(1, 20000)});
	my $lsn = $node->safe_psql('postgres', "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn");
	my $reached = 0;
	my $until = time + 10;
	while (time < $until && $reached < $lsn)
	{
		my $m = replication_read($client, 0.1);
		replication_status($client, $reached, 1) if !$m;
		$reached = $m->{lsn} if $m && $m->{lsn} > $reached;
	}
	cmp_ok($reached, '>=', $lsn, 'keepalives pass WAL that is not published');
}

$node->stop;
done_testing();
