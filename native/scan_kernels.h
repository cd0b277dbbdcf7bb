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

// Sums of a group's rows, by query.
typedef int32_t Sums[TILE][GROUP_ROWS];

// What is found of a group's rows for a query.
struct Estimates {
    float estimates[GROUP_ROWS];
    float highest[GROUP_ROWS];
};

// What is known of a group's rows.
struct GroupFacts {
    const float *factors, *deviations, *lengths, *offsets;
};

// A group's codes of some numbers, and what is known of its rows and found.
struct CodeGroup {
    const uint8_t* codes;
    const uint8_t* ahead;  // codes that are compared soon, which are brought into the cache
    GroupFacts facts;
    Sums* sums;
};
// Sums the codes of two groups times a tile's numbers. Returns bits of the queries for which the score
// of a row may reach the threshold; those of the second group are TILE bits higher.
typedef unsigned (*CompareGroups)(const CodeGroup (&)[2], const Tile&);
// Adds to the sums of query `q` of a tile, and estimates the scores. Returns bits of the rows whose score
// may reach the threshold; those of the second group are GROUP_ROWS bits higher.
typedef unsigned (*CompareRests)(const CodeGroup (&)[2], const Tile&, size_t q, Estimates (&)[2]);

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

inline unsigned judge_base(const int32_t* sums, const GroupFacts& facts, const Tile& tile, size_t q,
                           Estimates& found) {
    unsigned marks = 0;
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        const float product =
            (tile.scales[q] * float(sums[r]) - tile.biases[q]) * tile.gain;
        const float estimate = facts.factors[r] * product + facts.offsets[r];
        const float highest = estimate + tile.reaches[q] * facts.deviations[r] +
                              tile.length_reaches[q] * facts.lengths[r];
        found.estimates[r] = estimate;
        found.highest[r] = highest;
        marks |= unsigned(highest >= tile.thresholds[q]) << r;
    }
    return marks;
}

// One group after the other.
template <unsigned (*compare)(const CodeGroup&, const Tile&)>
unsigned compare_each(const CodeGroup (&groups)[2], const Tile& tile) {
    return compare(groups[0], tile) | compare(groups[1], tile) << TILE;
}
template <unsigned (*compare)(const CodeGroup&, const Tile&, size_t, Estimates&)>
unsigned compare_each(const CodeGroup (&groups)[2], const Tile& tile, size_t q, Estimates (&found)[2]) {
    return compare(groups[0], tile, q, found[0]) | compare(groups[1], tile, q, found[1]) << GROUP_ROWS;
}

template <int queries>
unsigned compare_group_base(const CodeGroup& group, const Tile& tile) {
    Estimates found;
    unsigned near = 0;
    for (int q = 0; q < queries; q++) {
        int32_t* sums = (*group.sums)[q];
        std::memset(sums, 0, sizeof *group.sums / TILE);
        add_products_base(group.codes, tile.octets, tile.numbers + q * tile.stride, sums);
        near |= unsigned(judge_base(sums, group.facts, tile, size_t(q), found) != 0) << q;
    }
    return near;
}

inline unsigned compare_rest_base(const CodeGroup& group, const Tile& tile, size_t q, Estimates& found) {
    int32_t sums[GROUP_ROWS];
    std::memcpy(sums, (*group.sums)[q], sizeof sums);
    add_products_base(group.codes, tile.octets, tile.numbers + q * tile.stride, sums);
    return judge_base(sums, group.facts, tile, q, found);
}

#if defined(__GNUC__) && defined(__x86_64__)
// 15 * 127 twice in each of 8 sums: the most that 16 bits hold.
constexpr size_t OCTETS_IN_16_BITS = 4;
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
FLOWVEC_AVX2 FLOWVEC_INLINE void add_products_avx2(const CodeGroup& group, size_t octets,
                                                   const int8_t* numbers, size_t stride,
                                                   __m256i (&sums)[queries]) {
    const uint8_t* codes = group.codes;
    const __m256i ones = _mm256_set1_epi16(1);
    size_t octet = 0;
    for (; octet + OCTETS_IN_16_BITS <= octets; octet += OCTETS_IN_16_BITS) {
        __m256i parts[queries];
#pragma GCC unroll 4
        for (int q = 0; q < queries; q++) parts[q] = _mm256_setzero_si256();
        const char* ahead = reinterpret_cast<const char*>(group.ahead + octet * 32);
        _mm_prefetch(ahead, _MM_HINT_T0);
        _mm_prefetch(ahead + 64, _MM_HINT_T0);
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
                                                const Tile& tile, size_t q, Estimates* found) {
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
    if (found) {
        _mm256_storeu_ps(found->estimates, estimate);
        _mm256_storeu_ps(found->highest, highest);
    }
    return unsigned(_mm256_movemask_ps(is_near));
}

template <int queries>
FLOWVEC_AVX2 unsigned compare_group_avx2(const CodeGroup& group, const Tile& tile) {
    __m256i sums[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm256_setzero_si256();
    add_products_avx2<queries>(group, tile.octets, tile.numbers, tile.stride, sums);
    unsigned near = 0;
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>((*group.sums)[q]), sums[q]);
        near |= unsigned(judge_avx2(sums[q], group.facts, tile, size_t(q), nullptr) != 0) << q;
    }
    return near;
}

