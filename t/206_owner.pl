# What the owner of a subscription may do is asked for while it is applied, as the server's
# own apply does: privileges that are taken away, row-level security that is turned on and
# an owner who changes, each in the middle of a load.
#
# A pool keeps tables open and prepared over many transactions, and every worker
# for itself; a check that is kept with them would let an owner go on with what was
# taken from him.  The same is done to a subscriber with the server's own apply: the errors must
# be the same, and apply goes on when the cause is gone.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'nothing to compare with the server itself' if stock_only();

my $conf = "wal_retrieve_retry_interval = 200ms\n";
my $publisher = new_node('publisher', $conf);
my %node = map { $_ => new_node($_, $conf) } qw(stock parallel);
my $version = $publisher->pg_version;
my $id = 0;

$publisher->safe_psql('postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text);
	CREATE TABLE other (id int PRIMARY KEY, v text);
	CREATE PUBLICATION pub FOR TABLE t, other});
for my $name (sort keys %node)
{
	my $node = $node{$name};

	$node->safe_psql('postgres', q{
		CREATE EXTENSION pgparrep;
		CREATE ROLE table_owner;
		CREATE ROLE owner LOGIN SUPERUSER;
		CREATE ROLE another LOGIN SUPERUSER;
		CREATE TABLE t (id int PRIMARY KEY, v text);
		CREATE TABLE other (id int PRIMARY KEY, v text);
		ALTER TABLE t OWNER TO table_owner;
		GRANT ALL ON t, other TO owner, another});
	create_subscription($publisher, $node, name => $name, worker_number => $name eq 'stock' ? undef : 4,
		options => $version >= 16 ? 'password_required = false, run_as_owner = true' : '');
	# from here on it is the privileges that count
	$node->safe_psql('postgres', qq{
		ALTER SUBSCRIPTION $name OWNER TO owner;
		ALTER ROLE owner NOSUPERUSER;
		ALTER ROLE another NOSUPERUSER});
}

sub load
{
	my ($n) = @_;

	$publisher->safe_psql('postgres', join ";\n",
		map { $id++; ("INSERT INTO t VALUES ($id, 'a')", "UPDATE t SET v = 'b' WHERE id = $id - 2", "DELETE FROM t WHERE id = $id - 7", "INSERT INTO other VALUES ($id, 'a')") } 1 .. $n);
	return;
}

sub both
{
	my ($sql) = @_;

	$node{$_}->safe_psql('postgres', $sql =~ s/NAME/$_/gr) for sort keys %node;
	return;
}

sub equal
{
	my ($what) = @_;

	load(50);
	for my $name (sort keys %node)
	{
		wait_caught_up($publisher, $node{$name}, $name);
		compare_tables($publisher, $node{$name}, "$what: $name");
	}
	return;
}

# One does something that ends in an error, and undoes it.
sub refused
{
	my ($what, $do, $undo, $statement) = @_;
	my %from = map { $_ => log_size($node{$_}) } keys %node;
	my %error;

	load(50);
	both($do);
	$publisher->safe_psql('postgres', $statement);
	load(50);
	for my $name (sort keys %node)
	{
		$node{$name}->wait_for_log(qr/ERROR:  (?!.*does not exist)/, $from{$name});
		($error{$name}) = log_since($node{$name}, $from{$name}) =~ /ERROR:  (.*)/;
	}
	note($error{stock});
	is($error{parallel}, $error{stock}, "$what: the same error");
	my @ids = map { $node{$_}->safe_psql('postgres', 'SELECT coalesce(max(id), 0) FROM other') } sort keys %node;
	is($ids[0], $ids[1], "$what: after the same transaction");
	both($undo);
	equal("$what, not any more");
	return;
}

equal('as they are created');
for my $privilege (qw(INSERT UPDATE DELETE))
{
	my %statement = (INSERT => "INSERT INTO t VALUES (0, 'x')", UPDATE => "UPDATE t SET v = 'x' WHERE id = $id", DELETE => 'DELETE FROM t WHERE id = 0');

	refused("$privilege is revoked", "REVOKE $privilege ON t FROM owner", "GRANT $privilege ON t TO owner", $statement{$privilege});
}
refused('TRUNCATE is revoked', 'REVOKE TRUNCATE ON t FROM owner', 'GRANT TRUNCATE ON t TO owner', 'TRUNCATE t');
refused('row-level security', 'ALTER TABLE t ENABLE ROW LEVEL SECURITY', 'ALTER TABLE t DISABLE ROW LEVEL SECURITY', "INSERT INTO t VALUES (-1, 'x')");

# ---------- somebody else

# before 16 an owner must be a superuser at that moment
sub change_owner
{
	my ($role) = @_;

	both("ALTER ROLE $role SUPERUSER; ALTER SUBSCRIPTION NAME OWNER TO $role; ALTER ROLE $role NOSUPERUSER");
	return;
}
load(50);
change_owner('another');
equal('another owner');
refused('a right of the new owner', 'REVOKE INSERT ON t FROM another', 'GRANT INSERT ON t TO another', "INSERT INTO t VALUES (-2, 'x')");
both('REVOKE ALL ON t FROM owner');
equal('the old one counts no more');

if ($version >= 16)
{
	# the tables' owners' privileges, which the subscription's owner has to be able to take
	both('ALTER SUBSCRIPTION NAME SET (run_as_owner = false); GRANT table_owner TO another; ALTER TABLE other OWNER TO another');
	equal('as the owners of the tables');
	refused('a role that cannot be taken', 'REVOKE table_owner FROM another', 'GRANT table_owner TO another', "INSERT INTO t VALUES (-3, 'x')");
}

unlike(slurp_file($_->logfile), qr/TRAP:|PANIC|was terminated by signal/, $_->name . ': no crash') for values %node;
$_->stop for values %node, $publisher;
done_testing();
