// An HNSW graph of vectors in 8 bits: hnswlib builds it, and this searches it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "errors.h"
#include "groups.h"
#include "hnswlib/hnswlib.h"
#include "mapped_room.h"
#include "nodes.h"
#include "threads.h"
#include "vectors.h"

namespace flowvec {

using Id = hnswlib::tableint;

// The rows that a search may return: their vectors, and their labels, which ascend.
struct Rows {
    const int64_t* labels;
    size_t count;
    Vectors vectors;

    // The place of a label, or `count`.
    size_t place(int64_t label) const {
        if (!count || label < labels[0] || label > labels[count - 1]) return count;
        // Labels ascend by 1 or more: without gaps, both bounds are the label's place.
        const uint64_t last = count - 1;
        const uint64_t above = uint64_t(label) - uint64_t(labels[0]);
        const uint64_t below = uint64_t(labels[last]) - uint64_t(label);
        const int64_t* begin = labels + (below < last ? last - below : 0);
        const int64_t* end = labels + std::min(above, last) + 1;
        const int64_t* found = std::lower_bound(begin, end, label);
        return found != end && *found == label ? size_t(found - labels) : count;
    }
};

class Graph : public hnswlib::HierarchicalNSW<float> {
  public:
    Graph(Nodes& nodes, size_t capacity, size_t m, size_t ef_construction, size_t seed)
        : HierarchicalNSW(&nodes, capacity, m, ef_construction, seed),
          nodes_(nodes),
          index_(nodes) {
        least_links_ = m / 4;  // more costs time, and changes ordinary rows
    }
    ~Graph() {
        if (mapped_.address()) data_level0_memory_ = nullptr;  // which would be freed
    }

    // Uses the nodes of a file, which begin at an offset, instead of memory of its own.
    bool map_nodes(int file, size_t offset, size_t count) {
        const size_t bytes = size_data_per_element_;
        if (!mapped_.open(file, offset + count * bytes, offset + max_elements_ * bytes))
            return false;
        std::free(data_level0_memory_);
        data_level0_memory_ = mapped_.address() + offset;
        mapped_nodes_ = count;
        return true;
    }

    size_t mapped_bytes() const { return mapped_nodes_ * size_data_per_element_; }
    // About the memory of what the file does not have: locks, places of labels, groups, cells.
    size_t other_bytes() const {
        return max_elements_ * (sizeof(std::mutex) + sizeof(char*) + sizeof(int)) +
               rows_ * kLabelBytes + groups_.size() * (kLabelBytes + sizeof(Group)) +
               index_.bytes();
    }

    void resize(size_t capacity) {
        if (mapped_.address()) {
            const size_t bytes = size_data_per_element_;
            auto* nodes = static_cast<char*>(std::malloc(capacity * bytes));
            if (!nodes) throw std::bad_alloc();
            std::memcpy(nodes, data_level0_memory_, cur_element_count * bytes);
            data_level0_memory_ = nodes;
            mapped_.close();
            mapped_nodes_ = 0;
        }
        resizeIndex(capacity);
    }

    size_t rows() const { return rows_; }
    size_t deleted_rows() const { return deleted_rows_; }
    Nodes& nodes() const { return nodes_; }
    const std::unordered_map<Id, Group>& groups() const { return groups_; }

    // Adds new vectors in several threads. After an exception the graph must not be used.
    void add(const float* vectors, const int64_t* labels, size_t count, size_t threads) {
        if (!cur_element_count && count) nodes_.set_centre(vectors, count);
        const size_t bytes = nodes_.bytes();
        std::unique_ptr<char[]> made(new char[count * bytes]);
        in_threads(count, threads, [&](size_t i) {
            nodes_.make(vectors + i * nodes_.dim(), made.get() + i * bytes);
        });
        std::vector<size_t> nodes;
        std::vector<std::pair<size_t, int64_t>> copies;  // a row, and the label of its node
        nodes.reserve(count);
        const auto node_of = [&](int64_t label) -> const char* {
            const auto found = label_lookup_.find(hnswlib::labeltype(label));
            // Hardly any link leads to a deleted node, so rows would not be found there.
            if (found != label_lookup_.end())
                return is_deleted(found->second) ? nullptr : getDataByInternalId(found->second);
            return made.get() +
                   bytes * size_t(std::lower_bound(labels, labels + count, label) - labels);
        };
        for (size_t i = 0; i < count; i++) {
            const char* node = made.get() + i * bytes;
            const auto place = index_.place(node);
            const int64_t twin = index_.find(place, node, node_of);
            if (twin >= 0) {
                copies.emplace_back(i, twin);
                continue;
            }
            index_.add(place, labels[i]);
            nodes.push_back(i);
        }
        auto add_node = [&](size_t i) {
            addPoint(made.get() + nodes[i] * bytes, hnswlib::labeltype(labels[nodes[i]]));
        };
        size_t first = 0;
        if (!cur_element_count && !nodes.empty()) add_node(first++);  // the others are linked to it
        in_threads(nodes.size() - first, threads, [&](size_t i) { add_node(first + i); });
        rows_ += nodes.size();
        for (const auto& [i, twin] : copies) {
            const Id id = label_lookup_.at(hnswlib::labeltype(twin));
            const char* node = made.get() + i * bytes;
            const double difference = index_.difference(node, getDataByInternalId(id));
            join(id, hash_of(node), difference, labels[i], false);
        }
    }

