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
#include <unordered_map>
#include <vector>

#include "nodes.h"

namespace flowvec {

// Vectors share a node if the distance of their numbers in the graph is at most this share of their
// length, or of the usual length, or if at most three numbers differ by one step. Rounding to 8 bits
// moves a vector by .007 of its length, so a graph does not tell the distances of such vectors apart.
constexpr double kNearlyEqual = .014;
constexpr double kStepsApart = 3;

constexpr size_t kProjections = 5;

// The rows of one vector: labels, ascending, and their marks of deletion.
struct Copies {
    uint64_t hash;  // of the vector
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
    size_t live = 0;  // rows that are not deleted
    float radius = 0;  // the largest difference of a vector from the node's: see NearlyEqual

    // The rows of each vector.
    std::vector<Copies>& copies() { return copies_; }
    const std::vector<Copies>& copies() const { return copies_; }

    void insert(uint64_t hash, int64_t label, bool is_deleted) {
        const auto [place, is_new] = places_.emplace(hash, uint32_t(copies_.size()));
        if (is_new) copies_.push_back({hash, {}, {}});
        copies_[place->second].insert(label, is_deleted);
        place_of_label_[label] = place->second;
        live += !is_deleted;
    }

    // The mark of deletion of a row.
    unsigned char& mark(int64_t label) {
        Copies& rows = copies_[place_of_label_.at(label)];
        return rows.deleted[size_t(std::lower_bound(rows.labels.begin(), rows.labels.end(), label) -
                                   rows.labels.begin())];
    }

  private:
    std::vector<Copies> copies_;
    std::unordered_map<uint64_t, uint32_t> places_;         // by hash
    std::unordered_map<int64_t, uint32_t> place_of_label_;
};

// Labels by hash, several of one hash too, in a third of the memory of std::unordered_multimap.
class LabelTable {
  public:
    // Labels of one hash that are kept, the first ones.
    static constexpr size_t kMostOfHash = 64;

    void add(uint64_t hash, int64_t label) {
        if (3 * (count_ + 1) > 2 * slots_.size()) grow();
        count_ += put({hash, label});
    }

    // Calls use(label) for each label of a hash, until it returns true; whether it did.
    template <typename Use>
    bool any(uint64_t hash, const Use& use) const {
        if (slots_.empty()) return false;
        for (size_t i = first(hash); slots_[i].label >= 0; i = (i + 1) % slots_.size())
            if (slots_[i].hash == hash && use(slots_[i].label)) return true;
        return false;
    }

    size_t bytes() const { return slots_.size() * sizeof(Slot); }

  private:
    struct Slot {
        uint64_t hash;
        int64_t label;  // -1 if it is free
    };

    size_t first(uint64_t hash) const { return size_t((hash ^ hash >> 32) % slots_.size()); }

    bool put(const Slot& one) {
        size_t equal = 0, i = first(one.hash);
        for (; slots_[i].label >= 0; i = (i + 1) % slots_.size())
            if (slots_[i].hash == one.hash && ++equal == kMostOfHash) return false;
        slots_[i] = one;
        return true;
    }

    void grow() {
        std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size(), Slot{0, -1});
        std::swap(old, slots_);
        for (const Slot& one : old)
            if (one.label >= 0) put(one);
    }

    std::vector<Slot> slots_;
    size_t count_ = 0;
};

// Finds the node that is nearly equal to another one.
//
// Nodes are in the cells of a grid over some random projections, so that a cell has hardly any other
// nodes than those that are sought (locality-sensitive hashing, Datar et al., 2004). Lengths and
// differences are in units of the nodes' numbers and scales.
class NearlyEqual {
  public:
    explicit NearlyEqual(const Nodes& nodes)
        : nodes_(nodes),
          // Half of a cell, as a share of a length: a difference's projection is longer once in
          // 10,000 times. A step is about 4 / 127 of a number of the usual size.
          window_(4 * std::sqrt(kNearlyEqual * kNearlyEqual +
                                kStepsApart * (4.0 / 127) * (4.0 / 127) / double(nodes.dim()))) {
        std::mt19937 random(1);
        std::normal_distribution<double> normal;
        for (auto& direction : directions_) {
            direction.resize(nodes.numbers());
            for (auto& number : direction)
                number = int8_t(std::max(-127.0, std::min(32 * normal(random), 127.0)));
        }
    }

