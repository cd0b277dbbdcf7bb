#include "lanes_neon.h"
#include "sets.h"

namespace flowvec {
const Set NEON = set_of<Neon>();
}
