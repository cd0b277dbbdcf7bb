// A scan of codes: the nearest rows of queries, from estimates of all scores.
//
// A row is a candidate if its score may be among the k best: if its estimate plus some standard
// deviations is at least the k-th best score so far. Scores are computed from the vectors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "codes.h"
#include "errors.h"
#include "scan_kernels.h"
#include "threads.h"
#include "vectors.h"

namespace flowvec {

// Queries that a thread compares with a chunk while its codes are in the cache.
constexpr size_t QUERIES_OF_TASK = 8 * TILE;
// Candidates that are collected before those that are no longer are dropped, or all are scored.
constexpr size_t MOST_COLLECTED = 256;

// Scores, and how far an estimate may be from them.
struct Scorer : ExactScorer {
    // An estimate is of the score less this, or for distances, of this less the square.
    float shift;
    float rounding;  // how much a score may be wrong

    // The least estimate, without its error, of a row with this score.
    float estimate_of(float score) const {
        return (squared ? shift - score * score : score - shift) - rounding;
    }
};

// The k best rows of a query among those that were looked at, and candidates that are not scored
// yet.
//
// They are compared with the k-th best score so far, not with the k-th best estimate: of very many
// estimates the best are too high, so where many rows have nearly the best score, that would leave
// out most of them.
class Candidates {
  public:
    float threshold = -std::numeric_limits<float>::infinity();

    explicit Candidates(size_t k) : k_(k) {}

    // A row whose estimate is among the best is scored at once, since that may raise the threshold.
    void offer(size_t row, float estimate, float highest, const Scorer& scorer) {
        if (estimate >= threshold) {
            keep({scorer.score(row), row}, scorer);
            return;
        }
        found_.push_back({row, highest});
        if (found_.size() < MOST_COLLECTED) return;
        drop();
        if (found_.size() > MOST_COLLECTED / 2) score_all(scorer);
    }

    void take(const Candidates& other, const Scorer& scorer) {
        found_.insert(found_.end(), other.found_.begin(), other.found_.end());
        for (const auto& hit : other.best_) keep(hit, scorer);
    }

    // The k best, best first.
    const std::vector<ScanHit>& sorted(const Scorer& scorer) {
        drop();
        score_all(scorer);
        std::sort_heap(best_.begin(), best_.end());
        return best_;
    }

  private:
    struct Candidate {
        size_t row;
        float highest;
    };
    size_t k_;
    std::vector<Candidate> found_;
    std::vector<ScanHit> best_;  // a heap whose first is the worst

    void keep(const ScanHit& hit, const Scorer& scorer) {
        if (best_.size() == k_) {
            if (!(hit < best_.front())) return;
            std::pop_heap(best_.begin(), best_.end());
            best_.pop_back();
        }
        best_.push_back(hit);
        std::push_heap(best_.begin(), best_.end());
        if (best_.size() == k_) threshold = scorer.estimate_of(best_.front().score);
    }
    void score_all(const Scorer& scorer) {
        for (size_t i = 0; i < found_.size(); i++) {
            if (i + 1 < found_.size()) scorer.prefetch(found_[i + 1].row);
            if (found_[i].highest >= threshold)
                keep({scorer.score(found_[i].row), found_[i].row}, scorer);
        }
        found_.clear();
    }
    void drop() {
        const auto is_far = [&](const Candidate& one) { return !(one.highest >= threshold); };
        found_.erase(std::remove_if(found_.begin(), found_.end(), is_far), found_.end());
    }
};

// What a scan looks for.
struct Wanted {
    const float* queries;
    size_t count, k;
    size_t first, last;  // rows from `first` to before `last`
    const uint8_t* allowed;  // by row; null allows all
    float reach;  // deviations
    const Vectors* vectors;
};

// Codes of vectors. Any number of threads may scan them; rows are added by one thread at a time.
class Codes {
  public:
    // Before rows are added, `begin` must be called.
    Codes(size_t dim, bool squared, uint64_t seed)
        : dim_(dim), octets_((dim + 7) / 8), squared_(squared), seed_(seed) {}

