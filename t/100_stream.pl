# The F stream has what pgoutput would send, byte for byte.
#
# One workload, two slots: one of core's pgoutput, read through the SQL
# functions, is the reference; the other is streamed with pg_recvlogical.
# The stream is taken apart as a subscriber would, and the transactions that
# remain must be the reference's: same order, same bytes, same relation
# descriptions in force.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PgParRep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = publisher_node('publisher');
my %pub = (publication_names => 'p');
my @raw;

# Run statements in one session and compare what the slots say.
sub check
{
	my ($name, $sql, %options) = @_;

	$node->safe_psql('postgres', $sql);
	compare_now($name, %options);
}

sub compare_now
{
	my ($name, %options) = @_;
	my %common = (%pub, messages => 'true', %options);
	my %reference = (proto_version => 1, %common);

	my $data = fstream_receive($node, 'extreme', %common);
	my @frames = fstream_parse($data);
	push @raw, @frames;
	my ($extreme, $em, $open) = fstream_transactions(@frames);
	my ($reference, $rm) = pgoutput_transactions($node, 'reference', %reference);

	compare_streams($extreme, $reference, $name);
	is(join("\n", map { unpack 'H*', $_ } @$em),
		join("\n", map { unpack 'H*', $_ } @$rm),
		"$name: messages outside of transactions");
	return $extreme;
}

$node->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, b bool, big int8, ts timestamptz, a int[]);
	CREATE TABLE full_id (a int, b text, c int);
	ALTER TABLE full_id REPLICA IDENTITY FULL;
	CREATE TABLE toasted (id int PRIMARY KEY, big text, n int, other text);
	ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE toasted_full (id int PRIMARY KEY, big text, n int, other text);
	ALTER TABLE toasted_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
	CREATE TABLE unpublished (id int PRIMARY KEY, v text);
	CREATE TABLE filtered (id int PRIMARY KEY, v int, big text);
	ALTER TABLE filtered REPLICA IDENTITY FULL;
	ALTER TABLE filtered ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE listed (id int PRIMARY KEY, v int, secret text);
	CREATE TABLE root (a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a);
	CREATE TABLE leaf1 PARTITION OF root FOR VALUES FROM (0) TO (100);
	CREATE TABLE leaf2 (b text, x int, a int NOT NULL);
	ALTER TABLE leaf2 DROP x;
	ALTER TABLE root ATTACH PARTITION leaf2 FOR VALUES FROM (100) TO (200);
	CREATE TABLE plainroot (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
	CREATE TABLE plainleaf PARTITION OF plainroot FOR VALUES FROM (0) TO (100);
	CREATE TABLE emptyroot (a int) PARTITION BY RANGE (a);
	CREATE TYPE mood AS ENUM ('sad', 'ok');
	CREATE DOMAIN posint AS int CHECK (value > 0);
	CREATE DOMAIN ints AS int[];
	CREATE DOMAIN moods AS mood[];
	CREATE TYPE pair AS (x int, y mood);
	CREATE TABLE typed (id int PRIMARY KEY, m mood, d posint, p pair, ma mood[], r int4range, rc regclass, u uuid, j jsonb, bt bytea, bp char(5), g int GENERATED ALWAYS AS (id * 2) STORED, x varchar(10), f float8, s int2, o oid, ia ints, md moods, nr numrange[], iv interval, ip inet, xm xml, ts tsvector, pt point, bt8 bit(8), ch "char", nm name);
	CREATE PUBLICATION p FOR TABLE t, full_id, toasted, toasted_full, plainroot, emptyroot, typed,
		filtered WHERE (v > 10), listed (id, v);
	CREATE PUBLICATION pr FOR TABLE root WITH (publish_via_partition_root = true);
	CREATE PUBLICATION pi FOR TABLE unpublished WITH (publish = 'insert');
	SELECT pg_create_logical_replication_slot('extreme', 'pgparrep');
	SELECT pg_create_logical_replication_slot('reference', 'pgoutput');
});
$pub{publication_names} = 'p,pr';

