// The layers of an encoder in 8 bits, for any instruction set: see lanes.h.
//
// Texts are not padded: the tokens of many texts are the rows of one matrix, and attention goes a
// text at a time. Each token's activations have a scale of their own, sums of integers are exact,
// and sums of floats have one order. So a text's vector does not depend on the texts beside it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "functions.h"
#include "lanes.h"
#include "tail.h"
#include "texts.h"

namespace flowvec {

// Activations are unsigned bytes around ZERO, with magnitudes up to HALF; FULL is the largest of
// those that have no zero point.
constexpr int ZERO = 128, HALF = 127, FULL = 255;
// Processors without VNNI add two products in 16 bits, which must not exceed 32,767. So the sum of
// two weights of a sign, for inputs 2i and 2i + 1, is at most PAIR, and one that is computed PAIR / 2.
constexpr int PAIR = 128;
// The least value of GELU is -.16997: with this added, it needs no zero point.
constexpr float GELU_SHIFT = 0.17f;
constexpr float LEAST_SCALE = 1e-20f;  // of rows that are 0
constexpr int GROUP = 192;  // tokens of texts that are computed together; a longer text is alone
constexpr int SUBGROUP = 48;  // tokens whose wide activations stay in the cache

// Not std::min: each file compiles its own copy, the linker keeps one of them, and that one may need a
// newer processor.
static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }

// Weights of a product: `columns` outputs of `inputs` numbers each.
struct Linear {
    int inputs, columns;       // both padded to a multiple of 64
    // [columns / width][inputs / 4][width][4], where width is that of a set's tile: a block of columns
    // that is computed together is in one piece.
    const int8_t* weights;
    const float* scales;       // of each column
    const float* biases;       // of each column
    // Of each column: what activations of 0 add to its sum, negated, and what a set takes off it.
    const int32_t* zero_sums;
};

struct Norm {
    const float *weights, *biases;
    // Of the quantized copy, whose channels are scaled so that all have similar sizes.
    const float *smooth_weights, *smooth_biases;
};

struct Layer {
    Linear attention_in, attention_out, wide, narrow;
    Norm attention_norm, output_norm;
};

// From a text's states to a weight for each word, as in SPLADE.
struct Words {
    Linear dense;
    Norm norm;
    Linear product;
    int count;  // of the words
    int logs;   // how often log(1 + x) is taken
};

struct Shape {
    int layers, hidden, heads, wide, positions, vocabulary;
    // A token that has no position and is not counted, as the padding of RoBERTa; -1 for none.
    int uncounted;
    float epsilon;

    INLINE int head() const { return hidden / heads; }
};

// How the states of a text's tokens become one vector.
enum class Pooling { MEAN, CLS, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, LAST_TOKEN, COUNT };

struct Model {
    Shape shape;
    const int8_t* words;       // [vocabulary][hidden]
    const float* word_scales;  // [vocabulary]
    // [positions][hidden], with the first token type's row added. Where a token is not counted, its row is
    // the first, and the row of a text's first token the second.
    const float* places;
    // What is added to scores by the distance of a key from a query, in powers of two: [heads][reach],
    // with the distance 0 at reach / 2; null for none.
    const float* relative;
    size_t reach;
    const float* second_type;  // [hidden], what tokens of the second type have in addition, or null
    Norm embedding_norm;
    const Layer* layers;
    const Words* word_weights;  // instead of a pooling, or null
    // A pooled vector has one part for each pooling.
    const Pooling* poolings;
    int parts;
    Tail tail;
};

// A step of a group's work, in chunks that several threads take.
struct Phase {
    int taken, done;
};

// How a thread takes part in a group's work. All threads go through the same phases. In each they take
// chunks until none is left, and wait for those that others have taken. So a thread that comes late
// takes what is left, and one that never comes is not missed.
struct Share {
    Phase* phases;  // null where one thread does all
    int members;
    void (*rest)(int tries);  // called while the thread waits

    template <class Work>
    INLINE void each(int chunks, const Work& work) {
        if (!phases) {
            for (int i = 0; i < chunks; i++) work(i);
            return;
        }
        Phase& phase = *phases++;
        for (int i; (i = __atomic_fetch_add(&phase.taken, 1, __ATOMIC_RELAXED)) < chunks;) {
            work(i);
            __atomic_fetch_add(&phase.done, 1, __ATOMIC_RELEASE);
        }
        for (int tries = 0; __atomic_load_n(&phase.done, __ATOMIC_ACQUIRE) < chunks;) rest(tries++);
    }
};

