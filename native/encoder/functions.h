// Functions of numbers, 16 at a time, from multiplications and additions alone: see lanes.h.
#pragma once

#include "lanes.h"

namespace flowvec {

// 2^x of x <= 0; relative error below 8e-5, and less than 1e-29 beyond -100.
template <class S>
INLINE typename S::Floats exp2_of_negative(typename S::Floats x) {
    x = S::max(x, S::all(-100.0f));
    const auto whole = S::round(x);
    const auto rest = S::sub(x, whole);
    auto p = S::all(0.0560058095f);  // minimax on [-1/2, 1/2]
    p = S::fma(p, rest, S::all(0.242639963f));
    p = S::fma(p, rest, S::all(0.693105326f));
    p = S::fma(p, rest, S::all(0.999924496f));
    return S::times_power(p, whole);
}

// e^x; relative error below 2e-7. Beyond 87 it is that of 87, below -87 that of -87.
template <class S>
INLINE typename S::Floats exp(typename S::Floats x) {
    x = S::min(S::max(x, S::all(-87.0f)), S::all(87.0f));
    const auto whole = S::round(S::mul(x, S::all(1.44269504f)));
    // ln 2 in two parts, so that the rest is exact.
    auto rest = S::fma(whole, S::all(-0.693359375f), x);
    rest = S::fma(whole, S::all(2.12194440e-4f), rest);
    auto p = S::all(1.0f / 720);  // Taylor's, on [-.35, .35]
    p = S::fma(p, rest, S::all(1.0f / 120));
    p = S::fma(p, rest, S::all(1.0f / 24));
    p = S::fma(p, rest, S::all(1.0f / 6));
    p = S::fma(p, rest, S::all(0.5f));
    p = S::fma(p, rest, S::all(1.0f));
    p = S::fma(p, rest, S::all(1.0f));
    return S::times_power(p, whole);
}

template <class S>
INLINE typename S::Floats sigmoid(typename S::Floats x) {
    const auto one = S::all(1.0f);
    return S::div(one, S::add(one, exp<S>(S::sub(S::all(0.0f), x))));
}

// 2 sigmoid(2 x) - 1, whose error is below 2e-7.
template <class S>
INLINE typename S::Floats tanh(typename S::Floats x) {
    const auto y = sigmoid<S>(S::add(x, x));
    return S::sub(S::add(y, y), S::all(1.0f));
}

// GELU with the normal distribution's function, x Phi(x): error below 2e-4, which is a tenth of a
// step of 8 bits. Beyond 4 it is x or 0.
template <class S>
INLINE void gelu(typename S::Floats (&x)[4]) {
    constexpr float minimax[] = {-0.000638047358f, 0.00984577484f, -0.057083205f, 0.138377202f,
                                 -0.0399233774f,   -0.393608337f,  0.501767179f,  -0.000195280234f};
    // All four in each step, so that the processor need not wait for one result.
    typename S::Floats size[4], p[4];
    UNROLL
    for (int j = 0; j < 4; j++) {
        size[j] = S::min(S::abs(x[j]), S::all(4.0f));
        p[j] = S::all(minimax[0]);
    }
    UNROLL
    for (int i = 1; i < 8; i++)
        UNROLL
        for (int j = 0; j < 4; j++) p[j] = S::fma(p[j], size[j], S::all(minimax[i]));
    UNROLL
    for (int j = 0; j < 4; j++) x[j] = S::sub(S::max(x[j], S::all(0.0f)), p[j]);
}

}  // namespace flowvec