    // Says how vectors are turned; there must be no rows. The first part is of so many octets.
    void begin(const float* centre, const float* basis, size_t part, float margin) {
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        if (rows_) throw ArgumentError("there are rows");
        if (!part || part > octets_ || (basis && part * 8 >= dim_))
            throw ArgumentError("the first part has no numbers, or too many");
        if (!(margin > 0)) throw ArgumentError("the margin must be above 0");
        frame_.reset(new Frame(dim_, seed_, part, centre, basis, margin));
    }

    size_t rows() const {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        return rows_;
    }
    size_t bytes() const {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        size_t own = 0;
        for (const auto& chunk : chunks_) own += chunk->memory ? chunk_bytes() : 0;
        return own + chunks_.size() * sizeof(Chunk);
    }
    // Of a chunk: what is known of its rows, then their codes.
    size_t chunk_bytes() const {
        return Chunk::bytes(octets_);
    }
    // Copies whole chunks, one after another.
    void copy(size_t first, size_t count, uint8_t* bytes) const {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        if (first > rows_ / CHUNK_ROWS || count > rows_ / CHUNK_ROWS - first)
            throw ArgumentError("there are fewer whole chunks");
        for (size_t i = 0; i < count; i++)
            std::memcpy(bytes + i * chunk_bytes(), chunks_[first + i]->block, chunk_bytes());
    }

    // Uses the whole chunks of a mapped file for the first rows. They were made with this frame, and
    // begin at multiples of 64 bytes. When this returns, no search uses earlier ones.
    void map(const uint8_t* blocks, size_t stride, size_t count) {
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        if (!frame_) throw ArgumentError("`begin` was not called");
        std::vector<std::unique_ptr<Chunk>> mapped;
        for (size_t i = 0; i < count; i++)
            mapped.emplace_back(new Chunk(octets_, frame_->part, blocks + i * stride));
        if (chunks_.size() < count) chunks_.resize(count);
        std::move(mapped.begin(), mapped.end(), chunks_.begin());
        rows_ = std::max(rows_, count * CHUNK_ROWS);
    }

    // Adds rows; false if one is so long that estimates may be infinite.
    bool add(const float* vectors, size_t count, size_t threads) {
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        if (!count) return true;
        if (!frame_) throw ArgumentError("`begin` was not called");
        const size_t end = rows_ + count;
        while (chunks_.size() * CHUNK_ROWS < end)
            chunks_.emplace_back(new Chunk(octets_, frame_->part, nullptr));
        const size_t first_eight = rows_ / ENCODED_ROWS;
        const size_t eights = (end - 1) / ENCODED_ROWS + 1 - first_eight;
        // A task is some times eight rows: each has memory for the numbers of eight rows.
        const size_t tasks = (eights + EIGHTS_OF_TASK - 1) / EIGHTS_OF_TASK;
        std::atomic<bool> are_short{true};
        const float longest = LONGEST / (MIDDLE * std::sqrt(float(dim_)));
        in_threads(tasks, threads, [&](size_t task) {
            std::vector<Group8> numbers(2 * octets_ * 8);
            const size_t from = first_eight + task * EIGHTS_OF_TASK;
            const size_t to = std::min(from + EIGHTS_OF_TASK, first_eight + eights);
            for (size_t eight = from; eight < to; eight++) {
                const size_t row = std::max(rows_, eight * ENCODED_ROWS);
                const size_t last = std::min(end, (eight + 1) * ENCODED_ROWS);
                Chunk& chunk = *chunks_[row / CHUNK_ROWS];
                kernels_->encode(*frame_, vectors + (row - rows_) * dim_, squared_, numbers.data(),
                                 chunk, eight % (CHUNK_ROWS / ENCODED_ROWS),
                                 row - eight * ENCODED_ROWS, last - eight * ENCODED_ROWS);
                for (size_t i = row; i < last; i++) {
                    const GroupFacts& facts = chunk.facts(i % CHUNK_ROWS / GROUP_ROWS);
                    if (!(facts.factors[i % GROUP_ROWS] <= longest)) are_short = false;
                }
            }
        });
        rows_ = end;
        return are_short;
    }

