// The inner loops of a scan of codes, for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "codes.h"

namespace flowvec {

// Queries that are compared with a group at once: their sums stay in registers.
constexpr size_t TILE = 8;
// Up to TILE queries, in 8 bits, and how the sums of a group's rows are judged.
//
// A sum stands for the score `factors[r] * (scale * sum - bias) + offsets[r]`, which may be higher by
// `reach * deviations[r]` and what the other numbers add: of the product, `ratio * ratios[r]`, and
// `length_reach * lengths[r]`.
struct Tile {
    const int8_t* numbers;  // of the first query; those of the next one begin `stride` behind
    size_t stride;
    size_t octets;  // that are summed
    float scales[TILE], biases[TILE], reaches[TILE], length_reaches[TILE], thresholds[TILE];
    float ratios[TILE];
};

// Sums of a group's rows, by query.
typedef int32_t Sums[TILE][GROUP_ROWS];

// What is found of a group's rows for a query.
struct Estimates {
    float estimates[GROUP_ROWS];
    float highest[GROUP_ROWS];
};

// A group's codes of some numbers, and what is known of its rows and found.
struct CodeGroup {
    const uint8_t* codes;
    const GroupFacts& facts;
    const float* lengths;
    Sums& sums;
};
// Sums the codes of a group times a tile's numbers. Returns bits of the queries for which the score of
// a row may reach the threshold.
typedef unsigned (*CompareGroup)(const CodeGroup&, const Tile&);
// Adds to the sums of query `q` of a tile, and estimates the scores. Returns bits of the rows whose
// score may reach the threshold.
typedef unsigned (*CompareRest)(const CodeGroup&, const Tile&, size_t q, Estimates&);

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

inline unsigned judge_base(const int32_t* sums, const CodeGroup& group, const Tile& tile, size_t q,
                           Estimates& found) {
    unsigned marks = 0;
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        const float sum = tile.scales[q] * float(sums[r]) - tile.biases[q];
        const float product = group.facts.factors[r] * sum;
        const float estimate = product + group.facts.offsets[r];
        const float more = tile.ratios[q] * group.facts.ratios[r] * product +
                           tile.length_reaches[q] * group.lengths[r];
        const float highest =
            estimate + tile.reaches[q] * group.facts.deviations[r] + std::max(more, 0.0f);
        found.estimates[r] = estimate;
        found.highest[r] = highest;
        marks |= unsigned(highest >= tile.thresholds[q]) << r;
    }
    return marks;
}

template <int queries>
unsigned compare_group_base(const CodeGroup& group, const Tile& tile) {
    Estimates found;
    unsigned near = 0;
    for (int q = 0; q < queries; q++) {
        int32_t* sums = group.sums[q];
        std::memset(sums, 0, sizeof group.sums / TILE);
        add_products_base(group.codes, tile.octets, tile.numbers + q * tile.stride, sums);
        near |= unsigned(judge_base(sums, group, tile, size_t(q), found) != 0) << q;
    }
    return near;
}

