// The C interface of flowvec's encoder, which Python calls by ctypes.
//
// Pointers are not checked: the Python module does. See interface.h. There are no locks, and threads
// end with the call that starts them, so a forked child computes at once.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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

// Layers, or the table of a static embedder.
struct Encoder {
    Memory memory;
    Model model{};
    std::unique_ptr<Table> table;
    std::vector<Layer> layers;
    std::vector<Pooling> poolings;
    std::vector<Step> steps;
    Words words;
    const Set* set;
};

struct Workspace {
    Memory memory;
    std::vector<Buffers> buffers;  // of each thread
    size_t tokens = 0;
    Memory words;
    size_t texts = 0;
    float *row = nullptr, *tail = nullptr;  // of a table

    // Makes room for a group of so many tokens, of one text or several, and for so many threads.
    void reserve(const Encoder& encoder, size_t wanted, size_t threads) {
        if (wanted <= tokens && threads <= buffers.size()) return;
        const Shape& shape = encoder.model.shape;
        const size_t hidden = shape.hidden, wide = shape.wide, heads = shape.heads;
        const size_t room = std::max(tokens, rounded(wanted, 64)), rows = encoder.set->rows;
        const size_t members = std::max(threads, buffers.size());
        tokens = 0;
        memory = Memory();
        Buffers b{};
        b.states = memory.take<float>(room * hidden);
        b.context = memory.take<float>(room * hidden);
        b.quantized = memory.take<uint8_t>(room * hidden);
        b.scales = memory.take<float>(room);
        b.queries = memory.take<uint8_t>(room * hidden);
        b.keys = memory.take<int8_t>(room * hidden);
        b.values = memory.take<int8_t>(room * hidden);
        b.query_scales = memory.take<float>(room * heads);
        b.key_scales = memory.take<float>(room * heads);
        b.value_scales = memory.take<float>(room * heads);
        const size_t floats = TAIL_TEXTS * static_cast<size_t>(encoder.model.tail.memory);
        b.tail = memory.take<float>(floats);
        std::fill(b.tail, b.tail + floats, 0.0f);  // also where vectors are padded
        b.text_of = memory.take<int>(room);
        buffers.clear();
        for (size_t i = 0; i < members; i++) {
            b.smooth = memory.take<float>(hidden);
            b.wide = memory.take<float>(SUBGROUP * wide);
            b.wide_quantized = memory.take<uint8_t>(SUBGROUP * wide);
            b.wide_largest = memory.take<float>(SUBGROUP * 16);
            b.wide_scales = memory.take<float>(SUBGROUP);
            b.packed_keys = memory.take<int8_t>(room * shape.head());
            b.packed_values = memory.take<int8_t>(room * shape.head());
            b.key_sums = memory.take<int32_t>(room);
            b.value_sums = memory.take<int32_t>(64);
            b.key_factors = memory.take<float>(room);
            b.value_factors = memory.take<float>(room);
            b.masks = memory.take<float>(room);
            b.weights = memory.take<float>(rows * room);
            b.weights_quantized = memory.take<uint8_t>(rows * room);
            buffers.push_back(b);
        }
        tokens = room;
        texts = 0;
    }

    void reserve_mean(const Encoder& encoder) {
        if (row) return;
        const size_t floats = TAIL_TEXTS * static_cast<size_t>(encoder.model.tail.memory);
        tail = memory.take<float>(floats);
        std::fill(tail, tail + floats, 0.0f);  // also where vectors are padded
        row = memory.take<float>(encoder.table->padded());
    }

    // Makes room for the weights of words in so many texts.
    void reserve_words(size_t columns, size_t wanted) {
        if (wanted <= texts) return;
        texts = 0;
        words = Memory();
        float* taken = words.take<float>(wanted * columns);
        for (Buffers& b : buffers) b.words = taken;
        texts = wanted;
    }
};

constexpr int MOST_MEMBERS = 8;  // to start more threads takes longer than they save
constexpr int LEAST_ROWS = 4;    // of a thread

// What the threads that compute a group have in common.
struct Crew {
    std::vector<Phase> phases;
    std::atomic<int> active{0};
    std::atomic<bool> is_over{false};
};

// What a thread does while it waits. A wait is short: spinning costs less than sleeping, and another
// thread may have the core after a while.
void rest(int tries) {
    constexpr int patience = 500;
    if (tries >= patience) std::this_thread::yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#elif defined(__aarch64__)
    else asm volatile("yield");
#endif
}

