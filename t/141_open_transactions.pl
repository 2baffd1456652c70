# Publications, types and names change while transactions are open, and each row
# is judged and described as of its position in the WAL.
#
# None of these changes takes a lock that would keep them from transactions which
# already write to the table.  Whoever judges a row by the catalog of another
# moment loses it, or sends one that is not published.  The server's pgoutput
# keeps one entry per relation for all transactions and is not exact, so what has
# to come of publications is modelled here; for the rest it is the reference.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
note("PGPARREP_TEST_SEED=$seed");
srand($seed);

my $trio = trio(
	"autovacuum = off\nwal_retrieve_retry_interval = 100ms\nlogical_decoding_work_mem = 64kB\npgparrep.force_decoders = on",
	'pgparrep.parallel_decode_num = 3');
my $publisher = $trio->{publisher};
my $pool = $trio->{pool};

# ---- Publications -------------------------------------------------------

my $tables = 4;
trio_sql($trio, join ';',
	(map { "CREATE TABLE p$_ (id int PRIMARY KEY, v int, pad text)" } 1 .. $tables),
	'CREATE TABLE other (id int PRIMARY KEY)');
my $all = join ', ', map { "p$_" } 1 .. $tables;
$publisher->safe_psql('postgres', "CREATE PUBLICATION pub FOR TABLE $all, other");
trio_subscribe($trio);

