// Codes of vectors: four bits for each number, which a scan compares with queries many times faster
// than it would compare the vectors.
//
// The mean of the first vectors is subtracted from all, since texts have much in common. This
// changes dot products with a query by the same number for all rows. A vector is then rotated at
// random, so that its numbers look like those of a normal distribution, whatever the data. Each
// number x becomes one of 16 levels -7.5, -6.5, ... 7.5, times a step of the row's own: the one
// that keeps the vector's direction best. A dot product with the levels l is turned into one with
// the vector by the factor |x|^2 / <x, l>, which is right in the mean, as in RaBitQ (Gao and Long
// 2024, arXiv 2405.12497; Gao et al. 2024, arXiv 2409.09913).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "distances.h"

namespace flowvec {

// Rows of a group, whose codes lie beside each other: a register has one number of each.
constexpr size_t GROUP_ROWS = 8;
// Rows of a chunk: its codes stay in a core's cache while many queries are compared with them.
constexpr size_t CHUNK_ROWS = 512;
constexpr size_t CHUNK_GROUPS = CHUNK_ROWS / GROUP_ROWS;
constexpr int LEVELS = 16;
constexpr float MIDDLE = 7.5f;  // the level of code 0 is -MIDDLE

// A number of each row of a group.
struct Group8 {
    float row[GROUP_ROWS];
};

// An orthogonal matrix that looks random: a permutation, signs and Hadamard transforms, three
// times. A transform takes a power of two, so it is applied to the first numbers, then to the last.
class Rotation {
  public:
    Rotation(size_t dim, uint64_t seed) : dim_(dim), part_(1) {
        while (2 * part_ <= dim) part_ *= 2;
        // Both transforms make numbers larger by the square root of `part`.
        scale_ = 1.0f / std::sqrt(float(part_));
        const auto draw = [&] {  // splitmix64, Steele et al. 2014
            seed += 0x9E3779B97F4A7C15u;
            uint64_t word = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9u;
            word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
            return word ^ (word >> 31);
        };
        for (size_t round = 0; round < ROUNDS; round++) {
            const size_t first = places_.size();
            for (size_t i = 0; i < dim; i++) {
                signs_.push_back(draw() >> 63 ? 1.0f : -1.0f);
                places_.push_back(uint32_t(i));
            }
            for (size_t i = dim; i > 1; i--)
                std::swap(places_[first + i - 1], places_[first + draw() % i]);
        }
    }

    // Of one vector, or of the vectors of a group. `room` is for as many numbers.
    template <typename Number>
    FLOWVEC_INLINE void turn(Number* numbers, Number* room) const {
        for (size_t round = 0; round < ROUNDS; round++) {
            std::memcpy(room, numbers, dim_ * sizeof(Number));
            for (size_t i = 0; i < dim_; i++)
                multiply(room[places_[round * dim_ + i]], signs_[round * dim_ + i], numbers[i]);
            transform(numbers);
            if (part_ < dim_) transform(numbers + dim_ - part_);
        }
    }

  private:
    static constexpr size_t ROUNDS = 3;
    size_t dim_, part_;
    float scale_;
    std::vector<float> signs_;
    std::vector<uint32_t> places_;  // which number comes to each place

    // A copy that is multiplied in place would be read before it is written.
    static FLOWVEC_INLINE void multiply(const float& x, float factor, float& product) {
        product = x * factor;
    }
    static FLOWVEC_INLINE void multiply(const Group8& x, float factor, Group8& product) {
        for (size_t r = 0; r < GROUP_ROWS; r++) product.row[r] = x.row[r] * factor;
    }
    static FLOWVEC_INLINE void butterfly(float& a, float& b) {
        const float sum = a + b, difference = a - b;
        a = sum, b = difference;
    }
    static FLOWVEC_INLINE void butterfly(Group8& a, Group8& b) {
        for (size_t r = 0; r < GROUP_ROWS; r++) butterfly(a.row[r], b.row[r]);
    }
    template <typename Number>
    FLOWVEC_INLINE void transform(Number* numbers) const {
        for (size_t half = 1; half < part_; half *= 2)
            for (size_t start = 0; start < part_; start += 2 * half)
                for (size_t i = start; i < start + half; i++)
                    butterfly(numbers[i], numbers[i + half]);
        for (size_t i = 0; i < part_; i++) multiply(numbers[i], scale_, numbers[i]);
    }
};

// What a scan needs to know of the rows of a chunk, and their codes. The score of row r is estimated
// as factors[r] * <query, levels> + offsets[r].
//
// All of it is one block of bytes, in memory of its own or in a mapped file.
struct Chunk {
    std::unique_ptr<uint8_t[]> memory;  // null for a mapped one
    float* factors;
    // The standard deviation of an estimate from the score, for a query of length 1.
    float* deviations;
    float* lengths;  // of the vectors, or twice that
    float* offsets;
    uint8_t* codes;  // of its groups, one after another

