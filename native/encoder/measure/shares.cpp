// How near the encoder's products come to the processor's peak: see .ci/shares, which compiles this file
// for one instruction set, with LANES and SET.
//
// Both are measured in turn in one run, and of each the fastest time counts. So the result is a share,
// which hardly depends on the processor's speed. Other work on the machine only lowers it, so it is
// measured again, for a while, where it is too low.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include LANES
#include "../layers.h"

using namespace flowvec;
using S = SET;

namespace {

constexpr int ROUNDS = 60, ROWS = 48, DOTS = 4096;
constexpr double PATIENCE = 30;  // seconds

double seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

// Dots of what is in registers: as many rows and columns as a tile has, and nothing else.
NOINLINE void peak(int count, const uint8_t* row, const int8_t* weights, int32_t* to) {
    S::Ints sums[S::ROWS][S::BLOCKS];
    typename S::Weights block[S::BLOCKS];
    UNROLL
    for (int j = 0; j < S::BLOCKS; j++) {
        block[j] = S::weights(weights + 64 * j);
        UNROLL
        for (int r = 0; r < S::ROWS; r++) sums[r][j] = S::no_sum();
    }
    auto a = S::four(row);
    for (int k = 0; k < count; k++) {
        UNROLL
        for (int r = 0; r < S::ROWS; r++) {
            asm volatile("" : "+v"(a));  // or what is equal would be computed once
            UNROLL
            for (int j = 0; j < S::BLOCKS; j++) S::dot(sums[r][j], a, block[j]);
        }
    }
    UNROLL
    for (int r = 0; r < S::ROWS; r++) {
        UNROLL
        for (int j = 0; j < S::BLOCKS; j++) S::store(to + 16 * (r * S::BLOCKS + j), sums[r][j]);
    }
}

// A product by random weights, whose result is added to states as a layer does it.
struct Product {
    int inputs, columns;
    std::vector<uint8_t> rows;
    std::vector<int8_t> bytes;
    std::vector<float> scales, biases, row_scales, states;
    std::vector<int32_t> zero_sums;

    Product(int inputs, int columns) : inputs(inputs), columns(columns) {
        rows.resize(static_cast<size_t>(ROWS) * inputs);
        bytes.resize(static_cast<size_t>(inputs) * columns + 63);
        for (uint8_t& x : rows) x = static_cast<uint8_t>(std::rand());
        for (int8_t& x : bytes) x = static_cast<int8_t>(std::rand() % (PAIR + 1) - PAIR / 2);
        scales.assign(columns, 1e-6f);
        biases.assign(columns, 0.0f);
        zero_sums.assign(columns, 0);
        row_scales.assign(ROWS, 1e-3f);
        states.assign(static_cast<size_t>(ROWS) * columns, 0.0f);
    }

    // At the beginning of a line of the cache, as an encoder's.
    const int8_t* weights() const {
        return bytes.data() + -reinterpret_cast<uintptr_t>(bytes.data()) % 64;
    }

    void run() {
        const Linear linear{inputs, columns, weights(), scales.data(), biases.data(),
                            zero_sums.data()};
        Layers<S>::product(rows.data(), row_scales.data(), ROWS, linear,
                           Layers<S>::Residual{states.data(), columns});
    }
};

}  // namespace

int main(int, char** arguments) {
    const double least = std::atof(arguments[1]);
    // Of MiniLM's layers, and of BERT-base's.
    std::vector<Product> products{{384, 1152},  {384, 384},  {384, 1536}, {1536, 384},
                                  {768, 2304},  {768, 768},  {768, 3072}, {3072, 768}};
    std::vector<double> best(products.size() + 1, 1e9);
    std::vector<int32_t> sums(16 * S::ROWS * S::BLOCKS);
    const auto rate = [&] { return 64.0 * S::ROWS * S::BLOCKS * DOTS / best.back(); };
    const auto share = [&](size_t i) {
        return static_cast<double>(ROWS) * products[i].inputs * products[i].columns / best[i] / rate();
    };
    bool is_fast = false;
    for (const double start = seconds(); !is_fast && seconds() - start < PATIENCE;) {
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t i = 0; i <= products.size(); i++) {
                const double begin = seconds();
                if (i < products.size())
                    products[i].run();
                else
                    peak(DOTS, products[0].rows.data(), products[0].weights(), sums.data());
                best[i] = std::min(best[i], seconds() - begin);
            }
        }
        is_fast = true;
        for (size_t i = 0; i < products.size(); i++) is_fast = is_fast && share(i) >= least;
    }
    std::printf("%s: peak %.0f billion multiplications a second\n", S::NAME, rate() * 1e-9);
    for (size_t i = 0; i < products.size(); i++)
        std::printf("  %4d inputs, %4d columns: %.0f %%\n", products[i].inputs, products[i].columns,
                    100 * share(i));
    if (!is_fast) std::printf("a product is below %.0f %% of the peak\n", 100 * least);
    return is_fast ? 0 : 1;
}