FLOWVEC_AVX2 inline unsigned compare_rest_avx2(const CodeGroup& group, const Tile& tile, size_t q,
                                               Estimates& found) {
    __m256i sums[1] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>((*group.sums)[q]))};
    add_products_avx2<1>(group, tile.octets, tile.numbers + q * tile.stride, tile.stride, sums);
    return judge_avx2(sums[0], group.facts, tile, q, &found);
}

// A register has the rows of two groups.
FLOWVEC_VNNI FLOWVEC_INLINE __m512i join(__m256i first, __m256i second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
FLOWVEC_VNNI FLOWVEC_INLINE __m512 join(const float* first, const float* second) {
    return _mm512_castsi512_ps(join(_mm256_castps_si256(_mm256_loadu_ps(first)),
                                    _mm256_castps_si256(_mm256_loadu_ps(second))));
}

// Multiplies four bytes of each row with four of a query, and adds the products to sums.
FLOWVEC_VNNI FLOWVEC_INLINE void add_four_vnni(__m512i codes, const int8_t* numbers,
                                               __m512i& sums) {
#ifdef __clang__
    int32_t word;
    std::memcpy(&word, numbers, sizeof word);
    sums = _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(word));
#else
    // One instruction, which takes them from memory. Of the intrinsic gcc makes three.
    typedef int32_t __attribute__((may_alias)) Word;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sums)
            : "v"(codes), "m"(*reinterpret_cast<const Word*>(numbers)));
#endif
}

// A sum has two parts, since an addition waits for the one before it.
template <int queries>
FLOWVEC_VNNI FLOWVEC_INLINE void add_octet_vnni(const CodeGroup (&groups)[2], size_t octet,
                                                const int8_t* numbers, size_t stride,
                                                __m512i (&sums)[2][queries]) {
    const auto load = [&](int i) __attribute__((always_inline, target("avx512f"))) {
        return _mm256_load_si256(
            reinterpret_cast<const __m256i*>(groups[i].codes + octet * 4 * GROUP_ROWS));
    };
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i both = join(load(0), load(1));
    const __m512i first = _mm512_and_si512(both, low);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        add_four_vnni(first, numbers + q * stride + octet * 8, sums[0][q]);
        add_four_vnni(second, numbers + q * stride + octet * 8 + 4, sums[1][q]);
    }
}

// Adds the products to sums.
template <int queries>
FLOWVEC_VNNI FLOWVEC_INLINE void add_products_vnni(const CodeGroup (&groups)[2], size_t octets,
                                                   const int8_t* numbers, size_t stride,
                                                   __m512i (&sums)[queries]) {
    __m512i even[2][queries], odd[2][queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        even[0][q] = sums[q];
        even[1][q] = odd[0][q] = odd[1][q] = _mm512_setzero_si512();
    }
    size_t octet = 0;
    for (; octet + 2 <= octets; octet += 2) {
        for (const CodeGroup& group : groups)
            _mm_prefetch(reinterpret_cast<const char*>(group.ahead + octet * 32), _MM_HINT_T0);
        add_octet_vnni(groups, octet, numbers, stride, even);
        add_octet_vnni(groups, octet + 1, numbers, stride, odd);
    }
    if (octet < octets) add_octet_vnni(groups, octet, numbers, stride, even);
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++)
        sums[q] = _mm512_add_epi32(_mm512_add_epi32(even[0][q], even[1][q]),
                                   _mm512_add_epi32(odd[0][q], odd[1][q]));
}

