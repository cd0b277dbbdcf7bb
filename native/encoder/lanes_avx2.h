// The sets of AVX2, and of AVX2 with VNNI: see lanes.h. Compiled with their flags alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lanes.h"

namespace flowvec {

// Eight lanes in each of two registers. `Products` says how bytes are multiplied.
template <class Products>
struct Avx2 : Products {
    struct Floats {
        __m256 low, high;
    };
    struct Ints {
        __m256i low, high;
    };

    INLINE static Floats load(const float* from) {
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
    INLINE static void store(float* to, Floats x) {
        _mm256_storeu_ps(to, x.low);
        _mm256_storeu_ps(to + 8, x.high);
    }
    INLINE static Ints load(const int32_t* from) { return {whole(from), whole(from + 8)}; }
    INLINE static void store(int32_t* to, Ints x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x.low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), x.high);
    }
    INLINE static Ints no_sum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    INLINE static Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }

    INLINE static Floats add(Floats a, Floats b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    INLINE static Floats sub(Floats a, Floats b) {
        return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
    }
    INLINE static Floats mul(Floats a, Floats b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    INLINE static Floats div(Floats a, Floats b) {
        return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
    }
    INLINE static Floats fma(Floats a, Floats b, Floats c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    INLINE static Floats max(Floats a, Floats b) {
        return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
    }
    INLINE static Floats min(Floats a, Floats b) {
        return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
    }
    INLINE static Floats abs(Floats a) {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
    }
    INLINE static Floats round(Floats a) {
        constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
    }
    INLINE static Ints to_ints(Floats a) {
        return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
    }
    INLINE static Floats to_floats(Ints a) {
        return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
    }
    INLINE static Floats from_bytes(const int8_t* from) {
        return {eight_bytes(from), eight_bytes(from + 8)};
    }
    INLINE static Floats from_halves(const uint8_t* from) {
        return {eight_halves(from), eight_halves(from + 16)};
    }
    INLINE static Floats times_power(Floats x, Floats n) {
        const Ints whole_n = to_ints(n);
        return {shifted(x.low, whole_n.low), shifted(x.high, whole_n.high)};
    }
    INLINE static float sum(Floats a) {
        const __m256 eight = _mm256_add_ps(a.low, a.high);
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    INLINE static float largest(Floats a) {
        const __m256 eight = _mm256_max_ps(a.low, a.high);
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
    }
    INLINE static void store_unsigned(uint8_t* to, Ints a) {
        const __m128i first = in_16_bits(a.low), second = in_16_bits(a.high);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(first, second));
    }
    INLINE static void store_signed(int8_t* to, Ints a) {
        const __m128i first = in_16_bits(a.low), second = in_16_bits(a.high);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(first, second));
    }
    INLINE static Ints plus(Ints a, int32_t value) {
        const __m256i other = _mm256_set1_epi32(value);
        return {_mm256_add_epi32(a.low, other), _mm256_add_epi32(a.high, other)};
    }

    using Four = __m256i;
    using Weights = Ints;
    INLINE static Four four(const uint8_t* from) {
        int32_t bytes;
        std::memcpy(&bytes, from, 4);
        return _mm256_set1_epi32(bytes);
    }
    INLINE static Weights weights(const int8_t* from) { return {whole(from), whole(from + 32)}; }
    INLINE static void dot(Ints& sum, Four a, const Weights& b) {
        Products::add_products(sum.low, a, b.low);
        Products::add_products(sum.high, a, b.high);
    }

  private:
    template <class T>
    INLINE static __m256i whole(const T* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    INLINE static __m256 eight_bytes(const int8_t* from) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    INLINE static __m256 eight_halves(const uint8_t* from) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m256i wide = _mm256_cvtepu16_epi32(halves);
        const __m256i size = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x7fff)), 13);
        const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(wide, 15), 31);
        const __m256 x = _mm256_mul_ps(_mm256_castsi256_ps(size), _mm256_set1_ps(0x1p112f));
        return _mm256_or_ps(x, _mm256_castsi256_ps(sign));
    }
    INLINE static __m256 shifted(__m256 x, __m256i n) {
        const __m256i bits = _mm256_castps_si256(x);
        return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_slli_epi32(n, 23)));
    }
    INLINE static __m128i in_16_bits(__m256i a) {
        return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    }
};

// Sums of two products in 16 bits: see PAIR in layers.h.
struct Pairs {
    static constexpr const char* NAME = "avx2";
    static constexpr int ROWS = 5, BLOCKS = 1, OFFSET = 0;

    INLINE static void add_products(__m256i& sum, __m256i a, __m256i b) {
        const __m256i pairs = _mm256_maddubs_epi16(a, b);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
};

}  // namespace flowvec