// What a group of texts is computed in.
struct Buffers {
    float* states;            // [tokens][hidden]
    float* context;           // [tokens][hidden]
    uint8_t* quantized;       // [tokens][hidden]
    float* scales;            // [tokens]
    uint8_t* queries;         // [tokens][hidden]
    int8_t *keys, *values;    // [tokens][hidden]
    float *query_scales, *key_scales, *value_scales;  // [heads][tokens]
    float* tail;              // [TAIL_TEXTS][memory of the tail]
    float* words;             // [texts][columns of the product for words]
    int* text_of;             // [tokens]
    // The rest is of one thread.
    float* smooth;            // [hidden]
    float* wide;              // [SUBGROUP][wide]
    uint8_t* wide_quantized;  // [SUBGROUP][wide]
    float* wide_largest;      // [SUBGROUP][16]
    float* wide_scales;       // [SUBGROUP]
    // For one head of one text; there is room for its tokens, rounded up to 64.
    int8_t *packed_keys, *packed_values;
    int32_t *key_sums, *value_sums;
    float *key_factors, *value_factors, *masks;
    float* weights;  // [rows of a tile][tokens]
    uint8_t* weights_quantized;
};

template <class S>
class Layers {
    using Floats = typename S::Floats;
    using Ints = typename S::Ints;

    // Weights that are needed soon, which are brought into the cache of a core: some with each group of
    // four inputs.
    struct Ahead {
        const int8_t* weights;
        size_t bytes;  // of a group
    };

    // Adds the products of R rows of activations with N blocks of 16 columns. Blocks are `between`
    // bytes apart, and groups of four inputs `next` bytes.
    template <int R, int N>
    INLINE static void multiply(const uint8_t* rows, size_t stride, const int8_t* weights,
                                size_t between, size_t next, int groups, Ints (&sums)[R][N],
                                Ahead ahead = {nullptr, 0}) {
        for (int k = 0; k < groups; k++) {
            for (size_t i = 0; i < ahead.bytes; i += 64)
                __builtin_prefetch(ahead.weights + i, 0, 2);
            ahead.weights += ahead.bytes;
            typename S::Weights block[N];
            UNROLL
            for (int j = 0; j < N; j++) block[j] = S::weights(weights + j * between);
            UNROLL
            for (int r = 0; r < R; r++) {
                const auto a = S::four(rows + r * stride);
                UNROLL
                for (int j = 0; j < N; j++) S::dot(sums[r][j], a, block[j]);
            }
            rows += 4;
            weights += next;
        }
    }

    // Products of R rows with N blocks of 16 columns of a matrix of weights, from a column on. Returns
    // what is to be fetched next.
    template <int R, int N>
    INLINE static Ahead sum_up(const uint8_t* rows, const Linear& linear, int column,
                               Ints (&sums)[R][N], const Ahead& ahead) {
        UNROLL
        for (int j = 0; j < N; j++) {
            const Ints zero = S::load(linear.zero_sums + column + 16 * j);
            UNROLL
            for (int r = 0; r < R; r++) sums[r][j] = zero;
        }
        const size_t before = static_cast<size_t>(column) * linear.inputs;
        const int groups = linear.inputs / 4;
        multiply<R, N>(rows, linear.inputs, linear.weights + before, 64, 64 * N, groups, sums, ahead);
        return {ahead.weights + groups * ahead.bytes, ahead.bytes};
    }

    // `done(row, column, values)` gets values of each of R rows of a product: 64 columns if `IS_LONG`, or
    // else as many as a tile has. Not inlined: where a function has several tiles, compilers keep their
    // sums in memory.
    template <int R, class Done>
    NOINLINE static void tile(const uint8_t* rows, const float* scales, const Linear& linear, int row,
                            int column, const Done& done, Ahead ahead) {
        const uint8_t* first = rows + static_cast<size_t>(row) * linear.inputs;
        if constexpr (Done::ADDS) {
            UNROLL
            for (int r = 0; r < R; r++) done.fetch(row + r, column);
        }
        if constexpr (!Done::IS_LONG) {
            UNROLL
            for (int block = 0; block < 4; block += S::BLOCKS) {
                Ints sums[R][S::BLOCKS];
                ahead = sum_up(first, linear, column + 16 * block, sums, ahead);
                UNROLL
                for (int r = 0; r < R; r++)
                    finish(sums[r], scales[row + r], linear, row + r, column + 16 * block, done);
            }
        } else {
            alignas(64) int32_t kept[R][64];
            UNROLL
            for (int block = 0; block < 4; block += S::BLOCKS) {
                Ints sums[R][S::BLOCKS];
                ahead = sum_up(first, linear, column + 16 * block, sums, ahead);
                UNROLL
                for (int r = 0; r < R; r++) {
                    UNROLL
                    for (int j = 0; j < S::BLOCKS; j++)
                        S::store(kept[r] + 16 * (block + j), sums[r][j]);
                }
            }
            for (int r = 0; r < R; r++) {
                Ints sums[4];
                UNROLL
                for (int j = 0; j < 4; j++) sums[j] = S::load(kept[r] + 16 * j);
                finish(sums, scales[row + r], linear, row + r, column, done);
            }
        }
    }

