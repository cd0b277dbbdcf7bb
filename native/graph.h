// An HNSW graph: hnswlib builds it, and this searches it.
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

#include "distances.h"
#include "errors.h"
#include "groups.h"
#include "hnswlib/hnswlib.h"
#include "threads.h"

namespace flowvec {

using Id = hnswlib::tableint;

class Space : public hnswlib::SpaceInterface<float> {
  public:
    Space(size_t dim, bool squared)
        : dim_(dim),
          squared_(squared),
          distance_(squared ? kernels().squared : kernels().inner_product) {}
    size_t get_data_size() override { return dim_ * sizeof(float); }
    Distance get_dist_func() override { return distance_; }
    void* get_dist_func_param() override { return &dim_; }
    size_t dim() const { return dim_; }
    bool squared() const { return squared_; }

  private:
    size_t dim_;
    bool squared_;
    Distance distance_;
};

// Which labels a search may return: those whose place in an ascending list is marked.
struct Eligible {
    const int64_t* labels;
    const uint8_t* marks;
    size_t count;

    bool operator()(int64_t label) const {
        if (!count || label < labels[0] || label > labels[count - 1]) return false;
        // Labels ascend by 1 or more: without gaps, both bounds are the label's place.
        const uint64_t last = count - 1;
        const uint64_t above = uint64_t(label) - uint64_t(labels[0]);
        const uint64_t below = uint64_t(labels[last]) - uint64_t(label);
        const int64_t* begin = labels + (below < last ? last - below : 0);
        const int64_t* end = labels + std::min(above, last) + 1;
        const int64_t* place = std::lower_bound(begin, end, label);
        return place != end && *place == label && marks[place - labels];
    }
};

class Graph : public hnswlib::HierarchicalNSW<float> {
  public:
    // `grouped`: rows with nearly equal vectors share a node. Otherwise it is hnswlib's graph.
    Graph(Space& space, size_t capacity, size_t m, size_t ef_construction, size_t seed,
          bool grouped)
        : HierarchicalNSW(&space, capacity, m, ef_construction, seed),
          dim_(space.dim()),
          squared_(space.squared()),
          grouped_(grouped),
          index_(space.dim(), squared_ ? kNearlyEqualSquared : kNearlyEqualProducts) {
        if (grouped) least_links_ = m / 4;  // more costs time, and changes ordinary rows
    }

    bool grouped() const { return grouped_; }
    size_t rows() const { return rows_; }
    size_t deleted_rows() const { return deleted_rows_; }
    size_t dim() const { return dim_; }
    const std::unordered_map<Id, Group>& groups() const { return groups_; }
    const float* vector(Id id) const {
        return reinterpret_cast<const float*>(getDataByInternalId(id));
    }

    // Adds new vectors in several threads. After an exception the graph must not be used.
    void add(const float* vectors, const int64_t* labels, size_t count, size_t threads) {
        std::vector<size_t> nodes;
        std::vector<std::pair<size_t, int64_t>> copies;  // a row, and the label of its node
        nodes.reserve(count);
        const auto vector_of = [&](int64_t label) {
            const auto found = label_lookup_.find(hnswlib::labeltype(label));
            if (found != label_lookup_.end()) return vector(found->second);
            return vectors + dim_ * size_t(std::lower_bound(labels, labels + count, label) - labels);
        };
        for (size_t i = 0; i < count; i++) {
            if (grouped_) {
                const float* row = vectors + i * dim_;
                const auto place = index_.place(row);
                const int64_t twin = index_.find(place, row, vector_of);
                if (twin >= 0) {
                    copies.emplace_back(i, twin);
                    continue;
                }
                index_.add(place, labels[i]);
            }
            nodes.push_back(i);
        }
        auto add_node = [&](size_t i) {
            addPoint(vectors + nodes[i] * dim_, hnswlib::labeltype(labels[nodes[i]]));
        };
        size_t first = 0;
        if (!cur_element_count && !nodes.empty()) add_node(first++);  // the others are linked to it
        in_threads(nodes.size() - first, threads, [&](size_t i) { add_node(first + i); });
        rows_ += nodes.size();
        for (const auto& [i, twin] : copies)
            join(label_lookup_.at(hnswlib::labeltype(twin)), vectors + i * dim_, labels[i], false);
    }

