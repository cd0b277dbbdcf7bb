// Texts as token ids.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace flowvec {

// Texts, one after the other.
struct Texts {
    const int32_t* ids;
    const int64_t* starts;  // of each text in all of them, and the end of the last
    int64_t count;
    // Tokens at the beginning of each text that all of its tokens attend to; null for all.
    const int32_t* attended;
    const uint8_t* types;  // of each token, 0 or 1; null for 0

    INLINE int begin(int64_t text) const { return static_cast<int>(starts[text] - starts[0]); }
    INLINE int length(int64_t text) const {
        return static_cast<int>(starts[text + 1] - starts[text]);
    }
};

}  // namespace flowvec