inline unsigned compare_rest_base(const CodeGroup& group, const Tile& tile, size_t q,
                                  Estimates& found) {
    int32_t sums[GROUP_ROWS];
    std::memcpy(sums, group.sums[q], sizeof sums);
    add_products_base(group.codes, tile.octets, tile.numbers + q * tile.stride, sums);
    return judge_base(sums, group, tile, q, found);
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

// Adds the products of half of a group's rows to sums; `codes` begin with that half.
template <int queries>
FLOWVEC_AVX2 FLOWVEC_INLINE void add_products_avx2(const uint8_t* codes, size_t octets,
                                                   const int8_t* numbers,
                                                   size_t stride, __m256i (&sums)[queries]) {
    constexpr size_t step = 4 * GROUP_ROWS;  // bytes of an octet
    const __m256i ones = _mm256_set1_epi16(1);
    for (size_t octet = 0; octet < octets; octet += OCTETS_IN_16_BITS) {
        __m256i parts[queries];
#pragma GCC unroll 4
        for (int q = 0; q < queries; q++) parts[q] = _mm256_setzero_si256();
        if (octet + OCTETS_IN_16_BITS <= octets) {
#pragma GCC unroll 4
            for (size_t i = 0; i < OCTETS_IN_16_BITS; i++)
                add_octet_avx2(codes + (octet + i) * step, numbers + (octet + i) * 8, stride, parts);
        } else {
            for (size_t i = octet; i < octets; i++)
                add_octet_avx2(codes + i * step, numbers + i * 8, stride, parts);
        }
#pragma GCC unroll 4
        for (int q = 0; q < queries; q++)
            sums[q] = _mm256_add_epi32(sums[q], _mm256_madd_epi16(parts[q], ones));
    }
}

// Bits of the eight rows from `r` on.
FLOWVEC_AVX2 FLOWVEC_INLINE unsigned judge_avx2(__m256i sums, const CodeGroup& group, size_t r,
                                                const Tile& tile, size_t q, Estimates* found) {
    const __m256 sum = _mm256_fmsub_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(tile.scales[q]),
                                       _mm256_set1_ps(tile.biases[q]));
    const __m256 product = _mm256_mul_ps(sum, _mm256_loadu_ps(group.facts.factors + r));
    const __m256 estimate = _mm256_add_ps(product, _mm256_loadu_ps(group.facts.offsets + r));
    __m256 highest = _mm256_fmadd_ps(_mm256_set1_ps(tile.reaches[q]),
                                     _mm256_loadu_ps(group.facts.deviations + r), estimate);
    const __m256 ratio =
        _mm256_mul_ps(_mm256_set1_ps(tile.ratios[q]), _mm256_loadu_ps(group.facts.ratios + r));
    const __m256 more = _mm256_fmadd_ps(
        ratio, product,
        _mm256_mul_ps(_mm256_set1_ps(tile.length_reaches[q]), _mm256_loadu_ps(group.lengths + r)));
    highest = _mm256_add_ps(highest, _mm256_max_ps(more, _mm256_setzero_ps()));
    const __m256 is_near = _mm256_cmp_ps(highest, _mm256_set1_ps(tile.thresholds[q]), _CMP_GE_OQ);
    if (found) {
        _mm256_storeu_ps(found->estimates + r, estimate);
        _mm256_storeu_ps(found->highest + r, highest);
    }
    return unsigned(_mm256_movemask_ps(is_near));
}

// Of at most four queries: there are 16 registers.
template <int queries>
FLOWVEC_AVX2 FLOWVEC_INLINE unsigned compare_half_avx2(const CodeGroup& group, size_t r,
                                                       const Tile& tile, size_t first) {
    __m256i sums[queries];
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) sums[q] = _mm256_setzero_si256();
    add_products_avx2<queries>(group.codes + 4 * r, tile.octets,
                               tile.numbers + first * tile.stride, tile.stride, sums);
    unsigned near = 0;
#pragma GCC unroll 4
    for (int q = 0; q < queries; q++) {
        const size_t at = first + size_t(q);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(group.sums[at] + r), sums[q]);
        near |= unsigned(judge_avx2(sums[q], group, r, tile, at, nullptr) != 0) << at;
    }
    return near;
}

template <int queries>
FLOWVEC_AVX2 unsigned compare_group_avx2(const CodeGroup& group, const Tile& tile) {
    constexpr int few = queries < 4 ? queries : 4, more = queries > 4 ? queries - 4 : 1;
    unsigned near = 0;
    for (size_t r = 0; r < GROUP_ROWS; r += 8) {
        near |= compare_half_avx2<few>(group, r, tile, 0);
        if (queries > 4) near |= compare_half_avx2<more>(group, r, tile, 4);
    }
    return near;
}

