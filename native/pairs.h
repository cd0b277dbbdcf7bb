// The best pairs of many rows: exactly, though most scores are not computed, but bounded by codes.
//
// Vectors have length 1 or 0. With a centre c, q' = q - c and x' = x - c, a product <q, x> of at
// least t means |q' - x'|^2 <= 2 - 2 t, that is
//
//     2 <q', x'> - |x'|^2 >= |q'|^2 - (2 - 2 t).
//
// A code of x stands for a vector y with <x', y> = |x'|^2 (see codes.h). So the error x' - y is at
// right angles to x', and only the part of q' counts that is, too. That is not longer than q', nor
// than q' - x':
//
//     <q', x' - y> <= min(|q'|, sqrt(2 - 2 t)) |x' - y|.
//
// Rounding q' to 8 bits changes <q', y> by at most |r| |y|, if r is what is lost. And if only the
// first numbers of both are multiplied, then the lengths of the others say how much they may add.
#pragma once

#include "scan.h"

namespace flowvec {

// Added to what may be reached, for rounding in float32. Most of it is for the length of an error,
// the root of a difference: of sums of dim numbers, each wrong by 6e-8 at most.
constexpr float ROUNDING = 1.0f / 128;

struct PairHit {
    float score;
    size_t left, right;
    // Of equal scores, the pair that comes first is better.
    bool operator<(const PairHit& other) const {
        if (score != other.score) return score > other.score;
        return left != other.left ? left < other.left : right < other.right;
    }
};

// Rows in 8 bits. A row's scale times its numbers is nearly q', and `bias` is MIDDLE times the sum
// of that, `part_bias` of its first part. Lengths are those of q', of what rounding changed, and of
// the numbers behind the first part.
struct RoundedRows {
    size_t stride;  // numbers of a row
    std::vector<int8_t> numbers;
    std::vector<float> scales, biases, part_biases, lengths, roundings, rests;

    RoundedRows(size_t count, size_t width)
        : stride(width), numbers(count * width), scales(count), biases(count), part_biases(count),
          lengths(count), roundings(count), rests(count) {}
};

// Turns up to eight rows, encodes them and rounds them. The group's `reaches` become the lengths of
// codes behind the first part, in the units of factors.
FLOWVEC_INLINE void add_rows(const Frame& frame, const float* rows, size_t count, Group8* numbers,
                             Chunk& chunk, size_t eight, size_t row, RoundedRows& rounded) {
    const size_t width = rounded.stride, dim = frame.dim, part = frame.part;
    turn_and_encode(frame, rows, true, numbers, chunk, eight, 0, count);
    float largest[ENCODED_ROWS] = {}, scales[ENCODED_ROWS], inverse[ENCODED_ROWS];
    float squares[2][ENCODED_ROWS] = {}, lost[ENCODED_ROWS] = {};
    int sums[2][ENCODED_ROWS] = {};
    for (size_t i = 0; i < dim; i++)
        for (size_t r = 0; r < ENCODED_ROWS; r++) {
            const float x = std::fabs(numbers[i].row[r]);
            largest[r] = x > largest[r] ? x : largest[r];
        }
    for (size_t r = 0; r < ENCODED_ROWS; r++) {
        scales[r] = largest[r] > SMALLEST ? largest[r] / 127 : 0;
        inverse[r] = scales[r] > 0 ? 1 / scales[r] : 0;
    }
    for (size_t behind = 0; behind < 2; behind++)
        for (size_t i = behind ? 8 * part : 0; i < (behind ? width : 8 * part); i++)
#pragma GCC unroll 1
            for (size_t r = 0; r < ENCODED_ROWS; r++) {
                const float x = numbers[i].row[r];
                const int number = int(x * inverse[r] + 128.5f) - 128;  // from -127 to 127
                const float loss = x - scales[r] * float(number);
                squares[behind][r] += x * x;
                lost[r] += loss * loss;
                sums[behind][r] += number;
                numbers[i].row[r] = float(number);
            }
    const size_t first = eight * ENCODED_ROWS % GROUP_ROWS;  // its row in the group
    GroupFacts& facts = chunk.facts(eight * ENCODED_ROWS / GROUP_ROWS);
    const auto* codes =
        reinterpret_cast<const uint8_t*>(&chunk.more(eight * ENCODED_ROWS / GROUP_ROWS) + 1);
    for (size_t r = 0; r < count; r++) {
        int8_t* own = &rounded.numbers[(row + r) * width];
        for (size_t i = 0; i < width; i++) own[i] = int8_t(numbers[i].row[r]);
        rounded.scales[row + r] = scales[r];
        rounded.part_biases[row + r] = MIDDLE * scales[r] * float(sums[0][r]);
        rounded.biases[row + r] = MIDDLE * scales[r] * float(sums[0][r] + sums[1][r]);
        rounded.lengths[row + r] = std::sqrt(squares[0][r] + squares[1][r]);
        rounded.roundings[row + r] = std::sqrt(lost[r]);
        // Rounded numbers are longer by not more than what rounding changed.
        rounded.rests[row + r] = std::sqrt(squares[1][r]) + rounded.roundings[row + r];
        float levels = 0;
        for (size_t octet = 0; octet < width / 8 - part; octet++)
            for (size_t j = 0; j < 4; j++) {
                const uint8_t pair = codes[(octet * GROUP_ROWS + first + r) * 4 + j];
                const float low = float(pair & 15) - MIDDLE, high = float(pair >> 4) - MIDDLE;
                levels += low * low + high * high;
            }
        facts.reaches[first + r] = facts.factors[first + r] * std::sqrt(levels);
    }
}

inline void add_rows_base(const Frame& frame, const float* rows, size_t count, Group8* numbers,
                          Chunk& chunk, size_t eight, size_t row, RoundedRows& rounded) {
    add_rows(frame, rows, count, numbers, chunk, eight, row, rounded);
}
#if defined(__GNUC__) && defined(__x86_64__)
FLOWVEC_AVX2 inline void add_rows_avx2(const Frame& frame, const float* rows, size_t count,
                                       Group8* numbers, Chunk& chunk, size_t eight, size_t row,
                                       RoundedRows& rounded) {
    add_rows(frame, rows, count, numbers, chunk, eight, row, rounded);
}
#endif

// The best of this processor, as for `kernels`.
inline decltype(&add_rows_base) add_rows_kernel() {
#if defined(__GNUC__) && defined(__x86_64__)
    if (std::strcmp(kernels().name, "base")) return add_rows_avx2;
#endif
    return add_rows_base;
}

// The k best pairs of those that are offered, in any order and by any number of threads.
class BestPairs {
  public:
    BestPairs(size_t k, float floor) : k_(k), floor_(floor) {}

