// An HNSW graph: hnswlib builds it, and this searches it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "distances.h"
#include "hnswlib/hnswlib.h"

namespace flowvec {

using Id = hnswlib::tableint;

// A wrong argument: the caller's mistake.
struct ArgumentError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Space : public hnswlib::SpaceInterface<float> {
  public:
    Space(size_t dim, bool squared)
        : dim_(dim), distance_(squared ? kernels().squared : kernels().inner_product) {}
    size_t get_data_size() override { return dim_ * sizeof(float); }
    Distance get_dist_func() override { return distance_; }
    void* get_dist_func_param() override { return &dim_; }
    size_t dim() const { return dim_; }

  private:
    size_t dim_;
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

// Calls work(i) for each i below `count` in several threads. The first exception is thrown again.
template <typename Work>
void in_threads(size_t count, size_t threads, const Work& work) {
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    std::mutex failing;
    auto run = [&] {
        for (size_t i; (i = next.fetch_add(1)) < count;) {
            try {
                work(i);
            } catch (...) {
                std::lock_guard<std::mutex> lock(failing);
                if (!failure) failure = std::current_exception();
                next = count;
            }
        }
    };
    std::vector<std::thread> others;
    const size_t more = std::min(threads, count);
    others.reserve(more);
    try {
        while (others.size() + 1 < more) others.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads: those that run do the work
    }
    run();
    for (auto& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
}

class Graph : public hnswlib::HierarchicalNSW<float> {
  public:
    Graph(Space& space, size_t capacity, size_t m, size_t ef_construction, size_t seed)
        : HierarchicalNSW(&space, capacity, m, ef_construction, seed) {}

    // Adds new vectors in several threads. After an exception the graph must not be used.
    void add(const float* vectors, const int64_t* labels, size_t count, size_t threads) {
        auto add_one = [&](size_t i) {
            addPoint(vectors + i * (data_size_ / sizeof(float)), hnswlib::labeltype(labels[i]));
        };
        if (!count) return;
        size_t first = 0;
        if (!cur_element_count) add_one(first++);  // the others are linked to it
        in_threads(count - first, threads, [&](size_t i) { add_one(first + i); });
    }

    // Deletion marks are set while other threads search and write the file.
    bool is_deleted(Id id) const { return mark(id).load(std::memory_order_relaxed) & DELETE_MARK; }

    // Marks a node as deleted, and says whether it was not. One thread at a time may do that.
    bool remove(Id id) {
        if (is_deleted(id)) return false;
        mark(id).fetch_or(DELETE_MARK, std::memory_order_relaxed);
        num_deleted_ += 1;
        return true;
    }

    // Writes the k nearest of a query, nearest first; where fewer are reached, label -1.
    void search(const float* query, size_t k, size_t ef, const Eligible* eligible, int64_t* labels,
                float* distances) const {
        std::vector<Near> nearest;
        if (cur_element_count) nearest = walk(query, std::max(k, ef), eligible);
        const size_t count = std::min(k, nearest.size());
        for (auto& item : nearest) item.second = getExternalLabel(Id(item.second));
        std::partial_sort(nearest.begin(), nearest.begin() + count, nearest.end());
        for (size_t i = 0; i < k; i++) {
            labels[i] = i < count ? int64_t(nearest[i].second) : -1;
            distances[i] = i < count ? nearest[i].first : std::numeric_limits<float>::infinity();
        }
    }

  private:
    using Near = std::pair<float, hnswlib::labeltype>;  // distance, and an id or a label
    using Mark = std::atomic<unsigned char>;
    static_assert(sizeof(Mark) == 1, "a mark is one byte of the node's memory");

    // The byte behind the count of links.
    Mark& mark(Id id) const { return reinterpret_cast<Mark*>(get_linklist0(id))[2]; }

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
                           (!eligible || (*eligible)(int64_t(getExternalLabel(id)))));
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