FLOWVEC_AVX2 inline unsigned compare_rest_avx2(const CodeGroup& group, const Tile& tile, size_t q,
                                               Estimates& found) {
    unsigned marks = 0;
    for (size_t r = 0; r < GROUP_ROWS; r += 8) {
        __m256i sums[1] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(group.sums[q] + r))};
        add_products_avx2<1>(group.codes + 4 * r, tile.octets,
                             tile.numbers + q * tile.stride, tile.stride, sums);
        marks |= judge_avx2(sums[0], group, r, tile, q, &found) << r;
    }
    return marks;
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
FLOWVEC_VNNI FLOWVEC_INLINE void add_octet_vnni(const CodeGroup& group, size_t octet,
                                                const int8_t* numbers, size_t stride,
                                                __m512i (&sums)[2][queries]) {
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i both = _mm512_load_si512(group.codes + octet * 64);
    const __m512i first = _mm512_and_si512(both, low);
    const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
#pragma GCC unroll 8
    for (int q = 0; q < queries; q++) {
        add_four_vnni(first, numbers + q * stride + octet * 8, sums[0][q]);
        add_four_vnni(second, numbers + q * stride + octet * 8 + 4, sums[1][q]);
    }
}

// Adds the products to sums.
template <int queries>
FLOWVEC_VNNI FLOWVEC_INLINE void add_products_vnni(const CodeGroup& group, size_t octets,
                                                   const int8_t* numbers, size_t stride,
                                                   __m512i (&sums)[queries]) {
    constexpr int chains = queries > 4 ? 1 : 2;  // few queries have more parts of sums
    __m512i parts[chains][2][queries];
#pragma GCC unroll 8
    for (int q = 0; q < queries; q++) {
        for (int chain = 0; chain < chains; chain++)
            parts[chain][0][q] = parts[chain][1][q] = _mm512_setzero_si512();
        parts[0][0][q] = sums[q];
    }
    size_t octet = 0;
    if (chains == 2)
        for (; octet + 2 <= octets; octet += 2) {
            add_octet_vnni(group, octet, numbers, stride, parts[0]);
            add_octet_vnni(group, octet + 1, numbers, stride, parts[chains - 1]);
        }
    for (; octet < octets; octet++) add_octet_vnni(group, octet, numbers, stride, parts[0]);
#pragma GCC unroll 8
    for (int q = 0; q < queries; q++) {
        sums[q] = _mm512_add_epi32(parts[0][0][q], parts[0][1][q]);
        if (chains == 2)
            sums[q] = _mm512_add_epi32(
                sums[q], _mm512_add_epi32(parts[chains - 1][0][q], parts[chains - 1][1][q]));
    }
}

FLOWVEC_VNNI FLOWVEC_INLINE unsigned judge_vnni(__m512i sums, const CodeGroup& group,
                                                const Tile& tile, size_t q, Estimates* found) {
    const __m512 sum = _mm512_fmsub_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(tile.scales[q]),
                                       _mm512_set1_ps(tile.biases[q]));
    const __m512 product = _mm512_mul_ps(sum, _mm512_loadu_ps(group.facts.factors));
    const __m512 estimate = _mm512_add_ps(product, _mm512_loadu_ps(group.facts.offsets));
    __m512 highest = _mm512_fmadd_ps(_mm512_set1_ps(tile.reaches[q]),
                                     _mm512_loadu_ps(group.facts.deviations), estimate);
    const __m512 ratio =
        _mm512_mul_ps(_mm512_set1_ps(tile.ratios[q]), _mm512_loadu_ps(group.facts.ratios));
    const __m512 more = _mm512_fmadd_ps(
        ratio, product,
        _mm512_mul_ps(_mm512_set1_ps(tile.length_reaches[q]), _mm512_loadu_ps(group.lengths)));
    highest = _mm512_add_ps(highest, _mm512_max_ps(more, _mm512_setzero_ps()));
    if (found) {
        _mm512_storeu_ps(found->estimates, estimate);
        _mm512_storeu_ps(found->highest, highest);
    }
    return _mm512_cmp_ps_mask(highest, _mm512_set1_ps(tile.thresholds[q]), _CMP_GE_OQ);
}

