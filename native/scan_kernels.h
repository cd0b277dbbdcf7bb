// The inner loops of a scan of codes, for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "codes.h"

namespace flowvec {

// Queries that are compared with a group at once: their sums stay in registers.
constexpr size_t TILE = 4;
// Up to TILE queries, in 8 bits, and how the sums of a group's rows are judged.
//
// A sum stands for the score `factors[r] * (scale * sum - bias) * gain + offsets[r]`, which may be
// higher by `reach * deviations[r] + length_reach * lengths[r]`.
struct Tile {
    const int8_t* numbers;  // of the first query; those of the next one begin `stride` behind
    size_t stride;
    size_t octets;  // that are summed
    float gain;
    float scales[TILE], biases[TILE], reaches[TILE], length_reaches[TILE], thresholds[TILE];
};

// What is found of a group's rows.
struct Estimates {
    int32_t sums[TILE][GROUP_ROWS];
    float estimates[TILE][GROUP_ROWS];
    float highest[TILE][GROUP_ROWS];
    unsigned marks[TILE];  // bits of the rows whose score may reach the threshold
};

// What is known of a group's rows.
struct GroupFacts {
    const float *factors, *deviations, *lengths, *offsets;
};

// Sums codes times a tile's numbers, and judges the sums; whether a row is marked.
typedef bool (*CompareGroup)(const uint8_t* codes, const GroupFacts&, const Tile&, Estimates&);
// Adds to the sums of query `q` of a tile, and judges them.
typedef bool (*CompareRest)(const uint8_t* codes, const GroupFacts&, const Tile&, size_t q,
                            Estimates&);

inline void add_products_base(const uint8_t* codes, size_t octets, const int8_t* numbers,
                              int32_t* sums) {
    for (size_t octet = 0; octet < octets; octet++)
        for (size_t r = 0; r < GROUP_ROWS; r++) {
            const uint8_t* pairs = codes + (octet * GROUP_ROWS + r) * 4;
            for (size_t j = 0; j < 4; j++)
                sums[r] += (pairs[j] & 15) * numbers[8 * octet + j] +
                           (pairs[j] >> 4) * numbers[8 * octet + 4 + j];
        }
}

inline bool judge_base(const GroupFacts& facts, const Tile& tile, size_t q, Estimates& found) {
    found.marks[q] = 0;
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        const float product =
            (tile.scales[q] * float(found.sums[q][r]) - tile.biases[q]) * tile.gain;
        const float estimate = facts.factors[r] * product + facts.offsets[r];
        const float highest = estimate + tile.reaches[q] * facts.deviations[r] +
                              tile.length_reaches[q] * facts.lengths[r];
        found.estimates[q][r] = estimate;
        found.highest[q][r] = highest;
        found.marks[q] |= unsigned(highest >= tile.thresholds[q]) << r;
    }
    return found.marks[q] != 0;
}

template <int queries>
bool compare_group_base(const uint8_t* codes, const GroupFacts& facts, const Tile& tile,
                        Estimates& found) {
    bool any = false;
    for (int q = 0; q < queries; q++) {
        std::memset(found.sums[q], 0, sizeof found.sums[q]);
        add_products_base(codes, tile.octets, tile.numbers + q * tile.stride, found.sums[q]);
        any |= judge_base(facts, tile, size_t(q), found);
    }
    return any;
}

inline bool compare_rest_base(const uint8_t* codes, const GroupFacts& facts, const Tile& tile,
                              size_t q, Estimates& found) {
    add_products_base(codes, tile.octets, tile.numbers + q * tile.stride, found.sums[q]);
    return judge_base(facts, tile, q, found);
}

#if defined(__GNUC__) && defined(__x86_64__)
// 15 * 127 twice in each of 8 sums: the most that 16 bits hold.
constexpr size_t OCTETS_IN_16_BITS = 4;
// How far ahead codes are asked for: the processor itself looks no further than a page.
constexpr size_t AHEAD = 2048;

FLOWVEC_AVX2 FLOWVEC_INLINE __m256i four_numbers(const int8_t* numbers) {
    int32_t word;
    std::memcpy(&word, numbers, sizeof word);
    return _mm256_set1_epi32(word);
}

