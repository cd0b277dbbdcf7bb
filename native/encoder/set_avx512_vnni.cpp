#include "lanes_avx512.h"
#include "sets.h"

namespace flowvec {
const Set AVX512_VNNI = set_of<Avx512Vnni>();
}