    // The k best rows of each query and their scores, (count, k), best first; missing ones are -1.
    void search(const Wanted& wanted, size_t threads, int64_t* rows, float* scores) const {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        if (wanted.last > rows_) throw ArgumentError("there are fewer codes than rows");
        if (!wanted.count || !wanted.k) return;
        if (!rows_) {  // nothing has begun, perhaps
            for (size_t q = 0; q < wanted.count; q++) write(wanted, q, {}, rows, scores);
            return;
        }
        const auto queries = prepared(wanted, threads);
        // Few queries are compared with parts of the rows by several threads, many are divided.
        if (wanted.count < 2 * TILE * threads) {
            by_rows(wanted, queries, threads, rows, scores);
            return;
        }
        const size_t rounds = (wanted.count - 1) / (QUERIES_OF_TASK * threads) + 1;
        const size_t most = (wanted.count - 1) / (rounds * threads) + 1;
        const size_t size = (most + TILE - 1) / TILE * TILE;
        in_threads((wanted.count + size - 1) / size, threads, [&](size_t task) {
            const size_t begin = task * size, end = std::min(begin + size, wanted.count);
            std::vector<Candidates> found(end - begin, Candidates(wanted.k));
            size_t chunk = wanted.first / CHUNK_ROWS;
            for (; chunk * CHUNK_ROWS < wanted.last; chunk++)
                compare(wanted, queries, begin, end, chunk, chunk + 1, found);
            for (size_t q = begin; q < end; q++)
                write(wanted, q, found[q - begin].sorted(queries.scorers[q]), rows, scores);
        });
    }

  private:
    static constexpr size_t EIGHTS_OF_TASK = 32;
    // A row's levels, times its factor, are at most so long. The square of a vector that a
    // collection takes is finite in float32, so products with it are, too.
    static constexpr float LONGEST = 5e18f;
    struct Queries {
        std::vector<int8_t> numbers;
        // Of the first part of the numbers, and of all.
        std::vector<float> scales, part_scales, part_biases, biases, part_reaches, reaches,
            length_reaches, part_ratios;
        std::vector<Scorer> scorers;

        Queries(size_t count, size_t width)
            : numbers(count * width), scales(count), part_scales(count), part_biases(count),
              biases(count), part_reaches(count), reaches(count), length_reaches(count),
              part_ratios(count), scorers(count) {}
    };

    size_t dim_, octets_;
    bool squared_;
    uint64_t seed_;
    std::unique_ptr<const Frame> frame_;
    size_t rows_ = 0;
    std::vector<std::unique_ptr<Chunk>> chunks_;
    mutable std::shared_mutex mutex_;

    // Queries that are turned together.
    static constexpr size_t TURNED = 32;

    Queries prepared(const Wanted& wanted, size_t threads) const {
        Queries queries(wanted.count, octets_ * 8);
        in_threads((wanted.count + TURNED - 1) / TURNED, threads, [&](size_t task) {
            const size_t begin = task * TURNED, count = std::min(TURNED, wanted.count - begin);
            const size_t stride = frame_->stride;
            std::vector<float> numbers(count * stride), turned(count * stride), room(stride);
            // Distances are those between differences from the centre.
            for (size_t q = 0; q < count; q++)
                for (size_t i = 0; i < dim_; i++)
                    numbers[q * stride + i] = wanted.queries[(begin + q) * dim_ + i] -
                                              (squared_ ? frame_->centre[i] : 0);
            kernels_->turn(*frame_, numbers.data(), count, turned.data(), room.data());
            for (size_t q = 0; q < count; q++)
                prepare(wanted, begin + q, &turned[q * stride], queries);
        });
        return queries;
    }

