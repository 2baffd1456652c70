# A publisher that sends anything at all gets an error, and the subscriber keeps
# its health: nothing crashes, hangs, or is left behind.
#
# A proxy parses the stream and spoils one thing in each round: bytes, lengths,
# types, counts, positions, the order of frames, messages that have no place
# here, answers to commands.  Which, comes from a seed.  What is spoiled in a
# way that the subscriber must notice has to have changed no row: with the same
# data sent again in order, the tables are equal.  What is spoiled in a way that
# means the same must not be noticed at all.
#
# PGPARREP_TEST_SECONDS: how long to go on (8); PGPARREP_TEST_SEED: seed of the
# first round.  Every round prints its own, which repeats it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Proxy;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{PGPARREP_TEST_SECONDS} // 8;
my $seed = $ENV{PGPARREP_TEST_SEED} // 1;
# the first of a run without a seed: one of each kind
my $once = !exists $ENV{PGPARREP_TEST_SECONDS};

my ($publisher, $subscriber) = publisher_and_subscriber(q{
wal_retrieve_retry_interval = 50ms
wal_receiver_timeout = 4s
max_prepared_transactions = 20
log_line_prefix = '%m [%p] %b %e '
});
my $report = PostgreSQL::Test::Utils::tempdir() . '/report';

# What can be done to a CopyData message: [ its frames, each without header:
# xid, type, body ], the header of 24 bytes.  Returns the frames as bytes, or what
# to send in the place of the whole message.
#
# plain: means the same.  noticed: an error, and no row is changed.  The others
# may do whatever a publisher may ask for.
sub frame { my ($xid, $type, $body) = @_; return 'F' . pack('NNa', $xid, 1 + length $body, $type) . $body; }
sub message { my ($header, $frames) = @_; return copy_data('w' . $header . $frames); }
sub copy_data { my ($data) = @_; return 'd' . pack('N', 4 + length $data) . $data; }
sub all { return join('', map { frame(@$_) } @_); }
sub pick { return $_[ int rand @_ ]; }
sub garbage { my ($n) = @_; return join('', map { chr int rand 256 } 1 .. $n); }

# a number that hurts
sub extreme { return pack('N', pick(0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x3fffffff, 0xfffffffe, int rand 2**32)); }

# one frame of several, changed by a function
sub one
{
	my ($header, $frames, $change) = @_;
	my @frames = map { [@$_] } @$frames;
	my $n = int rand @frames;

	$frames[$n] = $change->(@{ $frames[$n] });
	return message($header, join('', map { ref $_ ? frame(@$_) : $_ } @frames));
}

