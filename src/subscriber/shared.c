#include "pgparrep.h"

void
shared_init(void)
{
}
