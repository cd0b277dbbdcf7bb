// Of float32 vectors: 1 - dot, the dot product, and the squared Euclidean distance.
//
// One source, compiled for several instruction sets; the best one that the processor has is chosen
// at run time. So a wheel for any x86-64 uses AVX-512 where there is AVX-512.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#ifdef __linux__
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif
#endif

namespace flowvec {

#if defined(__GNUC__)
#define FLOWVEC_INLINE inline __attribute__((always_inline))
// 16 numbers, which the compiler splits into registers of the instruction set.
typedef float Lanes __attribute__((vector_size(64)));
#else
#define FLOWVEC_INLINE __forceinline
struct Lanes {
    float number[16];
    float operator[](int i) const { return number[i]; }
    Lanes operator-(const Lanes& other) const {
        Lanes result;
        for (int i = 0; i < 16; i++) result.number[i] = number[i] - other.number[i];
        return result;
    }
    Lanes operator*(const Lanes& other) const {
        Lanes result;
        for (int i = 0; i < 16; i++) result.number[i] = number[i] * other.number[i];
        return result;
    }
    void operator+=(const Lanes& other) {
        for (int i = 0; i < 16; i++) number[i] += other.number[i];
    }
};
#endif

constexpr size_t LANES = 16;

// sums += the 16 numbers' products, or the squares of their differences.
template <bool squares>
FLOWVEC_INLINE void accumulate(Lanes& sums, const float* a, const float* b) {
    Lanes x, y;
    std::memcpy(&x, a, sizeof x);
    std::memcpy(&y, b, sizeof y);
    if (squares) {
        x = x - y;
        y = x;
    }
    sums += x * y;
}

// The sum of 16 numbers, by halves.
FLOWVEC_INLINE float sum(const Lanes& numbers) {
#if defined(__GNUC__)
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Four __attribute__((vector_size(16)));
    Eight eight[2];
    Four four[2];
    std::memcpy(eight, &numbers, sizeof numbers);
    eight[0] += eight[1];
    std::memcpy(four, &eight[0], sizeof eight[0]);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
#else
    float total = 0;
    for (int i = 0; i < 16; i++) total += numbers[i];
    return total;
#endif
}

// `count` sums are added to in turn: an addition waits for the one before it.
template <bool squares, int count>
FLOWVEC_INLINE float total(const float* a, const float* b, size_t n) {
    Lanes sums[count] = {};
    size_t i = 0;
    for (; i + 16 * count <= n; i += 16 * count)
        for (int j = 0; j < count; j++) accumulate<squares>(sums[j], a + i + 16 * j, b + i + 16 * j);
    for (; i + 16 <= n; i += 16) accumulate<squares>(sums[0], a + i, b + i);
    if (i < n) {  // the last numbers, followed by zeros
        float x[16] = {}, y[16] = {};
        std::memcpy(x, a + i, (n - i) * sizeof(float));
        std::memcpy(y, b + i, (n - i) * sizeof(float));
        accumulate<squares>(sums[0], x, y);
    }
    for (int j = 1; j < count; j++) sums[0] += sums[j];
    return sum(sums[0]);
}

// As hnswlib calls it.
template <bool squares, int count>
FLOWVEC_INLINE float compare(const void* first, const void* second, const void* dim) {
    const float* a = static_cast<const float*>(first);
    const float* b = static_cast<const float*>(second);
    const float found = total<squares, count>(a, b, *static_cast<const size_t*>(dim));
    return squares ? found : 1.0f - found;
}

typedef float (*Distance)(const void*, const void*, const void*);
typedef float (*Product)(const float*, const float*, size_t);

struct Kernels {
    const char* name;
    Distance inner_product, squared;
    Product dot;
};

#define FLOWVEC_KERNELS(name, count, target)                                        \
    target inline float inner_product_##name(const void* a, const void* b, const void* n) { \
        return compare<false, count>(a, b, n);                                      \
    }                                                                               \
    target inline float squared_##name(const void* a, const void* b, const void* n) { \
        return compare<true, count>(a, b, n);                                       \
    }                                                                               \
    target inline float dot_##name(const float* a, const float* b, size_t n) {      \
        return total<false, count>(a, b, n);                                        \
    }                                                                               \
    const Kernels kernels_##name = {#name, inner_product_##name, squared_##name, dot_##name};

FLOWVEC_KERNELS(base, 2, )
#if defined(__GNUC__) && defined(__x86_64__)
#define FLOWVEC_AVX2 __attribute__((target("avx2,fma")))
#define FLOWVEC_VNNI __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")))
FLOWVEC_KERNELS(avx2, 4, FLOWVEC_AVX2)
FLOWVEC_KERNELS(avx512, 4, __attribute__((target("avx512f,avx2,fma"))))
#endif

// The best kernels for this processor. The environment variable FLOWVEC_HNSW_SIMD limits them:
// `base` or `avx2`.
inline const Kernels& kernels() {
    const char* value = std::getenv("FLOWVEC_HNSW_SIMD");
    const char* limit = value ? value : "";
#if defined(__GNUC__) && defined(__x86_64__)
    const bool is_base = !std::strcmp(limit, "base");
    if (!is_base && __builtin_cpu_supports("avx512f") && std::strcmp(limit, "avx2"))
        return kernels_avx512;
    if (!is_base && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return kernels_avx2;
#endif
    (void)limit;
    return kernels_base;
}

// Which instructions multiply and add bytes: the best for this processor, limited as `kernels` are.
enum class ByteProducts { base, avx2, vnni, neon };

#if defined(__GNUC__) && defined(__aarch64__)
#ifdef __ARM_FEATURE_DOTPROD
#define FLOWVEC_NEON
#else
#define FLOWVEC_NEON __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#endif

inline ByteProducts byte_products() {
#if defined(__GNUC__) && defined(__x86_64__)
    const Kernels& best = kernels();
    if (&best == &kernels_base) return ByteProducts::base;
    if (&best == &kernels_avx512 && __builtin_cpu_supports("avx512vnni") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return ByteProducts::vnni;
    return ByteProducts::avx2;
#elif defined(FLOWVEC_NEON)
    const char* limit = std::getenv("FLOWVEC_HNSW_SIMD");
    if (limit && !std::strcmp(limit, "base")) return ByteProducts::base;
#ifdef __ARM_FEATURE_DOTPROD
    return ByteProducts::neon;
#elif defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return ByteProducts::neon;
#endif
#endif
    return ByteProducts::base;
}

}  // namespace flowvec
