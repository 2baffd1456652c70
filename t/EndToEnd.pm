
=pod

=head1 NAME

EndToEnd - what the end-to-end tests of pgparrep have in common

=head1 SYNOPSIS

  use FindBin;
  use lib $FindBin::RealBin;
  use EndToEnd;

  my ($publisher, $subscriber) = publisher_and_subscriber();
  $_->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY)') for $publisher, $subscriber;
  create_subscription($publisher, $subscriber, worker_number => 4);
  $publisher->safe_psql('postgres', 'INSERT INTO t VALUES (1)');
  wait_caught_up($publisher, $subscriber);
  compare_tables($publisher, $subscriber, 'one row');

Everything lives in database postgres; publication and subscription are called
"pub" and "sub" unless said otherwise.  With PGPARREP_TEST_STOCK=1 in the
environment subscriptions are made without worker_number: this tells what the
server's own apply does with a test.

=cut

package EndToEnd;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use File::Find;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

our @EXPORT = qw(
  stock_only
  new_node
  publisher_and_subscriber
  connection
  create_subscription
  subscription_options
  wait_synced
  wait_caught_up
  wait_for
  wait_until_up
  answer
  compare_tables
  leader_pid
  apply_worker_pids
  kill_9
  kill_9_all
  temporary_files
  log_size
  log_since
  create_mix_tables
  mix_arguments
  run_mix
  start_mix
  start_load
  stop_mix
  session
  trio
  trio_sql
  trio_subscribe
  trio_unsubscribe
  trio_wait
  trio_equal
);

sub stock_only { return $ENV{PGPARREP_TEST_STOCK} ? 1 : 0; }

=pod

=head1 NODES

=over

=item new_node(name [, configuration lines])

Initialised and started, able to be either side.  As an output plugin pgparrep
must be listed in output_plugin_libraries where the server knows that setting
(minor releases from August 2026 on); older ones would not start with it.

=cut

sub new_node
{
	my ($name, $conf) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	# which bytes are text must not depend on the environment
	$node->init(allows_streaming => 'logical', extra => ['--encoding=UTF8']);
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'pgparrep'
shared_buffers = 64MB
max_wal_size = 1GB
max_connections = 60
max_worker_processes = 40
max_logical_replication_workers = 16
max_replication_slots = 20
max_wal_senders = 20
log_statement = none
log_min_messages = info
# Test::Cluster switches this off; tests kill backends
restart_after_crash = on
});
	my ($settings) = run_command([ 'postgres', '--describe-config' ]);
	$node->append_conf('postgresql.conf',
		"output_plugin_libraries = 'pgoutput, test_decoding, pgparrep'")
	  if $settings =~ /^output_plugin_libraries\t/m;
	$node->append_conf('postgresql.conf', $conf) if defined $conf;
	$node->start;
	return $node;
}

=item publisher_and_subscriber([configuration lines of both])

Two nodes; the subscriber has the extension, for its views.

=cut

sub publisher_and_subscriber
{
	my ($conf) = @_;
	my $publisher = new_node('publisher', $conf);
	my $subscriber = new_node('subscriber', $conf);

	$subscriber->safe_psql('postgres', 'CREATE EXTENSION pgparrep');
	return ($publisher, $subscriber);
}

=item wait_until_up(node)

Wait until a node that crashed accepts connections again.

=cut

sub wait_until_up
{
	my ($node) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $deadline)
	{
		return 1 if defined answer($node, 'SELECT 1');
		usleep(100_000);
	}
	croak $node->name . " does not come up";
}

=item answer(node, statement ...)

Runs the statements one by one and returns the output, also an empty one, and
in list context the error messages as well; undef if one fails.  Unlike
Test::Cluster's psql it may be asked of a server that is not up: a psql that
ends before it has read its standard input would end the test.

=cut

sub answer
{
	my ($node, @statements) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run(
		[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), map { ('-c', $_) } @statements ],
		'<', '/dev/null', '>', \$out, '2>', \$err);

	chomp $out;
	$out = undef unless $ok;
	return wantarray ? ($out, $err) : $out;
}

=item kill_9(node, pid)

Kill -9 one process; its postmaster then restarts the server.  Returns when
connections are accepted again.

=cut

sub kill_9
{
	my ($node, $pid) = @_;

	kill 'KILL', $pid or return 0;
	# until the postmaster has noticed, connections still succeed
	usleep(200_000);
	wait_until_up($node);
	return 1;
}

