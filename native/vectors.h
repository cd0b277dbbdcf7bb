// Where the vectors of rows are, and their exact scores.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "distances.h"

namespace flowvec {

// The first rows are in blocks of a file, the others in memory.
struct Vectors {
    const char* blocks;
    size_t in_blocks;  // how many rows
    size_t block_rows, block_bytes;
    const float* others;
    std::atomic<uint8_t>* used;  // is marked for each block that scores are computed from; or null

    const float* row(size_t i, size_t dim) const {
        if (i >= in_blocks) return others + (i - in_blocks) * dim;
        const char* block = blocks + i / block_rows * block_bytes;
        return reinterpret_cast<const float*>(block) + i % block_rows * dim;
    }
    void note(size_t i) const {
        if (used && i < in_blocks) used[i / block_rows].store(1, std::memory_order_relaxed);
    }
};

struct ScanHit {
    float score;
    size_t row;
    // Of equal scores, the row that comes first is better.
    bool operator<(const ScanHit& other) const {
        return score != other.score ? score > other.score : row < other.row;
    }
};

// The scores of rows for a query: dot products, or negative distances.
struct ExactScorer {
    const float* query;
    const Vectors* vectors;
    size_t dim;
    bool squared;
    const Kernels* best = &kernels();

    float score(size_t row) const {
        const float* vector = vectors->row(row, dim);
        vectors->note(row);
        return squared ? -std::sqrt(best->squared(query, vector, &dim))
                       : best->dot(query, vector, dim);
    }
    void prefetch(size_t row) const {
#if defined(__GNUC__)
        const float* vector = vectors->row(row, dim);
        for (size_t at = 0; at < dim; at += 16) __builtin_prefetch(vector + at);
#else
        (void)row;
#endif
    }
};

}  // namespace flowvec