    // The least score of a pair that may be among them.
    float floor() const { return floor_.load(std::memory_order_relaxed); }

    void take(std::vector<PairHit>& hits) {
        if (hits.empty()) return;
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& hit : hits) {
            if (best_.size() == k_) {
                if (!(hit < best_.front())) continue;
                std::pop_heap(best_.begin(), best_.end());
                best_.pop_back();
            }
            best_.push_back(hit);
            std::push_heap(best_.begin(), best_.end());
        }
        hits.clear();
        if (best_.size() == k_) floor_ = best_.front().score;
    }

    // Best first; nothing may be offered any more.
    const std::vector<PairHit>& sorted() {
        std::sort_heap(best_.begin(), best_.end());
        return best_;
    }

  private:
    size_t k_;
    std::atomic<float> floor_;
    std::mutex mutex_;
    std::vector<PairHit> best_;  // a heap whose first is the worst
};

// Rows of length 1 or 0, which stay where they are, and their codes. One thread at a time.
class PairScan {
  public:
    PairScan(const float* rows, size_t count, size_t dim, const float* centre, const float* basis,
             size_t part)
        : rows_(rows), count_(count), dim_(dim), octets_((dim + 7) / 8),
          frame_(dim, 0, part, centre, basis, 1), rounded_(count, octets_ * 8) {
        longest_ = 2 * (1 + std::sqrt(kernels().dot(centre, centre, dim)));
    }

    // Encodes more rows.
    void add(size_t count, size_t threads) {
        const size_t end = std::min(count_, encoded_ + count);
        while (chunks_.size() * CHUNK_ROWS < end)
            chunks_.emplace_back(new Chunk(octets_, frame_.part, nullptr));
        const auto add = add_rows_kernel();
        const size_t first = encoded_ / CHUNK_ROWS;
        in_threads(chunks_.size() - first, threads, [&](size_t task) {
            std::vector<Group8> numbers(2 * octets_ * 8);
            const size_t last = std::min(end, (first + task + 1) * CHUNK_ROWS);
            for (size_t row = (first + task) * CHUNK_ROWS; row < last; row += ENCODED_ROWS)
                add(frame_, rows_ + row * dim_, std::min(ENCODED_ROWS, last - row), numbers.data(),
                    *chunks_[first + task], row % CHUNK_ROWS / ENCODED_ROWS, row, rounded_);
        });
        encoded_ = end;
    }

