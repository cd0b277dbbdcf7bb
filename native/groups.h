// Rows with equal or nearly equal vectors share a node of a graph, and here is how they are found.
//
// Nodes that are nearly in one place would link to each other alone: those nearest to a node are
// then copies of it, and no link is left that leads away. So a search that comes there ends there,
// and rows that were reached through it are lost. See bench/NOTES.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace flowvec {

// Vectors share a node if their distance is at most this share of their length, or of the usual
// length. It is far above what rounding makes of one text (1e-7 in each number), and far below what
// two texts differ in.
constexpr double kNearlyEqual = 2e-5;

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
// Nodes are in the order of their vectors' projection on a random direction. Nearly equal vectors
// are beside each other there, and a second projection tells most others from them.
class NearlyEqual {
  public:
    explicit NearlyEqual(size_t dim) : dim_(dim), along_(dim), across_(dim) {
        std::mt19937 random(1);
        std::normal_distribution<double> normal;
        for (auto* direction : {&along_, &across_})
            for (auto& number : *direction) number = normal(random) / std::sqrt(double(dim));
    }

    struct Place {
        float along, across;
        double length;
    };

    Place place(const float* vector) const {
        double along[4] = {}, across[4] = {}, squares[4] = {};
        size_t i = 0;
        const auto add = [&](size_t j) {
            const double number = vector[i + j];
            along[j] += number * along_[i + j];
            across[j] += number * across_[i + j];
            squares[j] += number * number;
        };
        for (; i + 4 <= dim_; i += 4)
            for (size_t j = 0; j < 4; j++) add(j);
        for (; i < dim_; i++) add(0);
        const auto sum = [](const double* s) { return (s[0] + s[1]) + (s[2] + s[3]); };
        return {float(sum(along)), float(sum(across)), std::sqrt(sum(squares))};
    }

    void add(const Place& place, int64_t label) {
        nodes_.emplace(place.along, Node{place.across, label});
        lengths_ += place.length;
    }

    // Label of a node whose vector is nearly equal, or -1. `vector_of` returns a label's vector.
    template <typename VectorOf>
    int64_t find(const Place& place, const float* vector, const VectorOf& vector_of) const {
        const double usual = nodes_.empty() ? 0.0 : lengths_ / double(nodes_.size());
        const double most = kNearlyEqual * std::max(place.length, usual);
        // A difference's projection on a random direction is longer once in 10,000 times.
        const double window = 4 * most / std::sqrt(double(dim_)) + 2e-7 * std::fabs(place.along);
        const auto matches = [&](const Node& node) {
            return std::fabs(double(node.across) - place.across) <= window &&
                   squared_difference(vector, vector_of(node.label), dim_) <= most * most;
        };
        auto above = nodes_.lower_bound(place.along), below = above;
        for (size_t tries = 0; tries < kMostTries; tries++) {
            const bool goes_up = above != nodes_.end() && above->first - place.along <= window;
            const bool goes_down =
                below != nodes_.begin() && place.along - std::prev(below)->first <= window;
            if (goes_up) {
                if (matches(above->second)) return above->second.label;
                ++above;
            }
            if (goes_down) {
                --below;
                if (matches(below->second)) return below->second.label;
            }
            if (!goes_up && !goes_down) break;
        }
        return -1;
    }

  private:
    static constexpr size_t kMostTries = 512;
    struct Node {
        float across;
        int64_t label;
    };

    size_t dim_;
    std::vector<double> along_, across_;
    std::multimap<float, Node> nodes_;
    double lengths_ = 0;
};

}  // namespace flowvec
