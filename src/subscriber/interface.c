#include "pgparrep.h"

void
interface_init(void)
{
}
