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

my $client = replication_connect($node);

# Start with a list of options as it is written in the command, behind those that
# are required and not in it.  Returns the server's error, or nothing.
sub start
{
	my ($slot, $list) = @_;
	my @all = $list;

	foreach my $required ([ proto_version => 1 ], [ publication_names => 'p' ], [ streaming => 'extreme' ])
	{
		my ($name, $value) = @$required;
		unshift @all, "$name '$value'" unless $list =~ /\b$name\b/;
	}
	my $command = "START_REPLICATION SLOT $slot LOGICAL 0/0 (" . join(', ', grep { /\S/ && !/^\w+ -$/ } @all) . ")\0";

	$client->{sock}->syswrite('Q' . pack('N', 4 + length $command) . $command);
	if (eval { PgParRep::_wait_for($client, 'W'); 1 })
	{
		# after an orderly end the server itself would stream nothing more
		close $client->{sock};
		$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');
		$client = replication_connect($node);
		return;
	}
	my $error = $@;
	PgParRep::_wait_for($client, 'Z');
	return $error;
}

# In the lists below a name with "-" instead of a value is an option left out.
sub accepted { is(start('s', $_), undef, "accepted: $_") for @_ }

my $decode = 'parallel-decode-num';
accepted('', q{"max-txn-in-memory" '100', "max-recordbuffer-in-memory" '1048576'},
	q{streaming 'EXTREME'}, q{proto_version '3'}, q{publication_names 'p,"No ""such"" one"'},
	(map { (qq{"$decode" '$_'}, qq{parallel_decode_num '$_'}) } 1, 2, 20),
	(map { my $name = $_; map { qq{"$name" '$_'} } 0, 1, 100, 1048576 }
	  qw(max-recordbuffer-in-memory max_recordbuffer_in_memory max-txn-in-memory max_txn_in_memory)),
	(map { my $name = $_; (qq{"$name"}, map { qq{"$name" '$_'} } qw(true FALSE on off)) } qw(binary messages report-sync report_sync)),
	q{origin 'any'}, q{origin 'NONE'}, q{two_phase 'false'}, q{two_phase 'off'},
	q{"native-signature" ''}, q{native_signature '1,other'}, q{binary 'false', "native-signature" '1,other'});

