# Options: who gets what, and what is refused with which words.
#
# Also that a client which does not ask for streaming 'extreme' has pgoutput in
# front of it, and that an error leaves the session usable.
use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(sha256_hex);
use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher', max_prepared_transactions => 5);
my $version = $node->safe_psql('postgres', 'SHOW server_version_num');

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE PUBLICATION p FOR TABLE t;
	SELECT pg_create_logical_replication_slot('s', 'pgparrep');
	SELECT pg_create_logical_replication_slot('plain', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
	SELECT pg_create_logical_replication_slot('twophase', 'pgparrep', false, true);
});

sub start
{
	my ($slot, %options) = @_;
	my $client = replication_connect($node);
	my $error;

	%options = (publication_names => 'p', %options);
	delete $options{$_} for grep { !defined $options{$_} } keys %options;
	$error = $@ unless eval { replication_start($client, $slot, %options); 1 };
	close $client->{sock};
	$node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
	return $error;
}

sub accepted
{
	my ($name, %options) = @_;
	my $slot = delete $options{slot} // 's';
	is(start($slot, %options), undef, "accepted: $name");
}

sub refused
{
	my ($name, $pattern, %options) = @_;
	my $slot = delete $options{slot} // 's';
	like(start($slot, %options) // 'no error', $pattern, "refused: $name");
}

accepted('nothing special');
accepted('name in capitals', streaming => 'EXTREME');
foreach my $n (1, 2, 20)
{
	accepted("parallel-decode-num $n", 'parallel-decode-num' => $n);
	accepted("parallel_decode_num $n", 'parallel_decode_num' => $n);
}
foreach my $name ('max-recordbuffer-in-memory', 'max_recordbuffer_in_memory',
	'max-txn-in-memory', 'max_txn_in_memory')
{
	accepted("$name 0", $name => 0);
	accepted("$name 100", $name => 100);
	refused("$name -1", qr/"-1" of option "$name" is out of range.*from 0 to 1048576/s, $name => -1);
	refused("$name large", qr/out of range.*from 0 to 1048576/s, $name => 1048577);
	refused("$name very large", qr/out of range/, $name => '99999999999999999999');
	refused("$name with unit", qr/invalid value for option "$name": "1MB".*from 0 to 1048576/s, $name => '1MB');
	refused("$name empty", qr/invalid value/, $name => '');
}
foreach my $n (0, 21, -1, '4294967297')
{
	refused("parallel-decode-num $n",
		qr/value "$n" of option "parallel-decode-num" is out of range.*integer from 1 to 20/s,
		'parallel-decode-num' => $n);
}
refused('parallel-decode-num x', qr/invalid value for option "parallel-decode-num": "x"/,
	'parallel-decode-num' => 'x');
refused('both spellings', qr/redundant.*parallel_decode_num|redundant.*parallel-decode-num/s,
	'parallel-decode-num' => 1, 'parallel_decode_num' => 1);
accepted('messages', messages => 'true');
accepted('binary', binary => 'on');
accepted('origin any', origin => 'any');
accepted('origin none', origin => 'none');
refused('origin x', qr/unrecognized origin value: "x"/, origin => 'x');
accepted('two_phase off', two_phase => 'false');
accepted('two-phase slot', slot => 'twophase', proto_version => 3);
accepted('two_phase of a two-phase slot', slot => 'twophase', two_phase => 'true', proto_version => 3);
refused('two_phase with an old proto_version', qr/proto_version=2 does not support two-phase commit/,
	slot => 'twophase', two_phase => 'true', proto_version => 2);
refused('two_phase x', qr/two_phase requires a Boolean value/, two_phase => 'x', proto_version => 3);
refused('unknown option', qr/unrecognized option "nonsense"/, nonsense => 1);
refused('no publication', qr/"publication_names" missing/, publication_names => undef);
refused('empty publication list', qr/"publication_names" missing|invalid publication_names/, publication_names => '');
refused('bad publication list', qr/invalid publication_names syntax/, publication_names => 'a,,b');
refused('high proto_version', qr/proto_version=99/, proto_version => 99);
refused('zero proto_version', qr/proto_version=0/, proto_version => 0);
accepted('proto_version 3', proto_version => 3);

# pgoutput is in charge for all others, of errors too.
refused('our options without extreme', qr/unrecognized pgoutput option: parallel-decode-num/,
	slot => 'plain', streaming => 'off', 'parallel-decode-num' => 1);
refused('another value of streaming', qr/streaming requires a|requires a Boolean/,
	slot => 'plain', streaming => 'extremely');
is(start('plain', streaming => 'on', proto_version => 2), undef, 'streaming on is pgoutput\'s');

# After an error the same connection can start again, in either mode; the
# historic snapshot and the replaced communication functions must not stick.
{
	my $client = replication_connect($node);
	ok(!eval { replication_start($client, 's', publication_names => 'p', 'parallel-decode-num' => 0); 1 },
		'first attempt fails');
	ok(eval { replication_start($client, 's', publication_names => 'p'); 1 },
		'second attempt of the same connection works') or diag $@;
	close $client->{sock};
	$node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
}

# The client may end the stream in an orderly way; the connection goes on.
{
	my $client = replication_connect($node);
	replication_start($client, 's', publication_names => 'p');
	$node->safe_psql('postgres', q{INSERT INTO t VALUES (-1, 'x')});
	my $m;
	do { $m = replication_read($client, 10) } while $m && $m->{type} ne 'w';
	is($m ? substr($m->{data}, 0, 1) : 'nothing', 'F', 'stream before its end');
	ok(eval { replication_stop($client); 1 }, 'orderly end') or diag $@;
	is($node->safe_psql('postgres', q{SELECT active FROM pg_replication_slots WHERE slot_name = 's'}),
		'f', 'slot is free while the connection lives');
	close $client->{sock};
	$node->safe_psql('postgres', q{
		DELETE FROM t;
		SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn())
		FROM pg_replication_slots WHERE NOT active AND slot_name IN ('plain', 'reference')});
}