=item kill_9_all(node)

Kill -9 the postmaster and all its processes, and start the server again.

=cut

sub kill_9_all
{
	my ($node) = @_;
	my ($pid) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)$/m;
	my ($children) = run_command([ 'pgrep', '-P', $pid ]);

	$node->kill9;
	# the new postmaster would refuse to start beside any of them
	my @children = split /\n/, $children;
	kill 'KILL', @children;
	usleep(10_000) while grep { kill 0, $_ } @children;
	$node->start;
	return;
}

=pod

=back

=head1 SUBSCRIPTIONS

=over

=item subscription_options(worker_number [, further options])

The list behind WITH.

=cut

sub subscription_options
{
	my ($worker_number, $further) = @_;
	my @options;

	push @options, "worker_number = $worker_number" if defined $worker_number && !stock_only();
	push @options, $further if defined $further && $further ne '';
	return join(', ', @options);
}

=item connection(publisher)

The connection string, fit for quoting.

=cut

sub connection { my ($publisher) = @_; return $publisher->connstr . ' dbname=postgres'; }

=item create_subscription(publisher, subscriber, %parameters)

Makes publication and subscription and waits for the initial copy.  Parameters:
worker_number (4; undef: the server's own apply), options (further ones), name ('sub'), publication ('pub',
made FOR ALL TABLES if missing), wait (1).

=cut

sub create_subscription
{
	my ($publisher, $subscriber, %p) = @_;
	my $name = $p{name} // 'sub';
	my $publication = $p{publication} // 'pub';
	my $options = subscription_options(exists $p{worker_number} ? $p{worker_number} : 4, $p{options});

	$publisher->safe_psql('postgres', "CREATE PUBLICATION $publication FOR ALL TABLES")
	  unless $publisher->safe_psql('postgres',
		"SELECT 1 FROM pg_publication WHERE pubname = '$publication'");
	$subscriber->safe_psql('postgres',
		    "CREATE SUBSCRIPTION $name CONNECTION '"
		  . connection($publisher)
		  . "' PUBLICATION $publication"
		  . ($options ne '' ? " WITH ($options)" : ''));
	wait_synced($subscriber, $name) if $p{wait} // 1;
	return;
}

=item wait_synced(subscriber [, subscription])

Wait until the initial copy of every table is over.

=cut

sub wait_synced
{
	my ($subscriber, $name) = @_;
	$name //= 'sub';

	return wait_for(
		$subscriber, qq{
		SELECT count(*) = 0
		FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid
		WHERE subname = '$name' AND srsubstate <> 'r'}, "initial copy of $name");
}

=item wait_caught_up(publisher, subscriber [, subscription])

Wait until everything committed so far on the publisher is applied.  Follows
the insert position, since with synchronous_commit = off the last commits lie
beyond the write position; and writes one more record, since nobody reaches a
position just behind a page header before there is one.  Does not look at the
walsender's state: one with nothing to send may stay in "catchup".

=cut

sub wait_caught_up
{
	my ($publisher, $subscriber, $name) = @_;
	$name //= 'sub';

	my $lsn = $publisher->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
	$publisher->safe_psql('postgres',
		"SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'EndToEnd', '')");
	return wait_for(
		$publisher, qq{
		SELECT count(*) > 0 FROM pg_stat_replication
		WHERE application_name = '$name' AND replay_lsn >= '$lsn'},
		"$name to reach $lsn",
		sub { _explain($publisher, $subscriber) });
}

# What there is to know about a subscription that does not move.
sub _explain
{
	my ($publisher, $subscriber) = @_;

	return "walsenders: "
	  . $publisher->safe_psql('postgres', 'SELECT * FROM pg_stat_replication')
	  . "\nslots: "
	  . $publisher->safe_psql('postgres', 'SELECT * FROM pg_replication_slots')
	  . "\nsubscriber: "
	  . $subscriber->safe_psql(
		'postgres', q{
		SELECT pid, backend_type, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 60)
		FROM pg_stat_activity WHERE backend_type NOT IN ('client backend', 'checkpointer', 'background writer')})
	  . "\n"
	  . substr(log_since($subscriber, 0), -3000);
}

=item wait_for(node, query [, what [, explanation]])

Wait until a query answers 't'.  Unlike poll_query_until it survives a
restarting server, and ends the test if that does not happen in time, since
all that follows would wait as long.  The explanation is a function that
returns a text.

