// The instruction sets for which the layers are compiled, each in a file with its own flags.
#pragma once

#include "layers.h"

namespace flowvec {

struct Set {
    const char* name;
    int rows;  // of a tile
    void (*encode)(const Model&, const Texts&, const Buffers&, Share);
    void (*vectors)(const Model&, const Texts&, bool of_tokens, const Buffers&, float* to);
};

template <class S>
constexpr Set set_of() {
    return {S::NAME, S::ROWS, Layers<S>::encode, Layers<S>::vectors};
}

extern const Set SCALAR, AVX2, AVX512_VNNI;

}  // namespace flowvec
