// The set of AVX-512 with VNNI: see lanes.h. Compiled with its flags alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "lanes.h"

namespace flowvec {

struct Avx512Vnni {
    static constexpr const char* NAME = "avx512_vnni";
    static constexpr int ROWS = 6, BLOCKS = 4, OFFSET = 0;

    using Floats = __m512;
    using Ints = __m512i;

    INLINE static Floats load(const float* from) { return _mm512_loadu_ps(from); }
    INLINE static void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
    INLINE static Ints load(const int32_t* from) { return _mm512_loadu_si512(from); }
    INLINE static void store(int32_t* to, Ints x) { _mm512_storeu_si512(to, x); }
    INLINE static Ints no_sum() { return _mm512_setzero_si512(); }
    INLINE static Floats all(float value) { return _mm512_set1_ps(value); }

    INLINE static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    INLINE static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    INLINE static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    INLINE static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
    INLINE static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    INLINE static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
    INLINE static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
    INLINE static Floats abs(Floats a) { return _mm512_abs_ps(a); }
    INLINE static Floats round(Floats a) {
        return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    INLINE static Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
    INLINE static Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
    INLINE static Floats from_bytes(const int8_t* from) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
    INLINE static Floats from_halves(const uint8_t* from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    }
    INLINE static Floats times_power(Floats x, Floats n) {
        const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
    }
    INLINE static float sum(Floats a) {
        const __m256 high = _mm512_extractf32x8_ps(a, 1);
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), high);
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    INLINE static float largest(Floats a) {
        const __m256 high = _mm512_extractf32x8_ps(a, 1);
        const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), high);
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
    }
    INLINE static void store_unsigned(uint8_t* to, Ints a) {
        const __m512i positive = _mm512_max_epi32(a, _mm512_setzero_si512());
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8(positive));
    }
    INLINE static void store_signed(int8_t* to, Ints a) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(a));
    }
    INLINE static Ints plus(Ints a, int32_t value) {
        return _mm512_add_epi32(a, _mm512_set1_epi32(value));
    }

    using Four = __m512i;
    using Weights = __m512i;
#if defined(__GNUC__)
    // In assembly: of intrinsics, gcc keeps the sums of a tile in memory, at half the speed.
    INLINE static Four four(const uint8_t* from) {
        Four x;
        asm("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const int32_t*>(from)));
        return x;
    }
    INLINE static Weights weights(const int8_t* from) {
        Weights x;
        asm("vmovdqu64 %1, %0" : "=v"(x) : "m"(*reinterpret_cast<const __m512i_u*>(from)));
        return x;
    }
    INLINE static void dot(Ints& sum, Four a, const Weights& b) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
#else
    INLINE static Four four(const uint8_t* from) {
        return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(from));
    }
    INLINE static Weights weights(const int8_t* from) { return _mm512_loadu_si512(from); }
    INLINE static void dot(Ints& sum, Four a, const Weights& b) {
        sum = _mm512_dpbusd_epi32(sum, a, b);
    }
#endif
};

}  // namespace flowvec
