// Sixteen numbers at a time. Each instruction set has the same operations, and all give the same
// bits: IEEE additions, multiplications and fused multiply-adds lane by lane, and sums of the lanes
// in one order. So what is computed with them does not depend on the processor.
//
// This file has the scalar set, which the others are compared with.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Sums of a tile stay in registers only if its loops are unrolled, and its functions inlined, before
// all else. A file whose code need not be fast defines these by itself.
#ifndef UNROLL
#if defined(__GNUC__)
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#else
#define UNROLL
#define INLINE __forceinline
#define NOINLINE __declspec(noinline)
#endif
#endif

namespace flowvec {

struct Scalar {
    static constexpr const char* NAME = "scalar";
    // A tile of a product: rows of activations, and blocks of 16 columns.
    static constexpr int ROWS = 4, BLOCKS = 2;
    // What `four` takes off each activation. The sums of a product begin with what that takes off them.
    static constexpr int OFFSET = 0;

    struct Floats {
        float lane[16];
    };
    struct Ints {
        int32_t lane[16];
    };

    INLINE static Floats load(const float* from) {
        Floats x;
        std::memcpy(x.lane, from, sizeof x.lane);
        return x;
    }
    INLINE static void store(float* to, Floats x) { std::memcpy(to, x.lane, sizeof x.lane); }
    INLINE static Ints load(const int32_t* from) {
        Ints x;
        std::memcpy(x.lane, from, sizeof x.lane);
        return x;
    }
    INLINE static void store(int32_t* to, Ints x) { std::memcpy(to, x.lane, sizeof x.lane); }
    INLINE static Ints no_sum() { return Ints{}; }
    INLINE static Floats all(float value) {
        Floats x;
        for (float& lane : x.lane) lane = value;
        return x;
    }

    INLINE static Floats add(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) a.lane[i] += b.lane[i];
        return a;
    }
    INLINE static Floats sub(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) a.lane[i] -= b.lane[i];
        return a;
    }
    INLINE static Floats mul(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) a.lane[i] *= b.lane[i];
        return a;
    }
    INLINE static Floats div(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) a.lane[i] /= b.lane[i];
        return a;
    }
    INLINE static Floats fma(Floats a, Floats b, Floats c) {
        for (int i = 0; i < 16; i++) c.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
        return c;
    }
    // The second number if either is NaN, as processors do.
    INLINE static Floats max(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) b.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
        return b;
    }
    INLINE static Floats min(Floats a, Floats b) {
        for (int i = 0; i < 16; i++) b.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
        return b;
    }
    INLINE static Floats abs(Floats a) {
        for (float& lane : a.lane) lane = std::fabs(lane);
        return a;
    }
    // To the nearest integer, halves to the even one.
    INLINE static Floats round(Floats a) {
        for (float& lane : a.lane) lane = std::nearbyint(lane);
        return a;
    }
    INLINE static Ints to_ints(Floats a) {
        Ints x;
        for (int i = 0; i < 16; i++) {
            const float rounded = std::nearbyint(a.lane[i]);
            const bool fits = rounded >= -2147483648.0f && rounded < 2147483648.0f;
            x.lane[i] = fits ? static_cast<int32_t>(rounded) : INT32_MIN;
        }
        return x;
    }
    INLINE static Floats to_floats(Ints a) {
        Floats x;
        for (int i = 0; i < 16; i++) x.lane[i] = static_cast<float>(a.lane[i]);
        return x;
    }
    INLINE static Floats from_bytes(const int8_t* from) {
        Floats x;
        for (int i = 0; i < 16; i++) x.lane[i] = static_cast<float>(from[i]);
        return x;
    }
    // Sixteen finite float16 numbers, which may begin anywhere. Their bits, moved to the places of a
    // float, are the number times 2^-112, also where it is below the normal ones.
    INLINE static Floats from_halves(const uint8_t* from) {
        Floats x;
        for (int i = 0; i < 16; i++) {
            uint16_t half;
            std::memcpy(&half, from + 2 * i, 2);
            const uint32_t bits = (half & 0x7fffu) << 13;
            std::memcpy(&x.lane[i], &bits, 4);
            x.lane[i] *= 0x1p112f;
            if (half & 0x8000u) x.lane[i] = -x.lane[i];
        }
        return x;
    }
    // x * 2^n, of whole n between -126 and 127, where the result is a normal number.
    INLINE static Floats times_power(Floats x, Floats n) {
        for (int i = 0; i < 16; i++) {
            int32_t bits;
            std::memcpy(&bits, &x.lane[i], 4);
            bits += static_cast<int32_t>(static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]))
                                         << 23);
            std::memcpy(&x.lane[i], &bits, 4);
        }
        return x;
    }
    INLINE static float sum(Floats a) {
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++) a.lane[i] += a.lane[i + half];
        return a.lane[0];
    }
    INLINE static float largest(Floats a) {
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++)
                a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
        return a.lane[0];
    }
    // As 16 bytes, limited to 0 and 255, or to -128 and 127.
    INLINE static void store_unsigned(uint8_t* to, Ints a) {
        for (int i = 0; i < 16; i++)
            to[i] = static_cast<uint8_t>(a.lane[i] < 0 ? 0 : a.lane[i] > 255 ? 255 : a.lane[i]);
    }
    INLINE static void store_signed(int8_t* to, Ints a) {
        for (int i = 0; i < 16; i++)
            to[i] = static_cast<int8_t>(a.lane[i] < -128 ? -128 : a.lane[i] > 127 ? 127 : a.lane[i]);
    }
    INLINE static Ints plus(Ints a, int32_t value) {
        for (int32_t& lane : a.lane) lane += value;
        return a;
    }

    // Four bytes of a row of activations, for all lanes.
    struct Four {
        uint8_t byte[4];
    };
    INLINE static Four four(const uint8_t* from) {
        Four x;
        std::memcpy(x.byte, from, 4);
        return x;
    }
    // 16 columns of weights, of each four bytes.
    struct Weights {
        int8_t byte[64];
    };
    INLINE static Weights weights(const int8_t* from) {
        Weights x;
        std::memcpy(x.byte, from, 64);
        return x;
    }
    // Adds to each lane the product of four activations and its four weights.
    INLINE static void dot(Ints& sum, Four a, const Weights& b) {
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 4; j++) sum.lane[i] += a.byte[j] * b.byte[4 * i + j];
    }
};

}  // namespace flowvec