my %spoil = (
	'plain split' => sub { my ($h, $f) = @_; return join('', map { message($h, frame(@$_)) } @$f); },
	'plain keepalive' => sub { my ($h, $f) = @_; return copy_data('k' . ("\0" x 16) . chr(int rand 2)) . message($h, all(@$f)); },
	'plain notice' => sub { my ($h, $f) = @_; my $n = "SNOTICE\0C00000\0Mhello\0\0"; return 'N' . pack('N', 4 + length $n) . $n . message($h, all(@$f)); },
	'plain parameter' => sub { my ($h, $f) = @_; my $n = "application_name\0x\0"; return 'S' . pack('N', 4 + length $n) . $n . message($h, all(@$f)); },

	'noticed cut' => sub
	{
		my ($h, $f) = @_;
		return one($h, $f, sub { my $bytes = frame(@_); return substr($bytes, 0, 1 + int rand(length($bytes) - 1)); }) if @$f == 1;
		my $bytes = all(@$f);
		my $last = length frame(@{ $f->[-1] });
		return message($h, substr($bytes, 0, length($bytes) - $last + 1 + int rand($last - 1)));
	},
	'noticed marker' => sub { my ($h, $f) = @_; return one($h, $f, sub { return pick('f', 'w', "\0", "\xff") . substr(frame(@_), 1); }); },
	'noticed no length' => sub { my ($h, $f) = @_; return one($h, $f, sub { return 'F' . pack('NN', $_[0], 0); }); },
	'noticed too long' => sub { my ($h, $f) = @_; return one($h, $f, sub { return 'F' . pack('NNa', $_[0], pick(0x7fffffff, 0xffffffff, 0x80000000, 2 + length $_[2]), $_[1]) . $_[2]; }) if @$f == 1;
		return message($h, all(@$f) . 'F' . pack('NNa', 1, 1000, 'I')); },
	'noticed type' => sub { my ($h, $f) = @_; return one($h, $f, sub { return [ $_[0], pick('B', 'O', 'Z', 'i', "\0", "\xff", 's', 'E'), $_[2] ]; }); },
	'noticed no frame' => sub { my ($h, $f) = @_; return copy_data('w' . substr($h, 0, int rand 24)); },
	'noticed message' => sub { my ($h, $f) = @_; return copy_data(pick('x', 'W', "\0", 'F') . garbage(int rand 50)); },
	# libpq drops it
	'empty message' => sub { my ($h, $f) = @_; return copy_data(''); },
	'noticed short keepalive' => sub { return copy_data('k' . garbage(int rand 16)); },
	'noticed row too short' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, int rand length $_[0]); }); },
	'noticed row too long' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return $_[0] . garbage(1 + int rand 8); }); },
	'noticed unknown relation' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return pack('N', pick(0, 7, 0xffffffff)) . substr($_[0], 4); }); },
	'noticed columns' => sub
	{
		my ($h, $f) = @_;
		return spoil_row($h, $f, sub { my ($body) = @_; $body =~ s/^(.{4}N)(..)/$1 . pack('n', pick(0, 1, 200, 0x7fff, 0xffff))/se; return $body; }, 'I');
	},
	'noticed kind' => sub
	{
		my ($h, $f) = @_;
		return spoil_row($h, $f, sub { my ($body) = @_; substr($body, 7, 1) = pick('x', "\0", 'K', 'N'); return $body; }, 'I');
	},
	'noticed commit cut' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, int rand length $_[0]); }, 'C'); },
	'noticed abort cut' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, int rand length $_[0]); }, 'A'); },
	'noticed prepare cut' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, 28 + int rand(length($_[0]) - 28)); }, 'P', 'K', 'r', 'b'); },
	'noticed relation cut' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, int rand length $_[0]); }, 'R'); },
	'noticed truncate cut' => sub { my ($h, $f) = @_; return spoil_row($h, $f, sub { return substr($_[0], 0, int rand length $_[0]); }, 'T'); },

	'bytes' => sub { my ($h, $f) = @_; return one($h, $f, sub { my @f = @_; for (0 .. int rand 4) { substr($f[2], int rand length $f[2], 1) = garbage(1) if length $f[2]; } return \@f; }); },
	'number' => sub { my ($h, $f) = @_; return one($h, $f, sub { my @f = @_; substr($f[2], int rand(length($f[2]) - 3), 4) = extreme() if length $f[2] > 3; return \@f; }); },
	'short number' => sub { my ($h, $f) = @_; return one($h, $f, sub { my @f = @_; substr($f[2], int rand(length($f[2]) - 1), 2) = pack('n', pick(0, 1, 0x7fff, 0x8000, 0xffff, int rand 100)) if length $f[2] > 1; return \@f; }); },
	'body' => sub { my ($h, $f) = @_; return one($h, $f, sub { return [ @_[ 0, 1 ], garbage(int rand 300) ]; }); },
	'any frame' => sub { my ($h, $f) = @_; return message($h, all(@$f) . frame(pick(0, $f->[-1][0], int rand 2**32), chr(int rand 256), garbage(int rand 60))); },
	'other type' => sub { my ($h, $f) = @_; return one($h, $f, sub { return [ $_[0], pick(split //, 'IUDTMRYCbPKrXSA'), $_[2] ]; }); },
	'xid' => sub { my ($h, $f) = @_; return one($h, $f, sub { return [ pick(0, 1, 2, 3, $_[0] + 1, $_[0] - 1, 0xffffffff), @_[ 1, 2 ] ]; }); },
	'twice' => sub { my ($h, $f) = @_; return one($h, $f, sub { return frame(@_) x 2; }); },
	'commit twice' => sub { my ($h, $f) = @_; return spoil_frame($h, $f, sub { return frame(@_) x 2; }, 'C', 'P', 'K', 'r'); },
	'lost' => sub { my ($h, $f) = @_; return one($h, $f, sub { return ''; }); },
	'lost relation' => sub { my ($h, $f) = @_; return spoil_frame($h, $f, sub { return ''; }, 'R'); },
	'lost subtransaction' => sub { my ($h, $f) = @_; return spoil_frame($h, $f, sub { return ''; }, 'X', 'A'); },
	'order' => sub { my ($h, $f) = @_; return message($h, all(reverse @$f)); },
	'again' => sub { my ($h, $f) = @_; return message($h, all(@$f)) x 2; },
	'position' => sub { my ($h, $f) = @_; substr($h, 0, 16) = pack('NN', int rand 2**32, int rand 2**32) x 2; return message($h, all(@$f)); },
	'position back' => sub { my ($h, $f) = @_; substr($h, 0, 16) = pick("\0" x 16, pack('NNNN', 0, 1, 0, 1)); return message($h, all(@$f)); },
	'keepalive ahead' => sub { my ($h, $f) = @_; return copy_data('k' . pack('NN', pick(1, 0x7fffffff, 0xffffffff), int rand 2**32) . ("\0" x 8) . "\1") . message($h, all(@$f)); },
	'end' => sub { return pick('c' . pack('N', 4), 'c' . pack('N', 4) . 'Z' . pack('N', 5) . 'I'); },
	'error' => sub { my $n = "SERROR\0C" . pick('XX000', '57014', '08P01') . "\0Mno\0\0"; return 'E' . pack('N', 4 + length $n) . $n; },
	'libpq' => sub { my ($h, $f) = @_; return garbage(1 + int rand 30); },
	'libpq length' => sub { my ($h, $f) = @_; my $m = message($h, all(@$f)); substr($m, 1, 4) = extreme(); return $m; },
);

# only frames of the types given, or all rows; undef if there is none here
sub spoil_frame
{
	my ($h, $f, $change, @types) = @_;
	my @hits = grep { my $n = $_; grep { $f->[$n][1] eq $_ } @types } 0 .. $#$f;

	return undef unless @hits;
	my @frames = map { frame(@$_) } @$f;
	my $n = pick(@hits);
	$frames[$n] = $change->(@{ $f->[$n] });
	return message($h, join('', @frames));
}

sub spoil_row
{
	my ($h, $f, $change, @types) = @_;

	return spoil_frame($h, $f, sub { return frame(@_[ 0, 1 ], $change->($_[2])); }, @types ? @types : ('I', 'U', 'D'));
}

# The order is "SEED:KIND", or "SEED:answer".
my $done = '';
my $countdown = 0;

sub filter
{
	my ($state, $data, $order) = @_;
	my $out = '';

	return $data if $state->{lost};
	if ($order ne ($state->{order} // ''))
	{
		$state->{order} = $order;
		if ($order ne '' && $order ne $done)
		{
			my ($n) = split /:/, $order;
			srand($n);
			$countdown = int rand 30;
		}
	}
	my (undef, $kind) = split /:/, $order, 2;
	$state->{in} .= $data;
	while (length $state->{in} >= 5)
	{
		my $length = unpack('N', substr($state->{in}, 1, 4)) + 1;
		last if length $state->{in} < $length;
		my $message = substr($state->{in}, 0, $length, '');
		my $type = substr($message, 0, 1);

		$state->{copy} = 1 if $type eq 'W';
		if ($order ne '' && $done ne $order)
		{
			my $new;

			if ($state->{copy} && $type eq 'd' && substr($message, 5, 1) eq 'w' && $kind ne 'answer')
			{
				my @frames = frames(substr($message, 30));
				$countdown -= @frames;
				$new = $spoil{$kind}->(substr($message, 6, 24), \@frames) if @frames && $countdown < 0;
			}
			elsif (!$state->{copy} && $kind eq 'answer' && $type =~ /[DTC]/ && --$countdown < 0)
			{
				$new = $message;
				if (rand() < 0.5) { substr($new, 5 + int rand($length - 5), 1) = garbage(1); }
				elsif (rand() < 0.5) { substr($new, 5, 2) = pack('n', pick(0, 1, 3, 100, 0xffff)); }
				else { $new = substr($new, 0, 5 + int rand($length - 5)); substr($new, 1, 4) = pack('N', length($new) - 1); }
			}
			if (defined $new)
			{
				$done = $order;
				append_to_file($report, "$order\n" . unpack('H*', $message) . "\n" . unpack('H*', $new) . "\n");
				$message = $new;
				if ($kind =~ /^libpq/)
				{
					# what follows is as it comes
					$message .= $state->{in};
					$state->{lost} = 1;
				}
			}
		}
		$out .= $message;
		last if $state->{lost};
	}
	return $out;
}

sub frames
{
	my ($bytes) = @_;
	my @frames;

	while ($bytes =~ s/^F(.{4})(.{4})//s)
	{
		my ($xid, $length) = (unpack('N', $1), unpack('N', $2));
		my $rest = substr($bytes, 0, $length, '');
		push @frames, [ $xid, substr($rest, 0, 1), substr($rest, 1) ];
	}
	return @frames;
}

$_->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, v text, n numeric UNIQUE, a int[], b bool, ts timestamptz);
	CREATE TABLE f (id int, v text);
	ALTER TABLE f REPLICA IDENTITY FULL})
  for $publisher, $subscriber;
$publisher->safe_psql('postgres', 'CREATE PUBLICATION pub FOR TABLE t, f');
my $proxy = Proxy->new($publisher, filter => \&filter);
my $connection = $proxy->connstr . ' dbname=postgres user=' . $publisher->safe_psql('postgres', 'SELECT current_user');
my $server = session($subscriber);
my ($one, $two) = (session($publisher), session($publisher));
$server->query('SET client_min_messages = warning');

# A little of everything, with transactions that overlap.
sub load
{
	my ($gid) = @_;

	$one->query('BEGIN');
	$one->query(q{INSERT INTO t SELECT g, repeat('x', g * 10), g / 7.0, ARRAY[g, 2], true, now() FROM generate_series(1, 6) g});
	$two->query('BEGIN');
	$two->query('INSERT INTO f SELECT g % 3, NULL FROM generate_series(1, 9) g');
	$one->query('SAVEPOINT s; UPDATE t SET v = v || 1 WHERE id < 4; ROLLBACK TO s; SAVEPOINT s2; DELETE FROM t WHERE id = 6; RELEASE s2');
	$two->query('COMMIT');
	$one->query('UPDATE t SET id = 100 WHERE id = 1');
	$one->query('COMMIT');
	$two->query(qq{BEGIN; INSERT INTO t VALUES (1, 'p'), (6, NULL); PREPARE TRANSACTION '$gid'});
	$one->query(q{UPDATE f SET v = 'y' WHERE id = 1; DELETE FROM f WHERE id = 0});
	$one->query(qq{COMMIT PREPARED '$gid'});
	$one->query(qq{BEGIN; INSERT INTO f VALUES (9, 'p'); PREPARE TRANSACTION '${gid}x'});
	$one->query(qq{ROLLBACK PREPARED '${gid}x'});
	$two->query(q{BEGIN; INSERT INTO f VALUES (10, 'r'); ROLLBACK});
	$one->query('CREATE TABLE IF NOT EXISTS other (i int); TRUNCATE f; INSERT INTO f VALUES (5), (5), (6)');
	$two->query('UPDATE t SET v = upper(v), n = n + 1000; DELETE FROM f WHERE id = 6');
	return;
}

sub end_prepared
{
	$server->query("ROLLBACK PREPARED '$_'") for split /\n/, $server->query('SELECT gid FROM pg_prepared_xacts');
	return;
}

my $trouble = qr/terminated by signal|was terminated|PANIC|TRAP|exited with exit code 2/;
my $who = qr/logical replication worker|pgparrep apply worker/;

sub round
{
	my ($seed, $kind) = @_;
	my $offset = log_size($subscriber);
	my $what = "seed $seed, $kind";
	my $ok = 1;
	my $check = sub { my ($true, $text) = @_; return if $true; $ok = 0; fail("$what: $text"); return; };

	$publisher->safe_psql('postgres', 'TRUNCATE t, f');
	$server->query(q{TRUNCATE t, f});
	$server->query("CREATE SUBSCRIPTION sub CONNECTION '$connection' PUBLICATION pub WITH ("
		. subscription_options(3, 'copy_data = false, two_phase = ' . ($seed % 3 ? 'true' : 'false')) . ')');
	wait_for($publisher, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'sub'}, "$what: a leader");
	unlink $report;
	$proxy->order("$seed:$kind");
	if ($kind eq 'answer')
	{
		$server->query(q{SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE pid IS NOT NULL});
	}
	load("g$seed");
	my $lsn = $one->query('SELECT pg_current_wal_insert_lsn()');
	$one->query("SELECT pg_logical_emit_message(true, 'x', '')");

	# until it has noticed, or got through, or timed out
	my $deadline = time() + 15;
	my $log = '';
	while (time() < $deadline)
	{
		# its end may have been lost, and others wait for its locks as they must
		end_prepared() if time() > $deadline - 8;
		$log = log_since($subscriber, $offset);
		last if $log =~ /$who \w{5} (?:ERROR|FATAL)|$trouble/;
		last if $one->query("SELECT count(*) FROM pg_stat_replication WHERE application_name = 'sub' AND replay_lsn >= '$lsn'") > 0;
		usleep(20_000);
	}
	$check->(time() < $deadline, 'neither through nor an error in time');
	$proxy->order('');
	my $spoiled = -e $report;
	if ($kind =~ /^plain|^noticed/)
	{
		wait_caught_up($publisher, $subscriber);
		$log = log_since($subscriber, $offset);
		$check->($log !~ /$who \w{5} (?:ERROR|FATAL)/, 'an error for nothing') if $kind =~ /^plain/;
		$check->($log =~ /$who 08P01 ERROR/, 'not noticed') if $kind =~ /^noticed/ && $spoiled;
		$ok &&= compare_tables($publisher, $subscriber, $what, 't', 'f');
	}
	my $left = time() + 30;
	$server->query('DROP SUBSCRIPTION sub');
	$check->($server->{err} eq '', "drop: $server->{err}");
	$server->{err} = '';
	while (time() < $left)
	{
		last if $server->query(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('logical replication worker', 'pgparrep apply worker')}) eq '0';
		usleep(10_000);
	}
	$check->(time() < $left, 'processes are left');
	$check->(!temporary_files($subscriber), 'files are left');
	end_prepared();
	$log = log_since($subscriber, $offset);
	$check->($log !~ $trouble, 'something crashed');

	# what says XX000 has not been thought of
	my ($unforeseen) = $log =~ /^(.*$who (?:XX\w{3}|58\w{3}) (?:ERROR|FATAL).*)$/m;
	$check->(!defined $unforeseen || $kind eq 'error', $unforeseen // '');
	if (!$ok)
	{
		diag("PGPARREP_TEST_SEED=$seed\n" . ($spoiled ? difference(slurp_file($report)) : 'nothing was spoiled'));
		diag(substr($log, 0, 4000));
	}
	ok($ok, $what);
	return $spoiled;
}

# The message as it was and as it became, from shortly before they differ.
sub difference
{
	my (undef, $old, $new) = split /\n/, $_[0];
	my $n = 0;

	$n += 2 while $n < length $old && substr($old, $n, 2) eq substr($new, $n, 2);
	return join("\n", "at byte @{[$n / 2]}:", map { my $from = $n > 60 ? $n - 60 : 0; length $_ > $from ? substr($_, $from, 200) : '' } $old, $new);
}

my @kinds = sort(keys %spoil, 'answer');
my ($rounds, $spoiled) = (0, 0);
my $end = time() + $seconds;
while ($once ? $rounds < @kinds : time() < $end)
{
	srand($seed);
	my $kind = $once ? $kinds[$rounds] : pick(@kinds);
	$kind = $ENV{PGPARREP_TEST_KIND} if $ENV{PGPARREP_TEST_KIND};
	$spoiled += round($seed, $kind);
	$rounds++;
	$seed++;
}
note("$rounds rounds, $spoiled of them spoiled");
cmp_ok($spoiled, '>', $rounds / 2, 'most rounds spoiled something');
$_->quit for $server, $one, $two;
$proxy->stop;

done_testing();