    // Adds a row to a node's group; `difference` is how far its vector is from the node's.
    void join(Id id, uint64_t hash, double difference, int64_t label, bool deleted) {
        const auto [place, is_new] = groups_.try_emplace(id);
        Group& group = place->second;
        if (is_new) {
            group.insert(hash_of(getDataByInternalId(id)), int64_t(getExternalLabel(id)),
                         is_deleted(id));
            if (!has_group(id)) group_mark(id) = 1;  // a mapped page that has it stays shared
        }
        group.insert(hash, label, deleted);
        group.radius = std::max(group.radius, float(difference));
        label_lookup_[hnswlib::labeltype(label)] = id;
        rows_ += 1;
        deleted_rows_ += deleted;
        if (!deleted && is_deleted(id)) {
            mark(id).store(0, std::memory_order_relaxed);
            num_deleted_ -= 1;
        }
    }

    // Counts a node that was read from a file, and its one row.
    void note_node(Id id) {
        rows_ += 1;
        num_deleted_ += is_deleted(id);
        deleted_rows_ += is_deleted(id);
        index_.add(index_.place(getDataByInternalId(id)), int64_t(getExternalLabel(id)));
    }

    // Changes the mark of a node that was read from a file, and has no group yet.
    void set_deleted(Id id, bool deleted) {
        if (is_deleted(id) == deleted) return;
        mark(id).store(deleted, std::memory_order_relaxed);
        num_deleted_ += deleted ? 1 : -1;
        deleted_rows_ += deleted ? 1 : -1;
    }

    // Deletion marks are set while other threads search and write the file. A node is deleted if all
    // of its rows are.
    bool is_deleted(Id id) const { return mark(id).load(std::memory_order_relaxed) & DELETE_MARK; }
    static bool is_deleted(const Copies& copies, size_t i) {
        return as_mark(copies.deleted[i]).load(std::memory_order_relaxed);
    }

    // Marks a row as deleted, and says whether it was not. One thread at a time may do that.
    bool remove(int64_t label) {
        const auto found = label_lookup_.find(hnswlib::labeltype(label));
        if (found == label_lookup_.end()) return false;
        const Id id = found->second;
        if (has_group(id)) {
            Group& group = groups_.at(id);
            if (as_mark(group.mark(label)).exchange(1, std::memory_order_relaxed)) return false;
            if (!--group.live) remove_node(id);
        } else {
            if (is_deleted(id)) return false;
            remove_node(id);
        }
        deleted_rows_ += 1;
        return true;
    }

    // The byte behind the mark of deletion: whether the node has a group.
    unsigned char& group_mark(Id id) const {
        return reinterpret_cast<unsigned char*>(get_linklist0(id))[3];
    }
    bool has_group(Id id) const { return group_mark(id); }

    // Calls use(label, deleted) for each row.
    template <typename Use>
    void each_row(const Use& use) const {
        for (Id id = 0; id < cur_element_count; id++) {
            if (!has_group(id)) {
                use(int64_t(getExternalLabel(id)), is_deleted(id));
                continue;
            }
            for (const auto& copies : groups_.at(id).copies())
                for (size_t i = 0; i < copies.labels.size(); i++)
                    use(copies.labels[i], is_deleted(copies, i));
        }
    }

