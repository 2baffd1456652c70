# Two-phase decoding: a prepared transaction is complete in the stream when it is
# prepared, and its end comes under its own name.
#
# The bytes and their order are compared with those of pgoutput.  What could go
# wrong: rows that are sent but not followed by their PREPARE, a PREPARE that is
# sent twice (at COMMIT PREPARED again) or not at all after a reconnect, the xid of
# the session that runs COMMIT PREPARED taken for that of the transaction, and
# an end without a beginning, which a subscriber could not apply.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher',
	logical_decoding_work_mem => '64kB',
	max_prepared_transactions => 20,
	deadlock_timeout => '10ms',
	autovacuum => 'off');

install_random_work($node);
$node->safe_psql(
	'postgres', q{
	CREATE FUNCTION lockable_ddl() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		SET LOCAL lock_timeout = '200ms';
		CASE floor(random() * 4)
		WHEN 0 THEN ALTER TABLE a ADD IF NOT EXISTS x int DEFAULT 7;
		WHEN 1 THEN ALTER TABLE a DROP IF EXISTS x;
		WHEN 2 THEN TRUNCATE b;
		ELSE ALTER TABLE b ALTER m TYPE varchar;
		END CASE;
	EXCEPTION WHEN lock_not_available OR deadlock_detected THEN NULL;
	END $$;
	INSERT INTO a VALUES (9000, 1), (9001, 1);
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep', false, true);
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput', false, true);
});

my %options = (publication_names => 'p', messages => 'true', proto_version => 3);

# The ends of all transactions, P with the number of its changes.
sub compare
{
	my ($name, $expected) = @_;

	my $data = fstream_receive($node, 'extreme', %options);
	my ($extreme, undef, $open) = fstream_transactions(fstream_parse($data));
	my ($reference) = pgoutput_transactions($node, 'reference', %options);
	# before 18 pgoutput tells the end of a transaction of which it has told nothing
	my %prepared = map { $_->{xid} => 1 } grep { $_->{commit} =~ /^P/ } @$reference;
	our %known;
	%known = (%known, %prepared);
	@$reference = grep { $_->{commit} !~ /^[Kr]/ || $known{ $_->{xid} } } @$reference;
	my $got = join(' ', map { $_->{commit} =~ /^([PKr])/ ? $1 . ($1 eq 'P' ? scalar @{ $_->{changes} } : '') : 'C' } @$extreme);
	# core stops replaying one that has been rolled back meanwhile
	my %gone = map { $_->{xid} => 1 } grep { $_->{commit} =~ /^r/ } @$reference;
	@{ $_->{changes} } = () for grep { $gone{ $_->{xid} } && $_->{commit} =~ /^P/ } @$extreme, @$reference;
	compare_streams($extreme, $reference, $name);
	if (defined $expected)
	{
		is($got, $expected, "$name: what came");
		is(scalar(@$open), 0, "$name: nothing unfinished");
	}
}

sub run { $node->safe_psql('postgres', join ";\n", @_); }

run(q{BEGIN; INSERT INTO a VALUES (9100, 1); INSERT INTO a VALUES (9101, 2); PREPARE TRANSACTION 'one'},
	q{INSERT INTO a VALUES (9102, 3)},
	q{COMMIT PREPARED 'one'});
compare('committed', 'P2 C K');

run(q{BEGIN; INSERT INTO a VALUES (9103, 1); PREPARE TRANSACTION 'two'},
	q{INSERT INTO a VALUES (9104, 3)},
	q{ROLLBACK PREPARED 'two'});
compare('rolled back', 'P1 C r');

run(q{BEGIN; INSERT INTO a VALUES (9105, 1); SAVEPOINT s; INSERT INTO a VALUES (9106, 1); SAVEPOINT t},
	q{UPDATE a SET v = 2 WHERE id = 9106; RELEASE t; ROLLBACK TO s; SAVEPOINT u; DELETE FROM a WHERE id = 9105; PREPARE TRANSACTION 'subs'},
	q{COMMIT PREPARED 'subs'});
compare('subtransactions', 'P2 K');

