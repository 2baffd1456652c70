
=pod

=head1 NAME

EagerCases - what the tests of transactions that are applied before their commit
have in common

=cut

package EagerCases;

use strict;
use warnings;

use Exporter 'import';
use EndToEnd;

our @EXPORT = qw(wait_state wait_open wait_all_idle counted);

=over

=item wait_state(publisher, subscriber, session, state, what)

Until the open transaction of a session of the publisher has arrived as far as it
has come, and its worker is in a state.  Returns the worker's process.

=cut

sub wait_state
{
	my ($publisher, $subscriber, $session, $state, $what) = @_;
	my $xid = $session->query('SELECT pg_current_xact_id()::xid');

	_send_all($publisher, $subscriber, $session);
	wait_for($subscriber, "SELECT count(*) = 1 FROM pgparrep.stat_apply_worker WHERE remote_xid = '$xid' AND state = '$state'",
		"$what: $state");
	return $subscriber->safe_psql('postgres', "SELECT pid FROM pgparrep.stat_apply_worker WHERE remote_xid = '$xid'");
}

=item wait_open(publisher, subscriber, session, n)

Until n open transactions have arrived.

=cut

sub wait_open
{
	my ($publisher, $subscriber, $session, $n) = @_;

	_send_all($publisher, $subscriber, $session);
	return wait_for($subscriber, "SELECT in_progress = $n FROM pgparrep.stat_subscription", "$n open transactions");
}

# What nobody commits is not flushed for a while, and so not sent.
sub _send_all
{
	my ($publisher, $subscriber, $session) = @_;
	my $lsn = $session->query('SELECT pg_current_wal_insert_lsn()');

	$publisher->safe_psql('postgres', q{SET synchronous_commit = on; SELECT pg_logical_emit_message(true, '', '')});
	return wait_for($subscriber, "SELECT received_lsn >= '$lsn' FROM pgparrep.stat_subscription", "$lsn to be received");
}

=item wait_all_idle(subscriber)

=cut

sub wait_all_idle
{
	my ($subscriber) = @_;

	return wait_for($subscriber,
		q{SELECT count(*) = 4 FROM pgparrep.stat_apply_worker WHERE state = 'idle'}, 'four workers to be idle');
}

=item counted(subscriber)

How many were begun, and rolled back, since the last call.

=back

=cut

my ($begun, $rolled_back) = (0, 0);

sub counted
{
	my ($subscriber) = @_;
	my ($b, $r) = split /\|/,
	  $subscriber->safe_psql('postgres', 'SELECT eager, eager_rolled_back FROM pgparrep.stat_subscription');
	my $result = ($b - $begun) . ' begun, ' . ($r - $rolled_back) . ' rolled back';

	($begun, $rolled_back) = ($b, $r);
	return $result;
}

1;
