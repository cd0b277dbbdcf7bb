// The set of ARM's dot products: see lanes.h. Compiled with its flags alone.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace flowvec {

// Four lanes in each of four registers.
struct Neon {
    static constexpr const char* NAME = "arm_dotprod";
    static constexpr int ROWS = 6, BLOCKS = 1;
    static constexpr int OFFSET = 128;  // both factors of a dot product are signed

    struct Floats {
        float32x4_t part[4];
    };
    struct Ints {
        int32x4_t part[4];
    };

    INLINE static Floats load(const float* from) {
        return each([&](int i) { return vld1q_f32(from + 4 * i); });
    }
    INLINE static void store(float* to, Floats x) {
        UNROLL
        for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, x.part[i]);
    }
    INLINE static Ints load(const int32_t* from) {
        return each_int([&](int i) { return vld1q_s32(from + 4 * i); });
    }
    INLINE static void store(int32_t* to, Ints x) {
        UNROLL
        for (int i = 0; i < 4; i++) vst1q_s32(to + 4 * i, x.part[i]);
    }
    INLINE static Ints no_sum() {
        return each_int([](int) { return vdupq_n_s32(0); });
    }
    INLINE static Floats all(float value) {
        return each([&](int) { return vdupq_n_f32(value); });
    }

    INLINE static Floats add(Floats a, Floats b) {
        return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
    }
    INLINE static Floats sub(Floats a, Floats b) {
        return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
    }
    INLINE static Floats mul(Floats a, Floats b) {
        return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
    }
    INLINE static Floats div(Floats a, Floats b) {
        return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
    }
    INLINE static Floats fma(Floats a, Floats b, Floats c) {
        return each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
    }
    INLINE static Floats max(Floats a, Floats b) {
        return each([&](int i) { return larger(a.part[i], b.part[i]); });
    }
    INLINE static Floats min(Floats a, Floats b) {
        return each([&](int i) {
            return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]);
        });
    }
    INLINE static Floats abs(Floats a) {
        return each([&](int i) { return vabsq_f32(a.part[i]); });
    }
    INLINE static Floats round(Floats a) {
        return each([&](int i) { return vrndnq_f32(a.part[i]); });
    }
    // What does not fit is the least number, as on x86 processors.
    INLINE static Ints to_ints(Floats a) {
        return each_int([&](int i) {
            const float32x4_t rounded = vrndnq_f32(a.part[i]);
            const uint32x4_t fits = vandq_u32(vcgeq_f32(rounded, vdupq_n_f32(-2147483648.0f)),
                                              vcltq_f32(rounded, vdupq_n_f32(2147483648.0f)));
            return vbslq_s32(fits, vcvtq_s32_f32(rounded), vdupq_n_s32(INT32_MIN));
        });
    }
    INLINE static Floats to_floats(Ints a) {
        return each([&](int i) { return vcvtq_f32_s32(a.part[i]); });
    }
    INLINE static Floats from_bytes(const int8_t* from) {
        const int8x16_t bytes = vld1q_s8(from);
        const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
        return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                 vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
    }
    INLINE static Floats from_halves(const uint8_t* from) {
        return each([&](int i) {
            return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i)));
        });
    }
    INLINE static Floats times_power(Floats x, Floats n) {
        return each([&](int i) {
            const int32x4_t exponent = vshlq_n_s32(vcvtnq_s32_f32(n.part[i]), 23);
            return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.part[i]), exponent));
        });
    }
    INLINE static float sum(Floats a) {
        const float32x4_t four = vaddq_f32(vaddq_f32(a.part[0], a.part[2]),
                                           vaddq_f32(a.part[1], a.part[3]));
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
    INLINE static float largest(Floats a) {
        const float32x4_t four = larger(larger(a.part[0], a.part[2]),
                                        larger(a.part[1], a.part[3]));
        const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
        const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
        const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
        return first > second ? first : second;
    }
    INLINE static void store_unsigned(uint8_t* to, Ints a) {
        const uint16x8_t low = vcombine_u16(vqmovun_s32(a.part[0]), vqmovun_s32(a.part[1]));
        const uint16x8_t high = vcombine_u16(vqmovun_s32(a.part[2]), vqmovun_s32(a.part[3]));
        vst1q_u8(to, vcombine_u8(vqmovn_u16(low), vqmovn_u16(high)));
    }
    INLINE static void store_signed(int8_t* to, Ints a) {
        const int16x8_t low = vcombine_s16(vqmovn_s32(a.part[0]), vqmovn_s32(a.part[1]));
        const int16x8_t high = vcombine_s16(vqmovn_s32(a.part[2]), vqmovn_s32(a.part[3]));
        vst1q_s8(to, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    }
    INLINE static Ints plus(Ints a, int32_t value) {
        return each_int([&](int i) { return vaddq_s32(a.part[i], vdupq_n_s32(value)); });
    }

    using Four = int8x16_t;
    struct Weights {
        int8x16_t part[4];
    };
    INLINE static Four four(const uint8_t* from) {
        uint32_t bytes;
        std::memcpy(&bytes, from, 4);
        return vreinterpretq_s8_u32(vdupq_n_u32(bytes ^ 0x80808080u));
    }
    INLINE static Weights weights(const int8_t* from) {
        return {{vld1q_s8(from), vld1q_s8(from + 16), vld1q_s8(from + 32), vld1q_s8(from + 48)}};
    }
    INLINE static void dot(Ints& sum, Four a, const Weights& b) {
        UNROLL
        for (int i = 0; i < 4; i++) sum.part[i] = vdotq_s32(sum.part[i], b.part[i], a);
    }

  private:
    template <class Make>
    INLINE static Floats each(const Make& make) {
        return {{make(0), make(1), make(2), make(3)}};
    }
    template <class Make>
    INLINE static Ints each_int(const Make& make) {
        return {{make(0), make(1), make(2), make(3)}};
    }
    // The second number if either is NaN.
    INLINE static float32x4_t larger(float32x4_t a, float32x4_t b) {
        return vbslq_f32(vcgtq_f32(a, b), a, b);
    }
};

}  // namespace flowvec
