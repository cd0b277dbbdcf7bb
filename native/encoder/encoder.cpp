// The C interface of flowvec's encoder, which Python calls by ctypes.
//
// Pointers are not checked: the Python module does. See interface.h. There are no hidden threads and
// no locks, so a forked child computes at once.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "../interface.h"
#include "sets.h"

using namespace flowvec;

namespace {

// Blocks of memory that begin at a cache line.
class Memory {
  public:
    template <class T>
    T* take(size_t count) {
        blocks_.emplace_back(count * sizeof(T) + LINE);
        const auto first = reinterpret_cast<uintptr_t>(blocks_.back().data());
        return reinterpret_cast<T*>((first + LINE - 1) / LINE * LINE);
    }

  private:
    static constexpr size_t LINE = 64;
    // Bytes that are not set to 0, which would touch memory that is never used.
    struct Byte {
        unsigned char value;
        Byte() {}
    };
    std::vector<std::vector<Byte>> blocks_;
};

size_t rounded(size_t number, size_t multiple) { return (number + multiple - 1) / multiple * multiple; }

struct Encoder {
    Memory memory;
    Model model;
    std::vector<Layer> layers;
    std::vector<Pooling> poolings;
    const Set* set;
};

struct Workspace {
    Memory memory;
    Buffers buffers{};
    size_t tokens = 0;