check('plain', q{
	INSERT INTO t VALUES (1, 'one', 1.50, true, 9223372036854775807, '2020-01-01 00:00+00', '{1,NULL,3}');
	INSERT INTO t VALUES (2, NULL, NULL, false, -9223372036854775808, NULL, '[2:3]={4,5}');
	UPDATE t SET v = 'eins' WHERE id = 1;
	UPDATE t SET id = 10 WHERE id = 1;
	DELETE FROM t WHERE id = 2;
	INSERT INTO unpublished VALUES (1, 'x');
	INSERT INTO full_id VALUES (1, 'a', NULL);
	ALTER TABLE full_id ADD d boolean NOT NULL DEFAULT false;
	INSERT INTO full_id VALUES (2, 'b', 3, true);
	UPDATE full_id SET c = 5;
	ALTER TABLE full_id DROP b;
	UPDATE full_id SET c = 6;
	DELETE FROM full_id;
});

check('many rows', q{
	BEGIN;
	INSERT INTO t SELECT i, 'row ' || i, i / 7.0, i % 2 = 0, i, NULL, ARRAY[i, i + 1] FROM generate_series(100, 2100) i;
	UPDATE t SET n = n + 1 WHERE id > 1000;
	DELETE FROM t WHERE id > 2000;
	COMMIT;
	COPY t (id, v) FROM PROGRAM 'seq -f "%g	copied" 5000 9000';
});

check('types', q{
	INSERT INTO typed (id, m, d, p, ma, r, rc, u, j, bt, bp, x, f, s, o, ia, md, nr, iv, ip, ts, pt, bt8, ch, nm)
		VALUES (1, 'ok', 5, '(1,sad)', '{ok,sad}', '[1,5)', 'pg_class', '00000000-0000-0000-0000-000000000001',
			'{"a": [1, "x"]}', '\x0001ff', 'ab', 'vc', 1.1, -32768, 4294967295,
			'{1,2}', '{sad}', '{"[1,2)"}', '1 day 02:03', '10.0.0.0/8', 'a:1 b:2', '(1,2)', '10101010', 'c', 'name');
	UPDATE typed SET m = 'sad', bp = NULL, f = 'NaN';
	ALTER TYPE mood ADD VALUE 'happy';
	UPDATE typed SET m = 'happy', ma = '{happy}';
	ALTER TYPE mood RENAME VALUE 'ok' TO 'fine';
	UPDATE typed SET m = 'fine', f = '-infinity', s = 0, o = 0;
	ALTER TYPE mood RENAME TO humour;
	UPDATE typed SET id = 2;
	DELETE FROM typed;
});

check('savepoints', q{
	BEGIN;
	INSERT INTO t (id) VALUES (20);
	SAVEPOINT a;
	INSERT INTO t (id) VALUES (21);
	SAVEPOINT b;
	INSERT INTO t (id) VALUES (22);
	RELEASE b;
	INSERT INTO t (id) VALUES (23);
	ROLLBACK TO a;
	INSERT INTO t (id) VALUES (24);
	SAVEPOINT c;
	INSERT INTO t (id) VALUES (25);
	RELEASE c;
	INSERT INTO t (id) VALUES (26);
	COMMIT;
	BEGIN;
	SAVEPOINT a;
	INSERT INTO t (id) VALUES (27);
	ROLLBACK TO a;
	COMMIT;
	BEGIN;
	INSERT INTO t (id) VALUES (28);
	SAVEPOINT a;
	INSERT INTO t (id) VALUES (29);
	ROLLBACK;
	-- the first record of the subtransaction is one that the plugin is not
	-- asked about
	BEGIN;
	SAVEPOINT a;
	SELECT FROM t WHERE id = 20 FOR UPDATE;
	UPDATE t SET v = 'locked' WHERE id = 20;
	COMMIT;
	DO $$
	BEGIN
		FOR i IN 1..500 LOOP
			BEGIN
				INSERT INTO t (id) VALUES (30 + i % 2);
			EXCEPTION WHEN unique_violation THEN
				UPDATE t SET big = i WHERE id = 30 + i % 2;
			END;
		END LOOP;
	END $$;
});