    static constexpr size_t FACTS_BYTES = 4 * CHUNK_ROWS * sizeof(float);

    static size_t bytes(size_t octets) {
        return FACTS_BYTES + CHUNK_GROUPS * octets * 4 * GROUP_ROWS;
    }

    // Of zeros, in memory of its own.
    explicit Chunk(size_t octets) : memory(new uint8_t[bytes(octets) + 63]()) {
        const auto address = reinterpret_cast<uintptr_t>(memory.get());
        place(memory.get() + (63 - (address + 63) % 64));
    }
    // Nothing is written into a mapped chunk, which is full.
    explicit Chunk(const uint8_t* mapped) { place(const_cast<uint8_t*>(mapped)); }

    const uint8_t* block() const { return reinterpret_cast<const uint8_t*>(factors); }

  private:
    void place(uint8_t* block) {
        factors = reinterpret_cast<float*>(block);
        deviations = factors + CHUNK_ROWS;
        lengths = deviations + CHUNK_ROWS;
        offsets = lengths + CHUNK_ROWS;
        codes = block + FACTS_BYTES;
    }
};

// A checksum of some words of 8 bytes: four sums that are multiplied in turn, so that each word and
// its place count.
inline uint64_t checksum(const uint8_t* bytes, size_t words, uint64_t start) {
    uint64_t sums[4] = {start, ~start, start + 1, ~start - 1};
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        std::memcpy(&word, bytes + 8 * i, sizeof word);
        sums[i % 4] = (sums[i % 4] ^ word) * 0x9E3779B97F4A7C15u;
        sums[i % 4] ^= sums[i % 4] >> 32;
    }
    uint64_t whole = words;
    for (const uint64_t sum : sums) whole = ((whole ^ sum) * 0xBF58476D1CE4E5B9u) ^ (whole >> 29);
    return whole;
}

// Numbers up to this are taken for zeros: 1 / x is infinite in float32 for some of them.
constexpr float SMALLEST = 1e-37f;

// Shares of a row's largest number that the highest level may stand for. With four bits and a
// normal distribution the best step is a third of the standard deviation.
constexpr float SHARES[] = {1.0f, .94f, .88f, .82f, .76f, .7f, .62f, .54f};

// The code of a number in units of the row's step.
FLOWVEC_INLINE int code_of(float x) {
    const int code = int(x + (MIDDLE + .5f));  // below zero it is not rounded down, but cut below
    return code < 0 ? 0 : code > LEVELS - 1 ? LEVELS - 1 : code;
}

