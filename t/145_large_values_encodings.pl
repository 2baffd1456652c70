# Values that are much larger than every buffer on their way, and databases of
# different encodings.
#
# A value of 100 MB is 200 MB as text; queues and batches that were made for rows
# of some kilobytes have to pass it on, and must not keep it.  Between encodings
# text is converted once, by the publisher, which refuses what it cannot convert;
# a byte that is converted twice, or not at all, is another letter.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use EndToEnd;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

my $trio = trio(
	"wal_retrieve_retry_interval = 100ms\npgparrep.force_decoders = on\nautovacuum = off\nmax_wal_size = 4GB",
	"pgparrep.parallel_decode_num = 3\npgparrep.apply_buffer = 8MB");
my ($publisher, $pool, $serial) = @{$trio}{qw(publisher pool serial)};

# ---- Large values -------------------------------------------------------

trio_sql($trio, q{
	CREATE TABLE large (id int PRIMARY KEY, form text, v bytea);
	ALTER TABLE large ALTER v SET STORAGE EXTERNAL});
# only with the pool: the server's own carries them, and takes its time
create_subscription($publisher, $pool, name => 'pool');

my $id = 0;
foreach my $form ('auto', 'text', 'binary')
{
	my $options = $form eq 'binary' ? 'true' : 'false';

	$pool->safe_psql('postgres', "ALTER SYSTEM SET pgparrep.tuple_format = '$form'");
	$pool->reload;
	$pool->safe_psql('postgres', "ALTER SUBSCRIPTION pool DISABLE; ALTER SUBSCRIPTION pool SET (binary = $options)");
	wait_for($publisher, q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'pool'}, 'slot is free');
	$pool->safe_psql('postgres', 'ALTER SUBSCRIPTION pool ENABLE');
	$id += 10;
	my $pieces = $form eq 'auto' ? 8_000_000 : 25_000_000;
	$publisher->safe_psql('postgres', qq{
		INSERT INTO large VALUES ($id, 'small', '\\x00');
		INSERT INTO large SELECT $id + 1, '$form', decode(repeat('00ff5c27', $pieces), 'hex');
		UPDATE large SET form = form || ', unchanged' WHERE id = $id + 1;
		UPDATE large SET id = $id + 2 WHERE id = $id + 1;
		INSERT INTO large VALUES ($id + 3, 'small', '\\x01')});
	wait_caught_up($publisher, $pool, 'pool');
	my $query = 'SELECT id, form, length(v), md5(v) FROM large ORDER BY id';
	is($pool->safe_psql('postgres', $query), $publisher->safe_psql('postgres', $query), "$form: a large value");
	$_->safe_psql('postgres', 'DELETE FROM large WHERE length(v) > 1000') for $pool, $publisher;
}
wait_caught_up($publisher, $pool, 'pool');
is($pool->safe_psql('postgres', 'SELECT count(*) FROM large'), 6, 'deleted');
SKIP:
{
	skip 'needs /proc', 1 unless -r '/proc/self/status';
	# not the walsender: the server's buffer for a connection never shrinks
	foreach my $pid (split /\n/, $publisher->safe_psql('postgres', 'SELECT pid FROM pgparrep.stat_decoder'))
	{
		my ($kb) = slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m;
		cmp_ok($kb, '<', 50_000, 'a decoder gives memory back');
	}
}
$pool->safe_psql('postgres', 'DROP SUBSCRIPTION pool');

# ---- Encodings ----------------------------------------------------------

my $utf8 = "gr\xc3\xbcn";			# a letter that both encodings have
my $euro = "\xe2\x82\xac";			# one that LATIN1 has not
my %database = (utf8 => 'UTF8', latin1 => 'LATIN1', ascii => 'SQL_ASCII');
foreach my $name (sort keys %database)
{
	foreach my $node ($publisher, $pool, $serial)
	{
		$node->safe_psql('postgres', "CREATE DATABASE $name TEMPLATE template0 ENCODING '$database{$name}' LC_COLLATE 'C' LC_CTYPE 'C'");
		$node->safe_psql($name, q{
			CREATE TABLE words (id int PRIMARY KEY, t text, v varchar(10), c char(6), a text[], j jsonb, n name);
			ALTER TABLE words REPLICA IDENTITY FULL});
	}
	$publisher->safe_psql($name, "CREATE PUBLICATION $name FOR ALL TABLES");
}
$pool->safe_psql('postgres', 'ALTER SYSTEM RESET pgparrep.tuple_format');
$pool->reload;
# As bytes, whatever the client's encoding would be.
my $bytes = q{SELECT id, encode(t::bytea, 'hex'), encode(v::bytea, 'hex'), encode(c::bytea, 'hex'), encode(a::text::bytea, 'hex'), encode(j::text::bytea, 'hex'), encode(n::text::bytea, 'hex') FROM words ORDER BY id};