    // Writes the k nearest of a query, best first, and their scores; where fewer are reached, the
    // label -1.
    void search(const float* query, size_t k, size_t ef, const Rows& rows, int64_t* labels,
                float* scores) const {
        std::vector<Near> nodes;
        if (cur_element_count) {
            std::unique_ptr<char[]> node(new char[nodes_.bytes()]);
            nodes_.make_query(query, node.get());
            // In 8 bits, some of the k nearest come a little later.
            nodes = walk(node.get(), std::max(k + k / 4 + 16, ef));
            keep_near(node.get(), k, nodes);
        }
        const ExactScorer scorer = {query, &rows.vectors, nodes_.dim(), nodes_.squared()};
        Best best(k);
        for (const Near& node : nodes) {
            const Id id = node.second;
            if (has_group(id)) {
                keep_group(groups_.at(id), rows, scorer, best);
                continue;
            }
            const auto label = int64_t(getExternalLabel(id));
            const size_t place = rows.place(label);
            if (place < rows.count) best.keep({scorer.score(place), size_t(label)});
        }
        std::sort_heap(best.rows.begin(), best.rows.end());
        for (size_t i = 0; i < k; i++) {
            const bool is_row = i < best.rows.size();
            labels[i] = is_row ? int64_t(best.rows[i].row) : -1;
            scores[i] = is_row ? best.rows[i].score : -std::numeric_limits<float>::infinity();
        }
    }

  private:
    using Near = std::pair<float, Id>;  // distance in 8 bits
    using Mark = std::atomic<unsigned char>;
    static_assert(sizeof(Mark) == 1, "a mark is one byte of the node's memory");

    // The byte behind the count of links.
    Mark& mark(Id id) const { return reinterpret_cast<Mark*>(get_linklist0(id))[2]; }
    static Mark& as_mark(const unsigned char& byte) {
        return reinterpret_cast<Mark&>(const_cast<unsigned char&>(byte));
    }

    void remove_node(Id id) {
        mark(id).fetch_or(DELETE_MARK, std::memory_order_relaxed);
        num_deleted_ += 1;
    }

    // The k nearest rows of a search, as a heap: the farthest comes first.
    struct Best {
        size_t k;
        std::vector<ScanHit> rows;  // with labels
        explicit Best(size_t k) : k(k) {}
        // Keeps a row if it is one of the k nearest so far.
        bool keep(const ScanHit& row) {
            if (rows.size() == k) {
                if (!(row < rows.front())) return false;
                std::pop_heap(rows.begin(), rows.end());
                rows.pop_back();
            }
            rows.push_back(row);
            std::push_heap(rows.begin(), rows.end());
            return true;
        }
    };

    // Keeps the nearest rows of a node that has several.
    void keep_group(const Group& group, const Rows& rows, const ExactScorer& scorer,
                    Best& best) const {
        for (const auto& copies : group.copies()) {
            bool is_scored = false;
            float score = 0;  // of all of them
            for (size_t i = 0; i < copies.labels.size(); i++) {
                if (is_deleted(copies, i)) continue;
                const size_t place = rows.place(copies.labels[i]);
                if (place == rows.count) continue;
                if (!is_scored) score = scorer.score(place);
                is_scored = true;
                if (!best.keep({score, size_t(copies.labels[i])})) break;
            }
        }
    }

    // Leaves the nodes that may hold one of the k nearest rows, nearest first.
    void keep_near(const char* query, size_t k, std::vector<Near>& nodes) const {
        std::sort(nodes.begin(), nodes.end());
        if (nodes.size() <= k) return;
        // The k nearest rows are at most as far away as all rows of k nodes.
        std::vector<Near> farthest;
        for (const Near& node : nodes) farthest.emplace_back(moved(node, 1), node.second);
        std::nth_element(farthest.begin(), farthest.begin() + std::ptrdiff_t(k - 1), farthest.end());
        const Near last = farthest[k - 1];
        const double square = square_of(query);
        const float own = deviation(query, square, last.second);
        size_t kept = 0;
        for (const Near& node : nodes) {
            const float beyond = moved(node, -1) - last.first;
            if (beyond <= 0 ||
                beyond <= kReach * std::max(own, deviation(query, square, node.second)))
                nodes[kept++] = node;
        }
        nodes.resize(kept);
    }

    // The distance of a node's nearest row, or of its farthest one, for a sign of -1 or 1.
    float moved(const Near& node, float sign) const {
        const auto group = has_group(node.second) ? groups_.find(node.second) : groups_.end();
        if (group == groups_.end()) return node.first;
        const float radius = sign * group->second.radius;
        if (!nodes_.squared()) return node.first + radius;
        const float length = std::sqrt(std::max(0.0f, node.first)) + radius / std::sqrt(2.0f);
        return length > 0 ? length * length : 0;
    }

    // How far a distance may be wrong: its standard deviation if a query and a vector are at right
    // angles, and otherwise less. Rounding moves each number by a uniform error below half a step.
    float deviation(const char* query, double square, Id id) const {
        const char* node = getDataByInternalId(id);
        const double a = head_of(query).scale, b = head_of(node).scale;
        return float(std::sqrt((square * b * b + square_of(node) * a * a) / 12));
    }
    // The square of a vector's length.
    double square_of(const char* node) const {
        const double step = head_of(node).scale;
        return step * step * nodes_.product(numbers_of(node), numbers_of(node));
    }

