# Whatever a subscriber's tables look like, they end up as with stock apply.
#
# The same changes go to two subscribers with the same tables, one served by
# the server's own apply and one by the pool, in text and in binary format.
# Each table has something that a fast path can forget: columns in another
# order, dropped, generated or only here, with defaults; identities by index,
# by the whole row with NULLs and equal rows; unchanged TOAST values; moves
# between partitions of other layouts; triggers that count what they see;
# other types; rows that are missing.  Where they differ, ours is wrong.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_node('publisher');
my $stock = new_node('stock');
my $parallel = new_node('parallel', 'log_error_verbosity = default');

my $version = $publisher->safe_psql('postgres', "SELECT current_setting('server_version_num')::int / 10000");

my $types = q{
	CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
	CREATE TYPE pair AS (x int, y text[]);
	CREATE DOMAIN positive AS int CHECK (value > 0);
	CREATE TYPE span AS RANGE (subtype = int);
	CREATE TABLE types (a int PRIMARY KEY, e mood, ea mood[], c pair, ca pair[],
		d positive, r span, j jsonb, u uuid, b bytea, ia int[],
		ts timestamptz, iv interval, n name, h bit(5), o point, f float8, m numeric(10,2));
	-- a key of several columns, one of them a domain
	CREATE TABLE composite_key (k1 text, k2 positive, k3 date, v text, PRIMARY KEY (k1, k2, k3))};