check('out-of-line values', q{
	INSERT INTO toasted VALUES (1, repeat('a', 100000), 1), (2, NULL, 2);
	INSERT INTO toasted_full SELECT * FROM toasted;
	UPDATE toasted SET n = n + 1;
	UPDATE toasted_full SET n = n + 1;
	UPDATE toasted SET id = id + 10;
	UPDATE toasted_full SET id = id + 10;
	BEGIN;
	INSERT INTO toasted VALUES (3, repeat('b', 50000), 1, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i));
	UPDATE toasted SET n = 5 WHERE id = 3;
	UPDATE toasted SET big = repeat('c', 50000), n = 6 WHERE id = 3;
	UPDATE toasted SET big = repeat('d', 50000), n = 7 WHERE id = 3;
	COMMIT;
	UPDATE toasted SET big = NULL;
	UPDATE toasted_full SET big = repeat('e', 60000);
	UPDATE toasted_full SET big = NULL, n = 0;
	DELETE FROM toasted;
	DELETE FROM toasted_full;
	COPY toasted FROM PROGRAM 'for i in 1 2 3 4 5 6 7; do printf "%s\t" $i; head -c 9000 /dev/zero | tr "\\0" x; printf "\t%s\t\\\\N\n" $i; done';
	BEGIN;
	SAVEPOINT a;
	INSERT INTO toasted VALUES (30, repeat('f', 50000), 1);
	ROLLBACK TO a;
	INSERT INTO toasted VALUES (31, repeat('g', 50000), 1);
	COMMIT;
});

check('on conflict', q{
	INSERT INTO toasted VALUES (1, repeat('h', 30000), 1) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
	INSERT INTO toasted VALUES (50, repeat('h', 30000), 1) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
	INSERT INTO toasted VALUES (51, 'x', 1) ON CONFLICT DO NOTHING;
	INSERT INTO toasted VALUES (51, 'x', 1) ON CONFLICT DO NOTHING;
	BEGIN;
	SAVEPOINT a;
	INSERT INTO toasted VALUES (52, repeat('h', 30000), 1) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
	ROLLBACK TO a;
	INSERT INTO toasted VALUES (52, repeat('i', 30000), 1) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
	INSERT INTO toasted VALUES (52, repeat('j', 30000), 1) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
	COMMIT;
});

check('messages', q{
	SELECT pg_logical_emit_message(false, 'outside', 'no transaction');
	BEGIN;
	SELECT pg_logical_emit_message(true, 'inside', 'first');
	INSERT INTO t (id) VALUES (40);
	SELECT pg_logical_emit_message(false, 'outside', 'in between');
	SAVEPOINT a;
	SELECT pg_logical_emit_message(true, 'inside', 'rolled back');
	ROLLBACK TO a;
	SAVEPOINT a;
	SELECT pg_logical_emit_message(true, 'inside', '\x00ff'::bytea);
	COMMIT;
	BEGIN;
	SELECT pg_logical_emit_message(true, 'inside', 'alone');
	ROLLBACK;
});