=cut

sub wait_for
{
	my ($node, $query, $what, $explanation) = @_;
	my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
	my ($out, $err);

	while (time() < $deadline)
	{
		($out, $err) = answer($node, $query);
		return 1 if defined $out && $out eq 't';
		usleep(50_000);
	}
	my $complaint = 'waited in vain for ' . ($what // $query) . '; last answer: ' . ($out // '') . ' ' . ($err // '');
	# what a test dies of appears in its log only
	diag($complaint);
	diag($explanation->()) if $explanation;
	croak $complaint;
}

=item leader_pid(subscriber [, subscription]), apply_worker_pids(subscriber)

Processes of the subscription: core's apply worker, which is the leader, and
the pool.

=cut

sub leader_pid
{
	my ($subscriber, $name) = @_;
	$name //= 'sub';

	return $subscriber->safe_psql('postgres',
		"SELECT pid FROM pg_stat_subscription WHERE subname = '$name' AND relid IS NULL AND pid IS NOT NULL"
	);
}

sub apply_worker_pids
{
	my ($subscriber) = @_;

	return split /\n/,
	  $subscriber->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'pgparrep apply worker'");
}

=pod

=back

=head1 COMPARING

=over

=item compare_tables(publisher, subscriber, test name [, table ...])

One test: the tables hold the same rows on both sides, as many times.  Without
names every published table.  Columns go by name, in the publisher's order, and
values by their text, so that order and type may differ.

=cut

sub compare_tables
{
	my ($publisher, $subscriber, $what, @tables) = @_;

	@tables = split /\n/,
	  $publisher->safe_psql('postgres',
		"SELECT DISTINCT format('%I.%I', schemaname, tablename) FROM pg_publication_tables ORDER BY 1"
	  ) unless @tables;

	my %columns = _columns($publisher, @tables);
	my $query = join "\nUNION ALL\n", map {
		my $columns = $columns{$_};
		qq{SELECT '$_ has ' || count(*) || ' rows, checksum '
		       || coalesce(sum(hashtextextended(ROW($columns)::text, 0)::numeric), 0)
		   FROM $_}
	} @tables;
	$query .= "\nORDER BY 1";		# a parallel plan has no order
	my $expected = $publisher->safe_psql('postgres', $query);
	my $found = $subscriber->safe_psql('postgres', $query);

	return 1 if is($found, $expected, "$what: equal tables");

	my %expected = map { $_ => 1 } split /\n/, $expected;
	foreach my $line (grep { !$expected{$_} } split /\n/, $found)
	{
		my ($table) = $line =~ /^(.*?) has /;
		my $columns = $columns{$table};
		my %rows;

		$rows{$_}++ for split /\n/, $publisher->safe_psql('postgres', "SELECT ROW($columns)::text FROM $table");
		$rows{$_}-- for split /\n/, $subscriber->safe_psql('postgres', "SELECT ROW($columns)::text FROM $table");
		my @different = sort grep { $rows{$_} != 0 } keys %rows;
		diag("$table: " . @different . ' rows differ');
		diag(($rows{$_} > 0 ? '  missing ' : '  surplus ') . abs($rows{$_}) . ' times: ' . substr($_, 0, 120))
		  for @different[ 0 .. ($#different > 9 ? 9 : $#different) ];
	}
	return 0;
}

# The columns of each table.
sub _columns
{
	my ($node, @tables) = @_;
	my $tables = join ', ', map { "('$_')" } @tables;

	return map { split /\|/, $_, 2 } split /\n/, $node->safe_psql(
		'postgres', qq{
		SELECT t, string_agg(format('%I', attname), ', ' ORDER BY attnum)
		FROM (VALUES $tables) AS v (t) LEFT JOIN pg_attribute
			ON attrelid = t::regclass AND attnum > 0 AND NOT attisdropped
		GROUP BY t});
}

=item temporary_files(node)

Names of all files below pgsql_tmp.

=cut

sub temporary_files
{
	my ($node) = @_;
	my $dir = $node->data_dir . '/base/pgsql_tmp';
	my @files;

	return () unless -d $dir;
	# a file may go while we look
	find({ wanted => sub { push @files, $File::Find::name if -f $_ }, no_chdir => 1 }, $dir);
	return @files;
}

=item log_size(node), log_since(node, size)

What a server has logged since a moment.

=cut

sub log_size { my ($node) = @_; return -s $node->logfile; }

sub log_since
{
	my ($node, $offset) = @_;
	my $log = slurp_file($node->logfile);

	return $offset < length $log ? substr($log, $offset) : '';
}

=pod

=back

=head1 BESIDE THE SERVER'S OWN APPLY

One publisher feeds two subscribers: "pool" with workers and our plugin, and
"serial" with the server's own apply and pgoutput.

=over

=item trio([configuration lines of all [, further ones of the pool]])

The three nodes, as a reference to a hash with keys publisher, pool, serial.

=item trio_sql(trio, statements [, statements for the subscribers])

The same on all three, or other ones on the subscribers.

=item trio_subscribe(trio, %parameters)

A subscription on each, named like its node.  Parameters: options (further
ones), publications ('pub'; "pub" is made FOR ALL TABLES if missing), wait (1).

=item trio_unsubscribe(trio)

Drops them.

=item trio_wait(trio)

Until both are caught up.

=item trio_equal(trio, test name [, table ...])

Two tests: when both are caught up, the tables (all published ones) are the same
on all three.

=back

=cut

sub trio
{
	my ($conf, $pool_conf) = @_;
	$conf //= '';
	my $trio = {
		publisher => new_node('publisher', $conf),
		pool => new_node('pool', "$conf\n" . ($pool_conf // '')),
		serial => new_node('serial', $conf)
	};

	$trio->{$_}->safe_psql('postgres', 'CREATE EXTENSION pgparrep') for qw(publisher pool);
	return $trio;
}

sub trio_sql
{
	my ($trio, $sql, $subscriber_sql) = @_;

	$trio->{publisher}->safe_psql('postgres', $sql);
	$trio->{$_}->safe_psql('postgres', $subscriber_sql // $sql) for qw(pool serial);
	return;
}

sub trio_subscribe
{
	my ($trio, %p) = @_;
	my $publisher = $trio->{publisher};
	my $publications = $p{publications} // 'pub';

	$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR ALL TABLES')
	  if $publications eq 'pub'
	  && !$publisher->safe_psql('postgres', "SELECT 1 FROM pg_publication WHERE pubname = 'pub'");
	foreach my $name (qw(pool serial))
	{
		my $options = subscription_options($name eq 'pool' ? 4 : undef, $p{options});

		$trio->{$name}->safe_psql('postgres',
			    "CREATE SUBSCRIPTION $name CONNECTION '"
			  . connection($publisher)
			  . "' PUBLICATION $publications"
			  . ($options ne '' ? " WITH ($options)" : ''));
	}
	return unless $p{wait} // 1;
	wait_synced($trio->{$_}, $_) for qw(pool serial);
	return;
}

sub trio_unsubscribe
{
	my ($trio) = @_;

	$trio->{$_}->safe_psql('postgres', "DROP SUBSCRIPTION $_") for qw(pool serial);
	return;
}

sub trio_wait
{
	my ($trio) = @_;

	wait_caught_up($trio->{publisher}, $trio->{$_}, $_) for qw(serial pool);
	return;
}

sub trio_equal
{
	my ($trio, $what, @tables) = @_;

	trio_wait($trio);
	return compare_tables($trio->{publisher}, $trio->{serial}, "$what, server's own apply", @tables)
	  & compare_tables($trio->{publisher}, $trio->{pool}, $what, @tables);
}

=pod

=head1 THE MIXED LOAD

=over

=item create_mix_tables(node ...)

=item run_mix(publisher, seconds [, pgbench arguments])

=item start_mix(publisher [, pgbench arguments]), stop_mix(handle)

=item start_load(publisher, name, 'pgbench', arguments ...)

Pgbench with eight clients on few rows: updates, deletes, upserts, changes of
key, unique values that move from row to row, tables without key, out-of-line
values, savepoints rolled back and released, aborts, TRUNCATE.  start_mix goes
on over crashes of the publisher until stop_mix; start_load does so with any
other pgbench.

=cut

sub create_mix_tables
{
	for my $node (@_)
	{
		$node->safe_psql(
			'postgres', q{
			CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL, pad text);
			CREATE TABLE uniq (id bigint PRIMARY KEY, u text UNIQUE, v int);
			CREATE TABLE nokey (a int, b text);
			ALTER TABLE nokey REPLICA IDENTITY FULL;
			CREATE TABLE history (client int, account int, delta int);
			CREATE TABLE big (id int PRIMARY KEY, n int, big text);
			ALTER TABLE big ALTER big SET STORAGE EXTERNAL;
			CREATE TABLE emptied (id int, v int);
			CREATE SEQUENCE ids;

			CREATE FUNCTION change_key(a int, b int) RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				UPDATE account SET id = b WHERE id = a;
			EXCEPTION WHEN unique_violation THEN
				UPDATE account SET balance = balance + 1 WHERE id = a;
			END $$;

			-- the value moves to a new row, or, if others hold it, nothing happens
			CREATE FUNCTION move_unique(k text) RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				DELETE FROM uniq WHERE u = k;
				INSERT INTO uniq VALUES (nextval('ids'), k, 0);
			EXCEPTION WHEN unique_violation THEN
				NULL;
			END $$;});
	}
	my $publisher = $_[0];
	$publisher->safe_psql(
		'postgres', q{
		INSERT INTO account SELECT i, 0, repeat('p', 60) FROM generate_series(1, 1000) i;
		INSERT INTO uniq SELECT nextval('ids'), 'k' || i, 0 FROM generate_series(1, 50) i;
		INSERT INTO nokey SELECT i % 20, 'b' || i % 3 FROM generate_series(1, 100) i;
		INSERT INTO big SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(1, 50) i;
		INSERT INTO emptied VALUES (0, 0)});
	return;
}

my %mix = (
	'update@10' => q{
\set a random(1, 1000)
\set d random(-100, 100)
BEGIN;
UPDATE account SET balance = balance + :d WHERE id = :a;
INSERT INTO history VALUES (:client_id, :a, :d);
END;
},
	'hot@3' => q{
\set a random(1, 5)
UPDATE account SET balance = balance + 1 WHERE id = :a;
},
	'delete@3' => q{
\set a random(6, 1000)
DELETE FROM account WHERE id = :a;
},
	'upsert@4' => q{
\set a random(1, 1000)
INSERT INTO account VALUES (:a, 1, 'upsert') ON CONFLICT (id) DO UPDATE SET balance = account.balance + 1, pad = excluded.pad;
},
	'reinsert@3' => q{
\set a random(1, 1000)
BEGIN;
DELETE FROM account WHERE id = :a;
INSERT INTO account VALUES (:a, 2, 'reinsert') ON CONFLICT DO NOTHING;
INSERT INTO history VALUES (:client_id, :a, 2);
END;
},
	'key@4' => q{
\set a random(6, 1000)
\set b random(6, 1000)
SELECT change_key(:a, :b);
},
	'unique@4' => q{
\set k random(1, 50)
SELECT move_unique('k' || :k);
},
	'unique_away@2' => q{
\set k random(1, 50)
DELETE FROM uniq WHERE u = 'k' || :k;
},
	'unique_back@2' => q{
\set k random(1, 50)
INSERT INTO uniq VALUES (nextval('ids'), 'k' || :k, 1) ON CONFLICT DO NOTHING;
},
	'nokey_insert@2' => q{
\set a random(1, 20)
INSERT INTO nokey VALUES (:a, 'b' || :a % 3);
},
	'nokey_update@2' => q{
\set a random(1, 20)
UPDATE nokey SET b = 'u' || :a % 2 WHERE ctid = (SELECT ctid FROM nokey WHERE a = :a LIMIT 1 FOR UPDATE SKIP LOCKED);
},
	'nokey_delete@2' => q{
\set a random(1, 20)
DELETE FROM nokey WHERE ctid = (SELECT ctid FROM nokey WHERE a = :a LIMIT 1 FOR UPDATE SKIP LOCKED);
},
	'big@2' => q{
\set a random(1, 50)
\set n random(1, 1000000)
UPDATE big SET n = :n WHERE id = :a;
},
	'big_change@1' => q{
\set a random(1, 50)
\set n random(1, 1000000)
UPDATE big SET big = repeat(md5(:n::text), 150 + :a), n = :n WHERE id = :a;
},
	'savepoints@3' => q{
\set a random(1, 1000)
BEGIN;
SAVEPOINT one;
UPDATE account SET balance = balance + 1000000 WHERE id = :a;
INSERT INTO history VALUES (:client_id, :a, 1000000);
ROLLBACK TO one;
INSERT INTO history VALUES (:client_id, :a, 3);
SAVEPOINT two;
UPDATE account SET balance = balance + 3 WHERE id = :a;
SAVEPOINT three;
INSERT INTO history VALUES (:client_id, :a, 1000001);
ROLLBACK TO three;
RELEASE two;
END;
},
	'abort@2' => q{
\set a random(6, 1000)
BEGIN;
DELETE FROM account WHERE id = :a;
INSERT INTO history VALUES (:client_id, :a, 1000002);
UPDATE uniq SET v = 1000002 WHERE u = 'k' || :a % 50;
ROLLBACK;
},
	'many_rows@1' => q{
\set a random(1, 900)
BEGIN;
INSERT INTO history SELECT :client_id, i, 0 FROM generate_series(1, 200) i;
INSERT INTO emptied SELECT i, :a FROM generate_series(1, 50) i;
END;
},
);

# Left out by tests that cannot have it.
my $truncate = q{
TRUNCATE emptied;
INSERT INTO emptied VALUES (1, :client_id);
};

sub mix_arguments
{
	my ($publisher, @arguments) = @_;
	my $dir = $publisher->basedir;
	my @files;

	foreach my $script (sort keys %mix)
	{
		my ($name, $weight) = split /@/, $script;
		my $path = "$dir/$name.sql";

		unlink $path;
		append_to_file($path, $mix{$script});
		# scale up, so that the rare TRUNCATE below is rare
		push @files, '-f', "$path\@" . $weight * 20;
	}
	unlink "$dir/truncate.sql";
	append_to_file("$dir/truncate.sql", $truncate);
	push @files, '-f', "$dir/truncate.sql\@1";

	# deadlocks are part of the load: the client tries again
	return (
		'pgbench', '-n', '-c', 8, '-j', 2, '--max-tries', 100, '-h', $publisher->host,
		'-p', $publisher->port, @files, @arguments, 'postgres');
}

sub run_mix
{
	my ($publisher, $seconds, @arguments) = @_;

	return $publisher->command_like(
		[ mix_arguments($publisher, '-T', $seconds, @arguments) ],
		qr/number of transactions actually processed: [1-9]/,
		"mixed load for $seconds s");
}

sub start_mix
{
	my ($publisher, @arguments) = @_;

	return start_load($publisher, 'mix', mix_arguments($publisher, @arguments));
}

sub start_load
{
	my ($publisher, $name, @command) = @_;
	my $flag = $publisher->basedir . "/${name}_goes_on";
	my $log = $publisher->basedir . "/$name.log";
	# a crash of the publisher ends pgbench; a run of 3 s is the longest that
	# stop_mix has to wait for
	my $loop = 'while [ -e "$0" ]; do "$@" || sleep 0.2; done';

	append_to_file($flag, '');
	my $run = IPC::Run::start([ 'sh', '-c', $loop, $flag, $command[0], '-T', 3, @command[ 1 .. $#command ] ],
		'<', \undef, '>', $log, '2>', $log);
	return { run => $run, flag => $flag };
}

sub stop_mix
{
	my ($mix) = @_;

	unlink $mix->{flag};
	$mix->{run}->finish;
	return;
}

=pod

=back

=head1 SESSIONS

=over

=item session(node)

A connection that stays open: C<< $s->query($sql) >> runs statements and returns
their output, C<< $s->send($sql) >> does not wait for it, C<< $s->quit >> ends it.

=back

=cut

sub session { return EndToEnd::Session->new(@_); }

package EndToEnd::Session;

use strict;
use warnings;

use Carp;

sub new
{
	my ($class, $node) = @_;
	my $self = { in => '', out => '', err => '', n => 0 };

	$self->{timer} = IPC::Run::timer($PostgreSQL::Test::Utils::timeout_default);
	$self->{run} = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	return bless $self, $class;
}

sub send
{
	my ($self, $sql) = @_;

	$self->{in} .= "$sql;\n";
	$self->{run}->pump_nb;
	return;
}

sub query
{
	my ($self, $sql) = @_;
	my $mark = 'done ' . ++$self->{n};

	$self->{out} = '';
	$self->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	$self->{in} .= "$sql;\n\\echo $mark\n";
	until ($self->{out} =~ /^\Q$mark\E\n/m)
	{
		croak "session ended: $self->{err}" unless $self->{run}->pumpable;
		$self->{run}->pump;
	}
	return $self->{out} =~ s/\n?\Q$mark\E\n.*//sr;
}

sub quit
{
	my ($self) = @_;

	$self->{in} .= "\\q\n";
	eval { $self->{run}->finish };
	return;
}

1;