    struct Place {
        double at[kProjections], length, step;
    };

    Place place(const char* node) const {
        Place place{};
        const int8_t* numbers = numbers_of(node);
        place.step = head_of(node).scale;
        for (size_t p = 0; p < kProjections; p++)
            place.at[p] = place.step / 32 * nodes_.product(directions_[p].data(), numbers);
        place.length = place.step * std::sqrt(nodes_.product(numbers, numbers));
        return place;
    }

    size_t bytes() const { return labels_.bytes(); }

    // How far the vectors of two nodes are apart.
    double difference(const char* node, const char* other) const {
        return std::sqrt(std::max(0.0, squared_difference(node, place(node), other)));
    }

    // The usual length may be another one when equal nodes come. So a node is in the cells of its own
    // length, too, if they are others.
    void add(const Place& place, int64_t label) {
        const double longer = std::max(place.length, usual_);
        add(place, longer, label);
        if (scale_of(longer) != scale_of(place.length)) add(place, place.length, label);
        note(place.length);
    }

    // Label of a node that is nearly equal, or -1. `node_of` returns a label's node, or null for one
    // that is deleted.
    template <typename NodeOf>
    int64_t find(const Place& place, const char* node, const NodeOf& node_of) const {
        const double longer = std::max(place.length, usual_);
        const double most = kNearlyEqual * kNearlyEqual * longer * longer +
                            kStepsApart * place.step * place.step;
        const auto is_near = [&](int64_t label) {
            const char* other = node_of(label);
            return other && squared_difference(node, place, other) <= most;
        };
        const int64_t found = find(place, longer, is_near);
        const bool has_others = scale_of(longer) != scale_of(place.length);
        return found < 0 && has_others ? find(place, place.length, is_near) : found;
    }

  private:
    void add(const Place& place, double length, int64_t label) {
        const double scale = scale_of(length);
        uint64_t hash = hash_of(scale);
        for (const double at : place.at) hash = mixed(hash, cell(at, scale));
        labels_.add(hash, label);
    }

    template <typename IsNear>
    int64_t find(const Place& place, double length, const IsNear& is_near) const {
        const double scales[2] = {scale_of(length * (1 - kNearlyEqual)),
                                  scale_of(length * (1 + kNearlyEqual))};
        for (int s = 0; s < (scales[0] == scales[1] ? 1 : 2); s++) {
            const double reach = window_ * scales[s];
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
                int64_t found = -1;
                const auto take = [&](int64_t label) {
                    found = label;
                    return is_near(label);
                };
                if (labels_.any(hash, take)) return found;
            }
        }
        return -1;
    }

    double squared_difference(const char* node, const Place& place, const char* other) const {
        const double step = head_of(other).scale;
        const double squares = step * step * nodes_.product(numbers_of(other), numbers_of(other));
        return place.length * place.length + squares -
               2 * place.step * step * nodes_.product(numbers_of(node), numbers_of(other));
    }

    // Keeps some lengths. Their median is the usual one: a few very long or short vectors do not
    // change it.
    void note(double length) {
        if (sample_.size() < kSample) sample_.push_back(length);
        else sample_[count_ % kSample] = length;
        if (++count_ < renewed_ + renewed_ / 8) return;
        renewed_ = count_;
        std::vector<double> lengths = sample_;
        const auto middle = lengths.begin() + std::ptrdiff_t(lengths.size() / 2);
        std::nth_element(lengths.begin(), middle, lengths.end());
        usual_ = *middle;
    }

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

    const Nodes& nodes_;
    double window_;
    std::vector<int8_t> directions_[kProjections];
    LabelTable labels_;  // of nodes, by the hash of their cell
    static constexpr size_t kSample = 256;
    std::vector<double> sample_;
    double usual_ = 0;
    size_t count_ = 0, renewed_ = 0;
};

}  // namespace flowvec