// Adds an octet's products of all rows and queries to sums of 16 bits.
template <int queries>
FLOWVEC_AVX2 FLOWVEC_INLINE void add_octet_avx2(const uint8_t* codes, const int8_t* numbers,
                                                size_t stride, __m256i (&parts)[queries]) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i first = _mm256_and_si256(both, low);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        const int8_t* own = numbers + q * stride;
        const __m256i a = _mm256_maddubs_epi16(first, four_numbers(own));
        const __m256i b = _mm256_maddubs_epi16(second, four_numbers(own + 4));
        parts[q] = _mm256_add_epi16(parts[q], _mm256_add_epi16(a, b));
        // Otherwise gcc adds in an order of its own, for which there are too few registers.
        __asm__("" : "+x"(parts[q]));
    }
}

template <int queries>
FLOWVEC_AVX2 FLOWVEC_INLINE void add_products_avx2(const uint8_t* codes, size_t octets,
                                                   const int8_t* numbers, size_t stride,
                                                   __m256i (&sums)[queries]) {
    const __m256i ones = _mm256_set1_epi16(1);
    size_t octet = 0;
    for (; octet + OCTETS_IN_16_BITS <= octets; octet += OCTETS_IN_16_BITS) {
        __m256i parts[queries];
#pragma GCC unroll 4
        for (int q = 0; q < queries; q++) parts[q] = _mm256_setzero_si256();
        _mm_prefetch(reinterpret_cast<const char*>(codes + octet * 32 + AHEAD), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(codes + octet * 32 + AHEAD + 64), _MM_HINT_T0);
#pragma GCC unroll 4
        for (size_t i = 0; i < OCTETS_IN_16_BITS; i++)
            add_octet_avx2(codes + (octet + i) * 32, numbers + (octet + i) * 8, stride, parts);
#pragma GCC unroll 4
        for (int q = 0; q < queries; q++)
            sums[q] = _mm256_add_epi32(sums[q], _mm256_madd_epi16(parts[q], ones));
    }
    if (octet == octets) return;
    __m256i parts[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) parts[q] = _mm256_setzero_si256();
    for (; octet < octets; octet++)
        add_octet_avx2(codes + octet * 32, numbers + octet * 8, stride, parts);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++)
        sums[q] = _mm256_add_epi32(sums[q], _mm256_madd_epi16(parts[q], ones));
}

FLOWVEC_AVX2 FLOWVEC_INLINE unsigned judge_avx2(__m256i sums, const GroupFacts& facts,
                                                const Tile& tile, size_t q, Estimates& found) {
    const __m256 product = _mm256_mul_ps(
        _mm256_fmsub_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(tile.scales[q]),
                        _mm256_set1_ps(tile.biases[q])),
        _mm256_set1_ps(tile.gain));
    const __m256 estimate = _mm256_fmadd_ps(product, _mm256_loadu_ps(facts.factors),
                                            _mm256_loadu_ps(facts.offsets));
    __m256 highest = _mm256_fmadd_ps(_mm256_set1_ps(tile.reaches[q]),
                                     _mm256_loadu_ps(facts.deviations), estimate);
    highest = _mm256_fmadd_ps(_mm256_set1_ps(tile.length_reaches[q]),
                              _mm256_loadu_ps(facts.lengths), highest);
    const __m256 is_near = _mm256_cmp_ps(highest, _mm256_set1_ps(tile.thresholds[q]), _CMP_GE_OQ);
    const unsigned marks = unsigned(_mm256_movemask_ps(is_near));
    found.marks[q] = marks;
    if (marks) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(found.sums[q]), sums);
        _mm256_storeu_ps(found.estimates[q], estimate);
        _mm256_storeu_ps(found.highest[q], highest);
    }
    return marks;
}

