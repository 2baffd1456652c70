
=pod

=head1 NAME

Proxy - a network between two servers that a test can spoil

=head1 SYNOPSIS

  my $proxy = Proxy->new($publisher);
  $subscriber->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '"
      . $proxy->connstr . " dbname=postgres' PUBLICATION p");
  $proxy->delay(0.2);	# from now on each piece of data travels for 0.2 s
  $proxy->stall(3);		# nothing passes for 3 s, nobody is told
  $proxy->cut;			# both ends see their connections closed
  $proxy->half_close;	# the subscriber can still send, but gets an end of file
  $proxy->stop;

  my $proxy = Proxy->new($publisher, filter => sub
	  {
		  my ($state, $data, $order) = @_;	# what the server sent
		  return $data;						# what the client gets
	  });
  $proxy->order('word');	# what the filter is called with from now on ('')

Listens on a unix socket of its own directory and forwards to the node's. A
connection to a node that is down is closed at once.  It is a child process;
what it is told goes through a pipe and holds within a few milliseconds.  A filter
runs in that process; its state is a hash of its own for each connection.

=cut

package Proxy;

use strict;
use warnings;

use IO::Handle;
use IO::Select;
use IO::Socket::UNIX;
use PostgreSQL::Test::Utils;
use Socket;
use Time::HiRes qw(time);

# a reader that does not keep up is not read from for others
use constant MOST_UNSENT => 1024 * 1024;

sub new
{
	my ($class, $node, %p) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $self = bless { dir => $dir, port => $node->port }, $class;
	my $file = '.s.PGSQL.' . $node->port;
	my $listener = IO::Socket::UNIX->new(Local => "$dir/$file", Listen => 50)
	  or die "could not listen on $dir/$file: $!";

	pipe(my $reader, my $writer) or die "could not make a pipe: $!";
	$self->{pid} = fork() // die "could not fork: $!";
	if ($self->{pid} == 0)
	{
		close $writer;
		$SIG{$_} = 'DEFAULT' for qw(TERM INT HUP);
		eval { _serve($listener, $reader, $node->host . "/$file", $p{filter} // sub { return $_[1]; }) };
		# no END block of the test
		require POSIX;
		POSIX::_exit(0);
	}
	close $reader;
	close $listener;
	$writer->autoflush(1);
	$self->{writer} = $writer;
	return $self;
}

sub connstr { my ($self) = @_; return "host=$self->{dir} port=$self->{port}"; }

sub delay { my ($self, $seconds) = @_; return $self->{writer}->print("delay $seconds\n"); }
sub stall { my ($self, $seconds) = @_; return $self->{writer}->print("stall $seconds\n"); }
sub cut { my ($self) = @_; return $self->{writer}->print("cut 0\n"); }
sub half_close { my ($self) = @_; return $self->{writer}->print("half_close 0\n"); }
sub order { my ($self, $word) = @_; return $self->{writer}->print("order =$word\n"); }

# The end of the pipe ends the process.
sub stop
{
	my ($self) = @_;

	return unless $self->{pid};
	close $self->{writer};
	waitpid $self->{pid}, 0;
	$self->{pid} = 0;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local $?;

	$self->stop;
	return;
}

# Each connection is two ends that know each other; an end has what it is still
# to be sent: pieces with the time from when they may go.
sub _serve
{
	my ($listener, $control, $target, $filter) = @_;
	my (%end, $delay, $stalled_until);
	my $order = '';
	my $commands = '';

	($delay, $stalled_until) = (0, 0);
	$SIG{PIPE} = 'IGNORE';
	while (1)
	{
		my $now = time();
		my $stalled = $now < $stalled_until;
		my ($reads, $writes) = (IO::Select->new($listener, $control), IO::Select->new());

		for my $e (values %end)
		{
			$reads->add($e->{socket}) unless $stalled || $e->{eof} || $e->{peer}{unsent} > MOST_UNSENT;
			$writes->add($e->{socket}) if !$stalled && @{ $e->{queue} } && $e->{queue}[0][0] <= $now;
		}
		my ($readable, $writable) = IO::Select->select($reads, $writes, undef, $delay || $stalled ? 0.005 : 0.1);

		for my $socket (@{ $readable // [] })
		{
			if ($socket == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::UNIX->new(Peer => $target);
				if (!$server)
				{
					close $client;
					next;
				}
				my ($a, $b) = map { { socket => $_, queue => [], unsent => 0, eof => 0 } } $client, $server;
				($a->{peer}, $b->{peer}, $b->{server}) = ($b, $a, 1);
				for my $e ($a, $b)
				{
					$e->{socket}->blocking(0);
					$end{ $e->{socket} } = $e;
				}
			}
			elsif ($socket == $control)
			{
				sysread($control, $commands, 1000, length $commands) or return;
				while ($commands =~ s/^(\w+) (.+)\n//)
				{
					if ($1 eq 'delay') { $delay = $2; }
					elsif ($1 eq 'stall') { $stalled_until = time() + $2; }
					elsif ($1 eq 'order') { $order = substr($2, 1); }
					elsif ($1 eq 'cut') { _close(\%end, $_) for my @all = values %end; }
					elsif ($1 eq 'half_close')
					{
						# the client hears that the server has closed, and no more
						for my $e (grep { !$_->{server} } values %end)
						{
							$e->{queue} = [];
							$e->{unsent} = 0;
							$e->{peer}{eof} = 1;
							shutdown $e->{socket}, 1;
						}
					}
				}
			}
			elsif (my $e = $end{$socket})
			{
				my $n = sysread($socket, my $data, 65536);
				if ($n)
				{
					if ($e->{server})
					{
						$data = $filter->($e->{state} //= {}, $data, $order);
						next if $data eq '';
						$n = length $data;
					}
					push @{ $e->{peer}{queue} }, [ time() + $delay, $data ];
					$e->{peer}{unsent} += $n;
				}
				elsif (defined $n || !$!{EAGAIN})
				{
					# what was read before still travels
					$e->{eof} = 1;
					_close(\%end, $e) if !defined $n || !@{ $e->{peer}{queue} };
				}
			}
		}
		for my $socket (@{ $writable // [] })
		{
			my $e = $end{$socket} or next;
			while (@{ $e->{queue} } && $e->{queue}[0][0] <= $now)
			{
				my $n = syswrite($socket, $e->{queue}[0][1]);
				if (!defined $n)
				{
					_close(\%end, $e) unless $!{EAGAIN};
					last;
				}
				$e->{unsent} -= $n;
				substr($e->{queue}[0][1], 0, $n) = '';
				last if $e->{queue}[0][1] ne '';
				shift @{ $e->{queue} };
			}
			_close(\%end, $e) if $e->{peer}{eof} && !@{ $e->{queue} };
		}
	}
}

sub _close
{
	my ($end, $e) = @_;

	for ($e, $e->{peer})
	{
		delete $end->{ $_->{socket} };
		close $_->{socket};
		$_->{queue} = [];
	}
	return;
}

1;