// Helpers are not waited for: a new thread may get a core late. One that comes after the end does
// nothing, and reads nothing but the crew.
void compute(const Encoder& encoder, const Texts& texts, const std::vector<Buffers>& buffers,
             int members) {
    const Model& model = encoder.model;
    if (members == 1) {
        encoder.set->encode(model, texts, buffers[0], {nullptr, 1, rest});
        return;
    }
    const auto crew = std::make_shared<Crew>();
    crew->phases.resize(2 * model.shape.layers + 2);
    for (int member = 1; member < members; member++) {
        const auto help = [crew, members, texts, own = buffers[member], from = &encoder] {
            crew->active++;
            if (!crew->is_over)
                from->set->encode(from->model, texts, own, {crew->phases.data(), members, rest});
            crew->active--;
        };
        try {
            std::thread(help).detach();
        } catch (const std::system_error&) {
            break;  // the process may have no more threads
        }
    }
    encoder.set->encode(model, texts, buffers[0], {crew->phases.data(), members, rest});
    crew->is_over = true;
    for (int tries = 0; crew->active;) rest(tries++);
}

// Packs `columns` rows of `inputs` bytes each, padded with zeros, for the tiles of a set.
Linear packed(Memory& memory, const Set& set, const int8_t* weights, const float* scales,
              const float* biases, size_t columns, size_t inputs, bool is_shifted) {
    const size_t width = set.columns, all = rounded(columns, 64), length = rounded(inputs, 64);
    auto* to = memory.take<int8_t>(all * length);
    auto* new_scales = memory.take<float>(all);
    auto* new_biases = memory.take<float>(all);
    auto* zero_sums = memory.take<int32_t>(all);
    std::vector<int8_t> row(length);
    for (size_t column = 0; column < all; column++) {
        int8_t* block = to + column / width * width * length + column % width * 4;
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
        for (size_t i = 0; i < length; i += 4) std::memcpy(block + i * width, row.data() + i, 4);
        const float scale = is_there ? scales[column] : 0.0f;
        new_scales[column] = scale;
        new_biases[column] = is_there ? biases[column] : 0.0f;
        // Activations have a zero point, or a constant was added before they were rounded.
        zero_sums[column] = (set.offset - (is_shifted ? 0 : ZERO)) * sum;
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

// Steps and what they compute from: seven numbers for each step, which are those of `Step`, and
// whether it has a tensor.
void read_steps(Encoder& encoder, int pooled, const int32_t* numbers, const void* const* tensors) {
    Tail& tail = encoder.model.tail;
    if (tail.count < 0 || tail.count > 1 << 12)
        throw ArgumentError("steps behind the pooling must be 0 to 4096");
    if (tail.memory < 16 || tail.memory > 1 << 22)
        throw ArgumentError("memory behind the pooling must be 16 to 4194304 floats");
    const auto fits = [&](int64_t place, int64_t length) {
        return place >= 0 && place % 16 == 0 && length >= 1 &&
               place + static_cast<int64_t>(rounded(length, 16)) <= tail.memory;
    };
    for (int i = 0; i < tail.count; i++, numbers += 7) {
        const int operation = numbers[0], length = numbers[1], to = numbers[2], first = numbers[3],
                  second = numbers[4], size = numbers[5];
        if (operation < 0 || operation >= static_cast<int>(Operation::COUNT))
            throw ArgumentError("an operation must be one of those that are known");
        const Step step{static_cast<Operation>(operation), length, to, first, second, size,
                        numbers[6] ? static_cast<const float*>(*tensors++) : nullptr};
        bool is_right = fits(to, length);
        switch (step.operation) {
            case Operation::CONSTANT: is_right = is_right && step.tensor; break;
            case Operation::PRODUCT:
                is_right = is_right && step.tensor && fits(first, size) &&
                           (second == -1 || fits(second, length));
                break;
            case Operation::PART:
                is_right = is_right && size >= 0 && fits(first, int64_t(size) + length);
                break;
            case Operation::JOIN:
                is_right = is_right && size >= 1 && size < length && fits(first, size) &&
                           fits(second, length - size);
                break;
            default:
                is_right = is_right && fits(first, length) && (second == -1 || fits(second, length));
        }
        if (!is_right) throw ArgumentError("a step behind the pooling reads or writes elsewhere");
        encoder.steps.push_back(step);
    }
    if (!fits(tail.result, tail.length) || !fits(0, pooled))
        throw ArgumentError("the memory behind the pooling is too small");
    tail.steps = encoder.steps.data();
}

void check(const Table& table) {
    if (table.type < RowType{} || table.type >= RowType::COUNT)
        throw ArgumentError("a table has rows of int8, float16 or float32");
    if (table.width < 1 || table.width > 1 << 14 || (table.norm_weights && table.width % 16))
        throw ArgumentError("the width of a table must be 1 to 16384, and be fit for normalization");
    if (table.count < 1 || table.vocabulary < 1 || table.positions < 1)
        throw ArgumentError("a table has at least a row, a token and a position");
    if (table.ignored < -1 || !(table.epsilon >= 0.0f && table.epsilon < 1.0f) || !(table.least > 0.0f))
        throw ArgumentError("a number of a table is out of range");
    if (!table.row_of && table.vocabulary > table.count)
        throw ArgumentError("a token has no row");
    for (int i = 0; table.row_of && i < table.vocabulary; i++)
        if (table.row_of[i] < 0 || table.row_of[i] >= table.count)
            throw ArgumentError("a token has no row");
}

void check(const Texts& texts, int least, int most, int vocabulary) {
    for (int64_t text = 0; text < texts.count; text++) {
        const int64_t length = texts.starts[text + 1] - texts.starts[text];
        if (length < least || length > most)
            throw ArgumentError("a text has no token, or more tokens than positions");
        if (texts.attended && (texts.attended[text] < 1 || texts.attended[text] > length))
            throw ArgumentError("a text attends to no token, or to more than it has");
    }
    for (int64_t i = 0; i < texts.starts[texts.count]; i++)
        if (texts.ids[i] < 0 || texts.ids[i] >= vocabulary)
            throw ArgumentError("a token is not in the vocabulary");
}

// Computes the states of texts, a group of them at a time; `done` gets each group, and its number of
// texts and tokens before it.
template <class Done>
void in_groups(const Encoder& encoder, Workspace& workspace, const Texts& texts, int threads,
               const Done& done) {
    const Shape& shape = encoder.model.shape;
    // The first row is that of tokens that are not counted.
    check(texts, 1, shape.positions - (shape.uncounted >= 0), shape.vocabulary);
    const int64_t* starts = texts.starts;
    for (int64_t first = 0; first < texts.count;) {
        int64_t end = first + 1;
        while (end < texts.count && starts[end + 1] - starts[first] <= GROUP) end++;
        const int64_t begin = starts[first], tokens = starts[end] - begin;
        const int64_t useful = std::min<int64_t>(MOST_MEMBERS, tokens / LEAST_ROWS);
        const int members = std::max(1, std::min(threads, static_cast<int>(useful)));
        workspace.reserve(encoder, tokens, members);
        if (encoder.model.word_weights)
            workspace.reserve_words(encoder.words.product.columns, end - first);
        const Texts group{texts.ids + begin, starts + first, end - first,
                          texts.attended ? texts.attended + first : nullptr,
                          texts.types ? texts.types + begin : nullptr};
        compute(encoder, group, workspace.buffers, members);
        done(group, first, begin);
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
#elif defined(__linux__) && defined(__aarch64__)
    {&NEON, []() -> bool { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }},
#elif defined(__APPLE__) && defined(__aarch64__)
    {&NEON, [] { return true; }},
#endif
};

}  // namespace

// Of this interface; Python's modules must know it.
FLOWVEC_API int flowvec_encoder_version() { return 3; }

FLOWVEC_API const char* flowvec_encoder_error() { return message.c_str(); }

// The name of an instruction set, by number, and whether this processor has it; null after the last.
FLOWVEC_API const char* flowvec_encoder_set(size_t number, int* runs) {
    if (number >= std::size(SETS)) return nullptr;
    *runs = SETS[number].runs();
    return SETS[number].set->name;
}

// Sizes are those of `Shape`, the number of poolings, the number of steps behind them, those of
// `Tail`, the reach of what is added by distance, whether there is a
// second token type, and the number of words that get weights, with their logarithms. Tensors are in the order in which they are read below; they must stay as long as the encoder.
// Weights of products are rows of bytes, one for each output.
FLOWVEC_API int flowvec_encoder_create(const int32_t* sizes, float epsilon,
                                       const int32_t* poolings, const int32_t* steps, size_t set,
                                       const void* const* tensors, Encoder** result) {
    return guarded([&] {
        if (set >= std::size(SETS) || !SETS[set].runs())
            throw ArgumentError("this processor does not have the instruction set");
        auto made = std::make_unique<Encoder>();
        Model& model = made->model;
        Shape& shape = model.shape;
        shape = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], epsilon};
        model.parts = sizes[7];
        model.tail = {nullptr, sizes[8], sizes[9], sizes[10], sizes[11], sizes[12] != 0};
        if (model.parts < 1 || model.parts > 16) throw ArgumentError("poolings must be 1 to 16");
        for (int i = 0; i < model.parts; i++) {
            if (poolings[i] < 0 || poolings[i] >= static_cast<int>(Pooling::COUNT))
                throw ArgumentError("a pooling must be one of those that are known");
            made->poolings.push_back(static_cast<Pooling>(poolings[i]));
        }
        model.poolings = made->poolings.data();
        check(shape);
        // A block of keys ends up to 15 places behind the longest text.
        if (sizes[13] && sizes[13] < 2 * (shape.positions + 15))
            throw ArgumentError("there are too few distances");
        if (sizes[15] < 0 || sizes[15] > 1 << 24 || sizes[16] < 0 || sizes[16] > 4)
            throw ArgumentError("words must be 0 to 16777216, and their logarithms 0 to 4");
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
            return packed(made->memory, *made->set, weights, scales, biases, columns, inputs,
                          is_shifted);
        };
        const size_t hidden = shape.hidden, wide = shape.wide;
        model.reach = sizes[13];
        model.relative = model.reach ? floats() : nullptr;
        model.second_type = sizes[14] ? floats() : nullptr;
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
        if (sizes[15]) {
            Words& words = made->words;
            words.dense = linear(hidden, hidden, false);
            words.norm = norm();
            words.product = linear(sizes[15], hidden, false);
            words.count = sizes[15];
            words.logs = sizes[16];
            model.word_weights = &words;
        }
        read_steps(*made, model.parts * shape.hidden, steps, tensors);
        shape.wide = static_cast<int>(rounded(wide, 64));  // as it is computed
        *result = made.release();
    });
}

