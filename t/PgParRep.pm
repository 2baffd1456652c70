# Helpers of pgparrep's TAP tests: nodes that accept the plugin, a reader of the
# F stream that knows nothing of the C code, and the comparison with pgoutput.
package PgParRep;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IO::Socket::UNIX ();
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  native_signature
  publisher_node
  fstream_parse
  fstream_transactions
  fstream_receive
  pgoutput_transactions
  compare_streams
  read_binary
  relation_columns
  describe_transaction
  install_random_work
  replication_connect
  replication_start
  replication_read
  replication_status
  replication_stop
);

# With PGPARREP_TEST_DECODERS=n every test of the stream runs with n decoders.
our $decoders = $ENV{PGPARREP_TEST_DECODERS} || 1;

# A started node with logical decoding.  Recent minor releases load only the
# output plugins that output_plugin_libraries names; older ones do not know it
# and would refuse to start with it.
sub publisher_node
{
	my ($name, %conf) = @_;

	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(allows_streaming => 'logical');
	$node->append_conf('postgresql.conf', "$_ = $conf{$_}") for sort keys %conf;
	$node->append_conf('postgresql.conf', 'pgparrep.force_decoders = on') if $decoders > 1;
	$node->start;

	my $known = $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'");
	if ($known)
	{
		$node->safe_psql('postgres',
			'ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, pgparrep');
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('output_plugin_libraries') LIKE '%pgparrep%'");
	}

	return $node;
}