template <int queries>
FLOWVEC_VNNI unsigned compare_group_vnni(const CodeGroup& group, const Tile& tile) {
    __m512i sums[queries];
#pragma GCC unroll 8
    for (int q = 0; q < queries; q++) sums[q] = _mm512_setzero_si512();
    add_products_vnni<queries>(group, tile.octets, tile.numbers, tile.stride, sums);
    unsigned near = 0;
#pragma GCC unroll 8
    for (int q = 0; q < queries; q++) {
        _mm512_storeu_si512(group.sums[q], sums[q]);
        near |= unsigned(judge_vnni(sums[q], group, tile, size_t(q), nullptr) != 0) << q;
    }
    return near;
}

FLOWVEC_VNNI inline unsigned compare_rest_vnni(const CodeGroup& group, const Tile& tile, size_t q,
                                               Estimates& found) {
    __m512i sums[1] = {_mm512_loadu_si512(group.sums[q])};
    add_products_vnni<1>(group, tile.octets, tile.numbers + q * tile.stride, tile.stride, sums);
    return judge_vnni(sums[0], group, tile, q, &found);
}
#endif

struct ScanKernels {
    const char* name;
    CompareGroup compare[TILE];  // by how many queries there are
    CompareRest compare_rest;
    decltype(&turn_and_encode) encode;
    void (*turn)(const Frame&, const float* queries, size_t count, float* turned, float* room);
};

#define FLOWVEC_COMPARE(set)                                                                   \
    {compare_group_##set<1>, compare_group_##set<2>, compare_group_##set<3>,                   \
     compare_group_##set<4>, compare_group_##set<5>, compare_group_##set<6>,                   \
     compare_group_##set<7>, compare_group_##set<8>}, compare_rest_##set

inline void encode_base(const Frame& frame, const float* rows, bool squared, Group8* numbers,
                        Chunk& chunk, size_t eight, size_t first, size_t last) {
    turn_and_encode(frame, rows, squared, numbers, chunk, eight, first, last);
}
inline void turn_base(const Frame& frame, const float* queries, size_t count, float* turned,
                      float* room) {
    frame.turn<4>(queries, count, turned, room);
}
const ScanKernels scan_kernels_base = {"base", FLOWVEC_COMPARE(base), encode_base, turn_base};

#if defined(__GNUC__) && defined(__x86_64__)
FLOWVEC_AVX2 inline void encode_avx2(const Frame& frame, const float* rows, bool squared,
                                     Group8* numbers, Chunk& chunk, size_t eight, size_t first,
                                     size_t last) {
    turn_and_encode(frame, rows, squared, numbers, chunk, eight, first, last);
}
FLOWVEC_AVX2 inline void turn_avx2(const Frame& frame, const float* queries, size_t count,
                                   float* turned, float* room) {
    frame.turn<4>(queries, count, turned, room);
}
FLOWVEC_VNNI inline void turn_vnni(const Frame& frame, const float* queries, size_t count,
                                   float* turned, float* room) {
    frame.turn<8>(queries, count, turned, room);
}
const ScanKernels scan_kernels_avx2 = {"avx2", FLOWVEC_COMPARE(avx2), encode_avx2, turn_avx2};
const ScanKernels scan_kernels_vnni = {"avx512_vnni", FLOWVEC_COMPARE(vnni), encode_avx2,
                                       turn_vnni};
#endif

#ifdef FLOWVEC_NEON
// A register has four rows of a group; a dot product adds four numbers of each.
FLOWVEC_NEON FLOWVEC_INLINE unsigned add_and_judge_neon(const CodeGroup& group, const Tile& tile,
                                                        size_t q, int32_t* all, Estimates& found) {
    const uint8x16_t low = vdupq_n_u8(15);
    const int8_t* numbers = tile.numbers + q * tile.stride;
    int32x4_t sums[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) sums[i] = vld1q_s32(all + 4 * i);
    for (size_t octet = 0; octet < tile.octets; octet++) {
        int32_t words[2];
        std::memcpy(words, numbers + 8 * octet, sizeof words);
        const int8x16_t first = vreinterpretq_s8_s32(vdupq_n_s32(words[0]));
        const int8x16_t second = vreinterpretq_s8_s32(vdupq_n_s32(words[1]));
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            const uint8x16_t both = vld1q_u8(group.codes + 64 * octet + 16 * i);
            sums[i] = vdotq_s32(sums[i], vreinterpretq_s8_u8(vandq_u8(both, low)), first);
            sums[i] = vdotq_s32(sums[i], vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), second);
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) vst1q_s32(all + 4 * i, sums[i]);
    return judge_base(all, group, tile, q, found);
}