# The shortest ways to go wrong.  In the second the server replays the first
# transaction, under the catalog of its beginning, after we have looked at newer
# ones for another.
my ($s1, $s2, $ddl) = map { session($publisher) } 1 .. 3;
foreach my $queued (0, 1)
{
	$s1->query('BEGIN; INSERT INTO p1 VALUES (1)');
	$s1->query('CREATE TEMP TABLE temporary (a int) ON COMMIT DROP; INSERT INTO p1 VALUES (2)') if $queued;
	$ddl->query('ALTER PUBLICATION pub DROP TABLE p1');
	$s1->query('INSERT INTO p1 VALUES (3); UPDATE p1 SET v = 3 WHERE id = 1');
	$s2->query('INSERT INTO p1 VALUES (4)');
	$ddl->query('ALTER PUBLICATION pub ADD TABLE p1');
	$s2->query('INSERT INTO p1 VALUES (5)');
	$ddl->query(q{ALTER PUBLICATION pub SET (publish = 'insert')});
	$s1->query('UPDATE p1 SET v = 6 WHERE id = 1');
	$ddl->query(q{ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')});
	$s1->query('UPDATE p1 SET v = v + 10 WHERE id = 1; COMMIT');
	trio_wait($trio);
	is($pool->safe_psql('postgres', 'SELECT id, v FROM p1 ORDER BY 1'),
		$queued ? "1|16\n2|\n5|" : "1|16\n5|", 'a table leaves the publication and comes back' . ($queued ? ', queued' : ''));

	# one that comes, and one that goes
	$ddl->query('ALTER PUBLICATION pub DROP TABLE p2');
	$s1->query('BEGIN');
	$s1->query('CREATE TEMP TABLE temporary (a int) ON COMMIT DROP') if $queued;
	$s1->query('INSERT INTO p2 VALUES (1); INSERT INTO p3 VALUES (1)');
	$ddl->query('ALTER PUBLICATION pub ADD TABLE p2');
	$ddl->query('ALTER PUBLICATION pub DROP TABLE p3');
	$s2->query('INSERT INTO p2 VALUES (2); INSERT INTO p3 VALUES (2)');
	$s1->query('COMMIT');
	trio_wait($trio);
	is($pool->safe_psql('postgres', q{SELECT 'p2', id FROM p2 UNION ALL SELECT 'p3', id FROM p3 ORDER BY 1}),
		"p2|2\np3|1", 'one table comes, another goes' . ($queued ? ', queued' : ''));
	$ddl->query('ALTER PUBLICATION pub ADD TABLE p3');
	trio_sql($trio, 'TRUNCATE p1, p2, p3');
	trio_wait($trio);
}

# What is published right now, and what the subscriber has.
my %member = map { $_ => 1 } 1 .. $tables;
my $updates = 1;
my %model;
my $next = 1;

# Sessions; each has its changes so far.
my @sessions = map { { s => session($publisher), open => 0, changes => [], own => $_ } } 0 .. 7;

sub apply_changes
{
	my ($s) = @_;

	foreach my $c (@{ $s->{changes} })
	{
		my ($what, $table, $id, $v) = @$c;
		if ($what eq 'I') { $model{"$table $id"} = $v; }
		elsif (exists $model{"$table $id"}) { $model{"$table $id"} = $v; }
	}
	$s->{changes} = [];
	$s->{open} = 0;
	return;
}

my %of_session;
foreach my $step (1 .. 400)
{
	my $dice = rand();
	if ($dice < 0.12)
	{
		my $t = 1 + int rand $tables;
		$ddl->query($member{$t} ? "ALTER PUBLICATION pub DROP TABLE p$t" : "ALTER PUBLICATION pub ADD TABLE p$t");
		$member{$t} = !$member{$t};
		next;
	}
	if ($dice < 0.17)
	{
		$updates = !$updates;
		$ddl->query(q{ALTER PUBLICATION pub SET (publish = 'insert} . ($updates ? ', update, delete' : '') . q{')});
		next;
	}

	my $n = int rand @sessions;
	my $s = $sessions[$n];
	if (!$s->{open})
	{
		$s->{s}->query('BEGIN');
		$s->{open} = 1;
		$s->{queued} = 0;
	}
	elsif (rand() < 0.15)
	{
		if (rand() < 0.2)
		{
			$s->{s}->query('ROLLBACK');
			$s->{changes} = [];
			$s->{open} = 0;
			delete $of_session{$n};
		}
		else
		{
			$s->{s}->query('COMMIT');
			apply_changes($s);
		}
		next;
	}

	my $t = 1 + int rand $tables;
	if (rand() < 0.2 && !$s->{queued})
	{
		# from here on the transaction is the server's to replay
		$s->{s}->query("CREATE TEMP TABLE IF NOT EXISTS temporary$step (a int) ON COMMIT DROP");
		$s->{queued} = 1;
	}
	elsif (rand() < 0.4 && $of_session{$n} && @{ $of_session{$n} })
	{
		my ($table, $id) = @{ $of_session{$n}[ rand @{ $of_session{$n} } ] };
		$s->{s}->query("UPDATE p$table SET v = $step WHERE id = $id");
		push @{ $s->{changes} }, [ 'U', $table, $id, $step ] if $member{$table} && $updates;
	}
	else
	{
		# now and then more than the reorder buffer takes
		my $count = rand() < 0.1 ? 200 : 1;
		my $last = $next + $count - 1;
		$s->{s}->query("INSERT INTO p$t SELECT i, $step, repeat('x', 500) FROM generate_series($next, $last) i");
		foreach my $id ($next .. $last)
		{
			push @{ $s->{changes} }, [ 'I', $t, $id, $step ] if $member{$t};
		}
		push @{ $of_session{$n} }, [ $t, $next ];
		$next = $last + 1;
	}
}
foreach my $s (@sessions)
{
	$s->{s}->query('COMMIT') if $s->{open};
	apply_changes($s);
}
trio_wait($trio);

sub rows_of
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		join(' UNION ALL ', map { "SELECT $_ t, id, v FROM p$_" } 1 .. $tables) . ' ORDER BY 1, 2');
}
my $expected = join "\n", map { join '|', split(/ /, $_), $model{$_} }
  sort { my @a = split / /, $a; my @b = split / /, $b; $a[0] <=> $b[0] || $a[1] <=> $b[1] } keys %model;
cmp_ok(scalar keys %model, '>', 100, 'publications: something is to come');
my $found = rows_of($pool);
ok($found eq $expected, 'publications: rows are judged where they were written') or do
{
	my %e = map { $_ => 1 } split /\n/, $expected;
	my %f = map { $_ => 1 } split /\n/, $found;
	diag("seed $seed");
	diag("missing: $_") for (sort grep { !$f{$_} } keys %e)[ 0 .. 9 ];
	diag("surplus: $_") for (sort grep { !$e{$_} } keys %f)[ 0 .. 9 ];
};
note("the server's own: " . (rows_of($trio->{serial}) eq $expected ? 'the same' : 'not the same'));
$_->quit for map { $_->{s} } @sessions;
trio_unsubscribe($trio);

