// What a graph holds of a vector: a byte for each number, and what its distances need.
//
// The mean of the first vectors is subtracted from all, since texts have much in common. A vector is
// then rotated at random, so that its numbers look like those of a normal distribution, and rounded
// to multiples of a step of its own. The products of two vectors' multiples are multiplied with
// factors, such that a vector's error is at right angles to it (as in RaBitQ, arXiv 2405.12497).
// Otherwise the errors of two vectors that are near each other would hide how far apart they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

#include "codes.h"
#include "hnswlib/hnswlib.h"

namespace flowvec {

// In front of a node's numbers.
struct NodeHead {
    float scale;       // a distance is a.term + b.term - a.scale * b.scale * <a, b>
    float term;
    uint32_t hash[2];  // of the vector's bytes
};

inline const int8_t* numbers_of(const void* node) {
    return static_cast<const int8_t*>(node) + sizeof(NodeHead);
}
inline NodeHead head_of(const void* node) {
    NodeHead head;
    std::memcpy(&head, node, sizeof head);
    return head;
}
inline uint64_t hash_of(const void* node) {
    const NodeHead head = head_of(node);
    return head.hash[0] | uint64_t(head.hash[1]) << 32;
}

// Sums of products of a multiple of 32 numbers from -127 to 127.
typedef int32_t (*ByteProduct)(const int8_t*, const int8_t*, size_t);

inline int32_t byte_product_base(const int8_t* a, const int8_t* b, size_t count) {
    int32_t sums[4] = {};
    for (size_t i = 0; i < count; i += 32)
        for (size_t j = 0; j < 32; j++) sums[j % 4] += int32_t(a[i + j]) * int32_t(b[i + j]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

#if defined(__GNUC__) && defined(__x86_64__)
// The first factor without its sign, which the second one takes: two products are at most 32,258,
// so they do not saturate.
__attribute__((target("avx2"))) inline int32_t byte_product_avx2(const int8_t* a, const int8_t* b,
                                                                 size_t count) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums = _mm256_setzero_si256();
    for (size_t i = 0; i < count; i += 32) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
    }
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}
#endif

// The distance of vectors that are too long.
constexpr float kFar = 3e38f;

// As hnswlib calls it.
template <ByteProduct product>
FLOWVEC_INLINE float node_distance(const void* a, const void* b, const void* count) {
    const NodeHead x = head_of(a), y = head_of(b);
    const float d = x.term + y.term - x.scale * y.scale * float(product(
        numbers_of(a), numbers_of(b), *static_cast<const size_t*>(count)));
    return d < kFar ? d : kFar;
}

inline float node_distance_base(const void* a, const void* b, const void* count) {
    return node_distance<byte_product_base>(a, b, count);
}
#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) inline float node_distance_avx2(const void* a, const void* b,
                                                                const void* count) {
    return node_distance<byte_product_avx2>(a, b, count);
}
#endif

// Makes nodes of vectors, and tells hnswlib how they are compared.
class Nodes : public hnswlib::SpaceInterface<float> {
  public:
    Nodes(size_t dim, bool squared)
        : dim_(dim), padded_((dim + 31) / 32 * 32), squared_(squared), rotation_(dim, 0),
          centre_(dim) {
        // Sums of products must not overflow.
        highest_ = dim <= 1u << 17 ? 127 : 45;
        product = byte_product_base, distance_ = node_distance_base;
#if defined(__GNUC__) && defined(__x86_64__)
        if (&kernels() != &kernels_base)
            product = byte_product_avx2, distance_ = node_distance_avx2;
#endif
    }
    size_t get_data_size() override { return bytes(); }
    Distance get_dist_func() override { return distance_; }
    void* get_dist_func_param() override { return &padded_; }

    ByteProduct product;
    size_t dim() const { return dim_; }
    size_t numbers() const { return padded_; }  // of a node
    bool squared() const { return squared_; }
    size_t bytes() const { return sizeof(NodeHead) + padded_; }
    int highest() const { return highest_; }
    std::vector<float>& centre() { return centre_; }
    const std::vector<float>& centre() const { return centre_; }

    // Before the first node is made: the mean, in which longer vectors than usual have the usual
    // length.
    void set_centre(const float* vectors, size_t count) {
        std::vector<double> lengths, sums(dim_);
        for (size_t row = 0; row < count; row++) lengths.push_back(length(vectors + row * dim_));
        std::vector<double> sorted = lengths;
        const auto middle = sorted.begin() + std::ptrdiff_t(count / 2);
        std::nth_element(sorted.begin(), middle, sorted.end());
        for (size_t row = 0; row < count; row++) {
            const double factor = lengths[row] > *middle ? *middle / lengths[row] : 1;
            for (size_t i = 0; i < dim_; i++) sums[i] += factor * vectors[row * dim_ + i];
        }
        for (size_t i = 0; i < dim_; i++) centre_[i] = float(sums[i] / double(count));
    }

    void make(const float* vector, char* node) const { encode(vector, 1, false, node); }

    // Of a query's direction, if nodes are compared by products.
    void make_query(const float* query, char* node) const {
        const double divisor = squared_ ? 1 : length(query);
        encode(query, divisor > 0 ? 1 / divisor : 1, true, node);
    }

  private:
    // A shorter or longer vector is rounded to zeros: 127 divided by it, or its square, is infinite.
    static constexpr float kShortest = 1e-35f, kLongest = 1e18f;

    double length(const float* vector) const {
        double squares = 0;
        for (size_t i = 0; i < dim_; i++) squares += double(vector[i]) * double(vector[i]);
        return std::sqrt(squares);
    }
    void encode(const float* vector, double factor, bool is_query, char* node) const {
        std::vector<float> room(2 * dim_);
        float* numbers = room.data();
        double along = 0, middle = 0;  // products of the centre
        uint64_t hash = 0;
        for (size_t i = 0; i < dim_; i++) {
            const double x = double(vector[i]) * factor, c = centre_[i];
            numbers[i] = float(x - c);
            along += x * c, middle += c * c;
            uint32_t bits;
            std::memcpy(&bits, vector + i, sizeof bits);
            hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
        rotation_.turn(numbers, numbers + dim_);
        float largest = 0;
        for (size_t i = 0; i < dim_; i++) largest = std::max(largest, std::fabs(numbers[i]));
        double squares = 0, products = 0;
        auto* levels = reinterpret_cast<int8_t*>(node) + sizeof(NodeHead);
        std::memset(levels, 0, padded_);
        const bool is_long = !(largest < kLongest);
        if (largest > kShortest && !is_long) {
            const float inverse = float(highest_) / largest;
            for (size_t i = 0; i < dim_; i++) {
                const int level = int(std::lrint(numbers[i] * inverse));
                levels[i] = int8_t(std::max(-highest_, std::min(level, highest_)));
                squares += double(numbers[i]) * double(numbers[i]);
                products += double(numbers[i]) * double(levels[i]);
            }
        }
        NodeHead head;
        head.scale = products > 0 ? float(squares / products) : 0;
        if (squared_) head.scale *= std::sqrt(2.0f);
        // <x, y> is <x - c, y - c> + <x, c> + <y, c> - <c, c>.
        head.term = float(squared_ ? squares : is_query ? 0 : middle / 2 - along);
        if (is_long) head.term = kFar;
        head.hash[0] = uint32_t(hash), head.hash[1] = uint32_t(hash >> 32);
        std::memcpy(node, &head, sizeof head);
    }

    size_t dim_, padded_;
    bool squared_;
    int highest_;
    Distance distance_;
    Rotation rotation_;
    std::vector<float> centre_;
};

}  // namespace flowvec