    // Adds a row to the group of a node.
    void join(Id id, const float* row, int64_t label, bool deleted) {
        Group& group = groups_[id];
        if (!has_group(id)) {
            group.insert(vector(id), vector(id), dim_, int64_t(getExternalLabel(id)),
                         is_deleted(id));
            group_mark(id) = 1;
        }
        group.insert(row, vector(id), dim_, label, deleted);
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
        const auto label = int64_t(getExternalLabel(id));
        group_mark(id) = 0;
        rows_ += 1;
        num_deleted_ += is_deleted(id);
        deleted_rows_ += is_deleted(id);
        if (grouped_) index_.add(index_.place(vector(id)), label);
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

    // Writes the k nearest of a query, nearest first; where fewer are reached, label -1.
    void search(const float* query, size_t k, size_t ef, const Eligible* eligible, int64_t* labels,
                float* distances) const {
        std::vector<Near> nodes;
        if (cur_element_count) nodes = walk(query, std::max(k, ef), eligible);
        const auto groups = std::partition(nodes.begin(), nodes.end(), [&](const Near& node) {
            return !has_group(Id(node.second));
        });
        Best best(k);
        for (auto node = nodes.begin(); node != groups; ++node)
            best.keep(node->first, int64_t(getExternalLabel(Id(node->second))));
        if (groups != nodes.end()) {
            std::sort(groups, nodes.end());
            keep_groups(query, &*groups, &*groups + (nodes.end() - groups), eligible, best);
        }
        std::sort_heap(best.rows.begin(), best.rows.end());
        for (size_t i = 0; i < k; i++) {
            const bool is_row = i < best.rows.size();
            labels[i] = is_row ? int64_t(best.rows[i].second) : -1;
            distances[i] = is_row ? best.rows[i].first : std::numeric_limits<float>::infinity();
        }
    }

  private:
    using Near = std::pair<float, hnswlib::labeltype>;  // distance, and an id or a label
    using Mark = std::atomic<unsigned char>;
    static_assert(sizeof(Mark) == 1, "a mark is one byte of the node's memory");

    // The byte behind the count of links.
    Mark& mark(Id id) const { return reinterpret_cast<Mark*>(get_linklist0(id))[2]; }
    static Mark& as_mark(const unsigned char& byte) {
        return reinterpret_cast<Mark&>(const_cast<unsigned char&>(byte));
    }

    // The byte behind that one: whether the node has a group.
    unsigned char& group_mark(Id id) const {
        return reinterpret_cast<unsigned char*>(get_linklist0(id))[3];
    }
    bool has_group(Id id) const { return group_mark(id); }

    void remove_node(Id id) {
        mark(id).fetch_or(DELETE_MARK, std::memory_order_relaxed);
        num_deleted_ += 1;
    }

    // The k nearest rows of a search, as a heap: the farthest comes first.
    struct Best {
        size_t k;
        std::vector<Near> rows;
        explicit Best(size_t k) : k(k) {}
        // Keeps a row if it is one of the k nearest so far. Equal distances by ascending label.
        bool keep(float distance, int64_t label) {
            const Near row{distance, hnswlib::labeltype(label)};
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

    static bool may_return(const Copies& copies, size_t i, const Eligible* eligible) {
        return !is_deleted(copies, i) && (!eligible || (*eligible)(copies.labels[i]));
    }

    bool may_return_any(Id id, const Eligible& eligible) const {
        for (const auto& copies : groups_.at(id).copies())
            for (size_t i = 0; i < copies.labels.size(); i++)
                if (may_return(copies, i, &eligible)) return true;
        return false;
    }

    // Keeps the nearest rows of nodes that have several; the nearest node comes first.
    void keep_groups(const float* query, const Near* node, const Near* end,
                     const Eligible* eligible, Best& best) const {
        double squares = 0;
        for (size_t i = 0; i < dim_; i++) squares += double(query[i]) * double(query[i]);
        const double length = std::sqrt(squares);
        for (; node != end; ++node) {
            const Group& group = groups_.at(Id(node->second));
            // The group's nearest vector is at least this far away.
            double least = node->first - length * group.radius;
            if (squared_) {
                const double root = std::max(0.0, std::sqrt(double(node->first)) - group.radius);
                least = root * root;
            }
            least -= 1e-6 * (1 + std::fabs(least));  // rounding
            if (best.rows.size() == best.k && least > best.rows.front().first) continue;
            for (size_t place = 0; place < group.copies().size(); place++) {
                const float d = place ? fstdistfunc_(query, group.vector(place, dim_),
                                                     dist_func_param_)
                                      : node->first;
                const Copies& copies = group.copies()[place];
                for (size_t i = 0; i < copies.labels.size(); i++)
                    if (may_return(copies, i, eligible) && !best.keep(d, copies.labels[i])) break;
            }
        }
    }

    size_t dim_;
    bool squared_, grouped_;
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

    float distance(const float* query, Id id) const {
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
    Near descend(const float* query) const {
        Near best{distance(query, enterpoint_node_), enterpoint_node_};
        for (int level = maxlevel_; level > 0; level--) {
            for (bool moved = true; moved;) {
                moved = false;
                auto* links = get_linklist(Id(best.second), level);
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

    // The ef nearest nodes that may be returned, in no order: Malkov and Yashunin, 2018, algorithm 2.
    // As hnswlib does, it passes through nodes that may not be returned, but does not count them.
    std::vector<Near> walk(const float* query, size_t ef, const Eligible* eligible) const {
        const bool any = !eligible && !num_deleted_;
        auto may_return = [&](Id id) {
            return any || (!is_deleted(id) &&
                           (!eligible || (has_group(id)
                                              ? may_return_any(id, *eligible)
                                              : (*eligible)(int64_t(getExternalLabel(id))))));
        };
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
        visited.add(Id(start.second));
        if (may_return(Id(start.second))) {
            nearest.push_back(start);
            bound = start.first;
        }
        while (!open.empty()) {
            const Near here = open.front();
            if (here.first > bound && nearest.size() == ef) break;
            std::pop_heap(open.begin(), open.end(), farther);
            open.pop_back();
            const auto* links = get_linklist0(Id(here.second));
            const size_t count = getListCount(get_linklist0(Id(here.second)));
            size_t news = 0;
            for (size_t i = 1; i <= count; i++) {
                if (!visited.add(links[i])) continue;
                fresh[news++] = links[i];
                prefetch(getDataByInternalId(links[i]));
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
            if (!open.empty()) prefetch(get_linklist0(Id(open.front().second)));
        }
        return nearest;
    }
};

}  // namespace flowvec