# ---- Names --------------------------------------------------------------

trio_sql(
	$trio, q{
	DROP TABLE p1, p2, p3, p4, other;
	CREATE SCHEMA one;
	CREATE SCHEMA two;
	CREATE TABLE one.t (a int PRIMARY KEY, v text);
	CREATE TABLE two.t (a int PRIMARY KEY, v text);
	CREATE TABLE renamed (a int PRIMARY KEY, v text);
	CREATE TABLE elsewhere (a int PRIMARY KEY, v text);
	CREATE TYPE mood AS ENUM ('good', 'bad');
	CREATE TYPE pair AS (x int, y text);
	CREATE TYPE inner_pair AS (n int, p pair);
	CREATE TABLE moods (id int PRIMARY KEY, m mood, ms mood[]);
	CREATE TABLE pairs (id int PRIMARY KEY, p pair, ps pair[], i inner_pair);
	ALTER TABLE pairs REPLICA IDENTITY FULL;});
$publisher->safe_psql('postgres', 'CREATE PUBLICATION everything FOR ALL TABLES');
trio_subscribe($trio, publications => 'everything');

sub refresh
{
	$trio->{$_}->safe_psql('postgres', "ALTER SUBSCRIPTION $_ REFRESH PUBLICATION WITH (copy_data = false)")
	  for qw(pool serial);
	return;
}

# While another transaction is open, which has not written to the table ...
foreach my $queued (0, 1)
{
	$s1->query('BEGIN; INSERT INTO elsewhere VALUES (' . $queued . q{, 'first')});
	$s1->query('CREATE TEMP TABLE temporary (a int) ON COMMIT DROP') if $queued;
	$s2->query("INSERT INTO renamed (a, v) VALUES (7, 'before')");
	trio_wait($trio);
	trio_sql(
		$trio, qq{
		DROP TABLE IF EXISTS was_renamed;
		ALTER TABLE renamed RENAME TO was_renamed;
		CREATE TABLE renamed (v text, more int, a int PRIMARY KEY)});
	refresh();
	$s1->query(q{INSERT INTO renamed VALUES ('new one', 1, 1); INSERT INTO was_renamed (a, v) VALUES (2, 'old one'); UPDATE was_renamed SET v = 'old' WHERE a = 7});
	$s2->query(q{INSERT INTO renamed VALUES ('other', 1, 7); UPDATE was_renamed SET v = v || '!' WHERE a = 1});
	$s1->query('COMMIT');
	trio_equal($trio, 'table renamed and made again' . ($queued ? ', queued' : ''), 'renamed', 'was_renamed', 'elsewhere');
	trio_sql($trio, 'ALTER TABLE renamed DROP more; DELETE FROM renamed', 'ALTER TABLE renamed DROP more');
	trio_wait($trio);
}

# ... and one that has: rows go by the name of their moment.  The two schemas
# change their names.
my $swap = 'ALTER SCHEMA one RENAME TO temporary; ALTER SCHEMA two RENAME TO one; ALTER SCHEMA temporary RENAME TO two';
foreach my $queued (0, 1)
{
	$s2->query(q{INSERT INTO two.t VALUES (1, 'both are known')});
	$s1->query(q{BEGIN; INSERT INTO one.t VALUES (10, 'one')});
	$s1->query(q{CREATE TEMP TABLE temporary (a int) ON COMMIT DROP; INSERT INTO one.t VALUES (11, 'one, queued')}) if $queued;
	$ddl->query($swap);
	$s2->query(q{INSERT INTO two.t VALUES (20, 'one was two')});
	$s1->query(q{INSERT INTO two.t VALUES (12, 'two was one'); UPDATE two.t SET v = 'updated' WHERE a = 12; COMMIT});
	trio_wait($trio);
	is($pool->safe_psql('postgres', 'SELECT tableoid::regclass, a FROM one.t UNION ALL SELECT tableoid::regclass, a FROM two.t ORDER BY 1, 2'),
		join("\n", 'one.t|10', $queued ? 'one.t|11' : (), 'two.t|1', 'two.t|12', 'two.t|20'),
		'schemas swap names' . ($queued ? ', queued' : ''));
	trio_sql($trio, 'TRUNCATE one.t, two.t');
	trio_wait($trio);
}

