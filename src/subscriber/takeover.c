#include "pgparrep.h"

void
takeover_init(void)
{
}