    // Offers pairs of a row from `first` to before `last` with a later one; false if that takes
    // more than `most` products.
    bool offer(size_t first, size_t last, size_t most, size_t threads, BestPairs& best) const {
        if (encoded_ < count_ || last > count_) throw ArgumentError("not all rows have codes");
        std::atomic<size_t> computed{0};
        const size_t tasks = first < last ? (last - first - 1) / QUERIES_OF_TASK + 1 : 0;
        in_threads(tasks, threads, [&](size_t task) {
            const size_t begin = first + task * QUERIES_OF_TASK;
            const size_t end = std::min(last, begin + QUERIES_OF_TASK);
            std::vector<PairHit> hits;
            for (size_t chunk = (begin + 1) / CHUNK_ROWS; chunk < chunks_.size(); chunk++)
                for (size_t row = begin; row < end; row += TILE) {
                    if (computed > most) return;
                    computed += compare(row, std::min(TILE, end - row), chunk, best.floor(), hits);
                    best.take(hits);
                }
        });
        return computed <= most;
    }

  private:

    const float* rows_;
    size_t count_, dim_, octets_;
    Frame frame_;
    RoundedRows rounded_;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    size_t encoded_ = 0;
    float longest_ = 0;  // 2 |x'| is not longer
    const ScanKernels* kernels_ = &scan_kernels();

    // Finds pairs of some rows with later rows of a chunk, and returns how many were computed.
    size_t compare(size_t first, size_t size, size_t number, float floor,
                   std::vector<PairHit>& hits) const {
        const Chunk& chunk = *chunks_[number];
        const size_t start = number * CHUNK_ROWS, to = std::min(CHUNK_ROWS, count_ - start);
        const float distance = 2 - 2 * floor;  // squared
        const float farthest = std::sqrt(std::max(distance, 0.0f));
        const float root = std::sqrt(float(dim_));  // deviations are lengths divided by it
        const Chunk* next = number + 1 < chunks_.size() ? chunks_[number + 1].get() : nullptr;
        ChunkScan scan{*kernels_, chunk, next, {}, {}};
        Tile &part = scan.part, &whole = scan.whole;
        part.numbers = &rounded_.numbers[first * rounded_.stride];
        whole.numbers = part.numbers + frame_.part * 8;
        part.stride = whole.stride = rounded_.stride;
        part.octets = frame_.part;
        whole.octets = octets_ - frame_.part;
        for (size_t i = 0; i < size; i++) {
            const size_t row = first + i;
            const float length = rounded_.lengths[row], rounding = rounded_.roundings[row];
            part.scales[i] = whole.scales[i] = rounded_.scales[row];
            part.biases[i] = rounded_.part_biases[row];
            whole.biases[i] = rounded_.biases[row];
            // |y| is not longer than x' and the error together.
            part.reaches[i] = whole.reaches[i] = root * (std::min(length, farthest) + rounding);
            part.length_reaches[i] = rounded_.rests[row];
            whole.length_reaches[i] = rounding;
            part.ratios[i] = whole.ratios[i] = 0;  // no pair may be missed
            whole.thresholds[i] = length * length - distance - ROUNDING;
            part.thresholds[i] = whole.thresholds[i] - rounding * longest_;
        }
        const auto dot = kernels().dot;
        const size_t from = first + 1 > start ? (first + 1 - start) / GROUP_ROWS : 0;
        uint8_t groups[CHUNK_GROUPS];
        size_t count = 0, computed = 0;
        for (size_t group = from; group * GROUP_ROWS < to; group++) groups[count++] = uint8_t(group);
        scan.run(groups, count, size, [&](size_t at, size_t i, unsigned marks, const Estimates&) {
            const size_t left = first + i;
            for (size_t r = 0; marks >> r; r++) {
                const size_t right = start + at + r;
                if (!(marks >> r & 1) || right <= left || right >= count_) continue;
                const float score = dot(rows_ + left * dim_, rows_ + right * dim_, dim_);
                if (score >= floor) hits.push_back({score, left, right});
                computed++;
            }
        });
        return computed;
    }
};

}  // namespace flowvec
