// Exact search of an inverted file: the rows with the largest dot product with a sparse query.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace flowvec {

// The lists of a query's terms. List t has the rows `rows[starts[t]] ... rows[ends[t] - 1]`, which
// ascend, and their weights; the query's own weight is `factors[t]`.
struct PostingLists {
    const int32_t* rows;
    const float* weights;
    const int64_t* starts;
    const int64_t* ends;
    const float* factors;
    size_t count;
};

struct ScoredRow {
    double score;
    int32_t row;
    // Of equal scores, the row that comes first is better.
    bool operator<(const ScoredRow& other) const {
        return score != other.score ? score > other.score : row < other.row;
    }
};

// The scores of so many rows stay in the cache while all lists are added up.
constexpr size_t ROWS_AT_A_TIME = size_t(1) << 13;

// The k best of `count` rows, best first, whose score is above zero and which `allowed` marks (null
// allows all). Scores are sums in double precision, in the order of the lists.
inline std::vector<ScoredRow> best_rows(const PostingLists& lists, size_t count,
                                        const uint8_t* allowed, size_t k) {
    std::vector<ScoredRow> best;  // a heap whose first is the worst
    if (k == 0) return best;
    std::vector<int64_t> next(lists.starts, lists.starts + lists.count);
    std::vector<double> scores(std::min(count, ROWS_AT_A_TIME));
    double least = 0.0;
    for (size_t first = 0; first < count; first += ROWS_AT_A_TIME) {
        const size_t last = std::min(count, first + ROWS_AT_A_TIME);
        std::fill(scores.begin(), scores.end(), 0.0);
        for (size_t t = 0; t < lists.count; t++) {
            const double factor = lists.factors[t];
            const int32_t* rows = lists.rows + next[t];
            const float* weights = lists.weights + next[t];
            // A list has a row once, so no more of it than there are rows lie in this block.
            const auto left = std::min(lists.ends[t] - next[t], int64_t(last - first));
            const auto here = std::lower_bound(rows, rows + left, int64_t(last)) - rows;
            for (int64_t i = 0; i < here; i++)
                scores[size_t(rows[i]) - first] += factor * double(weights[i]);
            next[t] += here;
        }
        for (size_t i = 0; i < last - first; i++) {
            if (!(scores[i] > least) || (allowed && !allowed[first + i])) continue;
            if (best.size() == k) {
                std::pop_heap(best.begin(), best.end());
                best.pop_back();
            }
            best.push_back({scores[i], int32_t(first + i)});
            std::push_heap(best.begin(), best.end());
            if (best.size() == k) least = best.front().score;
        }
    }
    std::sort_heap(best.begin(), best.end());
    return best;
}

}  // namespace flowvec