// A static embedder, as `flowvec_encoder_create` otherwise. Sizes are the type of rows, their number and
// width, tokens, positions, the ignored token, whether the sum is divided by that of the weights, the
// number of steps, those of `Tail`, and whether there are rows of tokens, weights of tokens, positions
// and a normalization. `numbers` are its epsilon, and the least divisor.
FLOWVEC_API int flowvec_encoder_create_table(const int32_t* sizes, const float* numbers,
                                             const int32_t* steps, size_t set,
                                             const void* const* tensors, Encoder** result) {
    return guarded([&] {
        if (set >= std::size(SETS) || !SETS[set].runs())
            throw ArgumentError("this processor does not have the instruction set");
        auto made = std::make_unique<Encoder>();
        made->set = SETS[set].set;
        made->model.tail = {nullptr, sizes[7], sizes[8], sizes[9], sizes[10], sizes[11] != 0};
        const auto next = [&](bool is_there) { return is_there ? *tensors++ : nullptr; };
        const auto floats = [&](bool is_there) { return static_cast<const float*>(next(is_there)); };
        auto table = std::make_unique<Table>();
        table->rows = static_cast<const uint8_t*>(next(true));
        table->type = static_cast<RowType>(sizes[0]);
        table->count = sizes[1];
        table->width = sizes[2];
        table->vocabulary = sizes[3];
        table->positions = sizes[4];
        table->ignored = sizes[5];
        table->is_weighted = sizes[6] != 0;
        table->row_of = static_cast<const int32_t*>(next(sizes[12]));
        table->token_weights = floats(sizes[13]);
        table->places = floats(sizes[14]);
        table->norm_weights = floats(sizes[15]);
        table->norm_biases = floats(sizes[15]);
        table->epsilon = numbers[0];
        table->least = numbers[1];
        check(*table);
        read_steps(*made, table->width, steps, tensors);
        made->table = std::move(table);
        *result = made.release();
    });
}

