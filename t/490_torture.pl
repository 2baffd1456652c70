# Everything at once: a load of every kind of change, and every kind of trouble,
# at random.
#
# Each of the other tests has one kind of trouble in mind.  What happens when a
# walsender is gone while a worker waits for a lock, a table is being copied and
# worker_number changes, nobody has in mind; this test gets there by chance.
# Afterwards the oracles must agree: every table equal on publisher, parallel
# and stock subscriber; each transaction in once; readers of the subscriber saw
# prefixes only; no index is corrupt; and no lag, file, origin, slot, lock or
# process is left.
#
# scripts/torture runs it for longer.  PGPARREP_TEST_SEED repeats the choices, if
# not their timing; an odd one switches two_phase on.  PGPARREP_TEST_SYNCHRONOUS is
# the subscription's synchronous_commit (off).

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Proxy;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 90;
my $seed = $ENV{PGPARREP_TEST_SEED} // time() % 100000;
my $synchronous_commit = $ENV{PGPARREP_TEST_SYNCHRONOUS} // 'off';

srand($seed);
# from the first change on, from some on, as it is by default, never
my $eager = (0, 20, undef, -1)[ int($seed / 8) % 4 ];
diag("PGPARREP_TEST_SEED=$seed, pgparrep.eager_threshold " . ($eager // 'by default'));

my $conf = q{
wal_retrieve_retry_interval = 200ms
max_prepared_transactions = 50
deadlock_timeout = 200ms
max_wal_size = 128MB
# so that most of the load is decoded by decoders, and much is spilled
pgparrep.force_decoders = on
pgparrep.cached_changes = 500
};
$conf .= "pgparrep.eager_threshold = $eager\n" if defined $eager;
my ($publisher, $subscriber) = publisher_and_subscriber($conf);
my $stock = new_node('stock', $conf);
my %node = (publisher => $publisher, subscriber => $subscriber);

# ---------- tables

create_mix_tables($publisher, $subscriber, $stock);
for ($publisher, $subscriber, $stock)
{
	$_->safe_psql('postgres', q{
		CREATE SCHEMA private;
		-- a transaction of the ledger takes a number as the last thing before its commit
		CREATE TABLE ledger (n bigint PRIMARY KEY, entries int NOT NULL);
		CREATE TABLE entry (n bigint, i int);
		CREATE TABLE private.counter (n bigint);
		INSERT INTO private.counter VALUES (0);

		CREATE TABLE part (id int PRIMARY KEY, v int, pad text) PARTITION BY RANGE (id);
		CREATE TABLE parent (id int PRIMARY KEY, v int);
		CREATE TABLE child (id bigint PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE);
		CREATE TABLE place (id int PRIMARY KEY, at int, CONSTRAINT at UNIQUE (at) DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE span (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&));
		CREATE TABLE prepared (gid text PRIMARY KEY);
		CREATE TABLE bulk (a int, b text);

		-- what a trigger writes depends on what is visible to it
		CREATE TABLE watched (id int PRIMARY KEY, v int);
		CREATE TABLE private.seen (id int, v int, others bigint);
		CREATE FUNCTION private.see() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO private.seen VALUES (NEW.id, NEW.v, (SELECT count(*) FROM public.parent));
			RETURN NEW;
		END $$;
		CREATE TRIGGER see AFTER INSERT OR UPDATE ON watched FOR EACH ROW EXECUTE FUNCTION private.see();
		ALTER TABLE watched ENABLE ALWAYS TRIGGER see;});
}
# other bounds on the two sides
$_->safe_psql('postgres', q{
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
	CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (1000)}) for $publisher, $stock;
$subscriber->safe_psql('postgres', q{
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (30);
	CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (30) TO (150);
	CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM (150) TO (1000);
	CREATE EXTENSION amcheck;
	CREATE FUNCTION private.check_prefix() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
	DECLARE
		number bigint;
		last bigint;
		promised bigint;
		found bigint;
	BEGIN
		SELECT count(*), coalesce(max(n), 0), coalesce(sum(entries), 0) INTO number, last, promised FROM public.ledger;
		SELECT count(*) INTO found FROM public.entry;
		IF number <> last OR found <> promised THEN
			RAISE EXCEPTION 'not a prefix: % rows up to number %, % entries of %', number, last, found, promised;
		END IF;
		RETURN number;
	END $$});
$publisher->safe_psql('postgres', q{
	CREATE PUBLICATION pub FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true);
	INSERT INTO part SELECT i, 0, 'p' FROM generate_series(1, 200) i;
	INSERT INTO parent SELECT i, 0 FROM generate_series(1, 20) i;
	INSERT INTO place SELECT i, i FROM generate_series(1, 10) i;
	INSERT INTO span SELECT i, int4range(i * 10, i * 10 + 10) FROM generate_series(1, 20) i;
	INSERT INTO watched SELECT i, 0 FROM generate_series(1, 10) i});

# ---------- subscriptions, one through a network that can be spoilt

# the server allows no copy of new tables together with two_phase
my $two_phase = $seed % 2 ? 'on' : 'off';
my $refresh = 'REFRESH PUBLICATION' . ($two_phase eq 'on' ? ' WITH (copy_data = false)' : '');
my $proxy = Proxy->new($publisher);
$subscriber->safe_psql('postgres',
	    "CREATE SUBSCRIPTION sub CONNECTION '"
	  . $proxy->connstr
	  . " dbname=postgres' PUBLICATION pub WITH ("
	  . subscription_options(4, "synchronous_commit = $synchronous_commit, two_phase = $two_phase")
	  . ')');
create_subscription($publisher, $stock, name => 'stock', worker_number => undef, options => "two_phase = $two_phase");
wait_synced($subscriber);
$_->safe_psql('postgres', 'TRUNCATE private.seen') for $publisher, $subscriber, $stock;

# ---------- the load

my %scripts = (
	'ledger@8' => q{
\set entries random(1, 10)
\set large random(1, 20)
\if :large = 1
\set entries 800
\endif
\set key random(1, 1000000)
BEGIN;
INSERT INTO entry SELECT :key, i FROM generate_series(1, :entries) i;
UPDATE private.counter SET n = n + 1;
INSERT INTO ledger SELECT n, :entries FROM private.counter;
COMMIT;
},
	'part@4' => q{
\set a random(1, 999)
\set b random(1, 999)
BEGIN;
INSERT INTO part VALUES (:a, :b, 'new') ON CONFLICT (id) DO UPDATE SET v = part.v + 1;
DELETE FROM part WHERE id = :b;
UPDATE part SET id = :b WHERE id = :a;
COMMIT;
},
	'child@3' => q{
\set a random(1, 20)
\set i random(1, 100000)
INSERT INTO child SELECT :i, id FROM parent WHERE id = :a FOR KEY SHARE ON CONFLICT DO NOTHING;
},
	'parent@1' => q{
\set a random(1, 20)
BEGIN;
DELETE FROM parent WHERE id = :a;
INSERT INTO parent VALUES (:a, :client_id) ON CONFLICT DO NOTHING;
COMMIT;
},
	'place@2' => q{
\set a random(1, 10)
\set b random(1, 10)
BEGIN;
LOCK TABLE place IN SHARE ROW EXCLUSIVE MODE;
UPDATE place SET at = CASE id WHEN :a THEN (SELECT at FROM place WHERE id = :b) ELSE (SELECT at FROM place WHERE id = :a) END
WHERE id IN (:a, :b) AND :a <> :b;
COMMIT;
},
	'span@2' => q{
\set a random(1, 20)
\set b random(1, 20)
BEGIN;
LOCK TABLE span IN SHARE ROW EXCLUSIVE MODE;
DELETE FROM span WHERE id = :a;
INSERT INTO span SELECT :a, int4range(:b * 10, :b * 10 + 10) WHERE NOT EXISTS (SELECT FROM span WHERE r && int4range(:b * 10, :b * 10 + 10));
COMMIT;
},
	'watched@2' => q{
\set a random(1, 10)
UPDATE watched SET v = v + 1 WHERE id = :a;
},
	'prepared@2' => q{
\set a random(1, 1000000000)
BEGIN;
INSERT INTO prepared VALUES ('g:a') ON CONFLICT DO NOTHING;
INSERT INTO history VALUES (:client_id, :a, 7);
PREPARE TRANSACTION 'g:a';
COMMIT PREPARED 'g:a';
},
	'prepared_rollback@1' => q{
\set a random(1, 1000000000)
BEGIN;
INSERT INTO prepared VALUES ('r:a') ON CONFLICT DO NOTHING;
SAVEPOINT s;
INSERT INTO history VALUES (:client_id, :a, 8);
PREPARE TRANSACTION 'r:a';
ROLLBACK PREPARED 'r:a';
},
	'ddl@1' => q{
\set f random(50, 100)
BEGIN;
INSERT INTO history VALUES (:client_id, 0, 9);
CREATE TEMP TABLE scratch AS SELECT * FROM generate_series(1, 100) i;
DROP TABLE scratch;
ALTER TABLE history SET (fillfactor = :f);
INSERT INTO history VALUES (:client_id, 0, 10);
COMMIT;
},
	'bulk@1' => q{
\set r random(1, 4)
BEGIN;
INSERT INTO bulk SELECT i, md5(i::text) FROM generate_series(1, 2000) i;
\if :r = 1
TRUNCATE bulk;
\endif
\if :r = 2
ROLLBACK;
\else
COMMIT;
\endif
},
	'message@1' => q{
SELECT pg_logical_emit_message(true, 'torture', 'text');
});

my @files;
for my $script (sort keys %scripts)
{
	my ($name, $weight) = split /@/, $script;
	my $path = $publisher->basedir . "/$name.sql";
	append_to_file($path, $scripts{$script});
	push @files, '-f', "$path\@$weight";
}
my @loads = (
	start_mix($publisher, '-R', 200),
	start_load(
		$publisher, 'torture', 'pgbench', '-n', '-c', 5, '--max-tries', 100, '-R', 150, @files, '-h', $publisher->host,
		'-p', $publisher->port, 'postgres'));

# ---------- the trouble

my %process = (
	worker => [ $subscriber, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker' ORDER BY random() LIMIT 1} ],
	leader => [ $subscriber, q{SELECT pid FROM pg_stat_subscription WHERE subname = 'sub' AND relid IS NULL AND pid IS NOT NULL} ],
	walsender => [ $publisher, q{SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'sub' AND active} ],
	decoder => [ $publisher, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep decoder' ORDER BY random() LIMIT 1} ],
	copy => [ $subscriber, q{SELECT pid FROM pg_stat_subscription WHERE subname = 'sub' AND relid IS NOT NULL AND pid IS NOT NULL LIMIT 1} ],
);

sub process
{
	my ($kind) = @_;

	return answer(@{ $process{$kind} });
}

sub one_of { return $_[ int rand @_ ]; }

sub alter
{
	my ($what) = @_;

	# it may fail: the publisher may be down
	answer($subscriber, "ALTER SUBSCRIPTION sub $what");
	return;
}

my $new_tables = 0;
my $locker;
my %trouble = (
	'kill -9@4' => sub {
		my $kind = one_of(qw(worker leader walsender decoder));
		my $pid = process($kind) or return;
		kill_9($process{$kind}[0], $pid);
		return $kind;
	},
	'kill all@2' => sub {
		my $node = one_of(qw(publisher subscriber));
		kill_9_all($node{$node});
		return $node;
	},
	'stop@2' => sub {
		my ($node, $mode) = (one_of(qw(publisher subscriber)), one_of(qw(fast immediate)));
		$node{$node}->stop($mode);
		usleep(rand 1_000_000);
		$node{$node}->start;
		return "$mode $node";
	},
	'signal@6' => sub {
		my ($kind, $signal) = (one_of(keys %process), one_of(qw(TERM TERM INT)));
		my $pid = process($kind) or return;
		kill $signal, $pid;
		return "$signal $kind";
	},
	'pause@5' => sub {
		my $kind = one_of(qw(worker leader walsender decoder));
		my $pid = process($kind) or return;
		kill 'STOP', $pid;
		usleep(500_000 + int rand 1_500_000);
		kill 'CONT', $pid;
		return $kind;
	},
	'network@6' => sub {
		my $how = one_of(qw(cut cut half_close stall delay));
		if ($how eq 'cut') { $proxy->cut; }
		elsif ($how eq 'half_close') { $proxy->half_close; usleep(500_000); $proxy->cut; }
		elsif ($how eq 'stall') { $proxy->stall(2); }
		else { $proxy->delay(0.1); usleep(1_500_000); $proxy->delay(0); }
		return $how;
	},
	'server@4' => sub {
		my $node = one_of(qw(publisher subscriber));
		my $what = one_of('CHECKPOINT', 'SELECT pg_switch_wal()', 'SELECT pg_log_standby_snapshot()', 'SELECT pg_reload_conf()');
		$what = 'CHECKPOINT' if $what =~ /standby_snapshot/ && $node{$node}->pg_version < 16;
		answer($node{$node}, $what);
		return "$what on $node";
	},
	'alter@8' => sub {
		my $what = one_of(
			'DISABLE', 'SET (worker_number = ' . int(2 + rand 7) . ')', 'SET (binary = true)', 'SET (binary = false)',
			'SET (synchronous_commit = local)', "SET (synchronous_commit = $synchronous_commit)", 'SET PUBLICATION pub WITH (refresh = false)',
			'SET (disable_on_error = false)', $refresh);
		$what = $refresh if stock_only() && $what =~ /worker_number/;
		alter($what);
		if ($what eq 'DISABLE')
		{
			usleep(rand 2_000_000);
			alter('ENABLE');
		}
		return $what;
	},
	'new table@2' => sub {
		return if $two_phase eq 'on';
		my $table = 'new_' . ++$new_tables;
		answer($_, "CREATE TABLE $table (id int PRIMARY KEY, v text)") for $subscriber, $stock;
		answer($publisher, "CREATE TABLE IF NOT EXISTS $table (id int PRIMARY KEY, v text)",
			"INSERT INTO $table SELECT i, md5(i::text) FROM generate_series(1, 5000) i");
		alter($refresh);
		answer($publisher, "UPDATE $table SET v = 'changed' WHERE id % 7 = 0");
		return $table;
	},
	'maintenance@5' => sub {
		my $what = one_of('VACUUM', 'VACUUM FULL account', 'REINDEX TABLE account', 'REINDEX TABLE CONCURRENTLY uniq',
			'VACUUM FREEZE history', 'ANALYZE', 'CLUSTER uniq USING uniq_pkey');
		answer($subscriber, "SET lock_timeout = '2s'", $what);
		return $what;
	},
	'local lock@4' => sub {
		my $what = one_of('LOCK TABLE account IN SHARE MODE', 'LOCK TABLE emptied', 'SELECT * FROM account WHERE id < 20 FOR UPDATE',
			'SELECT count(*) FROM emptied', 'UPDATE uniq SET v = v WHERE id % 3 = 0');
		answer($subscriber, "BEGIN; $what; SELECT pg_sleep(" . rand(1.5) . '); ROLLBACK');
		return $what;
	},
	'backlog@2' => sub {
		alter('DISABLE');
		usleep(3_000_000);
		alter('ENABLE');
		return '3 s';
	});
my @deck = map { my ($name, $weight) = split /@/; ($_) x $weight } sort keys %trouble;

my @violations;
my $samples = 0;
my $until = time() + $seconds;
my %count;
while (time() < $until)
{
	my $what = one_of(@deck);
	my $began = time();
	my $details = $trouble{$what}->();
	my $name = $what =~ s/@.*//r;

	if (defined $details)
	{
		note(sprintf('%6.1f s: %s: %s (%.1f s)', $began - $until + $seconds, $name, $details, time() - $began));
		$count{$name}++;
	}
	for (1 .. 1 + int rand 4)
	{
		usleep(rand 500_000);
		my ($out, $err) =
		  answer($subscriber, 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT private.check_prefix()', 'COMMIT');
		push @violations, $1 if $err =~ /(not a prefix: .*)/;
		$samples++ if defined $out;
	}
}

# ---------- the oracles

# Waits for all copies.  The server drops the slot of a copy just before it commits the end
# of it; a table for which something was killed in between waits for that slot for
# ever, with stock as with us, and has to be copied again.
sub finish_copies
{
	my ($node, $name) = @_;
	my %missing;

	for (1 .. $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'}) eq '0';
		for my $finished (split /\n/, $node->safe_psql('postgres', q{
			SELECT srrelid::regclass, format('pg_%s_sync_%s_%s', srsubid, srrelid::oid, system_identifier)
			FROM pg_subscription_rel, pg_control_system() WHERE srsubstate = 'f'}))
		{
			my ($table, $slot) = split /\|/, $finished;
			my $there = $publisher->safe_psql('postgres', "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$slot'");

			next unless $there eq '0' && ++$missing{$table} == 5;
			note("$table of $name is copied again");
			$publisher->safe_psql('postgres', "ALTER TABLE $table SET SCHEMA private");
			$node->safe_psql('postgres', "ALTER SUBSCRIPTION $name REFRESH PUBLICATION");
			$node->safe_psql('postgres', "TRUNCATE $table");
			$publisher->safe_psql('postgres', "ALTER TABLE private.$table SET SCHEMA public");
			$node->safe_psql('postgres', "ALTER SUBSCRIPTION $name REFRESH PUBLICATION");
		}
		usleep(1_000_000);
	}
	return wait_synced($node, $name);
}

stop_mix($_) for @loads;
wait_until_up($_) for $publisher, $subscriber;
is_deeply(\@violations, [], "$samples samples: every state of the subscriber is a prefix");
note(join ', ', map { "$count{$_} times $_" } sort keys %count);

# a crash may have come before the second half
$publisher->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
  for split /\n/, $publisher->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
for my $table (map { "new_$_" } 1 .. $new_tables)
{
	$_->safe_psql('postgres', "CREATE TABLE IF NOT EXISTS $table (id int PRIMARY KEY, v text)")
	  for $publisher, $subscriber, $stock;
}
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION sub ENABLE');
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub $refresh");
$stock->safe_psql('postgres', "ALTER SUBSCRIPTION stock $refresh");
finish_copies($subscriber, 'sub');
finish_copies($stock, 'stock');
wait_caught_up($publisher, $subscriber);
wait_caught_up($publisher, $stock, 'stock');

my @private = ('private.seen');
compare_tables($publisher, $subscriber, 'publisher and parallel subscriber');
compare_tables($publisher, $stock, 'publisher and stock subscriber');
# the trigger counts rows: stock shows what a serial apply sees
compare_tables($stock, $subscriber, 'what the trigger saw', @private);
is($subscriber->safe_psql('postgres', 'SELECT private.check_prefix()'),
	$publisher->safe_psql('postgres', 'SELECT n FROM private.counter'), 'the whole ledger, once');
cmp_ok($publisher->safe_psql('postgres', 'SELECT n FROM private.counter'), '>', 5 * $seconds, 'there was a load');

is( $subscriber->safe_psql('postgres', q{
	SELECT count(bt_index_check(c.oid, true)) > 10
	FROM pg_class c JOIN pg_am a ON a.oid = relam JOIN pg_index ON indexrelid = c.oid
	-- a REINDEX CONCURRENTLY that was interrupted leaves one that is not valid
	WHERE c.relkind = 'i' AND indisvalid AND amname = 'btree' AND relnamespace IN ('public'::regnamespace, 'private'::regnamespace)}),
	't', 'no index is corrupt');

# ---------- what is left

sub nothing_left
{
	my ($node, $what, $sql) = @_;

	# what ends by itself may take a moment
	my $rest;
	for (1 .. 100)
	{
		$rest = $node->safe_psql('postgres', $sql);
		last if $rest eq '';
		usleep(100_000);
	}
	is($rest, '', $what);
	return;
}

is_deeply([ temporary_files($subscriber), temporary_files($publisher) ], [], 'no temporary file is left');
nothing_left($subscriber, 'no prepared transaction is left', 'SELECT gid FROM pg_prepared_xacts');
nothing_left($subscriber, 'no origin but the subscription\'s own',
	q{SELECT external_id FROM pg_replication_origin_status WHERE external_id !~ '^pg_\d+$'});
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
$stock->safe_psql('postgres', 'DROP SUBSCRIPTION stock');
nothing_left($subscriber, 'no process is left',
	q{SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type ~ 'pgparrep|logical replication worker'});
nothing_left($publisher, 'nor on the publisher',
	q{SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type ~ 'pgparrep|walsender'});
nothing_left($publisher, 'no slot is left', 'SELECT slot_name FROM pg_replication_slots');
nothing_left($subscriber, 'no lock is left', q{SELECT * FROM pg_locks WHERE pid <> pg_backend_pid() AND locktype <> 'virtualxid'
	AND pid NOT IN (SELECT pid FROM pg_stat_activity WHERE backend_type ~ 'autovacuum')});
is_deeply([ glob($publisher->data_dir . '/pg_replslot/*') ], [], 'nor a file of one');

$proxy->stop;
$_->stop for $stock, $subscriber, $publisher;
done_testing();
