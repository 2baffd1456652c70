# Whatever a row consists of arrives as with the server's own apply, and as it is
# on the publisher.
#
# A record of the WAL leaves out what the decoder could know otherwise: values
# that were not changed, columns that are not part of the identity, columns that
# were added, dropped or generated.  Where a decoder takes "not there" for NULL
# or for data, the subscriber stores a wrong row or does not find the right one.
#
# In three forms: values as they are stored and rows formatted by decoders;
# text, by the walsender, in a server whose reorder buffer has no memory; binary.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $trio = trio("max_prepared_transactions = 10\nautovacuum = off\nwal_retrieve_retry_interval = 100ms",
	'pgparrep.parallel_decode_num = 3');
my $publisher = $trio->{publisher};
my $version = $publisher->safe_psql('postgres', "SELECT current_setting('server_version_num')::int / 10000");

# Rows that the publisher refuses to change (18: identity FULL with generated
# columns) are left out on all three.
sub change
{
	my ($sql) = @_;

	return $publisher->psql('postgres', $sql) == 0;
}

sub toast
{
	my ($form) = @_;
	my @tables = qw(toast_default toast_full);

	$publisher->safe_psql(
		'postgres', qq{
		UPDATE $_ SET n = n + 1;
		UPDATE $_ SET id = id + 100;
		BEGIN;
		INSERT INTO $_ VALUES (3, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i), 'm', 0);
		UPDATE $_ SET n = 1, small = 'o' WHERE id = 3;
		COMMIT;
		INSERT INTO $_ SELECT i, repeat(md5(i::text), 1000), NULL, 0 FROM generate_series(4, 6) i;
		UPDATE $_ SET big = NULL WHERE id = 4;
		BEGIN;
		UPDATE $_ SET big = repeat('x', 50000), n = 1 WHERE id = 5;
		UPDATE $_ SET big = big || 'y', n = n + 1 WHERE id = 5;
		UPDATE $_ SET n = n + 1 WHERE id = 5;
		COMMIT;
		-- a value rolled back just before a change that leaves it as it is
		BEGIN;
		SAVEPOINT a;
		UPDATE $_ SET big = repeat('r', 70000) WHERE id = 6;
		ROLLBACK TO a;
		UPDATE $_ SET n = 7 WHERE id = 6;
		COMMIT;}) foreach @tables;
	trio_equal($trio, "$form: TOAST", @tables);

	# A row that is missing stays missing: its value is not in the update.
	foreach my $table (@tables)
	{
		$trio->{$_}->safe_psql('postgres', "DELETE FROM $table WHERE id = 101") for qw(pool serial);
		$publisher->safe_psql('postgres', "UPDATE $table SET n = n + 1 WHERE id = 101; UPDATE $table SET n = 10 WHERE id = 102");
	}
	trio_wait($trio);
	compare_tables($trio->{serial}, $trio->{pool}, "$form: TOAST, missing row", @tables);
	is($trio->{pool}->safe_psql('postgres', "SELECT count(*) FROM $_ WHERE id = 101"),
		0, "$form: $_: no part of a row is inserted")
	  for @tables;
	return;
}

