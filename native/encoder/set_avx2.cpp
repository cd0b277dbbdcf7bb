#include "lanes_avx2.h"
#include "sets.h"

namespace flowvec {
const Set AVX2 = set_of<Avx2<Pairs>>();
}
