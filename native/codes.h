// Codes of vectors: four bits for each number, which a scan compares with queries many times faster
// than it would compare the vectors.
//
// The mean of some vectors is subtracted from all, since texts have much in common. This changes dot
// products with a query by the same number for all rows. A vector is then rotated (see Frame), so that
// its numbers look like those of a normal distribution, whatever the data. Each
// number x becomes one of 16 levels -7.5, -6.5, ... 7.5, times a step of the row's own: the one
// that keeps the vector's direction best. A dot product with the levels l is turned into one with
// the vector by the factor |x|^2 / <x, l>, which is right in the mean, as in RaBitQ (Gao and Long
// 2024, arXiv 2405.12497; Gao et al. 2024, arXiv 2409.09913).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "distances.h"

namespace flowvec {

// Rows of a group, whose codes lie beside each other: a register of 512 bits has four of each.
constexpr size_t GROUP_ROWS = 16;
// Rows of a chunk: its codes stay in a core's cache while many queries are compared with them.
constexpr size_t CHUNK_ROWS = 512;
constexpr size_t CHUNK_GROUPS = CHUNK_ROWS / GROUP_ROWS;
constexpr int LEVELS = 16;
constexpr float MIDDLE = 7.5f;  // the level of code 0 is -MIDDLE

// Rows that are encoded together, half of a group.
constexpr size_t ENCODED_ROWS = 8;
// A number of each.
struct Group8 {
    float row[ENCODED_ROWS];
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
        for (size_t r = 0; r < ENCODED_ROWS; r++) product.row[r] = x.row[r] * factor;
    }
    static FLOWVEC_INLINE void butterfly(float& a, float& b) {
        const float sum = a + b, difference = a - b;
        a = sum, b = difference;
    }
    static FLOWVEC_INLINE void butterfly(Group8& a, Group8& b) {
        for (size_t r = 0; r < ENCODED_ROWS; r++) butterfly(a.row[r], b.row[r]);
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

// How vectors are shifted and turned before they are encoded.
//
// Without a basis they are rotated at random, and the first `part` octets of numbers tell a share of a
// product. With one, the first octets are of its first rows, which have most of the vectors' variance.
// The others add the product of their lengths and their cosine, which is taken to be at most that of
// the first part and `margin`: what vectors differ in most is seldom less alike than the rest.
// Both parts are rotated at random, each by itself.
struct Frame {
    size_t dim, part;
    float margin;
    size_t stride;  // numbers from one axis, or turned query, to the next: whole Lanes
    std::vector<float> centre;
    std::vector<float> basis;  // the axes of an orthogonal matrix (dim, stride), or nothing
    Rotation first, rest;      // `rest` only with a basis

    Frame(size_t dim, uint64_t seed, size_t part, const float* centre, const float* basis,
          float margin)
        : dim(dim), part(part), margin(margin), stride((dim + LANES - 1) / LANES * LANES),
          centre(centre, centre + dim), basis(basis ? dim * stride : 0),
          first(basis ? part * 8 : dim, seed), rest(basis ? dim - part * 8 : 1, seed) {
        for (size_t i = 0; basis && i < dim; i++)
            std::memcpy(&this->basis[i * stride], basis + i * dim, dim * sizeof(float));
    }

    // Of the vectors of a group. `room` is for as many numbers.
    FLOWVEC_INLINE void turn(Group8* numbers, Group8* room) const {
        if (!basis.empty()) {
            std::memcpy(room, numbers, dim * sizeof(Group8));
            multiply(room, numbers);
        }
        rotate(numbers, room);
    }
    // Of queries, (count, stride), with zeros behind the last number of each; to `turned`. So many sums
    // are kept in registers. A query's numbers do not depend on the others.
    template <int sums>
    FLOWVEC_INLINE void turn(const float* queries, size_t count, float* turned, float* room) const {
        if (basis.empty()) {
            std::memcpy(turned, queries, count * stride * sizeof(float));
        } else {
            // Some axes stay in the cache while all queries are multiplied with them.
            for (size_t axis = 0; axis < dim; axis += AXES) {
                const size_t end = std::min(dim, axis + AXES);
                size_t q = 0;
                for (; q + 4 <= count; q += 4)
                    multiply<sums / 4, 4>(queries + q * stride, axis, end, turned + q * stride);
                for (; q < count; q++)
                    multiply<sums, 1>(queries + q * stride, axis, end, turned + q * stride);
            }
        }
        for (size_t q = 0; q < count; q++) rotate(turned + q * stride, room);
    }

  private:
    static constexpr size_t AXES = 16;

    template <typename Number>
    FLOWVEC_INLINE void rotate(Number* numbers, Number* room) const {
        first.turn(numbers, room);
        if (!basis.empty()) rest.turn(numbers + part * 8, room);
    }
    // Products of some queries with axes `axis` to before `end`.
    template <int rows, int queries>
    FLOWVEC_INLINE void multiply(const float* numbers, size_t axis, size_t end, float* products) const {
        for (; axis + rows <= end; axis += rows) multiply_rows<rows, queries>(numbers, axis, products);
        for (; axis < end; axis++) multiply_rows<1, queries>(numbers, axis, products);
    }
    template <int rows, int queries>
    FLOWVEC_INLINE void multiply_rows(const float* numbers, size_t axis, float* products) const {
        Lanes sums[rows][queries] = {};
        for (size_t i = 0; i < stride; i += LANES)
#pragma GCC unroll 8
            for (int row = 0; row < rows; row++)
#pragma GCC unroll 4
                for (int q = 0; q < queries; q++)
                    accumulate<false>(sums[row][q], &basis[(axis + row) * stride + i],
                                      numbers + q * stride + i);
        for (int row = 0; row < rows; row++)
            for (int q = 0; q < queries; q++) products[q * stride + axis + row] = sum(sums[row][q]);
    }
    FLOWVEC_INLINE void multiply(const Group8* numbers, Group8* products) const {
        // Eight products at once, since an addition waits for the one before it.
        for (size_t first = 0; first < dim; first += 8) {
            const size_t count = std::min<size_t>(8, dim - first);
            const float* axes[8];
            for (size_t i = 0; i < 8; i++)
                axes[i] = &basis[(first + std::min(i, count - 1)) * stride];
            Group8 sums[8] = {};
            for (size_t j = 0; j < dim; j++)
#pragma GCC unroll 8
                for (size_t i = 0; i < 8; i++)
#pragma GCC unroll 1
                    for (size_t r = 0; r < ENCODED_ROWS; r++)
                        sums[i].row[r] += axes[i][j] * numbers[j].row[r];
            std::memcpy(products + first, sums, count * sizeof(Group8));
        }
    }
};

// What a scan knows of a group's rows, and then their codes of the first part of the numbers. The score
// of row r is estimated as factors[r] * <query, levels> + offsets[r].
struct GroupFacts {
    float factors[GROUP_ROWS];
    // The standard deviation of an estimate from the score, for a query of length 1.
    float deviations[GROUP_ROWS];
    float offsets[GROUP_ROWS];
    // How much the first part may miss, for a query of length 1; or the lengths without a basis.
    float reaches[GROUP_ROWS];
    // The length of the rest, divided by that of the first part; 0 without a basis.
    float ratios[GROUP_ROWS];
};
// What it needs seldom, and then the codes of the other numbers.
struct MoreFacts {
    float lengths[GROUP_ROWS];  // of the vectors, or twice that
};

// Codes of rows: the facts and codes of the first part of all groups, then those of the rest. It is one
// block of bytes, in memory of its own or in a mapped file.
//
// An octet of a group's codes has 4 bytes of each row: byte j of octet o has number 8 o + j in the low
// half, and number 8 o + 4 + j in its high half.
struct Chunk {
    static constexpr size_t OCTET_BYTES = 4 * GROUP_ROWS;

    std::unique_ptr<uint8_t[]> memory;  // null for a mapped one
    size_t part_bytes, rest_bytes;      // of a group
    uint8_t* block;

    static size_t bytes(size_t octets) {
        return CHUNK_GROUPS * (sizeof(GroupFacts) + sizeof(MoreFacts) + octets * OCTET_BYTES);
    }

    // In memory of its own, and of zeros; or mapped, then nothing is written, for it is full.
    Chunk(size_t octets, size_t part, const uint8_t* mapped)
        : part_bytes(sizeof(GroupFacts) + part * OCTET_BYTES),
          rest_bytes(sizeof(MoreFacts) + (octets - part) * OCTET_BYTES),
          block(const_cast<uint8_t*>(mapped)) {
        if (mapped) return;
        memory.reset(new uint8_t[bytes(octets) + 63]());
        block = memory.get() + (63 - (reinterpret_cast<uintptr_t>(memory.get()) + 63) % 64);
    }

    GroupFacts& facts(size_t group) const {
        return *reinterpret_cast<GroupFacts*>(block + group * part_bytes);
    }
    MoreFacts& more(size_t group) const {
        return *reinterpret_cast<MoreFacts*>(block + CHUNK_GROUPS * part_bytes + group * rest_bytes);
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

// A rest whose square is longer than so many times that of the first part may point anywhere.
constexpr float LONGEST_REST = 9;

// The code of a number in units of the row's step.
FLOWVEC_INLINE int code_of(float x) {
    const int code = int(x + (MIDDLE + .5f));  // below zero it is not rounded down, but cut below
    return code < 0 ? 0 : code > LEVELS - 1 ? LEVELS - 1 : code;
}

// Codes of rows `first` to before `last` of eight rows of a chunk, whose numbers are turned. Behind the
// last number are zeros, up to a multiple of 8.
FLOWVEC_INLINE void encode_rows(const Group8* numbers, const Frame& frame, bool squared, Chunk& chunk,
                                size_t eight, size_t first, size_t last) {
    const size_t dim = frame.dim, part = frame.part, octets = (dim + 7) / 8;
    float largest[ENCODED_ROWS] = {}, inverse[ENCODED_ROWS], best[ENCODED_ROWS] = {};
    float chosen[ENCODED_ROWS], products[ENCODED_ROWS] = {};
    for (size_t i = 0; i < dim; i++)
        for (size_t r = 0; r < ENCODED_ROWS; r++) {
            const float x = std::fabs(numbers[i].row[r]);
            largest[r] = x > largest[r] ? x : largest[r];
        }
    for (size_t r = 0; r < ENCODED_ROWS; r++) {
        if (!(largest[r] > SMALLEST)) largest[r] = 0;
        chosen[r] = largest[r] > 0 ? MIDDLE / largest[r] : 0;
    }
    // Loops over the rows that are not unrolled become one instruction for all of them.
    for (const float share : SHARES) {
        float dots[ENCODED_ROWS] = {}, levels[ENCODED_ROWS] = {};
        for (size_t r = 0; r < ENCODED_ROWS; r++)
            inverse[r] = largest[r] > 0 ? MIDDLE / (largest[r] * share) : 0;
        for (size_t i = 0; i < dim; i++)
#pragma GCC unroll 1
            for (size_t r = 0; r < ENCODED_ROWS; r++) {
                // In units of the step: from -7.5 to 7.5.
                const float x = numbers[i].row[r] * inverse[r];
                const float level = float(code_of(x)) - MIDDLE;
                dots[r] += x * level;
                levels[r] += level * level;
            }
        for (size_t r = 0; r < ENCODED_ROWS; r++) {
            // The square of the cosine, but for the vector's length, which is the same for all.
            const float unit = dots[r] / (inverse[r] > 0 ? inverse[r] * largest[r] : 1.0f);
            const float cosine = unit * unit / levels[r];
            if (cosine > best[r]) {
                best[r] = cosine, chosen[r] = inverse[r];
                products[r] = dots[r];
            }
        }
    }
    // Squared, in units of the step, of the first part and of the rest: lengths, and the errors.
    float norms[2][ENCODED_ROWS] = {}, errors[2][ENCODED_ROWS] = {}, factors[ENCODED_ROWS];
    for (size_t behind = 0; behind < 2; behind++)
        for (size_t i = behind ? part * 8 : 0; i < (behind ? dim : std::min(dim, part * 8)); i++)
#pragma GCC unroll 1
            for (size_t r = 0; r < ENCODED_ROWS; r++) {
                const float x = numbers[i].row[r] * chosen[r];
                norms[behind][r] += x * x;
            }
    for (size_t r = 0; r < ENCODED_ROWS; r++)
        factors[r] = products[r] > 0 ? (norms[0][r] + norms[1][r]) / products[r] : 0;
    for (size_t behind = 0; behind < 2; behind++)
        for (size_t i = behind ? part * 8 : 0; i < (behind ? dim : std::min(dim, part * 8)); i++)
#pragma GCC unroll 1
            for (size_t r = 0; r < ENCODED_ROWS; r++) {
                const float x = numbers[i].row[r] * chosen[r];
                const float error = x - factors[r] * (float(code_of(x)) - MIDDLE);
                errors[behind][r] += error * error;
            }
    const size_t group = eight * ENCODED_ROWS / GROUP_ROWS;
    GroupFacts& facts = chunk.facts(group);
    MoreFacts& more = chunk.more(group);
    const bool has_basis = !frame.basis.empty();
    for (size_t r = first; r < last; r++) {
        const size_t row = eight * ENCODED_ROWS % GROUP_ROWS + r;
        const bool is_zero = !(products[r] > 0);
        const float norm = norms[0][r] + norms[1][r];
        const float step = is_zero ? 0 : 1 / chosen[r];
        // Of a number of the first part, which may have most of a query, or of any one.
        float error = (errors[0][r] + errors[1][r]) / float(dim);
        if (has_basis) error = std::max(error, errors[0][r] / float(part * 8));
        const float unit = (squared ? 2.0f : 1.0f) * step;  // |q - x|^2 = |q|^2 - (2 <q, x> - |x|^2)
        facts.factors[row] = unit * factors[r];
        facts.deviations[row] = unit * std::sqrt(error);
        facts.offsets[row] = squared ? -step * step * norm : 0;
        facts.reaches[row] = unit * std::sqrt(has_basis ? norms[1][r] : norm);
        facts.ratios[row] = 0;
        if (has_basis && norms[1][r] <= norms[0][r] * LONGEST_REST)
            facts.ratios[row] = norms[0][r] > 0 ? std::sqrt(norms[1][r] / norms[0][r]) : 0;
        else if (has_basis)
            facts.reaches[row] /= std::min(frame.margin, 1.0f);
        more.lengths[row] = unit * std::sqrt(norm);
        for (size_t octet = 0; octet < octets; octet++) {
            uint8_t* of_part = octet < part ? reinterpret_cast<uint8_t*>(&facts + 1)
                                            : reinterpret_cast<uint8_t*>(&more + 1);
            const size_t place = octet < part ? octet : octet - part;
            uint8_t* codes = of_part + (place * GROUP_ROWS + row) * 4;
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

// Turns and encodes rows `first` to before `last` of eight rows of a chunk; `rows[0]` is row `first`.
// `numbers` is room for two times as many numbers as the codes have.
FLOWVEC_INLINE void turn_and_encode(const Frame& frame, const float* rows, bool squared,
                                    Group8* numbers, Chunk& chunk, size_t eight, size_t first,
                                    size_t last) {
    const size_t dim = frame.dim, width = (dim + 7) / 8 * 8;
    for (size_t i = 0; i < width; i++)
        for (size_t r = 0; r < ENCODED_ROWS; r++)
            numbers[i].row[r] = i < dim && r >= first && r < last
                                    ? rows[(r - first) * dim + i] - frame.centre[i] : 0;
    frame.turn(numbers, numbers + width);
    encode_rows(numbers, frame, squared, chunk, eight, first, last);
}

}  // namespace flowvec