    template <int N, class Done>
    INLINE static void finish(const Ints (&sums)[N], float scale, const Linear& linear, int row,
                              int column, const Done& done) {
        Floats values[N];
        UNROLL
        for (int j = 0; j < N; j++) {
            const Floats factor = S::load(linear.scales + column + 16 * j);
            values[j] = S::fma(S::mul(S::to_floats(sums[j]), factor), S::all(scale),
                               S::load(linear.biases + column + 16 * j));
        }
        done(row, column, values);
    }

    // Calls `work` with `count`, of 1 to N, as a constant; not if it is 0.
    template <int N, class Work>
    INLINE static void with_count(int count, const Work& work) {
        if constexpr (N > 0) {
            if (count == N)
                work(std::integral_constant<int, N>());
            else
                with_count<N - 1>(count, work);
        }
    }

  public:
    template <class Done>
    static void product(const uint8_t* rows, const float* scales, int count, const Linear& linear,
                        const Done& done) {
        product(rows, scales, count, linear, done, 0, linear.columns);
    }

    template <class Done>
    static void product(const uint8_t* rows, const float* scales, int count, const Linear& linear,
                        const Done& done, int first_column, int end_column) {
        const int tiles = (count + S::ROWS - 1) / S::ROWS;
        for (int column = first_column; column < end_column; column += 64) {
            // Each tile fetches a share of the next columns' weights: those of a model are rarely in the
            // core's own cache.
            const size_t next = static_cast<size_t>(column + 64) * linear.inputs;
            const size_t share = column + 64 < end_column ? 64 * S::BLOCKS / tiles : 0;
            Ahead ahead{linear.weights + next, share};
            const size_t all = share * (linear.inputs / 4) * (4 / S::BLOCKS);
            int row = 0;
            for (; row + S::ROWS <= count; row += S::ROWS, ahead.weights += all)
                tile<S::ROWS>(rows, scales, linear, row, column, done, ahead);
            with_count<S::ROWS - 1>(count - row, [&](auto left) {
                tile<decltype(left)::value>(rows, scales, linear, row, column, done, ahead);
            });
        }
    }

    // Bytes around ZERO of a row of floats, and the row's scale.
    static void quantize(const float* row, int count, uint8_t* to, float* scale) {
        Floats most = S::all(LEAST_SCALE);
        for (int i = 0; i < count; i += 16) most = S::max(S::abs(S::load(row + i)), most);
        const float largest = S::largest(most);
        *scale = largest / HALF;
        const Floats inverse = S::all(HALF / largest);
        for (int i = 0; i < count; i += 16) {
            const Ints whole = S::to_ints(S::mul(S::load(row + i), inverse));
            S::store_unsigned(to + i, S::plus(whole, ZERO));
        }
    }

    // Layer normalization of states in place, and its smoothed copy in bytes.
    static void normalize(int first, int end, const Shape& shape, const Norm& norm,
                          const Buffers& b) {
        const int hidden = shape.hidden;
        for (int r = first; r < end; r++) {
            float* row = b.states + static_cast<size_t>(r) * hidden;
            Floats sum = S::all(0.0f), squares = S::all(0.0f);
            for (int i = 0; i < hidden; i += 16) sum = S::add(sum, S::load(row + i));
            const Floats mean = S::all(S::sum(sum) / hidden);
            for (int i = 0; i < hidden; i += 16) {
                const Floats x = S::sub(S::load(row + i), mean);
                squares = S::fma(x, x, squares);
                S::store(row + i, x);
            }
            const float variance = S::sum(squares) / hidden;
            const Floats inverse = S::all(1.0f / std::sqrt(variance + shape.epsilon));
            for (int i = 0; i < hidden; i += 16) {
                const Floats x = S::mul(S::load(row + i), inverse);
                S::store(row + i, S::fma(x, S::load(norm.weights + i), S::load(norm.biases + i)));
                S::store(b.smooth + i, S::fma(x, S::load(norm.smooth_weights + i),
                                              S::load(norm.smooth_biases + i)));
            }
            quantize(b.smooth, hidden, b.quantized + static_cast<size_t>(r) * hidden,
                     b.scales + r);
        }
    }