foreach my $pair ([ 'utf8', 'latin1' ], [ 'latin1', 'utf8' ], [ 'ascii', 'utf8' ], [ 'ascii', 'latin1' ], [ 'utf8', 'ascii' ])
{
	my ($from, $to) = @$pair;

	foreach my $form ('auto', $to eq 'latin1' ? 'binary' : ())
	{
		my $what = "$from to $to, $form";
		my $options = $form eq 'binary' ? 'binary = true' : '';

		$publisher->safe_psql($from, 'TRUNCATE words');
		foreach my $name (qw(pool serial))
		{
			my $o = subscription_options($name eq 'pool' ? 4 : undef, $options);

			$trio->{$name}->safe_psql($to, "TRUNCATE words");
			$trio->{$name}->safe_psql($to,
				"CREATE SUBSCRIPTION $name CONNECTION '" . $publisher->connstr . " dbname=$from' PUBLICATION $from" . ($o ? " WITH ($o)" : ''));
			$trio->{$name}->poll_query_until($to, q{SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'}) or die 'initial copy';
		}
		# written as UTF8, stored in the database's encoding
		my $set = $from eq 'ascii' ? '' : q{SET client_encoding = 'UTF8';};
		$publisher->safe_psql($from, qq{$set
			INSERT INTO words VALUES (1, '$utf8', '$utf8', '$utf8', '{"$utf8",NULL,"\xc3\xbc"}', '{"$utf8": "$utf8"}', '$utf8'), (2, '', '', '', '{}', '{}', '');
			UPDATE words SET t = t || '$utf8', id = 3 WHERE id = 1;
			INSERT INTO words VALUES (4, repeat('$utf8', 20000), 'v', 'c', '{}', '{}', 'n');
			UPDATE words SET v = 'changed' WHERE id = 4;});
		trio_wait($trio);
		my $expected = $serial->safe_psql($to, $bytes);
		is($pool->safe_psql($to, $bytes), $expected, $what);
		like($expected, $to eq 'latin1' && $from ne 'ascii' ? qr/3\|6772fc6e/ : qr/3\|6772c3bc6e/, "$what: something came");

		# What cannot be converted is sent by nobody and stored by nobody.
		if ($from ne 'latin1' && $to ne 'ascii' && !($from eq 'ascii' && $to eq 'latin1'))
		{
			my $size = log_size($publisher);
			my $bad = $from eq 'utf8' ? $euro : "\xff";
			my $pattern = $from eq 'utf8' ? qr/has no equivalent in encoding "LATIN1"/ : qr/invalid byte sequence for encoding "UTF8": 0xff/;
			$publisher->safe_psql($from, qq{$set
				INSERT INTO words VALUES (10, 'before', 'v', 'c', '{}', '{}', 'n');
				INSERT INTO words VALUES (11, '$bad', 'v', 'c', '{}', '{}', 'n');
				INSERT INTO words VALUES (12, 'after', 'v', 'c', '{}', '{}', 'n')});
			my $deadline = time() + $PostgreSQL::Test::Utils::timeout_default;
			my %seen;
			until (($seen{pool} && $seen{serial}) || time() > $deadline)
			{
				my $log = log_since($publisher, $size);
				$log =~ /^.*\b$_ ERROR:  (.*)/m && ($seen{$_} = $1) for qw(pool serial);
				usleep(50_000);
			}
			like($seen{pool} // '', $pattern, "$what: refused");
			is($seen{pool}, $seen{serial}, "$what: refused as in the server's own apply");
			$pool->poll_query_until($to, 'SELECT count(*) > 0 FROM words WHERE id = 10') or die 'what was before does not come';
			is($pool->safe_psql($to, 'SELECT array_agg(id) FROM words WHERE id >= 10'), '{10}', "$what: nothing of it is stored");
		}
		$trio->{$_}->safe_psql($to, "DROP SUBSCRIPTION $_") for qw(pool serial);
	}
}

unlike(slurp_file($_->logfile), qr/TRAP|PANIC|leak/, $_->name . ': no assertion failed') for values %$trio;
done_testing();