run(q{BEGIN; SAVEPOINT s; INSERT INTO a VALUES (9107, 1); ROLLBACK TO s; PREPARE TRANSACTION 'none'},
	q{COMMIT PREPARED 'none'});
compare('all rolled back', 'P0 K');

run(q{BEGIN; INSERT INTO a VALUES (9108, 1, repeat('big', 3000)); UPDATE a SET v = 2 WHERE id = 9108; PREPARE TRANSACTION 'big'},
	q{COMMIT PREPARED 'big'});
compare('out-of-line values', 'P2 K');

run(q{BEGIN; INSERT INTO a VALUES (9109, 1); INSERT INTO f VALUES (9109, 60), (9110, 1); INSERT INTO a VALUES (9111, 1); PREPARE TRANSACTION 'filter'},
	q{COMMIT PREPARED 'filter'});
compare('streamed, then queued', 'P3 K');

run(q{BEGIN; INSERT INTO a VALUES (9112, 1); ALTER TABLE a ADD y int; INSERT INTO a VALUES (9113, 1); PREPARE TRANSACTION 'ddl'},
	q{COMMIT PREPARED 'ddl'},
	q{BEGIN; ALTER TABLE a DROP y; PREPARE TRANSACTION 'ddl'},
	q{ROLLBACK PREPARED 'ddl'},
	q{INSERT INTO a VALUES (9114, 1)});
compare('DDL', 'P2 K P0 r C');

run(q{BEGIN; INSERT INTO off VALUES (1); PREPARE TRANSACTION 'unpublished'},
	q{COMMIT PREPARED 'unpublished'},
	q{BEGIN; SELECT * FROM a WHERE id = 9000 FOR UPDATE; PREPARE TRANSACTION 'locks'},
	q{COMMIT PREPARED 'locks'},
	q{BEGIN; SELECT * FROM a WHERE id = 9000 FOR UPDATE; PREPARE TRANSACTION 'locks'},
	q{ROLLBACK PREPARED 'locks'},
	q{BEGIN; PREPARE TRANSACTION 'empty'},
	q{COMMIT PREPARED 'empty'},
	q{BEGIN; SELECT pg_logical_emit_message(true, 'm', 'x'); PREPARE TRANSACTION 'message'},
	q{COMMIT PREPARED 'message'});
compare('nothing published, locks only, empty, a message', 'P0 K P1 K');

# The client comes back between PREPARE and its end: the latter alone is new.
run(q{BEGIN; INSERT INTO a VALUES (9120, 1); PREPARE TRANSACTION 'apart'},
	q{BEGIN; INSERT INTO a VALUES (9121, 1); INSERT INTO f VALUES (9121, 60); PREPARE TRANSACTION 'apart queued'},
	q{BEGIN; INSERT INTO a VALUES (9122, 1); PREPARE TRANSACTION 'apart rolled back'});
compare('prepared', 'P1 P2 P1');
run(q{INSERT INTO a VALUES (9123, 1)}, q{COMMIT PREPARED 'apart'}, q{ROLLBACK PREPARED 'apart rolled back'});
compare('ended in another connection', 'C K r');
run(q{COMMIT PREPARED 'apart queued'});
compare('ended after one more connection', 'K');

# Without origins: what came before the session took one is taken back.
run(q{SELECT pg_replication_origin_create('elsewhere')},
	q{BEGIN; INSERT INTO a VALUES (9130, 1); SELECT pg_replication_origin_session_setup('elsewhere');
	  INSERT INTO a VALUES (9131, 1); PREPARE TRANSACTION 'origin'},
	q{COMMIT PREPARED 'origin'},
	q{BEGIN; INSERT INTO a VALUES (9132, 1); PREPARE TRANSACTION 'origin'},
	q{ROLLBACK PREPARED 'origin'});
run(q{INSERT INTO a VALUES (9133, 1)});
{
	$node->safe_psql('postgres', q{SELECT pg_copy_logical_replication_slot('extreme', 'no_origin')});
	my $data = fstream_receive($node, 'no_origin', %options, two_phase => 'true', origin => 'none');
	my ($extreme, undef, $open) = fstream_transactions(fstream_parse($data));
	is(join(' ', map { map { (relation_columns($_->[1]))[0] } @{ $_->{changes} } } @$extreme), '9133', 'no origin');
	is(scalar(@$open), 0, 'no origin: nothing unfinished');
	$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('no_origin')});
}
compare('with origins', 'P2 K P1 r C');

