// Rows with equal or nearly equal vectors share a node of a graph, and here is how they are found.
//
// Nodes that are nearly in one place would link to each other alone: those nearest to a node are
// then copies of it, and no link is left that leads away. So a search that comes there ends there,
// and rows that were reached through it are lost. See bench/log/2026-11-28.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace flowvec {

// Vectors share a node if their distance is at most this share of their length, or of the usual
// length. It is above what rounding makes of one text (1e-7 in each number), and far below what two
// texts differ in. Inner products in float32 do not tell such vectors apart from a query near them.
constexpr double kNearlyEqualSquared = 2e-5, kNearlyEqualProducts = 5e-4;

constexpr size_t kProjections = 3;

inline double squared_difference(const float* a, const float* b, size_t dim) {
    double sums[4] = {};
    size_t i = 0;
    const auto add = [&](size_t j) {
        const double difference = double(a[i + j]) - double(b[i + j]);
        sums[j] += difference * difference;
    };
    for (; i + 4 <= dim; i += 4)
        for (size_t j = 0; j < 4; j++) add(j);
    for (; i < dim; i++) add(0);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The rows of one vector: labels, ascending, and their marks of deletion.
struct Copies {
    std::vector<int64_t> labels;
    std::vector<unsigned char> deleted;

    void insert(int64_t label, bool is_deleted) {
        const auto place = std::lower_bound(labels.begin(), labels.end(), label) - labels.begin();
        labels.insert(labels.begin() + place, label);
        deleted.insert(deleted.begin() + place, is_deleted);
    }
};

// The rows of a node that has several.
class Group {
  public:
    size_t live = 0;    // rows that are not deleted
    double radius = 0;  // the largest distance of a vector from the node's

    // `copies()[0]` has the node's own vector, and `copies()[i]` has `vector(i, dim)`.
    std::vector<Copies>& copies() { return copies_; }
    const std::vector<Copies>& copies() const { return copies_; }
    const float* vector(size_t i, size_t dim) const { return &vectors_[(i - 1) * dim]; }

    void insert(const float* vector, const float* node, size_t dim, int64_t label, bool is_deleted) {
        const size_t i = place(vector, node, dim);
        copies_[i].insert(label, is_deleted);
        if (i) place_of_label_[label] = uint32_t(i);
        live += !is_deleted;
    }

    // The mark of deletion of a row.
    unsigned char& mark(int64_t label) {
        const auto found = place_of_label_.find(label);
        Copies& rows = copies_[found == place_of_label_.end() ? 0 : found->second];
        return rows.deleted[size_t(std::lower_bound(rows.labels.begin(), rows.labels.end(), label) -
                                   rows.labels.begin())];
    }

  private:
    // Which of the vectors this is; a new one is added.
    size_t place(const float* vector, const float* node, size_t dim) {
        const size_t bytes = dim * sizeof(float);
        if (!std::memcmp(vector, node, bytes)) return 0;
        const size_t hash =
            std::hash<std::string_view>()({reinterpret_cast<const char*>(vector), bytes});
        const auto range = places_.equal_range(hash);
        for (auto found = range.first; found != range.second; ++found)
            if (!std::memcmp(vector, this->vector(found->second, dim), bytes)) return found->second;
        places_.emplace(hash, uint32_t(copies_.size()));
        copies_.emplace_back();
        vectors_.insert(vectors_.end(), vector, vector + dim);
        radius = std::max(radius, std::sqrt(squared_difference(vector, node, dim)));
        return copies_.size() - 1;
    }

    std::vector<Copies> copies_{1};
    std::vector<float> vectors_;
    std::unordered_multimap<size_t, uint32_t> places_;     // by hash
    std::unordered_map<int64_t, uint32_t> place_of_label_;  // of all but the node's own vector
};

// Finds the node whose vector is nearly equal to another one, under any metric.
//
// Nodes are in the cells of a grid over three random projections, so that a cell has hardly any other
// nodes than those that are sought (locality-sensitive hashing, Datar et al., 2004).
class NearlyEqual {
  public:
    // `share`: the largest difference, as a share of a vector's length or of the usual length.
    NearlyEqual(size_t dim, double share)
        : dim_(dim), share_(share), window_(4 * share / std::sqrt(double(dim))) {
        std::mt19937 random(1);
        std::normal_distribution<double> normal;
        for (auto& direction : directions_) {
            direction.resize(dim);
            for (auto& number : direction) number = normal(random) / std::sqrt(double(dim));
        }
    }

    struct Place {
        double at[kProjections], length;
    };

    Place place(const float* vector) const {
        Place place{};
        for (size_t p = 0; p < kProjections; p++)
            place.at[p] = sum([&](size_t i) { return directions_[p][i] * double(vector[i]); });
        place.length =
            std::sqrt(sum([&](size_t i) { return double(vector[i]) * double(vector[i]); }));
        return place;
    }

    void add(const Place& place, int64_t label) {
        const double scale = scale_of(std::max(place.length, usual()));
        uint64_t hash = hash_of(scale);
        for (const double at : place.at) hash = mixed(hash, cell(at, scale));
        nodes_.emplace(hash, label);
        lengths_ += place.length;
    }

    // Label of a node whose vector is nearly equal, or -1. `vector_of` returns a label's vector.
    template <typename VectorOf>
    int64_t find(const Place& place, const float* vector, const VectorOf& vector_of) const {
        const double longer = std::max(place.length, usual());
        const double most = share_ * longer;
        const double scales[2] = {scale_of(longer * (1 - share_)), scale_of(longer * (1 + share_))};
        for (int s = 0; s < (scales[0] == scales[1] ? 1 : 2); s++) {
            const double reach = window_ * scales[s];
            // A difference's projection is longer than that once in 10,000 times.
            int64_t low[kProjections], high[kProjections];
            for (size_t p = 0; p < kProjections; p++) {
                low[p] = cell(place.at[p] - reach, scales[s]);
                high[p] = cell(place.at[p] + reach, scales[s]);
            }
            for (unsigned corner = 0; corner < 1u << kProjections; corner++) {
                uint64_t hash = hash_of(scales[s]);
                bool is_new = true;
                for (size_t p = 0; p < kProjections; p++) {
                    const bool is_high = corner >> p & 1;
                    is_new &= !is_high || high[p] != low[p];
                    hash = mixed(hash, is_high ? high[p] : low[p]);
                }
                if (!is_new) continue;
                const auto range = nodes_.equal_range(hash);
                size_t tries = 0;
                for (auto node = range.first; node != range.second; ++node) {
                    if (++tries > kMostTries) break;
                    if (squared_difference(vector, vector_of(node->second), dim_) <= most * most)
                        return node->second;
                }
            }
        }
        return -1;
    }

  private:
    static constexpr size_t kMostTries = 64;

    // Adds in four sums, for which an addition need not wait for the one before it.
    template <typename Term>
    double sum(const Term& term) const {
        double sums[4] = {};
        size_t i = 0;
        for (; i + 4 <= dim_; i += 4)
            for (size_t j = 0; j < 4; j++) sums[j] += term(i + j);
        for (; i < dim_; i++) sums[0] += term(i);
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }

    double usual() const { return nodes_.empty() ? 0.0 : lengths_ / double(nodes_.size()); }
    // A power of two above a length, by which cells are measured; 1 for 0.
    static double scale_of(double length) { return length > 0 ? std::exp2(std::ilogb(length) + 1) : 1; }
    int64_t cell(double at, double scale) const {
        return int64_t(std::floor(at / (2 * window_ * scale)));
    }
    static uint64_t hash_of(double scale) { return uint64_t(int64_t(std::ilogb(scale))); }
    static uint64_t mixed(uint64_t hash, int64_t number) {
        hash = (hash ^ uint64_t(number)) * 0x9E3779B97F4A7C15u;
        return hash ^ hash >> 29;
    }

    size_t dim_;
    double share_, window_;
    std::vector<double> directions_[kProjections];
    std::unordered_multimap<uint64_t, int64_t> nodes_;  // labels by the hash of their cell
    double lengths_ = 0;
};

}  // namespace flowvec
