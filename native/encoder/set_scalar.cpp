// What the other sets are compared with; it need not be fast.
#define UNROLL
#define INLINE inline
#define NOINLINE
#include "sets.h"

namespace flowvec {
const Set SCALAR = set_of<Scalar>();
}