    // Takes queries, keys and values: bytes, with a scale for each head of each token.
    struct Heads {
        static constexpr bool IS_LONG = true, ADDS = false;
        const Shape& shape;
        const Buffers& b;
        int tokens, first;

        INLINE void operator()(int row, int column, const Floats (&values)[4]) const {
            row += first;
            const int part = column / shape.hidden, place = column % shape.hidden;
            if (shape.head() == 64) {
                head(row, part, place, values, std::integral_constant<int, 4>());
            } else {
                head(row, part, place, values, std::integral_constant<int, 2>());
                head(row, part, place + 32, values + 2, std::integral_constant<int, 2>());
            }
        }

        template <class Blocks>
        INLINE void head(int row, int part, int place, const Floats* values, Blocks) const {
            Floats most = S::all(LEAST_SCALE);
            UNROLL
            for (int j = 0; j < Blocks::value; j++) most = S::max(S::abs(values[j]), most);
            const float largest = S::largest(most);
            const int steps = part == 0 ? HALF : PAIR / 2;
            const Floats inverse = S::all(steps / largest);
            const size_t at = static_cast<size_t>(row) * shape.hidden + place;
            float* scales = part == 0 ? b.query_scales : part == 1 ? b.key_scales : b.value_scales;
            scales[static_cast<size_t>(place / shape.head()) * tokens + row] = largest / steps;
            UNROLL
            for (int j = 0; j < Blocks::value; j++) {
                const Ints whole = S::to_ints(S::mul(values[j], inverse));
                if (part == 0)
                    S::store_unsigned(b.queries + at + 16 * j, S::plus(whole, ZERO));
                else
                    S::store_signed((part == 1 ? b.keys : b.values) + at + 16 * j, whole);
            }
        }
    };

    // Adds a product to the states.
    struct Residual {
        static constexpr bool IS_LONG = false, ADDS = true;
        float* states;
        int hidden;

        INLINE void fetch(int row, int column) const {
            const float* at = states + static_cast<size_t>(row) * hidden + column;
            UNROLL
            for (int j = 0; j < 4; j++) __builtin_prefetch(at + 16 * j, 1, 3);
        }

        template <int N>
        INLINE void operator()(int row, int column, const Floats (&values)[N]) const {
            float* at = states + static_cast<size_t>(row) * hidden + column;
            UNROLL
            for (int j = 0; j < N; j++)
                S::store(at + 16 * j, S::add(values[j], S::load(at + 16 * j)));
        }
    };

    // GELU of a product, and the largest numbers of each row by lane.
    struct Activation {
        static constexpr bool IS_LONG = true, ADDS = false;
        float *to, *largest;
        int columns;

        INLINE void operator()(int row, int column, Floats (&values)[4]) const {
            gelu<S>(values);
            float* at = to + static_cast<size_t>(row) * columns + column;
            UNROLL
            for (int j = 0; j < 4; j++) S::store(at + 16 * j, values[j]);
            const Floats most = S::max(S::max(values[0], values[1]), S::max(values[2], values[3]));
            float* kept = largest + 16 * row;
            S::store(kept, column ? S::max(most, S::load(kept)) : S::max(most, S::all(0.0f)));
        }
    };

    // GELU of a product in place of the states.
    struct Gelu {
        static constexpr bool IS_LONG = true, ADDS = false;
        float* states;
        int hidden;

        INLINE void operator()(int row, int column, Floats (&values)[4]) const {
            gelu<S>(values);
            float* at = states + static_cast<size_t>(row) * hidden + column;
            UNROLL
            for (int j = 0; j < 4; j++) S::store(at + 16 * j, values[j]);
        }
    };

    // The largest number of each column over the tokens of a text.
    struct Largest {
        static constexpr bool IS_LONG = false, ADDS = false;
        float* words;
        int columns;
        const int* text_of;

        template <int N>
        INLINE void operator()(int row, int column, const Floats (&values)[N]) const {
            float* at = words + static_cast<size_t>(text_of[row]) * columns + column;
            UNROLL
            for (int j = 0; j < N; j++)
                S::store(at + 16 * j, S::max(values[j], S::load(at + 16 * j)));
        }
    };