template <int queries>
FLOWVEC_AVX2 bool compare_group_avx2(const uint8_t* codes, const GroupFacts& facts,
                                     const Tile& tile, Estimates& found) {
    __m256i sums[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm256_setzero_si256();
    add_products_avx2<queries>(codes, tile.octets, tile.numbers, tile.stride, sums);
    unsigned any = 0;
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) any |= judge_avx2(sums[q], facts, tile, size_t(q), found);
    return any != 0;
}

FLOWVEC_AVX2 inline bool compare_rest_avx2(const uint8_t* codes, const GroupFacts& facts,
                                           const Tile& tile, size_t q, Estimates& found) {
    __m256i sums[1] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(found.sums[q]))};
    add_products_avx2<1>(codes, tile.octets, tile.numbers + q * tile.stride, tile.stride, sums);
    return judge_avx2(sums[0], facts, tile, q, found) != 0;
}

// Multiplies four bytes of each row with four of a query, and adds the products to sums.
FLOWVEC_VNNI FLOWVEC_INLINE void add_four_vnni(__m256i codes, const int8_t* numbers,
                                               __m256i& sums) {
#ifdef __clang__
    sums = _mm256_dpbusd_epi32(sums, codes, four_numbers(numbers));
#else
    // One instruction, which takes them from memory. Of the intrinsic gcc makes three.
    typedef int32_t __attribute__((may_alias)) Word;
    __asm__("vpdpbusd %2%{1to8%}, %1, %0"
            : "+v"(sums)
            : "v"(codes), "m"(*reinterpret_cast<const Word*>(numbers)));
#endif
}

// A sum has two parts, since an addition waits for the one before it.
template <int queries>
FLOWVEC_VNNI FLOWVEC_INLINE void add_octet_vnni(const uint8_t* codes, const int8_t* numbers,
                                                size_t stride, __m256i (&sums)[queries],
                                                __m256i (&others)[queries]) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i first = _mm256_and_si256(both, low);
    const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        add_four_vnni(first, numbers + q * stride, sums[q]);
        add_four_vnni(second, numbers + q * stride + 4, others[q]);
    }
}

template <int queries>
FLOWVEC_VNNI FLOWVEC_INLINE void add_products_vnni(const uint8_t* codes, size_t octets,
                                                   const int8_t* numbers, size_t stride,
                                                   __m256i (&sums)[queries]) {
    __m256i others[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) others[q] = _mm256_setzero_si256();
    size_t octet = 0;
    for (; octet + 2 <= octets; octet += 2) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + octet * 32 + AHEAD), _MM_HINT_T0);
        add_octet_vnni(codes + octet * 32, numbers + octet * 8, stride, sums, others);
        add_octet_vnni(codes + octet * 32 + 32, numbers + octet * 8 + 8, stride, sums, others);
    }
    if (octet < octets)
        add_octet_vnni(codes + octet * 32, numbers + octet * 8, stride, sums, others);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm256_add_epi32(sums[q], others[q]);
}

template <int queries>
FLOWVEC_VNNI bool compare_group_vnni(const uint8_t* codes, const GroupFacts& facts,
                                     const Tile& tile, Estimates& found) {
    __m256i sums[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm256_setzero_si256();
    add_products_vnni<queries>(codes, tile.octets, tile.numbers, tile.stride, sums);
    unsigned any = 0;
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) any |= judge_avx2(sums[q], facts, tile, size_t(q), found);
    return any != 0;
}

FLOWVEC_VNNI inline bool compare_rest_vnni(const uint8_t* codes, const GroupFacts& facts,
                                           const Tile& tile, size_t q, Estimates& found) {
    __m256i sums[1] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(found.sums[q]))};
    add_products_vnni<1>(codes, tile.octets, tile.numbers + q * tile.stride, tile.stride, sums);
    return judge_avx2(sums[0], facts, tile, q, found) != 0;
}
#endif

struct ScanKernels {
    const char* name;
    CompareGroup compare[TILE];  // by how many queries there are
    CompareRest compare_rest;
    decltype(&rotate_and_encode) encode;
};