    // Makes room for a group of so many tokens, of one text or several.
    void reserve(const Encoder& encoder, size_t wanted) {
        if (wanted <= tokens) return;
        const Shape& shape = encoder.model.shape;
        const size_t hidden = shape.hidden, wide = shape.wide, heads = shape.heads;
        const size_t room = rounded(wanted, 64), rows = encoder.set->rows;
        tokens = 0;
        memory = Memory();
        Buffers& b = buffers;
        b.states = memory.take<float>(room * hidden);
        b.context = memory.take<float>(room * hidden);
        b.quantized = memory.take<uint8_t>(room * hidden);
        b.scales = memory.take<float>(room);
        b.smooth = memory.take<float>(hidden);
        b.queries = memory.take<uint8_t>(room * hidden);
        b.keys = memory.take<int8_t>(room * hidden);
        b.values = memory.take<int8_t>(room * hidden);
        b.query_scales = memory.take<float>(room * heads);
        b.key_scales = memory.take<float>(room * heads);
        b.value_scales = memory.take<float>(room * heads);
        b.wide = memory.take<float>(SUBGROUP * wide);
        b.wide_quantized = memory.take<uint8_t>(SUBGROUP * wide);
        b.wide_largest = memory.take<float>(SUBGROUP * 16);
        b.wide_scales = memory.take<float>(SUBGROUP);
        b.packed_keys = memory.take<int8_t>(room * shape.head());
        b.packed_values = memory.take<int8_t>(room * shape.head());
        b.key_sums = memory.take<int32_t>(room);
        b.key_factors = memory.take<float>(room);
        b.value_factors = memory.take<float>(room);
        b.masks = memory.take<float>(room);
        b.weights = memory.take<float>(rows * room);
        b.weights_quantized = memory.take<uint8_t>(rows * room);
        tokens = room;
    }
};

// Packs `columns` rows of `inputs` bytes each, padded with zeros.
Linear packed(Memory& memory, const int8_t* weights, const float* scales,
              const float* biases, size_t columns, size_t inputs, bool is_shifted) {
    const size_t all = rounded(columns, 64), length = rounded(inputs, 64);
    auto* to = memory.take<int8_t>(all * length);
    auto* new_scales = memory.take<float>(all);
    auto* new_biases = memory.take<float>(all);
    auto* zero_sums = memory.take<int32_t>(all);
    std::vector<int8_t> row(length);
    for (size_t column = 0; column < all; column++) {
        int8_t* panel = to + column / 64 * 64 * length + column % 64 * 4;
        const bool is_there = column < columns;
        std::fill(row.begin(), row.end(), int8_t(0));
        if (is_there) std::memcpy(row.data(), weights + column * inputs, inputs);
        int32_t sum = 0;
        for (const int8_t weight : row) sum += weight;
        int largest = 0;
        for (size_t i = 0; i < length; i += 2) {
            const int a = row[i], b = row[i + 1];
            const int positive = (a > 0 ? a : 0) + (b > 0 ? b : 0);
            largest = std::max(largest, std::max(positive, positive - a - b));
        }
        if (largest > PAIR) throw ArgumentError("two weights are larger than 16 bits allow");
        for (size_t i = 0; i < length; i += 4) std::memcpy(panel + i * 64, row.data() + i, 4);
        const float scale = is_there ? scales[column] : 0.0f;
        new_scales[column] = scale;
        new_biases[column] = is_there ? biases[column] : 0.0f;
        // Activations have a zero point, or a constant was added before they were rounded.
        zero_sums[column] = is_shifted ? 0 : -ZERO * sum;
        if (is_shifted) new_biases[column] -= GELU_SHIFT * scale * static_cast<float>(sum);
    }
    return {static_cast<int>(length), static_cast<int>(all), to, new_scales, new_biases, zero_sums};
}

void check(const Shape& shape) {
    if (shape.layers < 1 || shape.layers > 128) throw ArgumentError("layers must be 1 to 128");
    if (shape.hidden < 64 || shape.hidden > 4096 || shape.hidden % 64)
        throw ArgumentError("hidden must be a multiple of 64, to 4096");
    if (shape.heads < 1 || shape.hidden % shape.heads || (shape.head() != 32 && shape.head() != 64))
        throw ArgumentError("a head must have 32 or 64 numbers");
    if (shape.wide < 1 || shape.wide > 1 << 16) throw ArgumentError("wide must be 1 to 65536");
    if (shape.positions < 1 || shape.positions > 1 << 15)
        throw ArgumentError("positions must be 1 to 32768");
    if (shape.vocabulary < 1 || shape.vocabulary > 1 << 24)
        throw ArgumentError("vocabulary must be 1 to 16777216");
    if (shape.uncounted < -1 || (shape.uncounted >= 0 && shape.positions < 2))
        throw ArgumentError("a token that is not counted must be in the vocabulary");
    if (!(shape.epsilon >= 0.0f && shape.epsilon < 1.0f))
        throw ArgumentError("epsilon must be from 0 to 1");
}

// Computes the states of texts, a group of them at a time; `done` gets the first of a group, and the
// one after its last.
template <class Done>
void in_groups(const Encoder& encoder, Workspace& workspace, const int32_t* ids,
               const int64_t* starts, int64_t texts, const Done& done) {
    const Shape& shape = encoder.model.shape;
    // The first row is that of tokens that are not counted.
    const int most = shape.positions - (shape.uncounted >= 0);
    for (int64_t text = 0; text < texts; text++) {
        const int64_t length = starts[text + 1] - starts[text];
        if (length < 1 || length > most)
            throw ArgumentError("a text has no token, or more tokens than positions");
    }
    for (int64_t i = 0; i < starts[texts]; i++)
        if (ids[i] < 0 || ids[i] >= shape.vocabulary)
            throw ArgumentError("a token is not in the vocabulary");
    for (int64_t first = 0; first < texts;) {
        int64_t end = first + 1;
        while (end < texts && starts[end + 1] - starts[first] <= GROUP) end++;
        workspace.reserve(encoder, starts[end] - starts[first]);
        encoder.set->encode(encoder.model, ids + starts[first], starts + first,
                            static_cast<int>(end - first), workspace.buffers);
        done(first, end);
        first = end;
    }
}

// Here, because this file runs on any processor.
struct Choice {
    const Set* set;
    bool (*runs)();
};

const Choice SETS[] = {
    {&SCALAR, [] { return true; }},
#if defined(__x86_64__)
    {&AVX2, []() -> bool { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
    {&AVX512_VNNI,
     []() -> bool {
         return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
#endif
};

}  // namespace

// Of this interface; Python's modules must know it.
FLOWVEC_API int flowvec_encoder_version() { return 1; }

FLOWVEC_API const char* flowvec_encoder_error() { return message.c_str(); }

// The name of an instruction set, by number, and whether this processor has it; null after the last.
FLOWVEC_API const char* flowvec_encoder_set(size_t number, int* runs) {
    if (number >= std::size(SETS)) return nullptr;
    *runs = SETS[number].runs();
    return SETS[number].set->name;
}

// Sizes are those of `Shape`, and then whether vectors are normalized and the number of poolings.
// Tensors are in the order in which they are read below; they must stay as long as the encoder.
// Weights of products are rows of bytes, one for each output.
FLOWVEC_API int flowvec_encoder_create(const int32_t* sizes, float epsilon,
                                       const int32_t* poolings, size_t set,
                                       const void* const* tensors, Encoder** result) {
    return guarded([&] {
        if (set >= std::size(SETS) || !SETS[set].runs())
            throw ArgumentError("this processor does not have the instruction set");
        auto made = std::make_unique<Encoder>();
        Model& model = made->model;
        Shape& shape = model.shape;
        shape = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], epsilon};
        model.is_normalized = sizes[7] != 0;
        model.parts = sizes[8];
        if (model.parts < 1 || model.parts > 16) throw ArgumentError("poolings must be 1 to 16");
        for (int i = 0; i < model.parts; i++) {
            if (poolings[i] < 0 || poolings[i] >= static_cast<int>(Pooling::COUNT))
                throw ArgumentError("a pooling must be one of those that are known");
            made->poolings.push_back(static_cast<Pooling>(poolings[i]));
        }
        model.poolings = made->poolings.data();
        check(shape);
        made->set = SETS[set].set;
        const auto floats = [&] { return static_cast<const float*>(*tensors++); };
        const auto norm = [&] {
            Norm norm;
            norm.weights = floats();
            norm.biases = floats();
            norm.smooth_weights = floats();
            norm.smooth_biases = floats();
            return norm;
        };
        const auto linear = [&](size_t columns, size_t inputs, bool is_shifted) {
            const auto* weights = static_cast<const int8_t*>(*tensors++);
            const float *scales = floats(), *biases = floats();
            return packed(made->memory, weights, scales, biases, columns, inputs,
                          is_shifted);
        };
        const size_t hidden = shape.hidden, wide = shape.wide;
        model.words = static_cast<const int8_t*>(*tensors++);
        model.word_scales = floats();
        model.places = floats();
        model.embedding_norm = norm();
        for (int i = 0; i < shape.layers; i++) {
            Layer layer;
            layer.attention_in = linear(3 * hidden, hidden, false);
            layer.attention_out = linear(hidden, hidden, false);
            layer.attention_norm = norm();
            layer.wide = linear(wide, hidden, false);
            layer.narrow = linear(hidden, wide, true);
            layer.output_norm = norm();
            made->layers.push_back(layer);
        }
        model.layers = made->layers.data();
        shape.wide = static_cast<int>(rounded(wide, 64));  // as it is computed
        *result = made.release();
    });
}

FLOWVEC_API void flowvec_encoder_free(Encoder* encoder) { delete encoder; }

// Memory for one call at a time; a thread that computes has its own.
FLOWVEC_API int flowvec_encoder_workspace(Workspace** result) {
    return guarded([&] { *result = new Workspace(); });
}

FLOWVEC_API void flowvec_encoder_workspace_free(Workspace* workspace) { delete workspace; }

// The vector of each text. Text i has the ids from starts[i] to starts[i + 1]; `starts` has one
// number more than there are texts, and begins with 0.
FLOWVEC_API int flowvec_encoder_vectors(const Encoder* encoder, Workspace* workspace,
                                        const int32_t* ids, const int64_t* starts, int64_t texts,
                                        float* to) {
    return guarded([&] {
        const Model& model = encoder->model;
        const size_t hidden = model.shape.hidden, size = model.parts * hidden;
        in_groups(*encoder, *workspace, ids, starts, texts, [&](int64_t first, int64_t end) {
            for (int64_t text = first; text < end; text++) {
                const float* states =
                    workspace->buffers.states + (starts[text] - starts[first]) * hidden;
                encoder->set->pool(model, states, static_cast<int>(starts[text + 1] - starts[text]),
                                   to + text * size);
            }
        });
    });
}

// The states of the last layer, a row for each token, of texts as above.
FLOWVEC_API int flowvec_encoder_states(const Encoder* encoder, Workspace* workspace,
                                       const int32_t* ids, const int64_t* starts, int64_t texts,
                                       float* to) {
    return guarded([&] {
        const size_t hidden = encoder->model.shape.hidden;
        in_groups(*encoder, *workspace, ids, starts, texts, [&](int64_t first, int64_t end) {
            std::memcpy(to + starts[first] * hidden, workspace->buffers.states,
                        (starts[end] - starts[first]) * hidden * sizeof(float));
        });
    });
}
