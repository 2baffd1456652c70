# Clients that send whatever comes to mind: options, commands, status messages,
# garbage, and go away in the middle, while decoders are ended and stopped.  The
# server survives, and a good client gets the complete stream afterwards.
#
# A walsender is a process that any replication user can talk to, and its crash
# takes the whole server down.
#
# The choices are a function of the seed; what they meet is a matter of time.
# fuzz/options runs this for longer and with other seeds.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // 20240229;
my $seconds = $ENV{PGPARREP_TEST_SECONDS} || 8;
my $round_seconds = 8;
srand($seed);
note "seed $seed";

$SIG{PIPE} = 'IGNORE';
$PgParRep::decoders = 2;		# for pgparrep.force_decoders
my $node = publisher_node('publisher',
	autovacuum => 'off',
	deadlock_timeout => '10ms',
	dynamic_shared_memory_type => 'mmap',
	log_statement => 'all',
	log_replication_commands => 'on',
	max_connections => 60,
	max_prepared_transactions => 10,
	max_replication_slots => 30,
	max_wal_senders => 20,
	max_worker_processes => 24,
	restart_after_crash => 'off',
	wal_sender_timeout => '3s');
my $dir = $node->basedir;

sub sql { return $node->safe_psql('postgres', shift) }
sub segments { return join(' ', sort map { glob($node->data_dir . "/$_") } 'pg_dynshmem/mmap.*', 'base/pgsql_tmp/*') }