    static void quantize_activations(int count, int columns, const Buffers& b) {
        for (int r = 0; r < count; r++) {
            const float largest = S::largest(S::load(b.wide_largest + 16 * r)) + GELU_SHIFT;
            b.wide_scales[r] = largest / FULL;
            const float inverse = FULL / largest;
            const Floats factor = S::all(inverse), shift = S::all(GELU_SHIFT * inverse);
            const float* row = b.wide + static_cast<size_t>(r) * columns;
            uint8_t* to = b.wide_quantized + static_cast<size_t>(r) * columns;
            for (int i = 0; i < columns; i += 16)
                S::store_unsigned(to + i, S::to_ints(S::fma(S::load(row + i), factor, shift)));
        }
    }

    // Keys and values of a head of a text, as weights of products: [keys / 16][head / 4][16][4],
    // and [head / 16][tokens / 4][16][4].
    static void pack(const Shape& shape, const Buffers& b, int begin, int length, int head) {
        const int size = shape.head(), blocks = (length + 15) / 16, groups = (length + 3) / 4;
        const int8_t* keys = b.keys + static_cast<size_t>(begin) * shape.hidden + head * size;
        const int8_t* values = b.values + static_cast<size_t>(begin) * shape.hidden + head * size;
        for (int token = 0; token < 16 * blocks; token++) {
            int8_t* to = b.packed_keys + static_cast<size_t>(token / 16) * 16 * size + token % 16 * 4;
            int32_t sum = 0;
            if (token < length) {
                const int8_t* key = keys + static_cast<size_t>(token) * shape.hidden;
                for (int i = 0; i < size; i += 4) std::memcpy(to + 16 * i, key + i, 4);
                for (int i = 0; i < size; i++) sum += key[i];
            } else {
                for (int i = 0; i < size; i += 4) std::memset(to + 16 * i, 0, 4);
            }
            b.key_sums[token] = (S::OFFSET - ZERO) * sum;
        }
        if constexpr (S::OFFSET != 0)
            for (int i = 0; i < size; i++) {
                int32_t sum = 0;
                for (int token = 0; token < length; token++)
                    sum += values[static_cast<size_t>(token) * shape.hidden + i];
                b.value_sums[i] = S::OFFSET * sum;
            }
        static const int8_t zeros[64] = {};
        for (int group = 0; group < groups; group++) {
            const int8_t* rows[4];
            for (int i = 0; i < 4; i++)
                rows[i] = 4 * group + i < length
                              ? values + static_cast<size_t>(4 * group + i) * shape.hidden
                              : zeros;
            for (int block = 0; block < size / 16; block++) {
                int8_t* to = b.packed_values + (static_cast<size_t>(block) * groups + group) * 64;
                for (int lane = 0; lane < 16; lane++)
                    for (int i = 0; i < 4; i++) to[4 * lane + i] = rows[i][16 * block + lane];
            }
        }
    }

    // One head of one text.
    struct Head {
        const Shape& shape;
        const Buffers& b;
        int keys, padded;     // tokens that are attended to, and their number rounded up to 16
        size_t queries;       // where the first token's query is, and its output
        const float* scales;  // of the queries
        const float* relative;  // for the distance 0; null for none
    };

    // Scores of R tokens with N blocks of 16 keys, in powers of two.
    template <int R, int N>
    NOINLINE static void score(const Head& head, int first, int block, float (&largest)[R][16]) {
        const Buffers& b = head.b;
        const int size = head.shape.head(), hidden = head.shape.hidden;
        Ints sums[R][N];
        UNROLL
        for (int j = 0; j < N; j++) {
            const Ints zero = S::load(b.key_sums + 16 * (block + j));
            UNROLL
            for (int r = 0; r < R; r++) sums[r][j] = zero;
        }
        multiply<R, N>(b.queries + head.queries + static_cast<size_t>(first) * hidden, hidden,
                       b.packed_keys + static_cast<size_t>(block) * 16 * size, 16 * size, 64,
                       size / 4, sums);
        UNROLL
        for (int r = 0; r < R; r++) {
            const Floats scale = S::all(head.scales[first + r]);
            Floats most = S::load(largest[r]);
            UNROLL
            for (int j = 0; j < N; j++) {
                const int key = 16 * (block + j);
                const Floats sum = S::mul(S::to_floats(sums[r][j]), S::load(b.key_factors + key));
                Floats value = S::fma(sum, scale, S::load(b.masks + key));
                if (head.relative) value = S::add(value, S::load(head.relative + key - first - r));
                S::store(b.weights + r * head.padded + key, value);
                most = S::max(value, most);
            }
            S::store(largest[r], most);
        }
    }