check('truncate and DDL', q{
	TRUNCATE t;
	INSERT INTO t (id) VALUES (1);
	TRUNCATE t, toasted, full_id RESTART IDENTITY CASCADE;
	BEGIN;
	INSERT INTO t (id) SELECT generate_series(1, 500);
	SAVEPOINT a;
	TRUNCATE t;
	INSERT INTO t (id) VALUES (1);
	ROLLBACK TO a;
	ALTER TABLE t ADD c int DEFAULT 7;
	INSERT INTO t (id) SELECT generate_series(501, 600);
	ALTER TABLE t RENAME v TO w;
	UPDATE t SET w = 'x' WHERE id = 1;
	TRUNCATE toasted;
	COMMIT;
	TRUNCATE emptyroot;
	BEGIN;
	INSERT INTO t (id) VALUES (700);
	TRUNCATE emptyroot;
	INSERT INTO t (id) VALUES (701);
	COMMIT;
	BEGIN;
	SAVEPOINT a;
	ALTER TABLE t ADD e int DEFAULT 8;
	RELEASE a;
	SAVEPOINT b;
	INSERT INTO t (id) VALUES (702);
	COMMIT;
	BEGIN;
	INSERT INTO t (id) VALUES (703);
	ALTER TABLE t DROP e;
	INSERT INTO t (id) VALUES (704);
	ROLLBACK;
	INSERT INTO t (id) VALUES (705);
	BEGIN;
	CREATE TEMP TABLE tmp AS SELECT 1 AS x;
	INSERT INTO t (id) VALUES (706);
	COMMIT;
	CREATE TABLE fresh (id int);
	INSERT INTO fresh VALUES (1);
	ALTER PUBLICATION p ADD TABLE fresh;
	INSERT INTO fresh VALUES (2);
	ALTER PUBLICATION p DROP TABLE fresh;
	INSERT INTO fresh VALUES (3);
	-- a catalog change that the plugin is not asked about, in another
	-- subtransaction than the row
	BEGIN;
	SAVEPOINT a;
	ALTER PUBLICATION p ADD TABLE fresh;
	RELEASE a;
	SAVEPOINT b;
	INSERT INTO fresh VALUES (4);
	COMMIT;
	INSERT INTO fresh VALUES (5);
	ALTER TABLE t RENAME TO t2;
	INSERT INTO t2 (id) VALUES (707);
	CREATE SCHEMA s;
	ALTER TABLE t2 SET SCHEMA s;
	INSERT INTO s.t2 (id) VALUES (708);
	ALTER TABLE s.t2 SET SCHEMA public;
	ALTER TABLE t2 RENAME TO t;
	VACUUM FULL t;
	INSERT INTO t (id) VALUES (710);
	CLUSTER t USING t_pkey;
	UPDATE t SET id = 711 WHERE id = 710;
});

# pgoutput before 18 does not notice that a schema is renamed, the plans do.
$node->safe_psql('postgres', q{
	CREATE TABLE s.moved (id int PRIMARY KEY);
	ALTER PUBLICATION p ADD TABLE s.moved;
	INSERT INTO s.moved VALUES (1);
	ALTER SCHEMA s RENAME TO s2;
	INSERT INTO s2.moved VALUES (2);
	ALTER PUBLICATION p DROP TABLE s2.moved;
});
{
	my $data = fstream_receive($node, 'extreme', %pub);
	my ($done) = fstream_transactions(fstream_parse($data));
	my @names = map { (unpack('x4 Z*', $_->[2]))[0] } map { @{ $_->{changes} } } @$done;
	is("@names", 's s2', 'renamed schema is described anew');
	$node->safe_psql('postgres',
		q{SELECT pg_replication_slot_advance('reference', pg_current_wal_lsn())});
}

check('filters and lists', q{
	INSERT INTO filtered VALUES (1, 5, NULL), (2, 20, repeat('k', 30000));
	UPDATE filtered SET v = 30 WHERE id = 1;
	UPDATE filtered SET v = 1 WHERE id = 2;
	UPDATE filtered SET v = 50 WHERE id = 2;
	DELETE FROM filtered;
	INSERT INTO listed VALUES (1, 1, 'secret');
	UPDATE listed SET v = 2;
	BEGIN;
	INSERT INTO full_id VALUES (100, 1, false);
	SAVEPOINT a;
	INSERT INTO full_id VALUES (101, 1, false);
	ROLLBACK TO a;
	SAVEPOINT a;
	INSERT INTO full_id VALUES (102, 1, false);
	INSERT INTO filtered VALUES (3, 100, repeat('l', 30000));
	INSERT INTO full_id VALUES (103, 1, false);
	SAVEPOINT b;
	INSERT INTO full_id VALUES (104, 1, false);
	ROLLBACK TO b;
	INSERT INTO full_id VALUES (105, 1, false);
	COMMIT;
	BEGIN;
	INSERT INTO full_id VALUES (106, 1, false);
	INSERT INTO filtered VALUES (4, 1, NULL);
	COMMIT;
	INSERT INTO filtered VALUES (5, 99, repeat('m', 30000)) ON CONFLICT (id) DO UPDATE SET big = excluded.big;
});

