// The instruction sets for which the layers are compiled, each in a file with its own flags.
#pragma once

#include "layers.h"

namespace flowvec {

struct Set {
    const char* name;
    int rows, zero;  // rows of a tile, and the byte of an activation of 0
    void (*encode)(const Model&, const int32_t* ids, const int64_t* starts, int texts,
                   const Buffers&);
};

template <class S>
constexpr Set set_of() {
    return {S::NAME, S::ROWS, S::ZERO, Layers<S>::encode};
}

extern const Set SCALAR, AVX2, AVX512_VNNI;

}  // namespace flowvec
