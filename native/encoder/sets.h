// The instruction sets for which the layers are compiled, each in a file with its own flags.
#pragma once

#include "layers.h"
#include "table.h"

namespace flowvec {

struct Set {
    const char* name;
    int rows, columns;  // of a tile
    int offset;         // of activations: `OFFSET` of lanes.h
    void (*encode)(const Model&, const Texts&, const Buffers&, Share);
    void (*vectors)(const Model&, const Texts&, bool of_tokens, const Buffers&, float* to);
    void (*means)(const Table&, const Tail&, const Texts&, float* row, float* memory, float* to);
};

template <class S>
constexpr Set set_of() {
    return {S::NAME,           S::ROWS,            16 * S::BLOCKS,    S::OFFSET,
            Layers<S>::encode, Layers<S>::vectors, Tables<S>::vectors};
}

extern const Set SCALAR, AVX2, AVX512_VNNI, NEON;

}  // namespace flowvec