// Codes of rows `first` to before `last` of a group, whose numbers are rotated. Behind the last
// number are zeros, up to a multiple of 8.
//
// A register of a group's codes has 4 bytes of each row: byte j of octet o has number 8 o + j in
// the low half, and number 8 o + 4 + j in its high half. The first `part` octets of all groups lie
// in front of the others, which a scan seldom needs.
FLOWVEC_INLINE void encode_group(const Group8* numbers, size_t dim, bool squared, size_t part,
                                 Chunk& chunk, size_t group, size_t first, size_t last) {
    const size_t octets = (dim + 7) / 8;
    float largest[GROUP_ROWS] = {}, inverse[GROUP_ROWS], best[GROUP_ROWS] = {};
    float chosen[GROUP_ROWS], products[GROUP_ROWS] = {}, lengths[GROUP_ROWS] = {};
    for (size_t i = 0; i < dim; i++)
        for (size_t r = 0; r < GROUP_ROWS; r++) {
            const float x = std::fabs(numbers[i].row[r]);
            largest[r] = x > largest[r] ? x : largest[r];
        }
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        if (!(largest[r] > SMALLEST)) largest[r] = 0;
        chosen[r] = largest[r] > 0 ? MIDDLE / largest[r] : 0;
    }
    // Loops over the rows of a group that are not unrolled become one instruction for all rows.
    for (const float share : SHARES) {
        float dots[GROUP_ROWS] = {}, squares[GROUP_ROWS] = {};
        for (size_t r = 0; r < GROUP_ROWS; r++)
            inverse[r] = largest[r] > 0 ? MIDDLE / (largest[r] * share) : 0;
        for (size_t i = 0; i < dim; i++)
#pragma GCC unroll 1
            for (size_t r = 0; r < GROUP_ROWS; r++) {
                // In units of the step: from -7.5 to 7.5.
                const float x = numbers[i].row[r] * inverse[r];
                const float level = float(code_of(x)) - MIDDLE;
                dots[r] += x * level;
                squares[r] += level * level;
            }
        for (size_t r = 0; r < GROUP_ROWS; r++) {
            // The square of the cosine, but for the vector's length, which is the same for all.
            const float unit = dots[r] / (inverse[r] > 0 ? inverse[r] * largest[r] : 1.0f);
            const float cosine = unit * unit / squares[r];
            if (cosine > best[r]) {
                best[r] = cosine, chosen[r] = inverse[r];
                products[r] = dots[r], lengths[r] = squares[r];
            }
        }
    }
    float norms[GROUP_ROWS] = {};  // squared, in units of the step
    for (size_t i = 0; i < dim; i++)
#pragma GCC unroll 1
        for (size_t r = 0; r < GROUP_ROWS; r++) {
            const float x = numbers[i].row[r] * chosen[r];
            norms[r] += x * x;
        }
    for (size_t r = first; r < last; r++) {
        const size_t row = group * GROUP_ROWS + r;
        const bool is_zero = !(products[r] > 0);
        const float step = is_zero ? 0 : 1 / chosen[r];
        const float factor = is_zero ? 0 : norms[r] / products[r];
        const float rest = factor * factor * lengths[r] - norms[r];
        const float twice = squared ? 2.0f : 1.0f;  // |q - x|^2 = |q|^2 - (2 <q, x> - |x|^2)
        chunk.factors[row] = twice * step * factor;
        chunk.deviations[row] = twice * step * std::sqrt((rest > 0 ? rest : 0) / float(dim));
        chunk.lengths[row] = twice * step * std::sqrt(norms[r]);
        chunk.offsets[row] = squared ? -step * step * norms[r] : 0;
        for (size_t octet = 0; octet < octets; octet++) {
            size_t place = group * part + octet;
            if (octet >= part)
                place = CHUNK_GROUPS * part + group * (octets - part) + octet - part;
            uint8_t* codes = chunk.codes + (place * GROUP_ROWS + r) * 4;
            for (size_t j = 0; j < 4; j++) {
                int halves[2];
                for (size_t high = 0; high < 2; high++) {
                    halves[high] = code_of(numbers[8 * octet + 4 * high + j].row[r] * chosen[r]);
                }
                codes[j] = uint8_t(halves[0] | halves[1] << 4);
            }
        }
    }
}

// Rotates and encodes rows `first` to before `last` of a group; `rows[0]` is row `first`. `numbers`
// is room for two times as many numbers as the codes have.
FLOWVEC_INLINE void rotate_and_encode(const Rotation& rotation, const float* rows, size_t dim,
                                      const float* centre, bool squared, size_t part,
                                      Group8* numbers, Chunk& chunk, size_t group, size_t first,
                                      size_t last) {
    const size_t octets = (dim + 7) / 8;
    for (size_t i = 0; i < octets * 8; i++)
        for (size_t r = 0; r < GROUP_ROWS; r++)
            numbers[i].row[r] = i < dim && r >= first && r < last
                                    ? rows[(r - first) * dim + i] - centre[i] : 0;
    rotation.turn(numbers, numbers + octets * 8);
    encode_group(numbers, dim, squared, part, chunk, group, first, last);
}

}  // namespace flowvec