check('partitions', q{
	INSERT INTO root VALUES (1, 'one'), (101, 'hundred and one');
	UPDATE root SET a = 150 WHERE a = 1;
	UPDATE root SET b = 'x';
	INSERT INTO leaf2 VALUES ('direct', 120);
	ALTER TABLE root ADD c int DEFAULT 3;
	UPDATE root SET c = 4;
	TRUNCATE root;
	INSERT INTO plainroot VALUES (1, 'p');
	UPDATE plainroot SET b = 'q';
	TRUNCATE plainroot;
});

check('insert only', q{
	INSERT INTO unpublished VALUES (10, 'x');
	UPDATE unpublished SET v = 'y';
	DELETE FROM unpublished;
}, publication_names => 'p,pr,pi');

$node->safe_psql('postgres', q{
	CREATE SCHEMA sp;
	CREATE TABLE sp.one (id int PRIMARY KEY, v text);
	CREATE PUBLICATION ps FOR TABLES IN SCHEMA sp;
	CREATE PUBLICATION pall FOR ALL TABLES;
});
check('schema publication', q{
	INSERT INTO sp.one VALUES (1, 'x');
	CREATE TABLE sp.two (id int PRIMARY KEY, v text);
	INSERT INTO sp.two VALUES (1, 'x');
	ALTER TABLE sp.two SET SCHEMA public;
	INSERT INTO two VALUES (2, 'x');
	ALTER TABLE two SET SCHEMA sp;
	UPDATE sp.two SET v = 'y';
	ALTER PUBLICATION ps DROP TABLES IN SCHEMA sp;
	INSERT INTO sp.one VALUES (2, 'x');
	ALTER PUBLICATION ps ADD TABLES IN SCHEMA sp;
	DELETE FROM sp.one;
}, publication_names => 'ps');
check('all tables', q{
	INSERT INTO sp.one VALUES (3, 'x');
	INSERT INTO root VALUES (2, 'two');
	CREATE UNLOGGED TABLE sp.u (id int);
	INSERT INTO sp.u VALUES (1);
	CREATE MATERIALIZED VIEW sp.m AS SELECT * FROM sp.one;
	CREATE UNIQUE INDEX ON sp.m (id);
	INSERT INTO sp.one VALUES (4, 'x');
	REFRESH MATERIALIZED VIEW CONCURRENTLY sp.m;
	REFRESH MATERIALIZED VIEW sp.m;
	CREATE SEQUENCE sp.s;
	SELECT nextval('sp.s');
}, publication_names => 'pall,p,pr');

SKIP:
{
	skip 'no published generated columns before 18', 3
	  if $node->safe_psql('postgres', 'SHOW server_version_num') < 180000;
	$node->safe_psql('postgres', q{
		CREATE TABLE gen (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED,
			vi int GENERATED ALWAYS AS (id * 3) VIRTUAL, v text);
		CREATE PUBLICATION pgen FOR TABLE gen, t WITH (publish_generated_columns = stored);
	});
	check('generated columns', q{
		INSERT INTO gen VALUES (1, DEFAULT, DEFAULT, 'x');
		UPDATE gen SET id = 2;
		INSERT INTO t (id) VALUES (850);
		ALTER PUBLICATION pgen SET (publish_generated_columns = none);
		UPDATE gen SET id = 3;
		DELETE FROM gen;
	}, publication_names => 'pgen');
}

