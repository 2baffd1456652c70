# 130_two_phase.pl with four decoders that do all they can.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;

BEGIN { $ENV{PGPARREP_TEST_DECODERS} = 4; }
use PgParRep;

do "$FindBin::RealBin/130_two_phase.pl";
die $@ if $@;