    // Weights of R tokens from their scores: each times the scale of its value, in bytes of the
    // largest of them.
    template <int R>
    static void weigh(const Head& head, const float (&largest)[R][16], float (&scales)[R]) {
        const Buffers& b = head.b;
        for (int r = 0; r < R; r++) {
            float* row = b.weights + r * head.padded;
            const Floats most = S::all(S::largest(S::load(largest[r])));
            Floats sum = S::all(0.0f), heaviest = S::all(LEAST_SCALE);
            for (int i = 0; i < head.padded; i += 16) {
                const Floats weight = exp2_of_negative<S>(S::sub(S::load(row + i), most));
                const Floats scaled = S::mul(weight, S::load(b.value_factors + i));
                sum = S::add(sum, weight);
                heaviest = S::max(scaled, heaviest);
                S::store(row + i, scaled);
            }
            const float limit = S::largest(heaviest);
            const Floats inverse = S::all(FULL / limit);
            for (int i = 0; i < head.padded; i += 16)
                S::store_unsigned(b.weights_quantized + r * head.padded + i,
                                  S::to_ints(S::mul(S::load(row + i), inverse)));
            scales[r] = limit / FULL / S::sum(sum);
        }
    }

    // N blocks of 16 outputs of R tokens.
    template <int R, int N>
    NOINLINE static void mix(const Head& head, int first, int block, const float (&scales)[R]) {
        const Buffers& b = head.b;
        const int groups = (head.keys + 3) / 4, hidden = head.shape.hidden;
        Ints sums[R][N];
        UNROLL
        for (int r = 0; r < R; r++) {
            UNROLL
            for (int j = 0; j < N; j++)
                sums[r][j] = S::OFFSET ? S::load(b.value_sums + 16 * (block + j)) : S::no_sum();
        }
        multiply<R, N>(b.weights_quantized, head.padded,
                       b.packed_values + static_cast<size_t>(block) * groups * 64,
                       static_cast<size_t>(groups) * 64, 64, groups, sums);
        float* to = b.context + head.queries + static_cast<size_t>(first) * hidden + 16 * block;
        UNROLL
        for (int r = 0; r < R; r++) {
            UNROLL
            for (int j = 0; j < N; j++)
                S::store(to + static_cast<size_t>(r) * hidden + 16 * j,
                         S::mul(S::to_floats(sums[r][j]), S::all(scales[r])));
        }
    }

    // Attention of R tokens of a text to all of its tokens.
    template <int R>
    static void attend(const Head& head, int first) {
        float largest[R][16], scales[R];
        for (int r = 0; r < R; r++) S::store(largest[r], S::all(-1e30f));
        const int keys = head.padded / 16, outputs = head.shape.head() / 16;
        for (int block = 0; block < keys; block += S::BLOCKS)
            with_count<S::BLOCKS>(least(S::BLOCKS, keys - block), [&](auto n) {
                score<R, decltype(n)::value>(head, first, block, largest);
            });
        weigh<R>(head, largest, scales);
        for (int block = 0; block < outputs; block += S::BLOCKS)
            with_count<S::BLOCKS>(least(S::BLOCKS, outputs - block), [&](auto n) {
                mix<R, decltype(n)::value>(head, first, block, scales);
            });
    }

    // Attention of each token of a text to the first `keys` of them, in some of the heads.
    static void attention(const Model& model, const Buffers& b, int begin, int length, int keys,
                          int tokens, int first, int end) {
        const Shape& shape = model.shape;
        const int padded = (keys + 15) / 16 * 16;
        // Scores are in powers of two. What they are divided by is in the weights of the queries.
        constexpr float factor = 1.44269504f;
        if (first >= end) return;
        for (int i = 0; i < padded; i++) b.masks[i] = i < keys ? 0.0f : -1e30f;
        for (int number = first; number < end; number++) {
            pack(shape, b, begin, keys, number);
            const size_t at = static_cast<size_t>(number) * tokens + begin;
            for (int i = 0; i < padded; i++) {
                b.key_factors[i] = i < keys ? b.key_scales[at + i] * factor : 0.0f;
                b.value_factors[i] = i < keys ? b.value_scales[at + i] : 0.0f;
            }
            const size_t queries = static_cast<size_t>(begin) * shape.hidden + number * shape.head();
            const float* relative =
                model.relative ? model.relative + number * model.reach + model.reach / 2 : nullptr;
            const Head head{shape, b, keys, padded, queries, b.query_scales + at, relative};
            int row = 0;
            for (; row + S::ROWS <= length; row += S::ROWS) attend<S::ROWS>(head, row);
            with_count<S::ROWS - 1>(length - row,
                                    [&](auto n) { attend<decltype(n)::value>(head, row); });
        }
    }

