// What follows the pooling, as a program of a few steps: a Dense layer, whitening, a flow.
//
// Each number of a result is computed in one order, and texts share only the reading of matrices. So
// a vector does not depend on the texts beside it.
#pragma once

#include <cstring>

#include "functions.h"
#include "lanes.h"

namespace flowvec {

// In the order of the Python module `flowvec.native.tail`.
enum class Operation {
    CONSTANT, PRODUCT, ADD, SUBTRACT, MULTIPLY, DIVIDE, RELU, TANH, EXP, SIGMOID, PART, JOIN, COUNT
};

// Vectors are in a text's memory, each at a multiple of 16 floats; `to`, `first` and `second` say where
// a step's result and operands begin.
struct Step {
    Operation operation;
    int length;  // of the result
    int to, first, second;
    // Of the first operand, in a product and a join; of a part, where it begins in that operand.
    int size;
    // A constant [length], or the matrix [size][length] of a product; rows are padded to 16 floats.
    const float* tensor;
};

struct Tail {
    const Step* steps;
    int count;
    int memory;  // floats of a text
    int result, length;
    bool is_normalized;
};

// Texts that are computed together.
constexpr int TAIL_TEXTS = 4;

template <class S>
class Tails {
    using Floats = typename S::Floats;
    static constexpr int BLOCKS = S::BLOCKS == 4 ? 4 : 1;

    static int padded(int length) { return (length + 15) / 16 * 16; }

    // N blocks of 16 columns of R texts' products; the second operand, if there is one, is added.
    template <int R, int N>
    NOINLINE static void multiply(const Step& step, int column, float* memory, size_t size) {
        Floats sums[R][N];
        UNROLL
        for (int r = 0; r < R; r++) {
            UNROLL
            for (int j = 0; j < N; j++)
                sums[r][j] = step.second < 0
                                 ? S::all(0.0f)
                                 : S::load(memory + r * size + step.second + column + 16 * j);
        }
        const size_t stride = padded(step.length);
        const float* matrix = step.tensor + column;
        for (int k = 0; k < step.size; k++, matrix += stride) {
            Floats block[N];
            UNROLL
            for (int j = 0; j < N; j++) block[j] = S::load(matrix + 16 * j);
            UNROLL
            for (int r = 0; r < R; r++) {
                const Floats x = S::all(memory[r * size + step.first + k]);
                UNROLL
                for (int j = 0; j < N; j++) sums[r][j] = S::fma(x, block[j], sums[r][j]);
            }
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            UNROLL
            for (int j = 0; j < N; j++)
                S::store(memory + r * size + step.to + column + 16 * j, sums[r][j]);
        }
    }

    template <int R>
    static void product(const Step& step, float* memory, size_t size) {
        int column = 0;
        for (; column + 16 * BLOCKS <= step.length; column += 16 * BLOCKS)
            multiply<R, BLOCKS>(step, column, memory, size);
        for (; column < step.length; column += 16) multiply<R, 1>(step, column, memory, size);
    }

    static Floats of(Operation operation, Floats a, Floats b) {
        switch (operation) {
            case Operation::ADD: return S::add(a, b);
            case Operation::SUBTRACT: return S::sub(a, b);
            case Operation::MULTIPLY: return S::mul(a, b);
            case Operation::DIVIDE: return S::div(a, b);
            case Operation::RELU: return S::max(a, S::all(0.0f));
            case Operation::TANH: return tanh<S>(a);
            case Operation::EXP: return exp<S>(a);
            default: return sigmoid<S>(a);
        }
    }

    // A step that is not a product.
    static void simple(const Step& step, float* memory) {
        float* to = memory + step.to;
        const float* first = memory + step.first;
        const size_t bytes = step.length * sizeof(float);
        if (step.operation == Operation::CONSTANT) {
            std::memcpy(to, step.tensor, bytes);
        } else if (step.operation == Operation::PART) {
            std::memcpy(to, first + step.size, bytes);
        } else if (step.operation == Operation::JOIN) {
            const size_t one = step.size * sizeof(float);
            std::memcpy(to, first, one);
            std::memcpy(to + step.size, memory + step.second, bytes - one);
        } else {
            const float* second = step.second < 0 ? first : memory + step.second;
            for (int i = 0; i < step.length; i += 16)
                S::store(to + i, of(step.operation, S::load(first + i), S::load(second + i)));
        }
    }

  public:
    // Vectors of up to TAIL_TEXTS texts from what is at the beginning of each one's memory.
    static void run(const Tail& tail, float* memory, int texts, float* to) {
        const size_t size = tail.memory;
        for (const Step* step = tail.steps; step < tail.steps + tail.count; step++) {
            if (step->operation != Operation::PRODUCT) {
                for (int text = 0; text < texts; text++) simple(*step, memory + text * size);
            } else if (texts == TAIL_TEXTS) {
                product<TAIL_TEXTS>(*step, memory, size);
            } else {
                for (int text = 0; text < texts; text++) product<1>(*step, memory + text * size, size);
            }
        }
        for (int text = 0; text < texts; text++, to += tail.length) {
            float* vector = memory + text * size + tail.result;
            if (tail.is_normalized) normalize(vector, tail.length);
            std::memcpy(to, vector, tail.length * sizeof(float));
        }
    }

  private:
    static void normalize(float* vector, int length) {
        for (int i = length; i < padded(length); i++) vector[i] = 0.0f;
        Floats squares = S::all(0.0f);
        for (int i = 0; i < length; i += 16) {
            const Floats x = S::load(vector + i);
            squares = S::fma(x, x, squares);
        }
        const float norm = std::sqrt(S::sum(squares));
        const Floats inverse = S::all(1.0f / (norm < 1e-12f ? 1e-12f : norm));
        for (int i = 0; i < length; i += 16) S::store(vector + i, S::mul(S::load(vector + i), inverse));
    }
};

}  // namespace flowvec