inline void encode_base(const Rotation& rotation, const float* rows, size_t dim,
                        const float* centre, bool squared, size_t part, Group8* numbers,
                        Chunk& chunk, size_t group, size_t first, size_t last) {
    rotate_and_encode(rotation, rows, dim, centre, squared, part, numbers, chunk, group, first,
                      last);
}
const ScanKernels scan_kernels_base = {"base", {compare_group_base<1>, compare_group_base<2>,
                                        compare_group_base<3>, compare_group_base<4>},
                                       compare_rest_base, encode_base};

#if defined(__GNUC__) && defined(__x86_64__)
FLOWVEC_AVX2 inline void encode_avx2(const Rotation& rotation, const float* rows, size_t dim,
                                     const float* centre, bool squared, size_t part,
                                     Group8* numbers, Chunk& chunk, size_t group, size_t first,
                                     size_t last) {
    rotate_and_encode(rotation, rows, dim, centre, squared, part, numbers, chunk, group, first,
                      last);
}
const ScanKernels scan_kernels_avx2 = {"avx2", {compare_group_avx2<1>, compare_group_avx2<2>,
                                        compare_group_avx2<3>, compare_group_avx2<4>},
                                       compare_rest_avx2, encode_avx2};
const ScanKernels scan_kernels_vnni = {"avx512_vnni",
                                       {compare_group_vnni<1>, compare_group_vnni<2>,
                                        compare_group_vnni<3>, compare_group_vnni<4>},
                                       compare_rest_vnni, encode_avx2};
#endif

#ifdef FLOWVEC_NEON
// A register has four rows of a group; a dot product adds four numbers of each.
FLOWVEC_NEON inline void add_products_neon(const uint8_t* codes, size_t octets,
                                           const int8_t* numbers, int32x4_t* sums) {
    const uint8x16_t low = vdupq_n_u8(15);
    for (size_t octet = 0; octet < octets; octet++) {
        int32_t words[2];
        std::memcpy(words, numbers + 8 * octet, sizeof words);
        const int8x16_t first = vreinterpretq_s8_s32(vdupq_n_s32(words[0]));
        const int8x16_t second = vreinterpretq_s8_s32(vdupq_n_s32(words[1]));
        for (size_t half = 0; half < 2; half++) {
            const uint8x16_t both = vld1q_u8(codes + 32 * octet + 16 * half);
            sums[half] = vdotq_s32(sums[half], vreinterpretq_s8_u8(vandq_u8(both, low)), first);
            sums[half] = vdotq_s32(sums[half], vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), second);
        }
    }
}

FLOWVEC_NEON inline bool add_and_judge_neon(const uint8_t* codes, const GroupFacts& facts,
                                            const Tile& tile, size_t q, Estimates& found) {
    int32x4_t sums[2] = {vld1q_s32(found.sums[q]), vld1q_s32(found.sums[q] + 4)};
    add_products_neon(codes, tile.octets, tile.numbers + q * tile.stride, sums);
    vst1q_s32(found.sums[q], sums[0]);
    vst1q_s32(found.sums[q] + 4, sums[1]);
    return judge_base(facts, tile, q, found);
}

template <int queries>
FLOWVEC_NEON bool compare_group_neon(const uint8_t* codes, const GroupFacts& facts,
                                     const Tile& tile, Estimates& found) {
    bool any = false;
    for (int q = 0; q < queries; q++) {
        std::memset(found.sums[q], 0, sizeof found.sums[q]);
        any |= add_and_judge_neon(codes, facts, tile, size_t(q), found);
    }
    return any;
}
const ScanKernels scan_kernels_neon = {"arm_dotprod",
                                       {compare_group_neon<1>, compare_group_neon<2>,
                                        compare_group_neon<3>, compare_group_neon<4>},
                                       add_and_judge_neon, encode_base};
#endif

// The best of this processor.
inline const ScanKernels& scan_kernels() {
    switch (byte_products()) {
#if defined(__GNUC__) && defined(__x86_64__)
        case ByteProducts::vnni: return scan_kernels_vnni;
        case ByteProducts::avx2: return scan_kernels_avx2;
#elif defined(FLOWVEC_NEON)
        case ByteProducts::neon: return scan_kernels_neon;
#endif
        default: return scan_kernels_base;
    }
}

}  // namespace flowvec