# Tables, a publication p and functions that do random work: some_changes() and
# some_ddl().  The files commit.sql, upsert.sql and ddl.sql of the node's directory are
# scripts for pgbench.
sub install_random_work
{
	my ($node) = @_;
	my $dir = $node->basedir;

	$node->safe_psql(
		'postgres', q{
	CREATE TABLE a (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE a ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE b (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE b REPLICA IDENTITY FULL;
	CREATE TABLE f (id int PRIMARY KEY, v int, big text, m text);
	ALTER TABLE f REPLICA IDENTITY FULL;
	CREATE TABLE off (id int PRIMARY KEY, v int, big text, m text);
	CREATE TABLE part (id int PRIMARY KEY, v int, big text, m text) PARTITION BY HASH (id);
	CREATE TABLE part0 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE part1 PARTITION OF part FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	CREATE PUBLICATION p FOR TABLE a, b, part, f WHERE (v > 50);

	CREATE FUNCTION one_change() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		t text := (ARRAY['a', 'a', 'b', 'b', 'f', 'off', 'part'])[1 + floor(random() * 7)];
		k int := floor(random() * 200);
		big text := CASE WHEN random() < 0.2 THEN repeat(md5(random()::text), 300) END;
	BEGIN
		CASE floor(random() * 6)
		WHEN 0 THEN
			EXECUTE format('INSERT INTO %I (id, v, big) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET v = $2, big = $3', t) USING k, k % 100, big;
		WHEN 1 THEN
			EXECUTE format('UPDATE %I SET v = v + 1 WHERE id = $1', t) USING k;
		WHEN 2 THEN
			EXECUTE format('UPDATE %I SET big = $2, m = $2 WHERE id = $1', t) USING k, big;
		WHEN 3 THEN
			EXECUTE format('DELETE FROM %I WHERE id = $1', t) USING k;
		WHEN 4 THEN
			EXECUTE format('INSERT INTO %I (id, v, big) SELECT i, i %% 100, $2 FROM generate_series($1, $1 + 5) i ON CONFLICT DO NOTHING', t) USING k, big;
		ELSE
			EXECUTE format('UPDATE %I SET id = id + 1000 * floor(random() * 3)::int WHERE id = $1', t) USING k;
		END CASE;
	EXCEPTION WHEN unique_violation THEN NULL;
	END $$;

	CREATE FUNCTION some_changes() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. 1 + floor(random() * 8) LOOP
			BEGIN
				PERFORM one_change();
				-- Transactional ones only at the top: core queues a message at
				-- its end, where the next change of another subtransaction
				-- begins, and replays such a pair in either order.
				IF random() < 0.2 THEN
					PERFORM pg_logical_emit_message(false, 'm', 'x');
				END IF;
				BEGIN
					PERFORM one_change();
					IF random() < 0.3 THEN RAISE division_by_zero; END IF;
				EXCEPTION WHEN division_by_zero THEN NULL;
				END;
				IF random() < 0.2 THEN RAISE division_by_zero; END IF;
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
		END LOOP;
	END $$;

	CREATE FUNCTION some_ddl() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		t text := (ARRAY['a', 'b', 'f', 'off', 'part'])[1 + floor(random() * 5)];
	BEGIN
		SET LOCAL lock_timeout = '200ms';
		CASE floor(random() * 7)
		WHEN 0 THEN EXECUTE format('ALTER TABLE %I ADD IF NOT EXISTS x int DEFAULT 7', t);
		WHEN 1 THEN EXECUTE format('ALTER TABLE %I DROP IF EXISTS x', t);
		WHEN 2 THEN EXECUTE format('TRUNCATE %I', t);
		WHEN 3 THEN CREATE TEMP TABLE IF NOT EXISTS tmp AS SELECT 1;
		WHEN 4 THEN EXECUTE format('ALTER TABLE %I ALTER m TYPE varchar', t);
		WHEN 5 THEN EXECUTE format('ALTER TABLE %I ALTER m TYPE text', t);
		ELSE EXECUTE format('CREATE INDEX ON %I (v)', t);
		END CASE;
	EXCEPTION WHEN lock_not_available OR deadlock_detected OR undefined_object OR duplicate_object OR unique_violation OR internal_error THEN NULL;
	END $$;
	});
	append_to_file("$dir/commit.sql", q{
SELECT setseed(:client_id / 100.0 + random() / 10);
BEGIN; SELECT some_changes(); SELECT some_changes(); COMMIT;
SELECT some_changes();
BEGIN; SELECT some_changes(); ROLLBACK;
});
	# inserts of one key by several sessions at once: some are speculative rows
	# that have to go again
	append_to_file("$dir/upsert.sql", q{
\set k random(5000, 5002)
INSERT INTO a VALUES (:k, 1, repeat('s', 5000)) ON CONFLICT (id) DO UPDATE SET v = a.v + 1;
DELETE FROM a WHERE id = :k;
INSERT INTO b VALUES (:k, 1, NULL) ON CONFLICT DO NOTHING;
DELETE FROM b WHERE id = :k;
});
	append_to_file("$dir/ddl.sql", q{
SELECT some_ddl();
BEGIN; SELECT some_changes(); SELECT some_ddl(); SELECT some_changes(); COMMIT;
BEGIN; SELECT some_changes(); SAVEPOINT s; SELECT some_ddl(); SELECT some_changes(); ROLLBACK TO s; SELECT some_changes(); COMMIT;
});
	return;
}

sub read_binary
{
	my ($file) = @_;

	open(my $fh, '<:raw', $file) or die "could not open $file: $!";
	local $/;
	my $data = <$fh>;
	close $fh;
	return defined $data ? $data : '';
}

# Take a string of frames apart.  pg_recvlogical writes a newline behind each
# CopyData message, so newlines between frames are skipped.
sub fstream_parse
{
	my ($data) = @_;
	my @frames;
	my $pos = 0;

	while ($pos < length $data)
	{
		my $marker = substr($data, $pos, 1);
		if ($marker eq "\n")
		{
			$pos++;
			next;
		}
		die "no frame at offset $pos" if $marker ne 'F';
		# cut off in the middle: the receiver was killed
		last if length($data) - $pos < 10;
		my ($xid, $len) = unpack('x N N', substr($data, $pos, 9));
		last if length($data) - $pos < 9 + $len;
		push @frames,
		  { xid => $xid,
			type => substr($data, $pos + 9, 1),
			body => substr($data, $pos + 10, $len - 1) };
		$pos += 9 + $len;
	}

	return @frames;
}

# The relations that a change names.
sub change_relids
{
	my ($type, $body) = @_;

	return unpack('N', $body) if $type =~ /^[IUD]$/;
	if ($type eq 'T')
	{
		my ($n) = unpack('N', $body);
		return unpack("x5 N$n", $body);
	}
	return ();
}

# Follow the F stream as a subscriber does: buffer by xid, drop what aborts, and
# return the committed transactions in order, each a hash of xid, commit (body of
# C) and changes: [type, body, descriptions in force].  With two-phase decoding a
# prepared transaction and its end come as two of them; commit is then the message
# P, K or r, with its type.  Non-transactional messages come as the second value.
sub fstream_transactions
{
	my @frames = @_;
	my (%buffer, %sub, %rel, %begun, @done, @messages);

	foreach my $f (@frames)
	{
		my ($xid, $type, $body) = @{$f}{qw(xid type body)};

		if ($type eq 'R')
		{
			die 'R with xid' if $xid != 0;
			$rel{ unpack('N', $body) } = $body;
		}
		elsif ($type eq 'Y')
		{
			die 'Y with xid' if $xid != 0;
		}
		elsif ($type eq 'X')
		{
			$sub{$xid} = unpack('N', $body);
		}
		elsif ($type eq 'A')
		{
			my ($subxid) = unpack('N', $body);
			if ($subxid == $xid)
			{
				delete $buffer{$xid};
				delete $sub{$xid};
			}
			else
			{
				@{ $buffer{$xid} } = grep { $_->[0] != $subxid } @{ $buffer{$xid} || [] };
			}
		}
		elsif ($type eq 'C')
		{
			my @changes = map { [ @{$_}[ 1 .. 3 ] ] } @{ $buffer{$xid} || [] };
			push @done, { xid => $xid, commit => $body, changes => \@changes };
			delete $buffer{$xid};
			delete $sub{$xid};
		}
		elsif ($type eq 'b')
		{
			$begun{$xid} = $body;
		}
		elsif ($type eq 'P')
		{
			# flags, then what came before, to the letter
			die 'P without its b' if $body ne "\0" . (delete $begun{$xid} // 'nothing');
			my @changes = map { [ @{$_}[ 1 .. 3 ] ] } @{ $buffer{$xid} || [] };
			push @done, { xid => $xid, commit => "P$body", changes => \@changes };
			delete $buffer{$xid};
			delete $sub{$xid};
		}
		elsif ($type =~ /^[Kr]$/)
		{
			die "change of $xid after P" if $buffer{$xid};
			push @done, { xid => $xid, commit => "$type$body", changes => [] };
		}
		elsif ($type eq 'M' && $xid == 0)
		{
			push @messages, $body;
		}
		elsif ($type =~ /^[IUDTM]$/)
		{
			die 'change without xid' if $xid == 0;
			my @rels = map { $rel{$_} // die "change of unknown relation $_" }
			  change_relids($type, $body);
			push @{ $buffer{$xid} }, [ $sub{$xid} // $xid, $type, $body, "@rels" ];
		}
		else
		{
			die "unknown message type '$type'";
		}
	}

	return (\@done, \@messages, [ keys %buffer ]);
}

# The same from a slot of core's pgoutput, through the SQL functions.
sub pgoutput_transactions
{
	my ($node, $slot, %options) = @_;
	my $options = join(', ', map { "'$_', '$options{$_}'" } sort keys %options);
	my (@done, @messages, %rel, $current);

	my $out = $node->safe_psql('postgres',
		"SELECT xid, encode(data, 'hex')"
		. " FROM pg_logical_slot_get_binary_changes('$slot', NULL, NULL, $options)");
	foreach my $line (split /\n/, $out)
	{
		my ($xid, $hex) = split /\|/, $line;
		my $data = pack('H*', $hex);
		my $type = substr($data, 0, 1);
		my $body = substr($data, 1);

		if ($type =~ /^[Bb]$/)
		{
			$current = { xid => $xid, changes => [] };
		}
		elsif ($type eq 'P')
		{
			$current->{commit} = "P$body";
			push @done, $current;
			undef $current;
		}
		elsif ($type =~ /^[Kr]$/)
		{
			push @done, { xid => $xid, commit => "$type$body", changes => [] };
		}
		elsif ($type eq 'C')
		{
			$current->{commit} = $body;
			push @done, $current;
			undef $current;
		}
		elsif ($type eq 'R')
		{
			$rel{ unpack('N', $body) } = $body;
		}
		elsif ($type eq 'M' && (ord(substr($body, 0, 1)) & 1) == 0)
		{
			push @messages, $body;
		}
		elsif ($type =~ /^[IUDTM]$/)
		{
			my @rels = map { $rel{$_} // die "change of unknown relation $_" }
			  change_relids($type, $body);
			push @{ $current->{changes} }, [ $type, $body, "@rels" ];
		}
	}

	return (\@done, \@messages);
}

sub decoder_option
{
	my (%options) = @_;

	return if $decoders < 2 || ($options{streaming} // 'extreme') !~ /^extreme$/i;
	return if grep { /^parallel.decode.num$/ } keys %options;
	return ('parallel-decode-num' => $decoders);
}

# Run pg_recvlogical up to the present end of WAL and return its output.
# Further options: receive => { option => value }.
sub fstream_receive
{
	my ($node, $slot, %options) = @_;
	my $file = $node->basedir . "/$slot.out";
	my %plugin = (
		'proto_version' => 1,
		'streaming' => 'extreme',
		decoder_option(%options),
		%options);

	# pg_recvlogical drops a message whose header lies beyond the end, so nothing
	# that is published may follow; the checkpoint makes the WAL go on.
	my $endpos = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$node->safe_psql('postgres', 'CHECKPOINT');

	unlink $file;
	my @cmd = (
		'pg_recvlogical', '--start', '--no-loop',
		'-S', $slot, '-d', $node->connstr('postgres'),
		'-f', $file, '-F', '0', '--endpos', $endpos);
	push @cmd, '-o', "$_=$plugin{$_}" for sort keys %plugin;

	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(\@cmd, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	diag("pg_recvlogical: $err") unless $ok;

	return read_binary($file);
}

# The signature for native values as documented, from what a client can know.
sub native_signature
{
	my ($node, $db) = @_;
	my $same = join(',',
		1, (pack('s', 1) eq "\1\0" ? 'le' : 'be'), 'byval8',
		'align' . $node->safe_psql($db, 'SELECT max_data_alignment FROM pg_control_init()'),
		'block' . $node->safe_psql($db, 'SHOW block_size'),
		'name' . ($node->safe_psql($db, 'SHOW max_identifier_length') + 1),
		$node->safe_psql($db, 'SHOW server_encoding'));
	my $abilities = $node->safe_psql(
		$db, q{
		SELECT CASE WHEN 'lz4' = ANY (enumvals) THEN 'lz4,' ELSE '' END
			|| CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'infinite-interval,' ELSE '' END
		FROM pg_settings WHERE name = 'default_toast_compression'});

	return "$same;$abilities";
}

# A replication client that can do what pg_recvlogical does not: confirm at once,
# ask for keepalives, and vanish in the middle.  Returns a hash with the socket.
sub replication_connect
{
	my ($node, %settings) = @_;
	my $path = $node->host . '/.s.PGSQL.' . $node->port;
	my $sock = IO::Socket::UNIX->new(Peer => $path)
	  or die "could not connect to $path: $!";
	binmode $sock;
	my $client = { sock => $sock, buf => '' };
	my $params = '';
	my %params = (
		user => scalar getpwuid($<),
		database => 'postgres',
		replication => 'database',
		%settings);

	$params .= "$_\0$params{$_}\0" for sort keys %params;
	$params = pack('N', 196608) . $params . "\0";
	$sock->syswrite(pack('N', 4 + length $params) . $params);
	_wait_for($client, 'Z');

	return $client;
}

# One message of the server: type and content; nothing on timeout or end.
sub _message
{
	my ($client, $timeout) = @_;
	my $sock = $client->{sock};

	while (1)
	{
		if (length $client->{buf} >= 5)
		{
			my ($type, $len) = unpack('a N', $client->{buf});
			if (length $client->{buf} >= 1 + $len)
			{
				my $content = substr($client->{buf}, 5, $len - 4);
				substr($client->{buf}, 0, 1 + $len) = '';
				return ($type, $content);
			}
		}
		my $rin = '';
		vec($rin, fileno($sock), 1) = 1;
		return unless select($rin, undef, undef, $timeout);
		return unless sysread($sock, $client->{buf}, 65536, length $client->{buf});
	}
}

sub _wait_for
{
	my ($client, $want) = @_;

	while (1)
	{
		my ($type, $content) =
		  _message($client, $PostgreSQL::Test::Utils::timeout_default);
		die "connection lost" unless defined $type;
		if ($type eq 'E')
		{
			$content =~ s/\0(\w)/ $1:/g;
			die "server: $content\n";
		}
		return $content if $type eq $want;
	}
}

sub replication_start
{
	my ($client, $slot, %options) = @_;
	my %all = (proto_version => 1, streaming => 'extreme', decoder_option(%options), %options);
	my $list = join(', ', map { qq{"$_" '$all{$_}'} } sort keys %all);
	my $query = "START_REPLICATION SLOT $slot LOGICAL 0/0 ($list)\0";

	$client->{sock}->syswrite('Q' . pack('N', 4 + length $query) . $query);
	_wait_for($client, 'W');
}

# The next message of the stream as a hash: type 'w' with lsn (of the header) and
# data, or 'k' with lsn and reply.  Undefined after the timeout.
sub replication_read
{
	my ($client, $timeout) = @_;
	my ($type, $content);

	# notices may come at any time
	do { ($type, $content) = _message($client, $timeout) }
	  while defined $type && $type eq 'N';
	return unless defined $type;
	if ($type eq 'E')
	{
		$content =~ s/\0(\w)/ $1:/g;
		die "server: $content\n";
	}
	die "unexpected message '$type'" if $type ne 'd';
	if (substr($content, 0, 1) eq 'w')
	{
		my ($lsn) = unpack('x Q>', $content);
		return { type => 'w', lsn => $lsn, data => substr($content, 25) };
	}
	my ($lsn, $time, $reply) = unpack('x Q> Q> C', $content);
	return { type => 'k', lsn => $lsn, reply => $reply };
}

# End the stream in an orderly way; the connection can start another.
sub replication_stop
{
	my ($client) = @_;

	$client->{sock}->syswrite('c' . pack('N', 4));
	_wait_for($client, 'Z');
}

# Confirm everything up to lsn; with reply, ask for a keepalive.
sub replication_status
{
	my ($client, $lsn, $reply) = @_;
	my $content = pack('a Q> Q> Q> Q> C', 'r', $lsn, $lsn, $lsn, 0, $reply ? 1 : 0);

	$client->{sock}->syswrite('d' . pack('N', 4 + length $content) . $content);
}

sub describe_transaction
{
	my ($txn) = @_;

	return "xid $txn->{xid}: "
	  . join(' ',
		map { $_->[0] . '[' . unpack('H*', substr($_->[1], 0, 60)) . ']' }
		  @{ $txn->{changes} });
}

# Both streams must have the same transactions in the same order, with the same
# bytes.  Transactions without a change do not count, but prepared ones do: a
# client is told about the end of one whose rows have all been rolled back.
sub compare_streams
{
	my ($extreme, $reference, $name) = @_;
	my @e = grep { @{ $_->{changes} } > 0 || $_->{commit} =~ /^[PKr]/ } @$extreme;
	my @r = grep { @{ $_->{changes} } > 0 || $_->{commit} =~ /^[PKr]/ } @$reference;
	my $changes = 0;

	is(scalar(@e), scalar(@r), "$name: number of transactions");

	for (my $i = 0; $i < @r && $i < @e; $i++)
	{
		my ($e, $r) = ($e[$i], $r[$i]);

		if ($e->{xid} != $r->{xid} || $e->{commit} ne $r->{commit})
		{
			fail("$name: transaction $i");
			diag("got $e->{xid}, expected $r->{xid}");
			return;
		}
		if (@{ $e->{changes} } != @{ $r->{changes} })
		{
			fail("$name: number of changes of $r->{xid}");
			diag("got " . describe_transaction($e));
			diag("expected " . describe_transaction($r));
			return;
		}
		for (my $j = 0; $j < @{ $r->{changes} }; $j++)
		{
			$changes++;
			for my $part (0 .. 2)
			{
				my ($x, $y) = ($e->{changes}[$j][$part], $r->{changes}[$j][$part]);
				next if $x eq $y;
				fail("$name: change $j of $r->{xid}, part $part");
				diag("got      " . unpack('H*', $x));
				diag("expected " . unpack('H*', $y));
				return;
			}
		}
	}

	pass("$name: $changes changes are pgoutput's, byte for byte");
}

# The columns of the first tuple in the body of an I, as text.
sub relation_columns
{
	my ($body) = @_;
	my $pos = 5;
	my ($n) = unpack('n', substr($body, $pos, 2));
	my @cols;

	$pos += 2;
	for (1 .. $n)
	{
		my $kind = substr($body, $pos++, 1);
		if ($kind =~ /[tb]/)
		{
			my ($len) = unpack('N', substr($body, $pos, 4));
			push @cols, substr($body, $pos + 4, $len);
			$pos += 4 + $len;
		}
		else
		{
			push @cols, "<$kind>";
		}
	}

	return @cols;
}

1;
