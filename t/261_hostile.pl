# A publisher that lies in native values gets an error, not a crash.
#
# A proxy between the two changes bytes on their way.  Without the checks the
# worker (or the leader, which hashes keys) would follow a length out of the
# message or take it for a pointer.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use IO::Select;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(usleep);

my ($publisher, $subscriber) = publisher_and_subscriber('wal_retrieve_retry_interval = 100ms');
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $orders = "$dir/orders";			# hex from and to, in lines

# Copies both ways for each connection in a process of its own.
sub proxy
{
	my $server = IO::Socket::UNIX->new(Type => SOCK_STREAM, Local => "$dir/.s.PGSQL.5555", Listen => 10) or die "listen: $!";
	my $real = $publisher->host . '/.s.PGSQL.' . $publisher->port;
	local $SIG{CHLD} = 'IGNORE';

	# so that nobody waits for us to close them
	open(STDOUT, '>', '/dev/null');
	open(STDERR, '>', '/dev/null');

	while (my $client = $server->accept)
	{
		next if fork;
		my $backend = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $real) or POSIX::_exit(1);
		my $select = IO::Select->new($client, $backend);
		while (1)
		{
			foreach my $from ($select->can_read)
			{
				my $to = $from == $client ? $backend : $client;
				my $n = sysread($from, my $data, 1 << 20);
				POSIX::_exit(0) unless $n;
				if ($from == $backend && -s $orders)
				{
					my ($old, $new) = map { pack('H*', $_) } split /\n/, slurp_file($orders);
					$data =~ s/\Q$old\E/$new/g;
				}
				while (length $data)
				{
					my $done = syswrite($to, $data) or POSIX::_exit(0);
					substr($data, 0, $done) = '';
				}
			}
		}
	}
	return;
}

$_->safe_psql(
	'postgres', q{
	CREATE TABLE t (id int PRIMARY KEY, k text UNIQUE, n numeric UNIQUE, v text, b bool, u uuid, ts timestamp, a int[], ta text[], i inet, c text);
	CREATE TABLE narrow (id int PRIMARY KEY, v text, n numeric, a int[])})
  for $publisher, $subscriber;
$subscriber->safe_psql('postgres', q{ALTER TABLE narrow ALTER v TYPE varchar(300), ALTER n TYPE text, ALTER a TYPE text});
create_subscription($publisher, $subscriber, options => 'copy_data = false');

my $proxy = fork;
if ($proxy == 0)
{
	# not to run the END blocks of the test
	eval { proxy(); };
	POSIX::_exit(1);
}
usleep(50_000) until -S "$dir/.s.PGSQL.5555";
$subscriber->safe_psql('postgres', "ALTER SUBSCRIPTION sub CONNECTION 'host=$dir port=5555 user=" . $publisher->safe_psql('postgres', 'SELECT current_user') . " dbname=postgres application_name=sub'");
wait_caught_up($publisher, $subscriber);

END
{
	my $status = $?;
	kill 'KILL', $proxy if $proxy;
	$? = $status;
}

my $id = 0;
sub be32 { return unpack('H*', pack('N', shift)); }
sub le32 { return unpack('H*', pack('V', shift)); }
sub hex_of { return unpack('H*', shift); }

# Makes a change, lies about it until there is an error, then tells the truth.
sub lie
{
	my ($what, $sql, $old, $new, $error) = @_;
	my $size = log_size($subscriber);

	die "$what: lengths" unless length $old == length $new;
	append_to_file("$orders.new", "$old\n$new\n");
	rename("$orders.new", $orders) or die $!;
	$publisher->safe_psql('postgres', $sql);
	my $deadline = time() + 30;
	my $log = '';
	while (time() < $deadline)
	{
		$log = log_since($subscriber, $size);
		last if $log =~ /ERROR|terminated by signal/;
		usleep(50_000);
	}
	like($log, $error // qr/ERROR:  invalid value in a message from the publisher/, $what);
	unlink $orders;
	wait_caught_up($publisher, $subscriber);
	$log = log_since($subscriber, $size);
	unlike($log, qr/terminated by signal|PANIC|TRAP/, "$what: nothing crashed");
	return;
}

SKIP:
{
	skip 'written for little-endian servers', 1 unless pack('s', 1) eq "\1\0";

	my $long = 'longvalue' x 20;		# a header of four bytes
	my $len = 4 + length $long;
	foreach my $table (qw(t narrow))
	{
		my $start = sub { ++$id; return "INSERT INTO $table (id, $_[0]) VALUES ($id, $_[1])" };
		my $short = hex_of('victim');

		lie("$table: pointer to elsewhere", $start->('v', "'victim'"), "0f$short", "01$short");
		lie("$table: short header too long", $start->('v', "'victim'"), "0f$short", "ff$short");
		lie("$table: short header too short", $start->('v', "'victim'"), "0f$short", "05$short");
		lie("$table: long header too long", $start->('v', "'$long'"), le32($len << 2) . hex_of($long), 'fcffff7f' . hex_of($long));
		lie("$table: long header too short", $start->('v', "'$long'"), le32($len << 2) . hex_of($long), le32(16) . hex_of($long));
		lie("$table: said to be compressed", $start->('v', "'$long'"), le32($len << 2) . hex_of($long), le32($len << 2 | 2) . hex_of($long));
		lie("$table: not text", $start->('v', "'victim'"), "0f$short", '0fff' . substr($short, 2));
		lie("$table: numeric digits", $start->('n', '1.2345'), '0f' . '0082' . '0100' . '2909', '0f' . '0082' . '0100' . 'ffff');
		lie("$table: array dimension", $start->('a', "'{11,22,33}'"), '03000000010000000b0000001600000021000000', 'ffffff7f010000000b0000001600000021000000');
	}
	# in a key: the leader looks at it first
	++$id;
	my $short = hex_of('victimkey');
	lie('key: header too long', "INSERT INTO t (id, k) VALUES ($id, 'victimkey')", "15$short", "ff$short");
	++$id;
	lie('key: pointer to elsewhere', "INSERT INTO t (id, k) VALUES ($id, 'victimkey' || 2)", '17' . $short, '01' . $short);
	++$id;
	lie('key: numeric', "INSERT INTO t (id, n) VALUES ($id, 9.2345)", '0f' . '0082' . '0900' . '2909', '0f' . '0082' . '0900' . 'ffff');
	lie('integer of 4 bytes in 3', "INSERT INTO t (id, c) VALUES (287454020, 'x')", '640000000444332211', '640000000344332211',
		qr/ERROR:  invalid/);
	++$id;
	lie('bool', "INSERT INTO t (id, b, u) VALUES ($id, true, '00112233445566778899aabbccddeeff')",
		'64000000010164000000100011', '64000000010264000000100011');
	++$id;
	my $text = 'compressible' x 1000;
	lie('compressed: raw length', "INSERT INTO t (id, v) VALUES ($id, '$text')", le32(12000), le32(12001));
	++$id;
	lie('compressed: huge', "INSERT INTO t (id, v) VALUES ($id, '$text')", le32(12000), le32(0x3ffffff0));
	++$id;
	lie('compressed: garbage', "INSERT INTO t (id, v) VALUES ($id, '$text')", hex_of('ompress'), 'ff' x 7);
}

compare_tables($publisher, $subscriber, 'in the end', 't');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM narrow'),
	$publisher->safe_psql('postgres', 'SELECT count(*) FROM narrow'), 'in the end: narrow');

done_testing();
