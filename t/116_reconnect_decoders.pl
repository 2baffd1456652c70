# 108_reconnect.pl with four decoders that do all they can.
use strict;
use warnings FATAL => 'all';

use FindBin;

$ENV{PGPARREP_TEST_DECODERS} = 4;
do "$FindBin::RealBin/108_reconnect.pl";
die $@ if $@;