check('binary', q{
	INSERT INTO t (id, w, n, b, big, ts, a) VALUES (800, 'one', 1.50, true, 9223372036854775807, '2020-01-01 00:00+00', '{1,NULL,3}');
	INSERT INTO typed (id, m, d, p, ma, r, u, j, bt, bp, x, f, s, o)
		VALUES (1, 'fine', 5, '(1,sad)', '{fine,sad}', '[1,5)', '00000000-0000-0000-0000-000000000001',
			'{"a": [1, "x"]}', '\x0001ff', 'ab', 'vc', 1.1, -32768, 4294967295);
	UPDATE toasted SET n = 100;
}, binary => 'true');

# Origins: without origin 'none' all is sent; the option itself is younger than
# 15's pgoutput, so what it leaves out is compared with the expectation.
$node->safe_psql('postgres', q{SELECT pg_replication_origin_create('elsewhere')});
check('origins', q{
	INSERT INTO full_id VALUES (200, 1, false);
	SELECT pg_replication_origin_session_setup('elsewhere');
	INSERT INTO full_id VALUES (201, 1, false);
});
$node->safe_psql('postgres', q{
	INSERT INTO full_id VALUES (300, 1, false);
	SELECT pg_replication_origin_session_setup('elsewhere');
	INSERT INTO full_id VALUES (301, 1, false);
	SELECT pg_replication_origin_session_reset();
	BEGIN;
	INSERT INTO full_id VALUES (302, 1, false);
	SELECT pg_replication_origin_session_setup('elsewhere');
	COMMIT;
});
{
	my $data = fstream_receive($node, 'extreme', %pub, origin => 'none');
	my ($done, undef, $open) = fstream_transactions(fstream_parse($data));
	my @ids = map { (relation_columns($_->[1]))[0] } map { @{ $_->{changes} } } @$done;
	is("@ids", '300', 'origin none leaves out what came from elsewhere');
	is(scalar(@$open), 0, 'what was streamed before the origin was set is taken back');
	$node->safe_psql('postgres', q{SELECT pg_replication_slot_advance('reference', pg_current_wal_lsn())});
}

# Another database of the same server: its transactions must not show up.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', q{
	CREATE TABLE t (id int PRIMARY KEY);
	INSERT INTO t SELECT generate_series(1, 1000);
	BEGIN; INSERT INTO t VALUES (5000); ROLLBACK;
});
check('several databases', q{INSERT INTO t (id) VALUES (900)});

# Transactions that are open when the client connects are replayed by core.
{
	my ($in, $out, $err) = ('', '', '');
	my $h = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-f', '-' ],
		'<', \$in, '>', \$out, '2>', \$err);
	$in .= "BEGIN; INSERT INTO t (id) VALUES (910); SAVEPOINT a; INSERT INTO t (id) VALUES (911);"
	  . " SAVEPOINT b; INSERT INTO t (id) VALUES (912); ROLLBACK TO b; SELECT 'ready';\n";
	$h->pump until $out =~ /ready/;
	check('open at the end', q{INSERT INTO t (id) VALUES (913)});
	$in .= "INSERT INTO t (id) VALUES (914); COMMIT; SELECT 'done';\n";
	$h->pump until $out =~ /done/;
	check('open at the start', q{INSERT INTO t (id) VALUES (915)});
	$in .= "\\q\n";
	$h->finish;
}

# Held changes beyond the limit are handed back to core.
check('limit of held changes', q{
	INSERT INTO toasted VALUES (400, repeat('n', 3000000), 1);
	BEGIN;
	INSERT INTO toasted VALUES (401, 'small', 1);
	INSERT INTO toasted VALUES (402, repeat('o', 3000000), 1);
	INSERT INTO toasted VALUES (403, 'small', 1);
	COMMIT;
});


# What has been rolled back was streamed before: this is the fast path.
like(join('', map { $_->{type} } @raw), qr/A/, 'changes are sent before their transaction ends');

$node->stop;
done_testing();