template <int queries>
FLOWVEC_NEON unsigned compare_group_neon(const CodeGroup& group, const Tile& tile) {
    Estimates found;
    unsigned near = 0;
    for (int q = 0; q < queries; q++) {
        int32_t* sums = group.sums[q];
        std::memset(sums, 0, sizeof group.sums / TILE);
        near |= unsigned(add_and_judge_neon(group, tile, size_t(q), sums, found) != 0) << q;
    }
    return near;
}

FLOWVEC_NEON inline unsigned compare_rest_neon(const CodeGroup& group, const Tile& tile, size_t q,
                                               Estimates& found) {
    int32_t sums[GROUP_ROWS];
    std::memcpy(sums, group.sums[q], sizeof sums);
    return add_and_judge_neon(group, tile, q, sums, found);
}
const ScanKernels scan_kernels_neon = {"arm_dotprod", FLOWVEC_COMPARE(neon), encode_base,
                                       turn_base};
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
    const Chunk* next;  // which is scanned after this one, or null
    Tile part, whole;

    // `found(row, query, marks, estimates)` gets the first row of a group, a query, and bits of the rows
    // that may reach the threshold.
    template <class Found>
    void run(const uint8_t* groups, size_t count, size_t queries, const Found& found) const {
        const auto compare = kernels.compare[queries - 1];
        alignas(64) Sums sums[CHUNK_GROUPS];
        uint8_t near[TILE][CHUNK_GROUPS];
        size_t nears[TILE] = {};
        for (size_t i = 0; i < count; i++) {
            const GroupFacts& facts = chunk.facts(groups[i]);
            if (i + AHEAD < count) prefetch(&chunk.facts(groups[i + AHEAD]), sizeof facts);
            else if (next) prefetch(&next->facts(i + AHEAD - count), sizeof facts);
            unsigned marks = compare({codes_of(facts), facts, facts.reaches, sums[i]}, part);
            for (size_t q = 0; marks; q++, marks >>= 1)
                if (marks & 1) near[q][nears[q]++] = uint8_t(i);
        }
        Estimates estimates;
        for (size_t q = 0; q < queries; q++) {
            for (size_t n = 0; n < nears[q]; n++) {
                const size_t i = near[q][n];
                const MoreFacts& more = chunk.more(groups[i]);
                if (n + 1 < nears[q]) prefetch(&chunk.more(groups[near[q][n + 1]]), chunk.rest_bytes);
                const unsigned marks = kernels.compare_rest(
                    {codes_of(more), chunk.facts(groups[i]), more.lengths, sums[i]}, whole, q,
                    estimates);
                if (marks) found(groups[i] * GROUP_ROWS, q, marks, estimates);
            }
        }
    }

  private:
    // How many groups ahead memory is asked for the facts. The processor then asks for the codes behind
    // them by itself, but it does not look further than a page.
    static constexpr size_t AHEAD = 4;

    // Codes lie behind the facts.
    template <class Facts>
    static const uint8_t* codes_of(const Facts& facts) {
        return reinterpret_cast<const uint8_t*>(&facts + 1);
    }
    static void prefetch(const void* first, size_t bytes) {
#if defined(__GNUC__)
        for (size_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(static_cast<const char*>(first) + at);
#else
        (void)first, (void)bytes;
#endif
    }
};

}  // namespace flowvec