    // The sums of the embeddings of some tokens of a group.
    static void embed(const Model& model, const Texts& texts, int first, int end, const Buffers& b) {
        const Shape& shape = model.shape;
        const int hidden = shape.hidden;
        int token = 0;
        for (int text = 0; text < texts.count; text++) {
            int counted = 0;
            for (int i = 0; i < texts.length(text); i++, token++) {
                const int id = texts.ids[token];
                int row = i;
                if (shape.uncounted >= 0) row = id == shape.uncounted ? 0 : ++counted;
                if (token < first || token >= end) continue;
                b.text_of[token] = text;
                const int8_t* word = model.words + static_cast<size_t>(id) * hidden;
                const Floats scale = S::all(model.word_scales[id]);
                const float* place = model.places + static_cast<size_t>(row) * hidden;
                float* state = b.states + static_cast<size_t>(token) * hidden;
                for (int j = 0; j < hidden; j += 16)
                    S::store(state + j, S::fma(S::from_bytes(word + j), scale, S::load(place + j)));
                if (!texts.types || !texts.types[token] || !model.second_type) continue;
                for (int j = 0; j < hidden; j += 16)
                    S::store(state + j, S::add(S::load(state + j), S::load(model.second_type + j)));
            }
        }
    }

    // The states of the last layer of a group of texts, and the largest logits of words.
    static void encode(const Model& model, const Texts& texts, const Buffers& b, Share share) {
        const Shape& shape = model.shape;
        const int tokens = texts.begin(texts.count), count = static_cast<int>(texts.count);
        const int all_heads = count * shape.heads;
        const int chunks = least(share.members, tokens), head_chunks = least(chunks, all_heads);
        share.each(chunks, [&](int chunk) {
            const int first = tokens * chunk / chunks, end = tokens * (chunk + 1) / chunks;
            embed(model, texts, first, end, b);
            normalize(first, end, shape, model.embedding_norm, b);
            heads(model, 0, tokens, first, end, b);
        });
        for (int layer = 0; layer < shape.layers; layer++) {
            share.each(head_chunks, [&](int chunk) {
                attention(model, texts, b, all_heads * chunk / head_chunks,
                          all_heads * (chunk + 1) / head_chunks);
            });
            share.each(chunks, [&](int chunk) {
                const int first = tokens * chunk / chunks, end = tokens * (chunk + 1) / chunks;
                rows(model, layer, first, end, b);
                if (layer + 1 < shape.layers)
                    heads(model, layer + 1, tokens, first, end, b);
                else if (model.word_weights)
                    head_of_words(model, first, end, b);
            });
        }
        if (!model.word_weights) return;
        const Linear& words = model.word_weights->product;
        const int blocks = words.columns / 64, parts = least(chunks, blocks);
        share.each(parts, [&](int chunk) {
            const int first = blocks * chunk / parts * 64, end = blocks * (chunk + 1) / parts * 64;
            // Weights are not below 0.
            for (int text = 0; text < count; text++)
                std::memset(b.words + static_cast<size_t>(text) * words.columns + first, 0,
                            (end - first) * sizeof(float));
            product(b.quantized, b.scales, tokens, words,
                    Largest{b.words, words.columns, b.text_of}, first, end);
        });
    }

    // Queries, keys and values of some rows.
    static void heads(const Model& model, int layer, int tokens, int first, int end,
                      const Buffers& b) {
        const size_t at = static_cast<size_t>(first) * model.shape.hidden;
        product(b.quantized + at, b.scales + first, end - first, model.layers[layer].attention_in,
                Heads{model.shape, b, tokens, first});
    }

    // Attention in some of the heads of all texts, of which text i has those from i * heads on.
    static void attention(const Model& model, const Texts& texts, const Buffers& b, int first,
                          int end) {
        const int heads = model.shape.heads, tokens = texts.begin(texts.count);
        for (int text = first / heads; text * heads < end; text++) {
            const int length = texts.length(text), before = text * heads;
            attention(model, b, texts.begin(text), length,
                      texts.attended ? texts.attended[text] : length, tokens,
                      most(first - before, 0), least(end - before, heads));
        }
    }