FLOWVEC_API void flowvec_encoder_free(Encoder* encoder) { delete encoder; }

// Memory for one call at a time; a thread that computes has its own.
FLOWVEC_API int flowvec_encoder_workspace(Workspace** result) {
    return guarded([&] { *result = new Workspace(); });
}

FLOWVEC_API void flowvec_encoder_workspace_free(Workspace* workspace) { delete workspace; }

// What is computed: a vector of each text, or of each token, or the last layer's states.
enum Result { VECTORS, TOKEN_VECTORS, STATES };

// At most `threads` threads compute. `to` has a row for each text, or for each token.
FLOWVEC_API int flowvec_encoder_run(const Encoder* encoder, Workspace* workspace,
                                    const Texts* texts, int result, int threads, float* to) {
    return guarded([&] {
        const Model& model = encoder->model;
        if (const Table* table = encoder->table.get()) {
            if (result != VECTORS) throw ArgumentError("a table has vectors of texts alone");
            check(*texts, 0, table->positions, table->vocabulary);
            workspace->reserve_mean(*encoder);
            encoder->set->means(*table, model.tail, *texts, workspace->row, workspace->tail, to);
            return;
        }
        const size_t hidden = model.shape.hidden;
        const size_t length = model.word_weights ? model.word_weights->count : model.tail.length;
        in_groups(*encoder, *workspace, *texts, threads,
                  [&](const Texts& group, int64_t first, int64_t begin) {
                      const Buffers& b = workspace->buffers[0];
                      if (result == STATES) {
                          std::memcpy(to + begin * hidden, b.states,
                                      group.begin(group.count) * hidden * sizeof(float));
                      } else {
                          const bool of_tokens = result == TOKEN_VECTORS;
                          encoder->set->vectors(model, group, of_tokens, b,
                                                to + (of_tokens ? begin : first) * length);
                      }
                  });
    });
}