    void prepare(const Wanted& wanted, size_t q, const float* turned, Queries& queries) const {
        const size_t part = frame_->part;
        const std::vector<float>& centre = frame_->centre;
        // Without a basis, a share s of the products estimates the whole with the variance
        // (1 - s) / s / dim for vectors at right angles, and twice that for equal ones.
        const float share = std::min(1.0f, float(part * 8) / float(dim_));
        const float part_deviation = std::sqrt(2 * (1 - share) / share / float(dim_));
        const bool has_basis = !frame_->basis.empty();
        const float gain = has_basis ? 1 : 1 / share;
        float largest = 0;
        for (size_t i = 0; i < dim_; i++) largest = std::max(largest, std::fabs(turned[i]));
        const float scale = largest > SMALLEST ? largest / 127 : 0;
        int8_t* numbers = &queries.numbers[q * octets_ * 8];
        int sum = 0, part_sum = 0;
        // Squares of the lengths of the query, its first part, and its rounding.
        double length = 0, part_length = 0, rounded = 0;
        for (size_t i = 0; i < dim_; i++) {
            if (i == part * 8) part_sum = sum, part_length = length;
            numbers[i] = scale > 0 ? int8_t(std::lrint(turned[i] / scale)) : 0;
            sum += numbers[i];
            const double rest = double(turned[i]) - double(scale) * numbers[i];
            length += double(turned[i]) * turned[i];
            rounded += rest * rest;
        }
        if (part == octets_) part_sum = sum, part_length = length;
        const float norm = float(std::sqrt(length));
        const float* query = wanted.queries + q * dim_;
        double middle = 0, squares = 0;  // <query, centre>, and the square of the centre's length
        for (size_t i = 0; i < dim_; i++) {
            middle += double(query[i]) * centre[i];
            squares += double(centre[i]) * centre[i];
        }
        const double lost = 1e-7 * (8 + double(dim_) / 64) * norm * std::sqrt(squares);
        queries.scorers[q] = {{query, wanted.vectors, dim_, squared_},
                              float(squared_ ? length : middle), squared_ ? 0 : float(lost)};
        queries.scales[q] = scale;
        queries.part_scales[q] = gain * scale;
        queries.part_biases[q] = gain * MIDDLE * scale * float(part_sum);
        queries.biases[q] = MIDDLE * scale * float(sum);
        if (has_basis) {
            const double rest = std::max(0.0, length - part_length);
            // Lengths count alone if that is all that is known, or if nothing may be guessed.
            const bool is_long = rest > part_length * LONGEST_REST || frame_->margin >= 2;
            queries.part_reaches[q] = float(std::sqrt(rest)) * (is_long ? 1 : frame_->margin);
            queries.part_ratios[q] =
                is_long || part_length <= 0 ? 0 : float(std::sqrt(rest / part_length));
        } else {
            queries.part_reaches[q] = wanted.reach * norm * part_deviation;
        }
        queries.reaches[q] = wanted.reach * norm;
        queries.length_reaches[q] = wanted.reach * float(std::sqrt(rounded / double(dim_)));
    }

    struct Offer {
        size_t query, row;
        float estimate, highest;
    };

