# Whose code runs as whom: as with the server's own apply.
#
# The owner of a table decides what its triggers, defaults, checks, expression indexes and
# domains do.  From 16 on apply runs them as that owner, unless the subscription says
# run_as_owner; before, as the owner of the subscription.  A pool that prepares
# or runs any of them with the privileges of the subscription's owner would lend those to
# whoever owns a table.  The same changes go to a subscriber with the server's own apply and to
# a parallel one; each function tells who runs it.
#
# Whatever the pool shows of a subscription must not show its connection string, and nobody but
# its owner sets its label.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = new_node('publisher');
my %node = (stock => new_node('stock'), parallel => new_node('parallel'));
my $parallel = $node{parallel};
my $version = $publisher->safe_psql('postgres', q{SELECT current_setting('server_version_num')::int / 10000});

$publisher->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, a int, d int);
	CREATE TABLE rows_only (a int, d int);
	ALTER TABLE rows_only REPLICA IDENTITY FULL;
	CREATE PUBLICATION pub FOR TABLE t, rows_only});
for my $name (sort keys %node)
{
	my $s = $node{$name};

	$s->safe_psql('postgres', q{
		CREATE EXTENSION pgparrep;
		CREATE ROLE table_owner LOGIN;
		CREATE ROLE somebody LOGIN;
		GRANT ALL ON SCHEMA public TO table_owner;
		SET ROLE table_owner;
		CREATE FUNCTION tell(what text, value int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
		BEGIN
			RAISE LOG 'here % is run by %', what, current_user;
			RETURN value;
		END $$;
		CREATE FUNCTION tell_row() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM public.tell(TG_ARGV[0], 1);
			RETURN NEW;
		END $$;
		CREATE DOMAIN told AS int CHECK (tell('domain', VALUE) IS NOT NULL);
		CREATE TABLE t (id int PRIMARY KEY, a int CHECK (tell('check', a) > 0), d told,
			x int DEFAULT tell('default', 1) + random(), g int GENERATED ALWAYS AS (tell('generated', a)) STORED);
		CREATE INDEX ON t (tell('index', a));
		CREATE INDEX ON t (a) WHERE tell('predicate', a) > 5;
		CREATE TABLE rows_only (a int CHECK (tell('check', a) > 0), d told, x int DEFAULT tell('default', 1) + random());
		CREATE INDEX ON rows_only (tell('index', a));
		CREATE TRIGGER b BEFORE INSERT OR UPDATE ON rows_only FOR EACH ROW EXECUTE FUNCTION tell_row('before');
		CREATE TRIGGER a AFTER INSERT OR UPDATE ON rows_only FOR EACH ROW EXECUTE FUNCTION tell_row('after');
		ALTER TABLE rows_only ENABLE ALWAYS TRIGGER b, ENABLE ALWAYS TRIGGER a});
	create_subscription($publisher, $s, name => $name, worker_number => $name eq 'stock' ? undef : 4);
	wait_synced($s, $name);
}

my $n = 0;

sub runs_as
{
	my ($what) = @_;
	my %told;
	my %from = map { $_ => log_size($node{$_}) } keys %node;

	$n += 2;
	$publisher->safe_psql('postgres', "
		INSERT INTO t VALUES ($n, $n, 1), ($n + 1, 1, 1);
		UPDATE t SET a = a + 10, d = 2 WHERE id = $n;
		INSERT INTO rows_only VALUES ($n, 1), ($n + 1, 1);
		UPDATE rows_only SET d = 2 WHERE a = $n;
		DELETE FROM rows_only WHERE a = $n + 1;
		DELETE FROM t WHERE id = $n + 1");
	for my $name (sort keys %node)
	{
		my (%seen, $log);

		wait_caught_up($publisher, $node{$name}, $name);
		$log = log_since($node{$name}, $from{$name});
		$seen{$1}++ while $log =~ /here (\S+ is run by \S+)/g;
		$told{$name} = [ sort keys %seen ];
	}
	note(map { "$_\n" } @{ $told{stock} });
	is_deeply($told{parallel}, $told{stock}, "$what: code is run by whom the server's own apply has it run");
	cmp_ok(scalar @{ $told{stock} }, '>=', 7, "$what: it was run");
	return;
}

runs_as('as they are created');
if ($version >= 16)
{
	$node{$_}->safe_psql('postgres', "ALTER SUBSCRIPTION $_ SET (run_as_owner = true)") for keys %node;
	runs_as('run_as_owner');
	$node{$_}->safe_psql('postgres', "ALTER SUBSCRIPTION $_ SET (run_as_owner = false)") for keys %node;
	runs_as('not run_as_owner');
}

# ---------- what others may do and see

my ($out, $err);
for my $label ("'worker_number=2'", 'NULL')
{
	$parallel->psql('postgres', "SECURITY LABEL FOR pgparrep ON SUBSCRIPTION parallel IS $label",
		extra_params => [ '-U', 'somebody' ], stderr => \$err);
	like($err, qr/must be owner of subscription parallel/, "label $label by somebody else");
}
for my $label ('', 'worker_number', 'worker_number=999', 'worker_number=2;', "worker_number=2\nx", 'x' x 10000)
{
	$parallel->psql('postgres', "SECURITY LABEL FOR pgparrep ON SUBSCRIPTION parallel IS '$label'", stderr => \$err);
	like($err, qr/ERROR:  /, 'a label that means nothing: ' . substr($label, 0, 20));
}
is( $parallel->safe_psql('postgres', q{SELECT label FROM pg_seclabels WHERE provider = 'pgparrep'}),
	$parallel->safe_psql('postgres', q{SELECT 'worker_number=4'}),
	'the label is as it was');

my $secret = $publisher->host;
for my $view ('pgparrep.pg_subscription', 'pgparrep.stat_subscription', 'pgparrep.stat_apply_worker', 'pgparrep.stat_decoder')
{
	$parallel->psql('postgres', "SELECT v::text FROM $view v", extra_params => [ '-U', 'somebody' ], stdout => \$out, stderr => \$err);
	unlike("$out$err", qr/\Q$secret\E/, "$view shows no connection string");
}

$_->stop for values %node, $publisher;
done_testing();