FLOWVEC_VNNI FLOWVEC_INLINE unsigned judge_vnni(__m512i sums, const CodeGroup (&groups)[2],
                                                const Tile& tile, size_t q, Estimates* found) {
    const GroupFacts &a = groups[0].facts, &b = groups[1].facts;
    const __m512 product = _mm512_mul_ps(
        _mm512_fmsub_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(tile.scales[q]),
                        _mm512_set1_ps(tile.biases[q])),
        _mm512_set1_ps(tile.gain));
    const __m512 estimate = _mm512_fmadd_ps(product, join(a.factors, b.factors),
                                            join(a.offsets, b.offsets));
    __m512 highest = _mm512_fmadd_ps(_mm512_set1_ps(tile.reaches[q]),
                                     join(a.deviations, b.deviations), estimate);
    highest = _mm512_fmadd_ps(_mm512_set1_ps(tile.length_reaches[q]), join(a.lengths, b.lengths),
                              highest);
    if (found) {
        const auto store = [](float* first, float* second, __m512 x)
            __attribute__((always_inline, target("avx512f"))) {
            _mm256_storeu_ps(first, _mm512_castps512_ps256(x));
            _mm256_storeu_pd(reinterpret_cast<double*>(second),
                             _mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
        };
        store(found[0].estimates, found[1].estimates, estimate);
        store(found[0].highest, found[1].highest, highest);
    }
    return _mm512_cmp_ps_mask(highest, _mm512_set1_ps(tile.thresholds[q]), _CMP_GE_OQ);
}

template <int queries>
FLOWVEC_VNNI unsigned compare_groups_vnni(const CodeGroup (&groups)[2], const Tile& tile) {
    __m512i sums[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm512_setzero_si512();
    add_products_vnni<queries>(groups, tile.octets, tile.numbers, tile.stride, sums);
    unsigned near = 0;
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>((*groups[0].sums)[q]),
                            _mm512_castsi512_si256(sums[q]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>((*groups[1].sums)[q]),
                            _mm512_extracti64x4_epi64(sums[q], 1));
        const unsigned marks = judge_vnni(sums[q], groups, tile, size_t(q), nullptr);
        near |= unsigned((marks & 255) != 0) << q | unsigned(marks >> 8 != 0) << (TILE + q);
    }
    return near;
}

FLOWVEC_VNNI inline unsigned compare_rests_vnni(const CodeGroup (&groups)[2], const Tile& tile,
                                                size_t q, Estimates (&found)[2]) {
    const auto* first = reinterpret_cast<const __m256i*>((*groups[0].sums)[q]);
    const auto* second = reinterpret_cast<const __m256i*>((*groups[1].sums)[q]);
    __m512i sums[1] = {join(_mm256_loadu_si256(first), _mm256_loadu_si256(second))};
    add_products_vnni<1>(groups, tile.octets, tile.numbers + q * tile.stride, tile.stride, sums);
    return judge_vnni(sums[0], groups, tile, q, found);
}
#endif

struct ScanKernels {
    const char* name;
    CompareGroups compare[TILE];  // by how many queries there are
    CompareRests compare_rests;
    decltype(&rotate_and_encode) encode;
};

inline void encode_base(const Rotation& rotation, const float* rows, size_t dim,
                        const float* centre, bool squared, size_t part, Group8* numbers,
                        Chunk& chunk, size_t group, size_t first, size_t last) {
    rotate_and_encode(rotation, rows, dim, centre, squared, part, numbers, chunk, group, first,
                      last);
}
const ScanKernels scan_kernels_base = {
    "base",
    {compare_each<compare_group_base<1>>, compare_each<compare_group_base<2>>,
     compare_each<compare_group_base<3>>, compare_each<compare_group_base<4>>},
    compare_each<compare_rest_base>,
    encode_base};

#if defined(__GNUC__) && defined(__x86_64__)
FLOWVEC_AVX2 inline void encode_avx2(const Rotation& rotation, const float* rows, size_t dim,
                                     const float* centre, bool squared, size_t part,
                                     Group8* numbers, Chunk& chunk, size_t group, size_t first,
                                     size_t last) {
    rotate_and_encode(rotation, rows, dim, centre, squared, part, numbers, chunk, group, first,
                      last);
}
const ScanKernels scan_kernels_avx2 = {
    "avx2",
    {compare_each<compare_group_avx2<1>>, compare_each<compare_group_avx2<2>>,
     compare_each<compare_group_avx2<3>>, compare_each<compare_group_avx2<4>>},
    compare_each<compare_rest_avx2>,
    encode_avx2};
const ScanKernels scan_kernels_vnni = {
    "avx512_vnni",
    {compare_groups_vnni<1>, compare_groups_vnni<2>, compare_groups_vnni<3>,
     compare_groups_vnni<4>},
    compare_rests_vnni,
    encode_avx2};
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

FLOWVEC_NEON inline unsigned add_and_judge_neon(const CodeGroup& group, const Tile& tile, size_t q,
                                                int32_t* all, Estimates& found) {
    int32x4_t sums[2] = {vld1q_s32(all), vld1q_s32(all + 4)};
    add_products_neon(group.codes, tile.octets, tile.numbers + q * tile.stride, sums);
    vst1q_s32(all, sums[0]);
    vst1q_s32(all + 4, sums[1]);
    return judge_base(all, group.facts, tile, q, found);
}