# The same at random, with concurrent DDL.
my $dir = $node->basedir;
append_to_file("$dir/prepare.sql", q{
\set r random(1, 100)
BEGIN; SELECT some_changes(); SELECT some_changes(); PREPARE TRANSACTION 'c:client_id';
\if :r <= 60
COMMIT PREPARED 'c:client_id';
\else
ROLLBACK PREPARED 'c:client_id';
\endif
});
append_to_file("$dir/prepare_ddl.sql", q{
BEGIN; SELECT some_changes(); SELECT lockable_ddl(); SELECT some_changes(); PREPARE TRANSACTION 'c:client_id';
COMMIT PREPARED 'c:client_id';
});
foreach my $round (1 .. 2)
{
	my ($out, $err) = ('', '');
	IPC::Run::run(
		[ 'pgbench', '-n', '-c', '8', '-T', $ENV{PGPARREP_TEST_SECONDS} || 2, '-h', $node->host, '-p', $node->port,
			'-f', "$dir/commit.sql\@5", '-f', "$dir/prepare.sql\@20",
			'-f', "$dir/prepare_ddl.sql\@" . ($round == 1 ? 1 : 5), 'postgres' ],
		'>', \$out, '2>', \$err);
	my ($processed) = $out =~ /transactions actually processed: (\d+)/;
	note "round $round: $processed scripts";
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, "round $round: all ended");
	compare("round $round");
}

# Two-phase decoding of a slot begins with the client that asks for it.  What has
# been prepared before comes when it commits, and not at all if it does not.
$node->safe_psql('postgres', q{
	SELECT pg_drop_replication_slot('extreme'), pg_drop_replication_slot('reference');
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput')});
run(q{BEGIN; INSERT INTO a VALUES (9200, 1); PREPARE TRANSACTION 'early'},
	q{BEGIN; INSERT INTO a VALUES (9201, 1); PREPARE TRANSACTION 'early rolled back'},
	q{BEGIN; INSERT INTO a VALUES (9202, 1); PREPARE TRANSACTION 'old style'},
	q{COMMIT PREPARED 'old style'},
	q{BEGIN; INSERT INTO a VALUES (9203, 1); PREPARE TRANSACTION 'old style'},
	q{ROLLBACK PREPARED 'old style'},
	q{BEGIN; SELECT * FROM a WHERE id = 9000 FOR UPDATE; PREPARE TRANSACTION 'locks'});
compare('without two-phase decoding', undef);
$options{two_phase} = 'true';
run(q{INSERT INTO a VALUES (9204, 1)});
compare('the client that turns it on', 'C');
run(q{BEGIN; INSERT INTO a VALUES (9205, 1); PREPARE TRANSACTION 'late'},
	q{COMMIT PREPARED 'early'}, q{COMMIT PREPARED 'locks'},
	q{ROLLBACK PREPARED 'early rolled back'}, q{COMMIT PREPARED 'late'});
{
	my $data = fstream_receive($node, 'extreme', %options);
	my ($extreme) = fstream_transactions(fstream_parse($data));
	is(join(' ', map { substr($_->{commit}, 0, 1) . @{ $_->{changes} } } @$extreme), 'P1 P1 K0 r0 K0',
		'prepared before: at COMMIT PREPARED');
	my ($p, $early) = @$extreme;
	cmp_ok(unpack('x2 Q>', $early->{commit}), '<', unpack('x2 Q>', $p->{commit}),
		'with the positions of its PREPARE');
}

# Refused as by pgoutput.
my $client = replication_connect($node);
ok(!eval { replication_start($client, 'extreme', publication_names => 'p', two_phase => 'true', proto_version => 2); 1 },
	'not with an old protocol version');
like($@, qr/proto_version=2 does not support two-phase commit/, 'and the server says so');
close $client->{sock};

unlike(slurp_file($node->logfile), qr/TRAP|PANIC/, 'no assertion failed');
$node->stop;
done_testing();
