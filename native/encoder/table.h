// Static embedders: each token has a row of a table, and a text's vector is the mean of its rows.
//
// Texts are computed one after the other, and each sum has one order. So a text's vector does not
// depend on the texts beside it.
#pragma once

#include <cmath>
#include <cstring>

#include "lanes.h"
#include "tail.h"
#include "texts.h"

namespace flowvec {

enum class RowType { INT8, FLOAT16, FLOAT32, COUNT };

struct Table {
    const uint8_t* rows;  // [count][width] of the type, in a file: they may begin anywhere
    RowType type;
    int count, width;
    int vocabulary;
    const int32_t* row_of;       // [vocabulary]; null where token i has row i
    const float* token_weights;  // [vocabulary]; null where all are 1
    // What is added to the row of a text's first token, of its second... [positions][width rounded up to
    // 16], or null.
    const float* places;
    int positions;
    // Layer normalization of each row, [width] each; null for none. The width is a multiple of 16 then.
    const float *norm_weights, *norm_biases;
    float epsilon;
    int ignored;  // a token that does not count; -1 for none
    // The sum is divided by that of the weights, or else by the number of tokens, which is at least
    // `least`.
    bool is_weighted;
    float least;

    INLINE int padded() const { return (width + 15) / 16 * 16; }
    INLINE size_t number_bytes() const {
        return type == RowType::INT8 ? 1 : type == RowType::FLOAT16 ? 2 : 4;
    }
};

template <class S>
class Tables {
    using Floats = typename S::Floats;

  public:
    // `row` has room for a row, padded to 16 numbers, and `memory` for the tails of TAIL_TEXTS texts.
    static void vectors(const Table& table, const Tail& tail, const Texts& texts, float* row,
                        float* memory, float* to) {
        for (int64_t first = 0; first < texts.count; first += TAIL_TEXTS) {
            const int64_t left = texts.count - first;
            const int count = left < TAIL_TEXTS ? static_cast<int>(left) : TAIL_TEXTS;
            for (int i = 0; i < count; i++)
                mean(table, texts, first + i, row, memory + static_cast<size_t>(i) * tail.memory);
            Tails<S>::run(tail, memory, count, to + static_cast<size_t>(first) * tail.length);
        }
    }

  private:
    static void mean(const Table& table, const Texts& texts, int64_t text, float* row, float* to) {
        const int width = table.padded(), begin = texts.begin(text), length = texts.length(text);
        const size_t bytes = table.number_bytes() * table.width;
        for (int i = 0; i < width; i += 16) S::store(to + i, S::all(0.0f));
        float divisor = 0.0f;
        for (int token = 0; token < length; token++) {
            const int32_t id = texts.ids[begin + token];
            if (id == table.ignored) continue;
            const float weight = table.token_weights ? table.token_weights[id] : 1.0f;
            const size_t number = table.row_of ? table.row_of[id] : id;
            read(table, table.rows + number * bytes, row);
            if (table.places) add(row, table.places + static_cast<size_t>(token) * width, width);
            if (table.norm_weights) normalize(table, row);
            const Floats factor = S::all(weight);
            for (int i = 0; i < width; i += 16)
                S::store(to + i, S::fma(S::load(row + i), factor, S::load(to + i)));
            divisor += table.is_weighted ? weight : 1.0f;
        }
        const Floats by = S::all(divisor > table.least ? divisor : table.least);
        for (int i = 0; i < width; i += 16) S::store(to + i, S::div(S::load(to + i), by));
    }

    static void read(const Table& table, const uint8_t* from, float* to) {
        const size_t bytes = 16 * table.number_bytes();
        int i = 0;
        for (; i + 16 <= table.width; i += 16, from += bytes) S::store(to + i, sixteen(table, from));
        if (i == table.width) return;
        uint8_t rest[64] = {};  // the file may end behind the row
        std::memcpy(rest, from, (table.width - i) * table.number_bytes());
        S::store(to + i, sixteen(table, rest));
    }

    INLINE static Floats sixteen(const Table& table, const uint8_t* from) {
        switch (table.type) {
            case RowType::INT8: return S::from_bytes(reinterpret_cast<const int8_t*>(from));
            case RowType::FLOAT16: return S::from_halves(from);
            default: {
                alignas(64) float numbers[16];
                std::memcpy(numbers, from, sizeof numbers);
                return S::load(numbers);
            }
        }
    }

    static void add(float* row, const float* other, int width) {
        for (int i = 0; i < width; i += 16)
            S::store(row + i, S::add(S::load(row + i), S::load(other + i)));
    }

    static void normalize(const Table& table, float* row) {
        const int width = table.width;
        Floats sum = S::all(0.0f), squares = S::all(0.0f);
        for (int i = 0; i < width; i += 16) sum = S::add(sum, S::load(row + i));
        const Floats mean = S::all(S::sum(sum) / width);
        for (int i = 0; i < width; i += 16) {
            const Floats x = S::sub(S::load(row + i), mean);
            squares = S::fma(x, x, squares);
            S::store(row + i, x);
        }
        const float variance = S::sum(squares) / width;
        const Floats inverse = S::all(1.0f / std::sqrt(variance + table.epsilon));
        for (int i = 0; i < width; i += 16)
            S::store(row + i, S::fma(S::mul(S::load(row + i), inverse),
                                     S::load(table.norm_weights + i),
                                     S::load(table.norm_biases + i)));
    }
};

}  // namespace flowvec