my %schema = (
	# name => [ publisher, subscriber if it differs ]
	columns => [
		q{CREATE TABLE columns (a int PRIMARY KEY, b text, dropped int, d int);
		  ALTER TABLE columns DROP dropped; ALTER TABLE columns ADD e date},
		q{CREATE TABLE columns (dropped int, loc text DEFAULT 'def' || 1, d int, x serial, b varchar,
			g int GENERATED ALWAYS AS (d * 2) STORED, a int PRIMARY KEY, e date, ts timestamptz DEFAULT now(),
			gg text GENERATED ALWAYS AS (b || '!') STORED, CHECK (d < 1000000));
		  ALTER TABLE columns DROP dropped;
		  CREATE INDEX ON columns (g); CREATE INDEX ON columns (lower(b)) WHERE d > 3}
	],
	full_rows => [
		q{CREATE TABLE full_rows (a int, b text, c float8, d numeric);
		  ALTER TABLE full_rows REPLICA IDENTITY FULL}
	],
	full_index => [
		q{CREATE TABLE full_index (a int, b text); ALTER TABLE full_index REPLICA IDENTITY FULL},
		q{CREATE TABLE full_index (b text, a int);
		  CREATE INDEX ON full_index ((a + 1)); CREATE INDEX ON full_index (b, a)}
	],
	full_toast => [
		q{CREATE TABLE full_toast (a int, t text); ALTER TABLE full_toast ALTER t SET STORAGE EXTERNAL;
		  ALTER TABLE full_toast REPLICA IDENTITY FULL}
	],
	by_index => [
		q{CREATE TABLE by_index (a int NOT NULL, b text NOT NULL, c int, pk int PRIMARY KEY);
		  CREATE UNIQUE INDEX by_index_i ON by_index (b, a);
		  ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i},
		q{CREATE TABLE by_index (pk int PRIMARY KEY, c int, a int NOT NULL, b text NOT NULL);
		  CREATE UNIQUE INDEX by_index_i ON by_index (a) INCLUDE (c);
		  ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i}
	],
	toast => [
		q{CREATE TABLE toast (id int PRIMARY KEY, big text, n int, other text);
		  ALTER TABLE toast ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL}
	],
	parts => [
		q{CREATE TABLE parts (a int PRIMARY KEY, b text, c int)},
		q{CREATE TABLE parts (b text, a int PRIMARY KEY, c int, g int GENERATED ALWAYS AS (c * 3) STORED)
			PARTITION BY RANGE (a);
		  CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (50);
		  CREATE TABLE parts2 (junk int, c int, a int NOT NULL, b text, g int GENERATED ALWAYS AS (c * 3) STORED);
		  ALTER TABLE parts2 DROP junk;
		  ALTER TABLE parts ATTACH PARTITION parts2 FOR VALUES FROM (50) TO (120);
		  CREATE TABLE parts3 PARTITION OF parts FOR VALUES FROM (120) TO (200) PARTITION BY HASH (a);
		  CREATE TABLE parts30 PARTITION OF parts3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		  CREATE TABLE parts31 PARTITION OF parts3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		  CREATE TABLE parts_rest PARTITION OF parts DEFAULT}
	],
	triggers => [
		q{CREATE TABLE triggers (a int PRIMARY KEY, b text)},
		q{CREATE TABLE triggers (a int PRIMARY KEY, b text);
		  CREATE TABLE seen (id serial, who text, x text);
		  CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
		  BEGIN
			INSERT INTO public.seen (who, x)
			VALUES (tg_name || tg_op, coalesce(new.a, 0) || '/' || (SELECT count(*) FROM public.triggers));
			IF tg_when = 'BEFORE' AND tg_op = 'UPDATE' THEN new.b := new.b || 'T'; END IF;
			IF tg_op = 'DELETE' THEN RETURN old; END IF;
			RETURN new;
		  END $$;
		  CREATE TRIGGER bt BEFORE INSERT OR UPDATE OR DELETE ON triggers FOR EACH ROW EXECUTE FUNCTION see();
		  CREATE TRIGGER at AFTER INSERT OR UPDATE OF b OR DELETE ON triggers FOR EACH ROW EXECUTE FUNCTION see();
		  CREATE TRIGGER tt AFTER TRUNCATE ON triggers FOR EACH STATEMENT EXECUTE FUNCTION see();
		  CREATE TRIGGER origin BEFORE INSERT ON triggers FOR EACH ROW EXECUTE FUNCTION see();
		  ALTER TABLE triggers ENABLE ALWAYS TRIGGER bt, ENABLE REPLICA TRIGGER at, ENABLE ALWAYS TRIGGER tt}
	],
	part_triggers => [
		q{CREATE TABLE part_triggers (a int PRIMARY KEY, b text)},
		q{CREATE TABLE part_triggers (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
		  CREATE TABLE part_triggers1 PARTITION OF part_triggers FOR VALUES FROM (0) TO (100);
		  CREATE TABLE part_triggers2 (b text, a int NOT NULL);
		  ALTER TABLE part_triggers ATTACH PARTITION part_triggers2 FOR VALUES FROM (100) TO (300);
		  CREATE TABLE part_triggers3 PARTITION OF part_triggers FOR VALUES FROM (300) TO (400);
		  CREATE TABLE part_seen (id serial, who text, x text);
		  CREATE FUNCTION part_see() RETURNS trigger LANGUAGE plpgsql AS $$
		  BEGIN
			INSERT INTO public.part_seen (who, x)
			VALUES (tg_name || tg_op || tg_relid::regclass,
				coalesce(new.a, 0) || '/' || (SELECT count(*) FROM public.part_triggers));
			IF tg_op = 'DELETE' THEN RETURN old; END IF;
			RETURN new;
		  END $$;
		  CREATE TRIGGER bt BEFORE INSERT OR UPDATE OR DELETE ON part_triggers FOR EACH ROW EXECUTE FUNCTION part_see();
		  CREATE TRIGGER at AFTER INSERT OR UPDATE OR DELETE ON part_triggers FOR EACH ROW EXECUTE FUNCTION part_see();
		  ALTER TABLE part_triggers1 ENABLE ALWAYS TRIGGER bt, ENABLE REPLICA TRIGGER at;
		  ALTER TABLE part_triggers2 ENABLE ALWAYS TRIGGER bt}
	],
	parent => [
		q{CREATE TABLE parent (a int PRIMARY KEY);
		  CREATE TABLE child (a int PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE)},
		q{CREATE TABLE parent (a int PRIMARY KEY);
		  CREATE TABLE child (a int PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE);
		  DO $$
		  DECLARE r record;
		  BEGIN
			FOR r IN SELECT tgname, tgrelid::regclass rel FROM pg_trigger
				WHERE tgisinternal AND tgrelid IN ('parent'::regclass, 'child'::regclass)
			LOOP EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', r.rel, r.tgname); END LOOP;
		  END $$}
	],
	missing => [
		q{CREATE TABLE missing (a int PRIMARY KEY, b text)},
		q{CREATE TABLE missing (a int PRIMARY KEY, b text);
		  CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		  CREATE TRIGGER skip BEFORE INSERT ON missing FOR EACH ROW WHEN (new.b = 'skip') EXECUTE FUNCTION skip();
		  ALTER TABLE missing ENABLE ALWAYS TRIGGER skip}
	],
	keyless_full => [
		q{CREATE TABLE keyless_full (a int, b text); ALTER TABLE keyless_full REPLICA IDENTITY FULL},
		q{CREATE TABLE keyless_full (a int PRIMARY KEY, b text, mine text DEFAULT 'm')}
	],
	types => [$types],
	truncated => [
		q{CREATE TABLE truncated (a int PRIMARY KEY, s serial);
		  CREATE TABLE truncated_child (a int PRIMARY KEY REFERENCES truncated)}
	],
	# text format only
	converted => [
		q{CREATE TABLE converted (a int PRIMARY KEY, b int, c text, d numeric)},
		q{CREATE TABLE converted (a bigint PRIMARY KEY, b text, c varchar(10), d numeric(8,1))}
	]);
if ($version >= 18)
{
	$schema{virtual} = [
		q{CREATE TABLE virtual (a int PRIMARY KEY, b text, c int)},
		q{CREATE TABLE virtual (a int PRIMARY KEY, v text GENERATED ALWAYS AS (b || '!') VIRTUAL, b text, c int,
			s int GENERATED ALWAYS AS (c * 2) STORED, CHECK (v <> 'zz!'))}
	];
}

# Each statement is a transaction, except in a [ ... ].
my %changes = (
	columns => [
		q{INSERT INTO columns SELECT i, 'x' || i, i, '2020-01-01' FROM generate_series(1, 20) i},
		q{UPDATE columns SET d = d + 100 WHERE a < 5},
		q{UPDATE columns SET b = 'u' WHERE a BETWEEN 5 AND 8},
		q{UPDATE columns SET a = a + 50 WHERE a > 15},
		q{DELETE FROM columns WHERE a = 9},
		q{INSERT INTO columns VALUES (100, NULL, NULL, NULL)},
		[
			q{INSERT INTO columns VALUES (101, 'q', 1)}, q{UPDATE columns SET d = 9 WHERE a = 101},
			q{UPDATE columns SET a = 102 WHERE a = 101}, q{DELETE FROM columns WHERE a = 1},
			q{INSERT INTO columns VALUES (1, 'again', 5)}
		]
	],
	full_rows => [
		q{INSERT INTO full_rows VALUES (1, 'a', 1.5, 1.0), (1, 'a', 1.5, 1.0), (1, 'a', 1.5, 1.0),
			(NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL), (2, NULL, 'nan', 'nan')},
		q{DELETE FROM full_rows WHERE ctid = '(0,1)'},
		q{UPDATE full_rows SET d = 1.00 WHERE ctid = '(0,2)'},
		q{UPDATE full_rows SET b = 'q' WHERE ctid = '(0,4)'},
		q{DELETE FROM full_rows WHERE a = 2},
		q{DELETE FROM full_rows WHERE a = 1 AND b = 'a'}
	],
	full_index => [
		q{INSERT INTO full_index SELECT i % 5, CASE WHEN i % 3 > 0 THEN 'b' || i % 4 END FROM generate_series(1, 60) i},
		q{UPDATE full_index SET a = a + 1 WHERE b IS NULL AND ctid < '(0,30)'},
		q{DELETE FROM full_index WHERE a = 3},
		q{UPDATE full_index SET b = NULL WHERE ctid < '(0,10)'}
	],
	full_toast => [
		q{INSERT INTO full_toast VALUES (1, repeat('x', 100000)), (2, NULL), (3, repeat('y', 50000))},
		q{UPDATE full_toast SET a = a + 10}, q{UPDATE full_toast SET t = 's' WHERE a = 13},
		q{DELETE FROM full_toast WHERE a = 11}
	],
	by_index => [
		q{INSERT INTO by_index SELECT i, 'b' || i, i, i FROM generate_series(1, 30) i},
		q{UPDATE by_index SET c = c + 1}, q{UPDATE by_index SET a = a + 100 WHERE a < 5},
		q{UPDATE by_index SET b = 'z' || b WHERE a = 10}, q{DELETE FROM by_index WHERE a = 11}
	],
	toast => [
		q{INSERT INTO toast VALUES (1, repeat('a', 100000), 0, NULL), (2, NULL, 0, repeat('o', 4000)),
			(3, repeat('q', 3000), 1, repeat('p', 90000))},
		q{UPDATE toast SET n = n + 1}, q{UPDATE toast SET id = id + 10},
		q{UPDATE toast SET other = 'short' WHERE id = 13},
		[
			q{INSERT INTO toast VALUES (5, repeat('z', 90000), 1)}, q{UPDATE toast SET n = 9 WHERE id = 5},
			q{UPDATE toast SET big = NULL WHERE id = 5},
			q{UPDATE toast SET big = repeat('k', 70000), n = 1 WHERE id = 5}
		],
		q{UPDATE toast SET big = NULL WHERE id = 13}
	],
	parts => [
		q{INSERT INTO parts SELECT i, 'b' || i, i % 4 FROM generate_series(1, 110) i},
		q{UPDATE parts SET c = c + 1 WHERE a < 20},
		q{UPDATE parts SET a = a + 70 WHERE a BETWEEN 81 AND 85},
		q{UPDATE parts SET a = a + 300 WHERE a BETWEEN 51 AND 55},
		q{UPDATE parts SET a = a - 351, b = 'back' WHERE a = 351},
		q{DELETE FROM parts WHERE a % 5 = 0},
		q{UPDATE parts SET a = a + 90 WHERE a BETWEEN 36 AND 44 AND a <> 41},
		q{TRUNCATE parts},
		q{INSERT INTO parts SELECT i, 'n' || i, i % 3 FROM generate_series(30, 160) i},
		[
			q{UPDATE parts SET a = a + 1000 WHERE a < 60}, q{UPDATE parts SET c = 77 WHERE a > 1010},
			q{UPDATE parts SET a = a - 1000 WHERE a > 1040}
		]
	],
	triggers => [
		q{INSERT INTO triggers SELECT i, 'b' FROM generate_series(1, 5) i},
		q{UPDATE triggers SET b = 'c' WHERE a < 3}, q{UPDATE triggers SET a = a + 10 WHERE a = 3},
		q{DELETE FROM triggers WHERE a = 4},
		[ q{INSERT INTO triggers VALUES (50, 'x')}, q{UPDATE triggers SET b = 'y' WHERE a = 50} ],
		q{TRUNCATE triggers}, q{INSERT INTO triggers VALUES (1, 'z')}
	],
	part_triggers => [
		q{INSERT INTO part_triggers SELECT i, 'b' || i FROM generate_series(80, 110) i},
		q{UPDATE part_triggers SET b = 'u' WHERE a < 85},
		q{UPDATE part_triggers SET a = a + 100 WHERE a BETWEEN 90 AND 95},
		q{UPDATE part_triggers SET a = a + 200 WHERE a BETWEEN 101 AND 103},
		q{UPDATE part_triggers SET a = a - 250 WHERE a BETWEEN 301 AND 302},
		q{UPDATE part_triggers SET a = a - 99 WHERE a BETWEEN 105 AND 106},
		q{DELETE FROM part_triggers WHERE a % 5 = 0}
	],
	parent => [
		q{INSERT INTO parent VALUES (1), (2)}, q{INSERT INTO child VALUES (1, 1), (2, 2), (3, 2)},
		q{DELETE FROM parent WHERE a = 2}, q{INSERT INTO child VALUES (5, 1)}, q{UPDATE parent SET a = a}
	],
	missing => [
		q{INSERT INTO missing VALUES (1, 'skip'), (2, 'ok'), (3, 'skip'), (4, 'ok')},
		q{UPDATE missing SET b = 'u'}, q{UPDATE missing SET a = a + 10}, q{DELETE FROM missing WHERE a < 13}
	],
	keyless_full => [
		q{INSERT INTO keyless_full VALUES (1, 'a'), (2, 'b'), (3, NULL)},
		q{UPDATE keyless_full SET b = 'z' WHERE a < 3}, q{UPDATE keyless_full SET a = 30 WHERE a = 3},
		q{DELETE FROM keyless_full WHERE a = 1}
	],
	types => [
		q{INSERT INTO types VALUES (1, 'sad', '{sad,null,happy}', '(1,"{q,w}")', '{"(1,\"{q}\")"}', 5, '[1,4)',
			'{"a": 1}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\x00ff41', '[2:3]={1,null}', '2020-02-29 12:00+0',
			'1 mon 3 days', 'nm', '10101', '(1,2)', '-0', 12.345)},
		q{UPDATE types SET e = 'happy', d = 7, f = 'infinity'}, q{INSERT INTO types (a) VALUES (2)},
		q{UPDATE types SET ea = '{}', b = '' WHERE a = 2},
		q{INSERT INTO composite_key SELECT 'k' || i % 3, i, '2020-01-01', 'v' FROM generate_series(1, 9) i},
		q{UPDATE composite_key SET v = 'w' WHERE k1 = 'k1'},
		q{UPDATE composite_key SET k2 = k2 + 10 WHERE k1 = 'k2'}, q{DELETE FROM composite_key WHERE k1 = 'k0'}
	],
	truncated => [
		q{INSERT INTO truncated VALUES (1), (2)}, q{INSERT INTO truncated_child VALUES (1)},
		q{TRUNCATE truncated, truncated_child RESTART IDENTITY}, q{INSERT INTO truncated VALUES (7)},
		[
			q{INSERT INTO truncated VALUES (8)}, q{TRUNCATE truncated, truncated_child},
			q{INSERT INTO truncated VALUES (9)}, q{UPDATE truncated SET a = 10}
		]
	],
	converted => [
		q{INSERT INTO converted VALUES (1, 2, 'x', 1.26), (2, NULL, 'y', 99.99)},
		q{UPDATE converted SET b = b + 1, d = d * 3}, q{DELETE FROM converted WHERE a = 2},
		q{INSERT INTO converted VALUES (3, 3, '0123456789', 1)}
	],
	virtual => [
		q{INSERT INTO virtual SELECT i, 'b' || i, i FROM generate_series(1, 9) i},
		q{UPDATE virtual SET b = 'x' WHERE a = 1}, q{UPDATE virtual SET c = c + 1 WHERE a = 2},
		q{DELETE FROM virtual WHERE a = 3}
	]);

# What to compare, where it is not all of the table of that name.
my %compare = (
	columns => q{SELECT a, b, d, e, loc, x, g, gg FROM columns ORDER BY a},
	full_toast => q{SELECT a, length(t), md5(t) FROM full_toast ORDER BY 1, 2},
	toast => q{SELECT id, n, length(big), md5(big), length(other), md5(other) FROM toast ORDER BY 1},
	parts => q{SELECT tableoid::regclass, * FROM parts ORDER BY a},
	triggers => q{SELECT who, x FROM seen ORDER BY id},
	part_triggers => q{SELECT tableoid::regclass, a || b FROM part_triggers UNION ALL
		SELECT who::regclass, x FROM (SELECT 'part_seen' AS who, string_agg(who || x, ' ' ORDER BY id) AS x FROM part_seen) s
		ORDER BY 2},
	parent => q{SELECT 'p', a FROM parent UNION ALL SELECT 'c', a FROM child ORDER BY 1, 2},
	types => q{SELECT row(t)::text FROM types t UNION ALL SELECT row(c)::text FROM composite_key c ORDER BY 1},
	truncated => q{SELECT 'p', a, s FROM truncated UNION ALL SELECT 'c', a, 0 FROM truncated_child ORDER BY 1, 2});

sub run_format
{
	my ($binary) = @_;
	my $database = $binary ? 'bin' : 'txt';
	my @tables = grep { !$binary || $_ ne 'converted' } sort keys %schema;
	my %option = (options => 'binary = ' . ($binary ? 'true' : 'false') . ', copy_data = false');

	foreach my $table (@tables)
	{
		my ($there, $here) = @{ $schema{$table} };
		$publisher->safe_psql('postgres', $there);
		$_->safe_psql('postgres', $here // $there) for $stock, $parallel;
	}
	create_subscription($publisher, $stock, name => 'serial', worker_number => 1, %option);
	create_subscription($publisher, $parallel, name => 'pool', worker_number => 4, %option);

	# All at once, so that the pool has something to do in parallel ...
	my $sql = '';
	foreach my $table (@tables)
	{
		foreach my $change (@{ $changes{$table} })
		{
			$sql .= ref $change ? join(";\n", 'BEGIN', @$change, "COMMIT;\n") : "$change;\n";
		}
	}
	$publisher->safe_psql('postgres', $sql);
	wait_caught_up($publisher, $stock, 'serial');
	wait_caught_up($publisher, $parallel, 'pool');

	foreach my $table (@tables)
	{
		my $query = $compare{$table} // "SELECT * FROM $table t ORDER BY t::text COLLATE \"C\"";
		my $expected = $stock->safe_psql('postgres', $query);

		isnt($expected, '', "$database: $table is not empty with stock apply");
		is($parallel->safe_psql('postgres', $query), $expected, "$database: $table");
	}

	$stock->safe_psql('postgres', 'DROP SUBSCRIPTION serial');
	$parallel->safe_psql('postgres', 'DROP SUBSCRIPTION pool');
	$_->safe_psql('postgres', 'DROP SCHEMA public CASCADE; CREATE SCHEMA public')
	  for $publisher, $stock, $parallel;
	return;
}

run_format(0);
run_format(1);

# Leaked references and snapshots are warnings at commit.
unlike(slurp_file($parallel->logfile), qr/leak|WARNING:.*(not closed|snapshot)/, 'no leaks');

done_testing();