    // What follows the attention in a layer, for some rows.
    static void rows(const Model& model, int number, int first, int end, const Buffers& b) {
        const Shape& shape = model.shape;
        const Layer& layer = model.layers[number];
        const int hidden = shape.hidden;
        const auto at = [&](auto* rows, int row) { return rows + static_cast<size_t>(row) * hidden; };
        for (int row = first; row < end; row++)
            quantize(at(b.context, row), hidden, at(b.quantized, row), b.scales + row);
        product(at(b.quantized, first), b.scales + first, end - first, layer.attention_out,
                Residual{at(b.states, first), hidden});
        normalize(first, end, shape, layer.attention_norm, b);
        for (int row = first; row < end; row += SUBGROUP) {
            const int count = least(SUBGROUP, end - row);
            product(at(b.quantized, row), b.scales + row, count, layer.wide,
                    Activation{b.wide, b.wide_largest, shape.wide});
            quantize_activations(count, shape.wide, b);
            product(b.wide_quantized, b.wide_scales, count, layer.narrow,
                    Residual{at(b.states, row), hidden});
        }
        normalize(first, end, shape, layer.output_norm, b);
    }

    // What is before the product for words, for some rows.
    static void head_of_words(const Model& model, int first, int end, const Buffers& b) {
        const Words& words = *model.word_weights;
        const int hidden = model.shape.hidden;
        const size_t at = static_cast<size_t>(first) * hidden;
        product(b.quantized + at, b.scales + first, end - first, words.dense,
                Gelu{b.states + at, hidden});
        normalize(first, end, model.shape, words.norm, b);
    }

    // The weights of words in a group of texts.
    static void weigh_words(const Words& words, int texts, const Buffers& b, float* to) {
        for (int text = 0; text < texts; text++, to += words.count) {
            const float* from = b.words + static_cast<size_t>(text) * words.product.columns;
            for (int word = 0; word < words.count; word++) {
                float weight = from[word];
                // In double precision, so that every library rounds to the same number.
                for (int i = 0; i < words.logs && weight > 0.0f; i++)
                    weight = static_cast<float>(std::log1p(static_cast<double>(weight)));
                to[word] = weight;
            }
        }
    }

    // Vectors from the states of a group: of texts, or of each of their tokens.
    static void vectors(const Model& model, const Texts& texts, bool of_tokens, const Buffers& b,
                        float* to) {
        if (model.word_weights) {
            weigh_words(*model.word_weights, static_cast<int>(texts.count), b, to);
            return;
        }
        const int hidden = model.shape.hidden;
        const int all = of_tokens ? texts.begin(texts.count) : static_cast<int>(texts.count);
        for (int first = 0; first < all; first += TAIL_TEXTS) {
            const int count = least(TAIL_TEXTS, all - first);
            for (int i = 0; i < count; i++) {
                const int begin = of_tokens ? first + i : texts.begin(first + i);
                const int length = of_tokens ? 1 : texts.length(first + i);
                const float* states = b.states + static_cast<size_t>(begin) * hidden;
                float* pooled = b.tail + static_cast<size_t>(i) * model.tail.memory;
                for (int part = 0; part < model.parts; part++)
                    pool(model.poolings[part], states, length, hidden, pooled + part * hidden);
            }
            Tails<S>::run(model.tail, b.tail, count,
                          to + static_cast<size_t>(first) * model.tail.length);
        }
    }

  private:
    static void pool(Pooling pooling, const float* states, int length, int hidden, float* to) {
        if (pooling == Pooling::CLS || pooling == Pooling::LAST_TOKEN) {
            const int token = pooling == Pooling::CLS ? 0 : length - 1;
            std::memcpy(to, states + static_cast<size_t>(token) * hidden, hidden * sizeof(float));
            return;
        }
        const float count = static_cast<float>(length);
        const float share = pooling == Pooling::WEIGHTED_MEAN ? 2.0f / (count * (count + 1.0f))
                            : pooling == Pooling::MEAN        ? 1.0f / count
                                                              : 1.0f / std::sqrt(count);
        for (int i = 0; i < hidden; i += 16) {
            Floats all = S::load(states + i);
            for (int token = 1; token < length; token++) {
                const Floats x = S::load(states + static_cast<size_t>(token) * hidden + i);
                if (pooling == Pooling::MAX)
                    all = S::max(x, all);
                else if (pooling == Pooling::WEIGHTED_MEAN)
                    all = S::fma(x, S::all(static_cast<float>(token + 1)), all);
                else
                    all = S::add(all, x);
            }
            S::store(to + i, pooling == Pooling::MAX ? all : S::mul(all, S::all(share)));
        }
    }
};

}  // namespace flowvec