    static constexpr float kReach = 5;  // deviations

    Nodes& nodes_;
    // Of an item of std::unordered_map, with its pointers and its share of the table.
    static constexpr size_t kLabelBytes = 40;

    MappedRoom mapped_;
    size_t mapped_nodes_ = 0;
    NearlyEqual index_;
    std::unordered_map<Id, Group> groups_;
    size_t rows_ = 0;
    std::atomic<size_t> deleted_rows_{0};

    // A list of the nodes that a walk has visited, from hnswlib's pool.
    struct Visited {
        hnswlib::VisitedListPool& pool;
        hnswlib::VisitedList* list;
        explicit Visited(hnswlib::VisitedListPool& pool)
            : pool(pool), list(pool.getFreeVisitedList()) {}
        ~Visited() { pool.releaseVisitedList(list); }
        Visited(const Visited&) = delete;
        bool add(Id id) {
            if (list->mass[id] == list->curV) return false;
            list->mass[id] = list->curV;
            return true;
        }
    };

    float distance(const char* query, Id id) const {
        return fstdistfunc_(query, getDataByInternalId(id), dist_func_param_);
    }

    static void prefetch(const void* address) {
#if defined(__GNUC__)
        __builtin_prefetch(address);
#elif defined(USE_SSE)
        _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0);
#else
        (void)address;
#endif
    }

    // The node of the upper levels that is nearest to a query, by greedy steps.
    Near descend(const char* query) const {
        Near best{distance(query, enterpoint_node_), enterpoint_node_};
        for (int level = maxlevel_; level > 0; level--) {
            for (bool moved = true; moved;) {
                moved = false;
                auto* links = get_linklist(best.second, level);
                const size_t count = getListCount(links);
                for (size_t i = 1; i <= count; i++) {
                    const float d = distance(query, links[i]);
                    if (d < best.first) {
                        best = {d, links[i]};
                        moved = true;
                    }
                }
            }
        }
        return best;
    }

    // The ef nearest nodes that are not deleted, in no order: Malkov and Yashunin, 2018, algorithm 2.
    // As hnswlib does, it passes through deleted nodes, but does not count them.
    std::vector<Near> walk(const char* query, size_t ef) const {
        const bool any = !num_deleted_;
        auto may_return = [&](Id id) { return any || !is_deleted(id); };
        const auto nearer = [](const Near& a, const Near& b) { return a.first < b.first; };
        const auto farther = [](const Near& a, const Near& b) { return a.first > b.first; };
        const Near start = descend(query);
        Visited visited(*visited_list_pool_);
        std::vector<Near> nearest, open;  // heaps: the farthest and the nearest come first
        nearest.reserve(std::min(ef, size_t(cur_element_count)) + 1);
        open.reserve(4 * std::min(ef, size_t(cur_element_count)) + maxM0_);
        std::vector<Id> fresh(maxM0_);
        float bound = std::numeric_limits<float>::max();
        open.push_back(start);
        visited.add(start.second);
        if (may_return(start.second)) {
            nearest.push_back(start);
            bound = start.first;
        }
        while (!open.empty()) {
            const Near here = open.front();
            if (here.first > bound && nearest.size() == ef) break;
            std::pop_heap(open.begin(), open.end(), farther);
            open.pop_back();
            const auto* links = get_linklist0(here.second);
            // A file's pages may be read again from a disk that fails: never leave the nodes.
            const size_t count = std::min<size_t>(getListCount(get_linklist0(here.second)), maxM0_);
            size_t news = 0;
            for (size_t i = 1; i <= count; i++) {
                if (links[i] >= cur_element_count || !visited.add(links[i])) continue;
                fresh[news++] = links[i];
                prefetchData(links[i]);
            }
            for (size_t i = 0; i < news; i++) {
                const Id id = fresh[i];
                const float d = distance(query, id);
                if (nearest.size() >= ef && d >= bound) continue;
                open.emplace_back(d, id);
                std::push_heap(open.begin(), open.end(), farther);
                if (!may_return(id)) continue;
                nearest.emplace_back(d, id);
                std::push_heap(nearest.begin(), nearest.end(), nearer);
                if (nearest.size() > ef) {
                    std::pop_heap(nearest.begin(), nearest.end(), nearer);
                    nearest.pop_back();
                }
                bound = nearest.front().first;
            }
            if (!open.empty()) prefetch(get_linklist0(open.front().second));
        }
        return nearest;
    }
};

}  // namespace flowvec