# Everything else is refused: options, SQLSTATE, what the error has to say.
my $redundant = qr/conflicting or redundant options/;
my @refused = (
	# what is required
	[ q{proto_version -}, '22023', qr/option "proto_version" missing/ ],
	[ q{publication_names -}, '22023', qr/option "publication_names" missing/ ],
	[ q{publication_names ''}, '22023', qr/option "publication_names" missing/ ],
	[ q{publication_names}, '42601', qr/option "publication_names" requires a value/ ],
	[ q{publication_names 'a,,b'}, '42602', qr/invalid publication_names syntax/ ],
	[ q{publication_names '"p'}, '42602', qr/invalid publication_names syntax/ ],
	[ q{proto_version}, '42601', qr/option "proto_version" requires a value/ ],
	[ q{proto_version 'x'}, '22023', qr/invalid proto_version/ ],
	[ q{proto_version '1.5'}, '22023', qr/invalid proto_version/ ],
	[ q{proto_version '4294967297'}, '22023', qr/proto_version "4294967297" out of range/ ],
	[ q{proto_version '-1'}, '22023', qr/proto_version "-1" out of range/ ],
	[ q{proto_version '0'}, '0A000', qr/proto_version=0 but .*protocol 1 or higher/ ],
	[ q{proto_version '99'}, '0A000', qr/proto_version=99 but .*protocol \d or lower/ ],

	# numbers
	(map { [ qq{"$decode" '$_'}, '22023', qr/value "$_" of option "$decode" is out of range.*integer from 1 to 20\./s ] }
		0, 21, -1, '4294967297', '99999999999999999999'),
	(map { [ qq{"$decode" '$_'}, '22023', qr/invalid value for option "$decode": "\Q$_\E".*integer from 1 to 20\./s ] }
		'', 'x', '2 ', ' 2', '2.0', '0x2', 'true'),
	[ qq{"$decode"}, '42601', qr/option "$decode" requires a value/ ],
	[ q{parallel_decode_num '0'}, '22023', qr/value "0" of option "parallel_decode_num" is out of range/ ],
	(map {
			my $name = $_;
			(map { [ qq{"$name" '$_'}, '22023', qr/value "$_" of option "$name" is out of range.*integer from 0 to 1048576\./s ] }
				-1, 1048577, '99999999999999999999'),
			(map { [ qq{"$name" '$_'}, '22023', qr/invalid value for option "$name": "\Q$_\E".*integer from 0 to 1048576\./s ] }
				'', '1MB', '1e3', ' 1', 'on'),
			[ qq{"$name"}, '42601', qr/option "$name" requires a value/ ]
		} qw(max-recordbuffer-in-memory max_recordbuffer_in_memory max-txn-in-memory max_txn_in_memory)),

	# booleans and names
	(map {
			my $name = $_;
			map { [ qq{"$name" '$_'}, '42601', qr/$name requires a Boolean value/ ] } '', '1', '2', 'maybe', 'extreme'
		} qw(binary messages report-sync report_sync two_phase)),
	(map { [ qq{origin '$_'}, '22023', qr/invalid value for option "origin": "$_".*"any" or "none"\./s ] } '', 'x', 'pg_16401'),
	[ q{origin}, '42601', qr/option "origin" requires a value/ ],
	[ q{"native-signature"}, '42601', qr/option "native-signature" requires a value/ ],

	# twice, in whichever spelling and with whichever value
	(map { [ $_, '42601', qr/$redundant/ ] } q{proto_version '1', proto_version '1'}, q{publication_names 'p', publication_names 'p'}),
	(map { my ($a, $b) = @$_; [ "$a, $b", '42601', qr/$redundant.*Option "[a-z_-]+" is given more than once/s ] }
		[ q{streaming 'extreme'}, q{streaming 'extreme'} ], [ q{streaming 'off'}, q{streaming 'extreme'} ],
		[ q{binary 'true'}, q{binary 'true'} ], [ q{messages 'on'}, q{messages 'off'} ], [ q{origin 'any'}, q{origin 'none'} ],
		[ q{two_phase 'off'}, q{two_phase 'off'} ], [ q{"report-sync"}, q{report_sync} ],
		[ qq{"$decode" '1'}, q{parallel_decode_num '2'} ],
		[ q{"max-txn-in-memory" '1'}, q{max_txn_in_memory '1'} ],
		[ q{max_recordbuffer_in_memory '1'}, q{"max-recordbuffer-in-memory" '1'} ],
		[ q{"native-signature" ''}, q{native_signature ''} ]),

	# what does not go together
	[ q{two_phase 'true', proto_version '2'}, '22023', qr/proto_version=2 does not support two-phase commit/ ],
	[ q{binary 'true', "native-signature" '1,other'}, '42601', qr/$redundant.*"binary" cannot be used together with "native-signature"/s ],

	# unknown
	(map { [ qq{"$_" '1'}, '42601', qr/unrecognized option "$_" of output plugin "pgparrep"/ ] }
		'nonsense', 'parallel-decode', 'parallel-decode-nums', 'Binary', 'include-xids', 'report sync', 'failover'));

foreach my $case (@refused)
{
	my ($list, $state, $pattern) = @$case;
	my $error = start('s', $list) // 'no error';
	like($error, qr/ C:$state /, "refused: $list") or next;
	like($error, $pattern, "... and the error says why");
}
is(start('twophase', q{proto_version '3'}), undef, 'two-phase slot');
is(start('twophase', q{proto_version '3', two_phase 'true'}), undef, 'two_phase of a two-phase slot');

# The SQL functions know the same options.
foreach my $case ([ q{'parallel-decode-num', '21'}, qr/is out of range/ ], [ q{'origin', 'x'}, qr/invalid value for option "origin"/ ],
	[ q{'nonsense', '1'}, qr/unrecognized option "nonsense"/ ], [ q{'binary', 'on', 'binary', 'on'}, $redundant ])
{
	my (undef, undef, $err) = $node->psql('postgres', "SELECT pg_logical_slot_peek_binary_changes('s', NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'streaming', 'extreme', $case->[0])");
	like($err, $case->[1], "SQL: $case->[0]");
}

# pgoutput is in charge for all others, of errors too.
like(start('plain', q{streaming 'off', "parallel-decode-num" '1'}), qr/unrecognized pgoutput option: parallel-decode-num/,
	'our options without extreme');
like(start('plain', q{streaming 'extremely'}), qr/streaming requires a/, 'another value of streaming');
is(start('plain', q{streaming 'on', proto_version '2'}), undef, 'streaming on is pgoutput\'s');
close $client->{sock};
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_replication_slots WHERE active');

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
