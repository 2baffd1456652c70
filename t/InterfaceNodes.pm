# InterfaceNodes.pm - nodes and log questions of the tests t/2*.pl

package InterfaceNodes;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  new_publisher new_subscriber allow_plugin connstr_of
  replication_commands log_of wait_for_text count_text);

# A publisher that lets pgparrep be used, unless told not to; one table t, all
# of whose rows it publishes.
sub new_publisher
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 'logical');
	$node->append_conf('postgresql.conf', <<'EOC');
log_replication_commands = on
log_statement = all
autovacuum = off
EOC
	$node->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	$node->start;
	allow_plugin($node) unless $options{refuse};
	$node->safe_psql(
		'postgres', q(
		CREATE TABLE t (a int PRIMARY KEY, b text);
		INSERT INTO t SELECT i, 'first' FROM generate_series(1, 10) i;
		CREATE PUBLICATION p FOR TABLE t;));
	return $node;
}

# Releases before August 2026 do not know the setting and need none.
sub allow_plugin
{
	my ($node) = @_;

	return
	  if $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'"
	  ) eq '0';
	$node->safe_psql('postgres',
		'ALTER SYSTEM SET output_plugin_libraries = pgoutput, test_decoding, pgparrep'
	);
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('output_plugin_libraries') LIKE '%pgparrep'")
	  or die 'output_plugin_libraries was not reloaded';
}

# A subscriber with table t; with pgparrep preloaded unless stock is set.
sub new_subscriber
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 'logical');
	$node->append_conf('postgresql.conf', <<'EOC');
wal_retrieve_retry_interval = 500ms
autovacuum = off
EOC
	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = 'pgparrep'")
	  unless $options{stock};
	$node->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	$node->start;
	$node->safe_psql('postgres', 'CREATE TABLE t (a int PRIMARY KEY, b text)');
	$node->safe_psql('postgres', 'CREATE EXTENSION pgparrep')
	  unless $options{stock};
	return $node;
}

# The connection string as a literal of the replication commands.
sub connstr_of
{
	my ($node) = @_;

	return $node->connstr . ' dbname=postgres';
}

# All of a node's log, from an offset on.
sub log_of
{
	my ($node, $offset) = @_;

	return substr(slurp_file($node->logfile), $offset || 0);
}

# The commands that the publisher got from clients of a given application_name,
# with what differs between two equal runs made equal.  The publisher's
# log_line_prefix must show %a in angle brackets.
sub replication_commands
{
	my ($node, $application) = @_;
	my @result;

	foreach my $line (split /\n/, log_of($node))
	{
		next unless $line =~ /<$application>/;
		next
		  unless $line =~ /received replication command: (.*)/
		  || $line =~ /LOG:  statement: (.*)/;
		my $command = $1;

		$command =~ s/\b[0-9A-F]+\/[0-9A-F]+\b/LSN/g;
		push @result, $command;
	}
	return @result;
}

sub count_text
{
	my ($node, $regexp, $offset) = @_;
	my @hits = log_of($node, $offset) =~ /$regexp/g;

	return scalar @hits;
}

# Waits until the log contains a text, at least count times.
sub wait_for_text
{
	my ($node, $regexp, $offset, $count) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if count_text($node, $regexp, $offset) >= ($count || 1);
		select(undef, undef, undef, 0.1);
	}
	diag("waited in vain for $regexp in the log of " . $node->name);
	return 0;
}

1;