template <int queries>
FLOWVEC_NEON unsigned compare_group_neon(const CodeGroup& group, const Tile& tile) {
    Estimates found;
    unsigned near = 0;
    for (int q = 0; q < queries; q++) {
        int32_t* sums = (*group.sums)[q];
        std::memset(sums, 0, sizeof *group.sums / TILE);
        near |= unsigned(add_and_judge_neon(group, tile, size_t(q), sums, found) != 0) << q;
    }
    return near;
}

FLOWVEC_NEON inline unsigned compare_rest_neon(const CodeGroup& group, const Tile& tile, size_t q,
                                               Estimates& found) {
    int32_t sums[GROUP_ROWS];
    std::memcpy(sums, (*group.sums)[q], sizeof sums);
    return add_and_judge_neon(group, tile, q, sums, found);
}
const ScanKernels scan_kernels_neon = {
    "arm_dotprod",
    {compare_each<compare_group_neon<1>>, compare_each<compare_group_neon<2>>,
     compare_each<compare_group_neon<3>>, compare_each<compare_group_neon<4>>},
    compare_each<compare_rest_neon>,
    encode_base};
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

// Which rows of a chunk may reach a threshold of some queries. The first part of their numbers is
// compared with all groups, then the rest with those that are near by it, so that no group's sums wait
// for the decision about another.
struct ChunkScan {
    const ScanKernels& kernels;
    const Chunk& chunk;
    const float* part_lengths;  // of the chunk's rows
    Tile part, whole;

    // `found(row, query, marks, estimates)` gets the first row of a group, a query, and bits of the rows
    // that may reach the threshold; it may raise that of `whole`.
    template <class Found>
    void run(const uint8_t* groups, size_t count, size_t queries, const Found& found) const {
        const size_t part_bytes = part.octets * 4 * GROUP_ROWS;
        const size_t rest_bytes = whole.octets * 4 * GROUP_ROWS;
        const uint8_t* rests = chunk.codes + CHUNK_GROUPS * part_bytes;
        const auto compare = kernels.compare[queries - 1];
        Sums sums[CHUNK_GROUPS];
        uint8_t near[TILE][CHUNK_GROUPS + 1];  // there is a place for the next one
        size_t nears[TILE] = {};
        const auto first = [&](size_t i) -> CodeGroup {
            const size_t row = groups[i] * GROUP_ROWS;
            const uint8_t* codes = chunk.codes + groups[i] * part_bytes;
            return {codes, codes + AHEAD, facts(row, part_lengths), &sums[i]};
        };
        const auto rest = [&](size_t i, size_t after) -> CodeGroup {
            return {rests + groups[i] * rest_bytes, rests + groups[after] * rest_bytes,
                    facts(groups[i] * GROUP_ROWS, chunk.lengths), &sums[i]};
        };
        for (size_t i = 0; i < count; i += 2) {
            const bool is_pair = i + 1 < count;
            const unsigned marks = compare({first(i), first(i + is_pair)}, part);
            for (size_t q = 0; q < queries; q++) {
                near[q][nears[q]] = uint8_t(i);
                nears[q] += marks >> q & 1;
                near[q][nears[q]] = uint8_t(i + 1);
                nears[q] += marks >> (TILE + q) & is_pair;
            }
        }
        Estimates estimates[2];
        for (size_t q = 0; q < queries; q++) {
            for (size_t n = 0; n < nears[q]; n += 2) {
                const bool is_pair = n + 1 < nears[q];
                const size_t i = near[q][n], j = near[q][n + is_pair], last = nears[q] - 1;
                const size_t after = near[q][std::min(n + 2, last)];
                const size_t second = near[q][std::min(n + 3, last)];
                const unsigned marks =
                    kernels.compare_rests({rest(i, after), rest(j, second)}, whole, q, estimates);
                constexpr unsigned all = (1u << GROUP_ROWS) - 1;
                if (marks & all) found(groups[i] * GROUP_ROWS, q, marks & all, estimates[0]);
                if (is_pair && marks >> GROUP_ROWS)
                    found(groups[j] * GROUP_ROWS, q, marks >> GROUP_ROWS, estimates[1]);
            }
        }
    }

  private:
    // How far ahead codes are asked for: the processor itself looks no further than a page.
    static constexpr size_t AHEAD = 2048;

    GroupFacts facts(size_t row, const float* lengths) const {
        return {chunk.factors + row, chunk.deviations + row, lengths + row, chunk.offsets + row};
    }
};

}  // namespace flowvec