# Without extreme: the bytes of pgoutput, from the same walsender code.
sub plain_stream
{
	my ($slot, %options) = @_;
	my $client = replication_connect($node);
	my @messages;

	replication_start($client, $slot, publication_names => 'p', streaming => 'off', %options);
	my $end = $node->safe_psql('postgres', "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn");
	$node->safe_psql('postgres', 'CHECKPOINT');
	while (1)
	{
		my $m = replication_read($client, 60) or last;
		push @messages, sprintf('%X %s', $m->{lsn}, unpack('H*', $m->{data})) if $m->{type} eq 'w';
		last if $m->{type} eq 'k' && $m->{lsn} >= $end;
	}
	replication_status($client, $end, 0);
	# before the connection goes, or the next stream begins with this one's messages
	$node->poll_query_until('postgres',
		"SELECT confirmed_flush_lsn - '0/0'::pg_lsn >= $end FROM pg_replication_slots WHERE slot_name = '$slot'")
	  or die 'not confirmed';
	close $client->{sock};
	$node->poll_query_until('postgres',
		'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
	return scalar(@messages) . ' messages, ' . sha256_hex("@messages");
}

$node->safe_psql('postgres', q{
	INSERT INTO t SELECT i, 'x' FROM generate_series(1, 50) i;
	BEGIN; UPDATE t SET v = 'y'; SAVEPOINT a; DELETE FROM t; ROLLBACK TO a; COMMIT;
	TRUNCATE t;
});
my $reference = plain_stream('reference');
like($reference, qr/^1\d\d messages/, 'reference has something');
is(plain_stream('plain'), $reference, 'without extreme the plugin is pgoutput');

# Streaming of large transactions and two-phase, through the plugin as pgoutput.
$node->safe_psql('postgres', q{ALTER SYSTEM SET logical_decoding_work_mem = '64kB'});
$node->reload;
$node->poll_query_until('postgres',
	q{SELECT current_setting('logical_decoding_work_mem') = '64kB'});
$node->safe_psql('postgres', q{
	BEGIN; INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i; COMMIT;
});
is(plain_stream('plain', streaming => 'on', proto_version => 2),
	plain_stream('reference', streaming => 'on', proto_version => 2),
	'streaming on: the same');
$node->safe_psql('postgres', q{
	BEGIN; INSERT INTO t VALUES (10001, 'prepared'); PREPARE TRANSACTION 'gid';
	COMMIT PREPARED 'gid';
	BEGIN; INSERT INTO t VALUES (10002, 'prepared'); PREPARE TRANSACTION 'gid2';
	ROLLBACK PREPARED 'gid2';
});
is(plain_stream('plain', two_phase => 'on', proto_version => 3),
	plain_stream('reference', two_phase => 'on', proto_version => 3),
	'two_phase: the same');

# With extreme, prepared transactions come at COMMIT PREPARED, as with pgoutput
# without two_phase.  The record's own xid is another one.
{
	my $data = fstream_receive($node, 's', publication_names => 'p');
	my ($done, undef, $open) = fstream_transactions(fstream_parse($data));
	my @ids = map { (relation_columns($_->[1]))[0] } @{ $done->[-1]{changes} };
	is("@ids", '10001', 'transaction committed by COMMIT PREPARED');
	is(scalar(@$open), 0, 'ROLLBACK PREPARED is an abort');
}

# Refused by output_plugin_libraries: the server's message names the setting.
SKIP:
{
	my $known = $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'");
	skip 'server without output_plugin_libraries', 1 unless $known;

	$node->safe_psql('postgres', 'ALTER SYSTEM RESET output_plugin_libraries');
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('output_plugin_libraries') NOT LIKE '%pgparrep%'");
	my ($ret, $out, $err) = $node->psql('postgres',
		"SELECT pg_create_logical_replication_slot('x', 'pgparrep')");
	like($err, qr/output_plugin_libraries/, 'the server says what to set');
}

$node->stop;
done_testing();