sub run
{
	my ($form, $options) = @_;

	trio_sql(
		$trio, q{
		CREATE TABLE toast_default (id int PRIMARY KEY, big text, small text, n int);
		CREATE TABLE toast_full (id int PRIMARY KEY, big text, small text, n int);
		ALTER TABLE toast_default ALTER big SET STORAGE EXTERNAL;
		ALTER TABLE toast_full ALTER big SET STORAGE EXTERNAL;
		ALTER TABLE toast_full REPLICA IDENTITY FULL;

		CREATE TABLE added (a int);
		ALTER TABLE added REPLICA IDENTITY FULL;
		CREATE TABLE dropped (a int, x text, c int);
		ALTER TABLE dropped REPLICA IDENTITY FULL;
		CREATE TABLE upsert (k int PRIMARY KEY, v int, big text);
		ALTER TABLE upsert ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE swap (a int NOT NULL, b int NOT NULL, v text);
		CREATE UNIQUE INDEX swap_a ON swap (a);
		CREATE UNIQUE INDEX swap_b ON swap (b);
		CREATE TABLE key_swap (a int PRIMARY KEY, b int NOT NULL, v text);
		CREATE TABLE nothing (a int PRIMARY KEY, v int);
		ALTER TABLE nothing REPLICA IDENTITY NOTHING;
		CREATE TABLE nulls (a int, b text, c int[], d numeric, e bytea, id int PRIMARY KEY, f bool, g jsonb, h text, i float8);
		CREATE TABLE nulls_full (a int, b text, c int[], d numeric, e bytea, f bool, g jsonb, h text);
		ALTER TABLE nulls_full REPLICA IDENTITY FULL;
		CREATE TABLE empty_row ();
		ALTER TABLE empty_row REPLICA IDENTITY FULL;
		-- whoever asks for the indexes needs a snapshot to simplify these
		CREATE FUNCTION positive(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT $1 > 0';
		CREATE FUNCTION doubled(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 * 2; END';
		CREATE TABLE indexed (a int, v int);
		CREATE INDEX ON indexed (doubled(v)) WHERE positive(v);
		CREATE UNIQUE INDEX ON indexed (doubled(a)) WHERE positive(doubled(a));
		ALTER TABLE indexed REPLICA IDENTITY FULL});
	my $columns = join ', ', map { "c$_ " . ('int', 'text', 'bool', 'int8')[ $_ % 4 ] } 2 .. 1600;
	trio_sql($trio, "CREATE TABLE wide (c1 int PRIMARY KEY, $columns)");

	# Another generation expression on the subscribers.
	trio_sql($trio,
		map { qq{
		CREATE TABLE generated (a int, b int, g int GENERATED ALWAYS AS (b * $_) STORED, t text);
		ALTER TABLE generated REPLICA IDENTITY FULL;
		CREATE TABLE generated_key (a int PRIMARY KEY, g int GENERATED ALWAYS AS (b * $_) STORED, b int, t text)}
		  . ($version >= 18 ? qq{;
		CREATE TABLE virtual (a int PRIMARY KEY, g int GENERATED ALWAYS AS (b * $_) VIRTUAL, b int, t text);
		CREATE TABLE virtual_full (a int, g int GENERATED ALWAYS AS (b * $_) VIRTUAL, b int, t text);
		ALTER TABLE virtual_full REPLICA IDENTITY FULL} : '') } (2, 3));

	$publisher->safe_psql('postgres', q{ALTER TABLE swap REPLICA IDENTITY USING INDEX swap_a});
	$trio->{$_}->safe_psql('postgres', q{ALTER TABLE swap REPLICA IDENTITY USING INDEX swap_b}) for qw(pool serial);
	$publisher->safe_psql(
		'postgres', q{
		INSERT INTO toast_default VALUES (1, repeat(md5('1'), 3125), 's', 0), (2, NULL, NULL, 0);
		INSERT INTO toast_full SELECT * FROM toast_default;
		-- one row from before the column and one from after it
		INSERT INTO added VALUES (1);
		ALTER TABLE added ADD b boolean NOT NULL DEFAULT false, ADD t text DEFAULT 'added', ADD n numeric DEFAULT 1.50;
		INSERT INTO added VALUES (2);
		INSERT INTO swap VALUES (1, 1, 'one'), (2, 2, 'two');});
	$trio->{$_}->safe_psql('postgres', 'ALTER TABLE added ADD n numeric, ADD b boolean NOT NULL, ADD t text') for qw(pool serial);
	trio_subscribe($trio, options => $options);

	toast($form);

	# The physical shape of old rows.
	$publisher->safe_psql('postgres', q{UPDATE added SET a = a + 10; UPDATE added SET t = NULL WHERE a = 11});
	trio_equal($trio, "$form: values of columns added later", 'added');
	$publisher->safe_psql('postgres', q{DELETE FROM added; INSERT INTO dropped SELECT i, 'x' || i, i FROM generate_series(1, 6) i});
	trio_equal($trio, "$form: deleted", 'added', 'dropped');
	trio_sql($trio, 'ALTER TABLE dropped DROP x');
	$publisher->safe_psql('postgres', 'UPDATE dropped SET c = c + 10 WHERE a < 4; DELETE FROM dropped WHERE a > 4; INSERT INTO dropped VALUES (7, 7)');
	trio_equal($trio, "$form: dropped column", 'dropped');

	my @generated = (qw(generated generated_key), $version >= 18 ? qw(virtual virtual_full) : ());
	foreach my $table (@generated)
	{
		$publisher->safe_psql('postgres', "INSERT INTO $table (a, b, t) SELECT i, i, 't' || i FROM generate_series(1, 8) i");
		change("UPDATE $table SET b = b + 1 WHERE a < 3");
		change("UPDATE $table SET a = a + 100 WHERE a = 4");
		change("UPDATE $table SET t = NULL WHERE a = 5");
		change("DELETE FROM $table WHERE a IN (1, 6)");
	}
	trio_wait($trio);
	foreach my $table (@generated)
	{
		my $expected = $publisher->safe_psql('postgres', "SELECT a, b, b * 3, t FROM $table ORDER BY 1");
		is($trio->{$_}->safe_psql('postgres', "SELECT a, b, g, t FROM $table ORDER BY 1"), $expected, "$form: $table, $_: generated here")
		  for qw(serial pool);
	}

	# The identity is another index in mid-session, with the rows cached.
	my $s = session($publisher);
	$s->query(q{UPDATE swap SET v = 'first' WHERE a = 77});
	$s->query(q{ALTER TABLE swap REPLICA IDENTITY USING INDEX swap_b});
	$s->query(q{UPDATE swap SET a = -1 WHERE a = 1});
	$s->query(q{DELETE FROM swap WHERE a = 2});
	$s->quit;
	trio_equal($trio, "$form: identity switched", 'swap');
	is($trio->{pool}->safe_psql('postgres', 'SELECT a, b, v FROM swap'), '-1|1|one', "$form: the row");

	# A primary key is another one in the middle of a transaction.
	$publisher->safe_psql('postgres', q{INSERT INTO key_swap SELECT i, i + 100, 'v' FROM generate_series(1, 5) i; UPDATE key_swap SET v = 'w'});
	trio_equal($trio, "$form: primary key", 'key_swap');
	trio_sql($trio, '', 'ALTER TABLE key_swap DROP CONSTRAINT key_swap_pkey, ADD PRIMARY KEY (b)');
	$publisher->safe_psql(
		'postgres', q{
		BEGIN;
		INSERT INTO key_swap VALUES (6, 106, 'before'), (7, 107, 'before');
		ALTER TABLE key_swap DROP CONSTRAINT key_swap_pkey, ADD PRIMARY KEY (b);
		UPDATE key_swap SET v = 'after' WHERE a IN (2, 6);
		UPDATE key_swap SET b = b + 100, a = 1 WHERE a = 3;
		DELETE FROM key_swap WHERE a = 4;
		COMMIT;
		UPDATE key_swap SET v = 'later' WHERE a IN (5, 6);});
	trio_equal($trio, "$form: primary key swapped", 'key_swap');

	# What nobody could apply is refused where it is written.
	isnt($publisher->psql('postgres', 'INSERT INTO nothing VALUES (1, 1) ON CONFLICT (a) DO UPDATE SET v = 2'),
		0, "$form: upsert without identity");
	isnt($publisher->psql('postgres', 'MERGE INTO nothing USING (VALUES (1)) s(a) ON s.a = nothing.a WHEN MATCHED THEN DELETE'),
		0, "$form: MERGE without identity");
	$publisher->safe_psql('postgres', 'INSERT INTO nothing VALUES (1, 1) ON CONFLICT (a) DO NOTHING');

	# Speculative insertions, with values out of line, some of them given up.
	my $dir = $publisher->basedir;
	my @files;
	foreach my $script (
		[ 'update', 'INSERT INTO upsert VALUES (:k, 1, repeat(md5(:r::text), 625)) ON CONFLICT (k) DO UPDATE SET v = upsert.v + 1, big = excluded.big;' ],
		[ 'nothing', 'INSERT INTO upsert VALUES (:k, 1, repeat(md5(:r::text), 625)) ON CONFLICT DO NOTHING;' ],
		[ 'delete', 'DELETE FROM upsert WHERE k = :k;' ],
		[ 'savepoint', 'BEGIN; SAVEPOINT a; INSERT INTO upsert VALUES (:k, 2, repeat(md5(:r::text), 625)) ON CONFLICT DO NOTHING; ROLLBACK TO a; INSERT INTO upsert VALUES (:k, 3, NULL) ON CONFLICT (k) DO UPDATE SET v = -upsert.v; COMMIT;' ])
	{
		my ($name, $sql) = @$script;
		unlink "$dir/$name.sql";
		append_to_file("$dir/$name.sql", "\\set k random(1, 5)\n\\set r random(1, 1000000)\n$sql\n");
		push @files, '-f', "$dir/$name.sql";
	}
	$publisher->command_ok(
		[ 'pgbench', '-n', '-c', 6, '-t', 50, '-h', $publisher->host, '-p', $publisher->port, @files, 'postgres' ],
		"$form: upserts");
	trio_equal($trio, "$form: upserts", 'upsert', 'nothing');

	# NULLs and empty values in each position, and all at once.
	my @values = (q{1}, q{'b'}, q{'{1,NULL}'}, q{1.50}, q{'\x00ff'}, undef, q{true}, q{'{"a": null}'}, q{'h'}, q{'-0'});
	my @empty = (q{0}, q{''}, q{'{}'}, q{0}, q{''}, undef, q{false}, q{'{}'}, q{''}, q{'NaN'});
	my $sql = '';
	foreach my $i (0 .. 9, 100)
	{
		foreach my $other ('NULL', \@empty)
		{
			my $id = $i * 2 + (ref $other ? 1 : 0) + 1;
			my @row = map {
				$_ == 5 ? $id : $i == 100 || $_ == $i ? (ref $other ? $other->[$_] : $other) : $values[$_]
			} 0 .. 9;
			$sql .= 'INSERT INTO nulls VALUES (' . join(', ', @row) . ");\n";
			$sql .= 'INSERT INTO nulls_full VALUES (' . join(', ', @row[ 0 .. 4, 6 .. 8 ]) . ");\n";
			$sql .= "UPDATE nulls SET b = NULL, h = '' WHERE id = $id;\n" if $i % 2;
			$sql .= "UPDATE nulls SET id = 1000 + id, a = NULL WHERE id = $id;\n" if $i % 3;
		}
	}
	# of equal rows any may go; the numeric differs in its scale
	$sql .= q{UPDATE nulls_full SET h = coalesce(h, 'was null'); DELETE FROM nulls_full WHERE b = ''; UPDATE nulls_full SET d = NULL, a = 5 WHERE a IS NULL;
		INSERT INTO empty_row DEFAULT VALUES; INSERT INTO empty_row DEFAULT VALUES; DELETE FROM empty_row WHERE ctid = '(0,1)';
		INSERT INTO wide (c1) VALUES (1), (2);};
	my $wide = join ', ', map { ('5', "'t'", 'true', '8')[ $_ % 4 ] } 2 .. 1600;
	my $sparse = join ', ', map { $_ % 7 ? 'NULL' : ('5', "''", 'false', '8')[ $_ % 4 ] } 2 .. 1600;
	$sql .= "INSERT INTO wide VALUES (3, $wide), (4, $sparse); UPDATE wide SET c1600 = 16, c2 = NULL; UPDATE wide SET c1 = c1 + 10; DELETE FROM wide WHERE c1 = 12;";
	$sql .= 'INSERT INTO indexed SELECT i, i - 5 FROM generate_series(1, 10) i; UPDATE indexed SET v = -v WHERE a > 5; UPDATE indexed SET a = a + 100 WHERE a = 1; DELETE FROM indexed WHERE a = 7;';
	$publisher->safe_psql('postgres', $sql);
	trio_equal($trio, "$form: NULLs, empty values, many columns, indexes with functions", qw(nulls nulls_full wide indexed));
	is($trio->{$_}->safe_psql('postgres', 'SELECT count(*) FROM empty_row'), 1, "$form: $_: a row of no columns") for qw(serial pool);

	is($publisher->safe_psql('postgres', 'SELECT coalesce(sum(batches), 0) > 0 FROM pgparrep.stat_decoder'),
		$form eq 'text' ? 'f' : 't', "$form: formatted by decoders or not");
	trio_unsubscribe($trio);
	trio_sql($trio, 'DROP SCHEMA public CASCADE; CREATE SCHEMA public');
	return;
}

sub configure
{
	my ($node, @settings) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $_") for @settings;
	$node->reload;
	return;
}

configure($publisher, 'pgparrep.force_decoders = on');
run('stored');
configure($publisher, "logical_decoding_work_mem = '64kB'");
configure($trio->{pool}, "pgparrep.tuple_format = 'text'", 'pgparrep.parallel_decode_num = 1');
run('text', $version >= 16 ? 'streaming = parallel' : 'streaming = on');
configure($trio->{pool}, 'pgparrep.parallel_decode_num = 3');
run('binary', 'binary = true');

unlike(slurp_file($_->logfile), qr/TRAP|PANIC|leak/, $_->name . ': no assertion failed') for values %$trio;
done_testing();
