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
FLOWVEC_AVX2 FLOWVEC_INLINE int32_t sum_of_eight(__m256i sums) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

// The first factor without its sign, which the second one takes: two products are at most 32,258,
// so they do not saturate.
FLOWVEC_AVX2 inline int32_t byte_product_avx2(const int8_t* a, const int8_t* b, size_t count) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums = _mm256_setzero_si256();
    for (size_t i = 0; i < count; i += 32) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + i));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + i));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(y, x));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
    }
    return sum_of_eight(sums);
}

// The instruction takes a factor without a sign and one with a sign. So x + 128 is multiplied by y,
// and 128 y is subtracted again. Sums may wrap at 32 bits: the difference is right, since it fits.
FLOWVEC_VNNI FLOWVEC_INLINE void add_signed_vnni(__m512i x, __m512i y, __m512i& sums,
                                                 __m512i& added) {
    const __m512i middle = _mm512_set1_epi8(-128);  // without a sign, 128
    sums = _mm512_dpbusd_epi32(sums, _mm512_xor_si512(x, middle), y);
    added = _mm512_dpbusd_epi32(added, middle, y);
    __asm__("" : "+v"(sums), "+v"(added));  // otherwise gcc copies them
}
FLOWVEC_VNNI inline int32_t byte_product_vnni(const int8_t* a, const int8_t* b, size_t count) {
    __m512i sums = _mm512_setzero_si512(), added = sums, more = sums, more_added = sums;
    size_t i = 0;
    for (; i + 128 <= count; i += 128) {
        add_signed_vnni(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i), sums, added);
        add_signed_vnni(_mm512_loadu_si512(a + i + 64), _mm512_loadu_si512(b + i + 64), more,
                        more_added);
    }
    for (; i < count; i += 64) {
        const __mmask64 mask = count - i < 64 ? 0xffffffff : ~__mmask64(0);
        add_signed_vnni(_mm512_maskz_loadu_epi8(mask, a + i),
                        _mm512_maskz_loadu_epi8(mask, b + i), sums, added);
    }
    const __m512i whole = _mm512_sub_epi32(_mm512_add_epi32(sums, more),
                                           _mm512_add_epi32(added, more_added));
    // (_mm512_reduce_add_epi32 and an extraction without a mask make gcc warn of its own headers.)
    alignas(64) __m256i halves[2];
    _mm512_store_si512(halves, whole);
    return sum_of_eight(_mm256_add_epi32(halves[0], halves[1]));
}
#elif defined(FLOWVEC_NEON)
FLOWVEC_NEON inline int32_t byte_product_neon(const int8_t* a, const int8_t* b, size_t count) {
    int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (size_t i = 0; i < count; i += 32)
        for (size_t j = 0; j < 2; j++)
            sums[j] = vdotq_s32(sums[j], vld1q_s8(a + i + 16 * j), vld1q_s8(b + i + 16 * j));
    return vaddvq_s32(vaddq_s32(sums[0], sums[1]));
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

struct NodeKernels {
    ByteProduct product;
    Distance distance;
};

#define FLOWVEC_NODE_KERNELS(name, target)                                                    \
    target inline float node_distance_##name(const void* a, const void* b, const void* count) { \
        return node_distance<byte_product_##name>(a, b, count);                               \
    }                                                                                         \
    const NodeKernels node_kernels_##name = {byte_product_##name, node_distance_##name};

FLOWVEC_NODE_KERNELS(base, )
#if defined(__GNUC__) && defined(__x86_64__)
FLOWVEC_NODE_KERNELS(avx2, FLOWVEC_AVX2)
FLOWVEC_NODE_KERNELS(vnni, FLOWVEC_VNNI)
#elif defined(FLOWVEC_NEON)
FLOWVEC_NODE_KERNELS(neon, FLOWVEC_NEON)
#endif

// The best of this processor.
inline const NodeKernels& node_kernels() {
    switch (byte_products()) {
#if defined(__GNUC__) && defined(__x86_64__)
        case ByteProducts::vnni: return node_kernels_vnni;
        case ByteProducts::avx2: return node_kernels_avx2;
#elif defined(FLOWVEC_NEON)
        case ByteProducts::neon: return node_kernels_neon;
#endif
        default: return node_kernels_base;
    }
}

// Makes nodes of vectors, and tells hnswlib how they are compared.
class Nodes : public hnswlib::SpaceInterface<float> {
  public:
    Nodes(size_t dim, bool squared)
        : dim_(dim), padded_((dim + 31) / 32 * 32), squared_(squared), rotation_(dim, 0),
          centre_(dim) {
        // Sums of products must not overflow.
        highest_ = dim <= 1u << 17 ? 127 : 45;
    }
    size_t get_data_size() override { return bytes(); }
    Distance get_dist_func() override { return kernels_.distance; }
    void* get_dist_func_param() override { return &padded_; }

    int32_t product(const int8_t* a, const int8_t* b) const {
        return kernels_.product(a, b, padded_);
    }
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
    const NodeKernels kernels_ = node_kernels();
    Rotation rotation_;
    std::vector<float> centre_;
};

}  // namespace flowvec