install_random_work($node);
my @slots = map { "f$_" } 1 .. 8;
sql(q{
	SET client_min_messages = error;
	CREATE ROLE weak LOGIN;
	CREATE ROLE rep LOGIN REPLICATION;
	CREATE PUBLICATION "Odd, ""name""" FOR TABLE b;
	CREATE PUBLICATION empty;
	SELECT pg_create_logical_replication_slot('good', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
	SELECT pg_create_logical_replication_slot('plain', 'pgoutput');
	SELECT pg_create_logical_replication_slot('twophase', 'pgparrep', false, true);
	SELECT pg_create_physical_replication_slot('physical');
} . join('', map { "SELECT pg_create_logical_replication_slot('$_', 'pgparrep');" } @slots));
my $before = segments();
# Assertions of the server's own fail: of pgoutput before 18, in a command behind one
# that exported a snapshot; of the reorder buffer, in a slot that was made while
# catalogs changed and begins with another slot's snapshot.
my $assertions = sql('SHOW debug_assertions') eq 'on';
my $may_export = !$assertions || sql('SHOW server_version_num') >= 180000;
my $signature = native_signature($node, 'postgres');

sub pick { return $_[ int rand @_ ] }
sub chance { return rand() < shift }
sub garbage { return join('', map { chr int rand 256 } 1 .. int rand shift) }

# What options are made of: values that are right, then some that are wrong.
my @booleans = ([ 'true', 'off', '1', 'no', undef ], [ '', '2', 'maybe', 'extreme' ]);
my @megabytes = ([ 0, 1, 2, 8, 100, 1048576 ], [ -1, 1048577, '99999999999999999999', '1MB', '0x10', '1e3', ' ', '' ]);
my %values = (
	proto_version => [ [ 1, 2, 3 ], [ 0, -1, 4, 5, 99, '1.5', 'x', '', '4294967297' ] ],
	publication_names => [ [ 'p', 'empty', 'p,empty', '"Odd, ""name"""', ' p , empty ' ],
		[ '', ',', 'p,,p', '"p', 'no_such', 'p,p', 'P', 'x' x 5000, join(',', map { "p$_" } 1 .. 1000) ] ],
	streaming => [ ['extreme'], [ 'EXTREME', 'on', 'off', 'parallel', 'extremely', '', undef ] ],
	binary => \@booleans,
	messages => \@booleans,
	origin => [ [ 'any', 'none' ], [ '', 'NONE', 'x', undef ] ],
	two_phase => [ [ 'false', 'off' ], [ 'true', 'x', undef ] ],
	'parallel-decode-num' => [ [ 1, 2, 3, 4, 20 ], [ 0, 21, -1, '', 'x', '2 ', undef, 2**31, 2**63 ] ],
	'max-recordbuffer-in-memory' => \@megabytes,
	'max-txn-in-memory' => \@megabytes,
	'report-sync' => \@booleans,
	'native-signature' => [ [ $signature, '1,le', $signature =~ s/;.*/;/r ],
		[ '', ';', ';;;;', ',,,,', "$signature,,", 'x' x 20000, undef ] ],
	'include-xids' => [ [], [ 1, 'x' ] ],
	nonsense => [ [], [ 1, undef ] ]);
my @names = sort keys %values;

sub quote { my ($q, $s) = @_; $s =~ s/$q/$q$q/g; return "$q$s$q" }

# A list of names and values, right but for some surprises.
sub random_options
{
	my $total = chance(0.15);
	my @list;

	push @list, [ proto_version => pick(@{ $values{proto_version}[0] }) ] unless chance(0.03) || $total;
	push @list, [ publication_names => pick(@{ $values{publication_names}[0] }) ] unless chance(0.03) || $total;
	push @list, [ streaming => 'extreme' ] unless chance(0.1) || $total;
	push @list, [ 'parallel-decode-num' => pick(2, 3, 4) ] if chance(0.5) && !$total;
	for (1 .. int rand($total ? 12 : 4))
	{
		my $name = pick(@names);
		my ($good, $bad) = @{ $values{$name} };
		next if !$total && grep { $_->[0] eq $name } @list;
		next unless @$good || $total;
		my $value = pick(@{ !@$good || chance($total ? 0.5 : 0.05) ? $bad : $good });
		$value = garbage(30) =~ tr/\0//dr if $total && chance(0.05);
		$name =~ tr/-/_/ if chance(0.2);
		$name = uc $name if $total && chance(0.05);
		push @list, [ $name, $value ];
	}
	@list = sort { rand() <=> 0.5 } @list if $total;
	return @list;
}

sub start_command
{
	my $list = join(', ', map { quote('"', $_->[0]) . (defined $_->[1] ? ' ' . quote("'", $_->[1]) : '') } random_options());
	my $slot = chance(0.9) ? pick(@slots) : pick('plain', 'twophase', 'physical', 'no_such', $assertions ? () : 'tmp');
	my $lsn = chance(0.9) ? '0/0' : pick('0/1', 'FFFFFFFF/FFFFFFFF', sprintf('%X/%X', rand 2, rand 2**32), 'x');
	return "START_REPLICATION SLOT $slot LOGICAL $lsn" . ($list ne '' || chance(0.5) ? " ($list)" : '');
}

sub replication_command
{
	my $r = rand;
	return start_command() if $r < 0.75;
	return pick($may_export ? ('CREATE_REPLICATION_SLOT tmp TEMPORARY LOGICAL pgparrep') : (),
		'CREATE_REPLICATION_SLOT tmp TEMPORARY LOGICAL pgparrep NOEXPORT_SNAPSHOT',
		q{CREATE_REPLICATION_SLOT tmp TEMPORARY LOGICAL pgparrep (SNAPSHOT 'nothing', TWO_PHASE true)},
		q{CREATE_REPLICATION_SLOT tmp TEMPORARY LOGICAL pgparrep (SNAPSHOT 'use')},
		q{CREATE_REPLICATION_SLOT tmp LOGICAL pgparrep (SNAPSHOT 'x', RESERVE_WAL)},
		'CREATE_REPLICATION_SLOT tmp TEMPORARY LOGICAL no_such',
		'CREATE_REPLICATION_SLOT tmp TEMPORARY PHYSICAL') if $r < 0.87;
	return pick('DROP_REPLICATION_SLOT tmp', 'IDENTIFY_SYSTEM', 'BASE_BACKUP (nonsense)', 'SHOW work_mem', 'SELECT 1',
		'READ_REPLICATION_SLOT f1', 'TIMELINE_HISTORY 1', 'START_REPLICATION 0/0', q{SET bytea_output = 'escape'},
		q{SET client_encoding = 'LATIN1'}, q{SET client_encoding = 'SQL_ASCII'}, garbage(50) =~ tr/\0//dr);
}

# No cancelling of walsenders: an error between the out-of-line chunks of a
# subtransaction and their row has the server's reorder buffer read freed memory.
sub sql_command
{
	my $slot = pick(@slots);
	my $list = join(', ', map { quote("'", $_->[0]) . ', ' . (defined $_->[1] ? quote("'", $_->[1] =~ tr/\x80-\xff//dr) : 'NULL') } random_options());
	my $pid = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder' ORDER BY random() LIMIT 1};

	return pick(
		"SELECT count(*) FROM pg_logical_slot_" . pick('get', 'peek') . pick('_binary', '') . "_changes('$slot', NULL, "
		  . pick(1, 10, 'NULL') . ", VARIADIC ARRAY[$list]::text[])",
		"SELECT count(*) FROM pg_logical_slot_" . pick('get', 'peek') . "_binary_changes('$slot', NULL, 50, "
		  . "'proto_version', '1', 'publication_names', 'p', 'streaming', 'extreme', 'messages', 'true')",
		"SELECT pg_replication_slot_advance('$slot', pg_current_wal_lsn())",
		$assertions ? () : ("SELECT pg_drop_replication_slot('$slot')", "SELECT pg_create_logical_replication_slot('$slot', 'pgparrep')"),
		"SELECT pg_copy_logical_replication_slot('f1', 'tmp', true)",
		"SELECT pg_terminate_backend(($pid))", "SELECT pg_terminate_backend(($pid))", "SELECT pg_cancel_backend(($pid))",
		q{SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE state <> 'startup' ORDER BY random() LIMIT 1},
		q{SELECT pg_logical_emit_message(random() < 0.5, 'm', repeat('x', (random() * 100000)::int))},
		q{INSERT INTO a VALUES (9000 + random() * 100, 1, repeat('big', 300000)) ON CONFLICT DO NOTHING},
		q{BEGIN; SELECT some_changes(); PREPARE TRANSACTION 'g'}, q{COMMIT PREPARED 'g'}, q{ROLLBACK PREPARED 'g'},
		q{SELECT pg_reload_conf()});
}

# Clients: none of them is ever waited for.
my @clients;
my %did;

sub new_client
{
	my $sql = chance(0.25);
	my $client = replication_connect($node,
		replication => $sql ? 'false' : chance(0.95) ? 'database' : 'true',
		chance(0.1) ? (user => $sql ? 'weak' : 'rep') : ());

	@{$client}{qw(sql ready)} = ($sql, 1);
	return $client;
}

sub transmit
{
	my ($client, $type, $content) = @_;
	my $data = $type . pack('N', 4 + length $content) . $content;

	$client->{sock}->blocking(0);
	$client->{broken} = 1
	  unless defined $client->{sock}->syswrite($data);
	$client->{sock}->blocking(1);
}

sub query
{
	my ($client, $text) = @_;
	transmit($client, 'Q', "$text\0");
	$client->{ready} = 0;
	$did{ $text =~ /^(\w+)/ ? lc $1 : 'garbage' }++;
}

# Take what has come; follows whether the server streams.
sub take
{
	my ($client) = @_;

	for (1 .. 20)
	{
		my ($type, $content) = eval { PgParRep::_message($client, 0) };
		return unless defined $type;
		$client->{ready} = 1 if $type eq 'Z';
		$client->{streams} = $type eq 'W' ? 1 : $type eq 'Z' ? 0 : $client->{streams};
		$did{streams}++ if $type eq 'W';
		$did{errors}++ if $type eq 'E';
		$client->{lsn} = unpack('x Q>', $content) if $type eq 'd' && length $content >= 9;
		$client->{broken} = 1 if $type eq 'E' && $content =~ /\0VFATAL/;
	}
}

sub act_on_stream
{
	my ($client) = @_;
	my $r = rand;
	my $lsn = $client->{lsn} // 0;

	if ($r < 0.5) { transmit($client, 'd', pack('a Q> Q> Q> Q> C', 'r', $lsn, $lsn, $lsn, 0, int rand 2)) }
	elsif ($r < 0.65)
	{
		my @any = map { pick(0, 1, $lsn, $lsn + 8, int(rand 2**32), 2**63) } 1 .. 3;
		transmit($client, 'd', pack('a Q> Q> Q> Q> C', 'r', @any, 0, int rand 2));
	}
	elsif ($r < 0.7) { transmit($client, 'd', pack('a Q> N4', 'h', 0, map { int rand 2**32 } 1 .. 4)) }
	elsif ($r < 0.74) { transmit($client, 'd', pick('r', '', garbage(60))) }
	elsif ($r < 0.82) { transmit($client, 'c', '') }
	elsif ($r < 0.84) { transmit($client, 'f', "no\0") }
	elsif ($r < 0.87) { query($client, 'SELECT 1') }
	elsif ($r < 0.9) { transmit($client, pick('X', 'S', 'H', 'z', "\0"), pick('', garbage(20))) }
	else { $client->{broken} = 1 }
}

my %stopped;					# pid => when to go on
sub stop_a_decoder
{
	my @pids = split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder'});
	return unless @pids;
	my $pid = pick(@pids);
	$stopped{$pid} = time + rand 4;
	kill 'STOP', $pid;
	$did{stops}++;
}

sub continue_decoders
{
	foreach my $pid (grep { $_[0] || $stopped{$_} <= time } keys %stopped)
	{
		kill 'CONT', $pid;
		delete $stopped{$pid};
	}
}

sub hostile_second
{
	my $until = time + 1;

	sql('ALTER SYSTEM SET '
	  . pick(q{pgparrep.force_decoders = on}, q{pgparrep.force_decoders = off}, q{timezone = 'UTC'},
			q{timezone = 'Asia/Tokyo'}, q{datestyle = 'sql'}, q{logical_decoding_work_mem = '64kB'},
			q{logical_decoding_work_mem = '64MB'}))
	  if chance(0.3);
	stop_a_decoder() if chance(0.8);
	while (time < $until)
	{
		push @clients, eval { new_client() } if @clients < 8;
		foreach my $client (@clients)
		{
			take($client);
			next if chance(0.6);
			if ($client->{streams}) { act_on_stream($client) if chance(0.3) }
			elsif ($client->{ready}) { query($client, chance($client->{sql} ? 0.95 : 0.05) ? sql_command() : replication_command()) }
			elsif (chance(0.01)) { $client->{broken} = 1 }
		}
		close $_->{sock} for grep { $_->{broken} } @clients;
		@clients = grep { !$_->{broken} } @clients;
		continue_decoders(0);
		sleep 0.01;
	}
}

my $stop_at = time + $seconds;
my $round = 0;
while (time < $stop_at)
{
	my $this = $stop_at - time < $round_seconds ? int($stop_at - time) || 1 : $round_seconds;
	$round++;

	my $load = IPC::Run::start(
		[ 'pgbench', '-n', '-c', 3, '-T', $this, '-R', 60, '-h', $node->host, '-p', $node->port,
			'-f', "$dir/commit.sql\@10", '-f', "$dir/upsert.sql\@5", '-f', "$dir/ddl.sql\@2", 'postgres' ],
		'>', \my $out, '2>', \my $err);
	hostile_second() for 1 .. $this;
	continue_decoders(1);
	close $_->{sock} for @clients;
	@clients = ();
	# The load may wait for what the last commands have prepared.
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	while ($load->pumpable && time < $until)
	{
		$load->pump_nb;
		sql(q{ROLLBACK PREPARED 'g'}) if sql(q{SELECT count(*) FROM pg_prepared_xacts});
		sleep 0.1;
	}
	$load->finish;

	ok($node->poll_query_until('postgres',
			q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('walsender', 'pgparrep decoder')}),
		"round $round: no process stays behind");
	$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%pg\_logical\_slot\_%' AND pid <> pg_backend_pid()});
	sql(q{ROLLBACK PREPARED 'g'}) if sql(q{SELECT count(*) FROM pg_prepared_xacts});
	is(segments(), $before, "round $round: no segment or file stays behind");

	my %options = (publication_names => 'p', messages => 'true');
	my $data = fstream_receive($node, 'good', %options, 'parallel-decode-num' => pick(1, 2, 4));
	my ($extreme, $em) = fstream_transactions(fstream_parse($data));
	my ($reference, $rm) = pgoutput_transactions($node, 'reference', proto_version => 1, %options);
	compare_streams($extreme, $reference, "round $round");
	is(scalar(@$em), scalar(@$rm), "round $round: messages outside of transactions");

	# what is left of a slot that was dropped
	sql("SELECT pg_create_logical_replication_slot('$_', 'pgparrep')
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$_')") for @slots;
	# but where a client has confirmed what does not exist yet
	sql(q{SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots
		WHERE NOT active AND slot_name IN ('plain', 'twophase') AND confirmed_flush_lsn < pg_current_wal_lsn()});
	last unless Test::More->builder->is_passing;
}
note join(', ', map { "$_ $did{$_}" } sort keys %did);
cmp_ok($did{streams} // 0, '>', 10 * $round, 'streams that were started');
cmp_ok($did{errors} // 0, '>', 10 * $round, 'errors');

$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP:|PANIC|was terminated by signal|exited with exit code 2|segfault/, 'no crash');
done_testing();