# All in one transaction.
$publisher->safe_psql(
	'postgres', qq{
	BEGIN;
	INSERT INTO one.t VALUES (1, 'one');
	CREATE TEMP TABLE temporary (a int);
	INSERT INTO one.t VALUES (2, 'one');
	$swap;
	INSERT INTO two.t VALUES (3, 'two was one');
	INSERT INTO one.t VALUES (4, 'one was two');
	COMMIT;});
trio_wait($trio);
is($pool->safe_psql('postgres', 'SELECT tableoid::regclass, a FROM one.t UNION ALL SELECT tableoid::regclass, a FROM two.t ORDER BY 1, 2'),
	"one.t|1\none.t|2\none.t|4\ntwo.t|3", 'schemas swap names in a transaction');

# ---- Types --------------------------------------------------------------

$trio->{$_}->safe_psql('postgres', q{ALTER TYPE mood ADD VALUE 'worse'; ALTER TYPE mood ADD VALUE 'fine'}) for qw(pool serial);
foreach my $queued (0, 1)
{
	my ($label, $new) = $queued ? qw(fine good) : qw(good fine);
	$publisher->safe_psql('postgres', 'DELETE FROM moods');
	$s1->query("BEGIN; INSERT INTO moods VALUES (1, '$label', '{$label,bad}')");
	$s1->query("CREATE TEMP TABLE temporary (a int) ON COMMIT DROP; INSERT INTO moods VALUES (2, '$label', '{$label,NULL}')") if $queued;
	$ddl->query(q{ALTER TYPE mood ADD VALUE IF NOT EXISTS 'worse'});
	$s1->query(q{INSERT INTO moods VALUES (3, 'worse', '{worse}')});
	$ddl->query("ALTER TYPE mood RENAME VALUE '$label' TO '$new'");
	$s2->query("INSERT INTO moods VALUES (4, '$new', '{$new}')");
	$s1->query("INSERT INTO moods VALUES (5, '$new', '{$new}'); UPDATE moods SET m = '$new' WHERE id = 3; COMMIT");
	trio_wait($trio);
	is($pool->safe_psql('postgres', 'SELECT id, m, ms FROM moods ORDER BY 1'),
		join("\n", "1|$label|{$label,bad}", $queued ? "2|$label|{$label,NULL}" : (), "3|$new|{worse}", "4|$new|{$new}", "5|$new|{$new}"),
		'labels as they were' . ($queued ? ', queued' : ''));
}

$publisher->safe_psql('postgres', q{INSERT INTO pairs SELECT i, (i, 'y')::pair, ARRAY[(i, NULL)::pair, NULL], (i, (i, 'z'))::inner_pair FROM generate_series(1, 5) i});
trio_equal($trio, 'composite', 'pairs');
trio_sql($trio, 'ALTER TYPE pair ADD ATTRIBUTE z int');
$publisher->safe_psql('postgres', q{UPDATE pairs SET id = id + 10 WHERE id < 3; INSERT INTO pairs VALUES (6, (1, '2', 3), '{}', (1, (1, '2', 3))); DELETE FROM pairs WHERE id = 4});
trio_equal($trio, 'composite with one attribute more', 'pairs');
trio_sql($trio, 'ALTER TYPE pair RENAME ATTRIBUTE y TO yy; ALTER TYPE pair DROP ATTRIBUTE x');
$publisher->safe_psql('postgres', q{UPDATE pairs SET id = id + 100; DELETE FROM pairs WHERE id = 111; INSERT INTO pairs VALUES (7, ('2', 3), NULL, NULL)});
trio_equal($trio, 'composite with one attribute less', 'pairs');

$_->quit for $s1, $s2, $ddl;
unlike(slurp_file($_->logfile), qr/TRAP|PANIC|leak/, $_->name . ': no assertion failed') for values %$trio;
done_testing();