    // Offers the rows of a chunk to queries `begin` to before `end`. Chunk `next` is the next one.
    void compare(const Wanted& wanted, const Queries& queries, size_t begin, size_t end,
                 size_t number, size_t next, std::vector<Candidates>& found) const {
        const Chunk& chunk = *chunks_[number];
        const size_t start = number * CHUNK_ROWS;
        const size_t from = std::max(wanted.first, start) - start;
        const size_t to = std::min(wanted.last - start, CHUNK_ROWS);
        // Groups without a row that may be found are left out.
        uint8_t groups[CHUNK_GROUPS];
        size_t count = 0;
        for (size_t group = from / GROUP_ROWS; group * GROUP_ROWS < to; group++) {
            bool is_wanted = !wanted.allowed;
            for (size_t r = group * GROUP_ROWS; !is_wanted && r < (group + 1) * GROUP_ROWS; r++)
                is_wanted = r >= from && r < to && wanted.allowed[start + r];
            if (is_wanted) groups[count++] = uint8_t(group);
        }
        std::vector<Offer> offers;  // they wait until their vectors have come
        const bool is_whole = frame_->part == octets_;
        ChunkScan scan{*kernels_, chunk, next < chunks_.size() ? chunks_[next].get() : nullptr, {}, {}};
        Tile &part = scan.part, &whole = scan.whole;
        part.stride = whole.stride = octets_ * 8;
        part.octets = frame_->part;
        whole.octets = octets_ - frame_->part;
        for (size_t q = begin; q < end; q += TILE) {
            const size_t size = std::min(TILE, end - q);
            part.numbers = &queries.numbers[q * octets_ * 8];
            whole.numbers = part.numbers + part.octets * 8;
            for (size_t i = 0; i < size; i++) {
                part.scales[i] = queries.part_scales[q + i];
                whole.scales[i] = queries.scales[q + i];
                part.biases[i] = queries.part_biases[q + i];
                whole.biases[i] = queries.biases[q + i];
                part.reaches[i] = whole.reaches[i] = queries.reaches[q + i];
                part.ratios[i] = is_whole ? 0 : queries.part_ratios[q + i];
                whole.ratios[i] = 0;
                whole.length_reaches[i] = queries.length_reaches[q + i];
                part.length_reaches[i] = is_whole ? queries.length_reaches[q + i]
                                                  : queries.part_reaches[q + i];
                part.thresholds[i] = whole.thresholds[i] = found[q + i - begin].threshold;
            }
            offers.clear();
            scan.run(groups, count, size, [&](size_t row, size_t i, unsigned marks,
                                              const Estimates& estimates) {
                for (size_t r = 0; marks >> r; r++) {
                    if (!(marks >> r & 1) || row + r < from || row + r >= to) continue;
                    if (wanted.allowed && !wanted.allowed[start + row + r]) continue;
                    offers.push_back({i, start + row + r, estimates.estimates[r], estimates.highest[r]});
                    if (estimates.estimates[r] >= whole.thresholds[i])
                        queries.scorers[q + i].prefetch(start + row + r);
                }
            });
            for (const Offer& one : offers)
                found[q + one.query - begin].offer(one.row, one.estimate, one.highest,
                                                   queries.scorers[q + one.query]);
        }
    }

    void by_rows(const Wanted& wanted, const Queries& queries, size_t threads, int64_t* rows,
                 float* scores) const {
        const size_t first = wanted.first / CHUNK_ROWS;
        const size_t chunks =
            wanted.last > wanted.first ? (wanted.last - 1) / CHUNK_ROWS + 1 - first : 0;
        threads = std::max<size_t>(1, std::min(threads, chunks / LEAST_CHUNKS));
        std::vector<std::vector<Candidates>> found(
            threads, std::vector<Candidates>(wanted.count, Candidates(wanted.k)));
        std::atomic<size_t> next{0};
        in_threads(threads, threads, [&](size_t thread) {
            for (size_t i; (i = next.fetch_add(CHUNKS_OF_TASK)) < chunks;)
                for (const size_t end = std::min(i + CHUNKS_OF_TASK, chunks); i < end; i++)
                    compare(wanted, queries, 0, wanted.count, first + i, first + i + 1, found[thread]);
        });
        for (size_t q = 0; q < wanted.count; q++) {
            const Scorer& scorer = queries.scorers[q];
            for (size_t thread = 1; thread < threads; thread++)
                found[0][q].take(found[thread][q], scorer);
            write(wanted, q, found[0][q].sorted(scorer), rows, scores);
        }
    }

    // With fewer chunks, a thread takes longer to start than to compare.
    static constexpr size_t LEAST_CHUNKS = 16;
    static constexpr size_t CHUNKS_OF_TASK = 4;

    // Writes the best rows of a query and their scores.
    static void write(const Wanted& wanted, size_t q, const std::vector<ScanHit>& hits,
                      int64_t* rows, float* scores) {
        for (size_t i = 0; i < wanted.k; i++) {
            rows[q * wanted.k + i] = i < hits.size() ? int64_t(hits[i].row) : -1;
            scores[q * wanted.k + i] = i < hits.size() ? hits[i].score : 0;
        }
    }

    const ScanKernels* kernels_ = &scan_kernels();
};

}  // namespace flowvec
