// The C interface of flowvec's HNSW graphs, codes and inverted files, which Python calls by ctypes.
//
// Pointers are not checked: the Python module does. See interface.h.
#ifdef _WIN32
#define NOMINMAX
#include <windows.h>
#endif

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "hnswlib_index.h"
#include "interface.h"
#include "pairs.h"
#include "postings.h"
#include "scan.h"

using flowvec::ArgumentError;

namespace {

// A graph, and a lock: searches, writing the file and marking deletions, or adding nodes.
struct Handle {
    flowvec::Nodes nodes;
    std::unique_ptr<flowvec::Graph> graph;
    mutable std::shared_mutex mutex;
    std::mutex deleting;  // held by one thread that marks deletions
    bool is_broken = false;  // an exception has left it half changed

    Handle(size_t dim, bool squared) : nodes(dim, squared) {}
    void check() const {
        if (is_broken) throw ArgumentError("an earlier change of this graph failed");
    }
};

using Reading = std::shared_lock<std::shared_mutex>;
using Writing = std::unique_lock<std::shared_mutex>;

void check_sizes(size_t dim, size_t m) {
    if (dim < 1 || dim > 1u << 20) throw ArgumentError("dim must be from 1 to 1048576");
    if (m < 2 || m > 10000) throw ArgumentError("M must be from 2 to 10000");
}

void check_capacity(size_t capacity) {
    if (capacity >= size_t(1) << 31) throw ArgumentError("a graph has less than 2^31 nodes");
}

void check_rows(const hnswlib::HierarchicalNSW<float>& graph, size_t dim, const float* vectors,
                const int64_t* labels, size_t count) {
    if (count > graph.max_elements_ - graph.cur_element_count)
        throw ArgumentError("there is no room for so many nodes; resize the graph");
    for (size_t i = 0; i < count; i++)
        if (labels[i] < 0 || (i && labels[i] <= labels[i - 1]) ||
            graph.label_lookup_.count(hnswlib::labeltype(labels[i])))
            throw ArgumentError("labels must be new, ascending and not negative; " +
                                std::to_string(labels[i]) + " is not");
    for (size_t i = 0; i < count * dim; i++)
        if (!std::isfinite(vectors[i])) throw ArgumentError("a vector holds NaN or infinity");
}

flowvec::Vectors vectors_at(const char* blocks, size_t in_blocks, size_t block_rows,
                            size_t block_bytes, const float* others, uint8_t* used) {
    static_assert(sizeof(std::atomic<uint8_t>) == 1, "a mark is one byte");
    return {blocks, in_blocks, block_rows, block_bytes, others,
            reinterpret_cast<std::atomic<uint8_t>*>(used)};
}

}  // namespace

// Changes with every change of this interface.
FLOWVEC_API int flowvec_hnsw_version() { return 7; }

FLOWVEC_API const char* flowvec_hnsw_simd() { return flowvec::kernels().name; }

FLOWVEC_API const char* flowvec_hnsw_scan_simd() { return flowvec::scan_kernels().name; }

FLOWVEC_API const char* flowvec_hnsw_error() { return message.c_str(); }

FLOWVEC_API int flowvec_hnsw_errno() { return system_error_number; }

FLOWVEC_API int flowvec_hnsw_create(size_t dim, int squared, size_t capacity, size_t m,
                                    size_t ef_construction, size_t seed, Handle** result) {
    return guarded([&] {
        check_sizes(dim, m);
        check_capacity(capacity);
        std::unique_ptr<Handle> handle(new Handle(dim, squared != 0));
        handle->graph.reset(new flowvec::Graph(handle->nodes, std::max<size_t>(capacity, 1), m,
                                               ef_construction, seed));
        *result = handle.release();
    });
}

FLOWVEC_API int flowvec_hnsw_load(const char* path, size_t dim, int squared, size_t m,
                                  size_t capacity, Handle** result) {
    return guarded([&] {
        check_sizes(dim, m);
        check_capacity(capacity);
        std::unique_ptr<Handle> handle(new Handle(dim, squared != 0));
        handle->graph = flowvec::GraphFile::read(path, handle->nodes, m, capacity);
        *result = handle.release();
    });
}

FLOWVEC_API void flowvec_hnsw_free(Handle* handle) { delete handle; }

FLOWVEC_API int flowvec_hnsw_save(const Handle* handle, const char* path) {
    return guarded([&] {
        Reading lock(handle->mutex);
        handle->check();
        flowvec::GraphFile::write(*handle->graph, path);
    });
}

// Rows, deleted rows, room for nodes, ef_construction, nodes.
FLOWVEC_API int flowvec_hnsw_sizes(const Handle* handle, uint64_t* sizes) {
    return guarded([&] {
        Reading lock(handle->mutex);
        const auto& graph = *handle->graph;
        sizes[0] = graph.rows();
        sizes[1] = graph.deleted_rows();
        sizes[2] = graph.max_elements_;
        sizes[3] = graph.ef_construction_;
        sizes[4] = graph.cur_element_count;
    });
}

// Bytes of its file, of the file that it has mapped, and about those of its memory beside that. Looks
// at every node.
FLOWVEC_API int flowvec_hnsw_bytes(const Handle* handle, uint64_t* sizes) {
    return guarded([&] {
        Reading lock(handle->mutex);
        const auto& graph = *handle->graph;
        sizes[0] = flowvec::GraphFile::size(*handle->graph);
        sizes[1] = graph.mapped_bytes();
        sizes[2] = sizes[0] - sizes[1] + graph.other_bytes();
    });
}

// Of each row its label, and whether it is deleted.
FLOWVEC_API int flowvec_hnsw_labels(const Handle* handle, int64_t* labels, uint8_t* deleted,
                                    size_t count) {
    return guarded([&] {
        Reading lock(handle->mutex);
        const auto& graph = *handle->graph;
        if (count != graph.rows()) throw ArgumentError("the graph has changed");
        size_t i = 0;
        graph.each_row([&](int64_t label, bool is_deleted) {
            labels[i] = label;
            deleted[i++] = is_deleted;
        });
    });
}

FLOWVEC_API int flowvec_hnsw_resize(Handle* handle, size_t capacity) {
    return guarded([&] {
        check_capacity(capacity);
        Writing lock(handle->mutex);
        handle->check();
        if (capacity < handle->graph->cur_element_count)
            throw ArgumentError("the graph has more nodes than that");
        handle->is_broken = true;
        handle->graph->resize(std::max<size_t>(capacity, 1));
        handle->is_broken = false;
    });
}

FLOWVEC_API int flowvec_hnsw_add(Handle* handle, const float* vectors, const int64_t* labels,
                                 size_t count, size_t threads) {
    return guarded([&] {
        Writing lock(handle->mutex);
        handle->check();
        auto& graph = *handle->graph;
        check_rows(graph, handle->nodes.dim(), vectors, labels, count);
        handle->is_broken = true;
        graph.add(vectors, labels, count, threads);
        handle->is_broken = false;
    });
}

// Marks rows as deleted, and says of each label whether it was a row that was not. A file that is
// written meanwhile has some of the marks.
FLOWVEC_API int flowvec_hnsw_delete(Handle* handle, const int64_t* labels, uint8_t* marked,
                                    size_t count) {
    return guarded([&] {
        Reading lock(handle->mutex);
        const std::lock_guard<std::mutex> alone(handle->deleting);
        handle->check();
        auto& graph = *handle->graph;
        for (size_t i = 0; i < count; i++) marked[i] = graph.remove(labels[i]);
    });
}

// The k nearest of each query among some rows: labels and scores, (queries, k). See Graph::search,
// flowvec::Rows and flowvec::Vectors.
FLOWVEC_API int flowvec_hnsw_search(const Handle* handle, const float* queries, size_t count,
                                    size_t k, size_t ef, const int64_t* row_labels, size_t rows,
                                    const char* blocks, size_t in_blocks, size_t block_rows,
                                    size_t block_bytes, const float* others, uint8_t* used,
                                    size_t threads, int64_t* labels, float* scores) {
    return guarded([&] {
        Reading lock(handle->mutex);
        handle->check();
        const flowvec::Rows those = {
            row_labels, rows,
            vectors_at(blocks, in_blocks, block_rows, block_bytes, others, used)};
        const size_t dim = handle->nodes.dim();
        flowvec::in_threads(count, threads, [&](size_t i) {
            handle->graph->search(queries + i * dim, k, ef, those, labels + i * k, scores + i * k);
        });
    });
}

// --- a file for hnswlib: see hnswlib_index.h -------------------------------------------------------

struct HnswlibHandle {
    flowvec::FloatSpace space;
    flowvec::HnswlibIndex index;

    HnswlibHandle(size_t dim, bool squared, size_t capacity, size_t m, size_t ef_construction)
        : space(dim, squared), index(space, capacity, m, ef_construction) {}
};

FLOWVEC_API int flowvec_hnsw_hnswlib_create(size_t dim, int squared, size_t capacity, size_t m,
                                            size_t ef_construction, HnswlibHandle** result) {
    return guarded([&] {
        check_sizes(dim, m);
        check_capacity(capacity);
        *result = new HnswlibHandle(dim, squared != 0, std::max<size_t>(capacity, 1), m,
                                    ef_construction);
    });
}

FLOWVEC_API void flowvec_hnsw_hnswlib_free(HnswlibHandle* handle) { delete handle; }

// By one thread at a time.
FLOWVEC_API int flowvec_hnsw_hnswlib_add(HnswlibHandle* handle, const float* vectors,
                                         const int64_t* labels, size_t count, size_t threads) {
    return guarded([&] {
        check_rows(handle->index, handle->space.dim(), vectors, labels, count);
        handle->index.add(vectors, labels, count, threads);
    });
}

FLOWVEC_API int flowvec_hnsw_hnswlib_save(const HnswlibHandle* handle, const char* path) {
    return guarded([&] { handle->index.save(path); });
}

// The k best rows of an inverted file for a query: rows and scores (k), and how many there are. See
// `best_rows`.
FLOWVEC_API int flowvec_hnsw_best_rows(const int32_t* rows, const float* weights,
                                       const int64_t* starts, const int64_t* ends,
                                       const float* factors, size_t lists, size_t count,
                                       const uint8_t* allowed, size_t k, int32_t* best,
                                       double* scores, size_t* found) {
    return guarded([&] {
        const auto hits = flowvec::best_rows({rows, weights, starts, ends, factors, lists}, count,
                                             allowed, k);
        for (size_t i = 0; i < hits.size(); i++) {
            best[i] = hits[i].row;
            scores[i] = hits[i].score;
        }
        *found = hits.size();
    });
}

// --- codes: see scan.h ---------------------------------------------------------------------------

FLOWVEC_API int flowvec_hnsw_codes_create(size_t dim, int squared, uint64_t seed,
                                          flowvec::Codes** result) {
    return guarded([&] {
        check_sizes(dim, 2);
        *result = new flowvec::Codes(dim, squared != 0, seed);
    });
}

FLOWVEC_API void flowvec_hnsw_codes_free(flowvec::Codes* codes) { delete codes; }

// Rows, bytes of memory, bytes of a chunk, and its rows.
FLOWVEC_API int flowvec_hnsw_codes_sizes(const flowvec::Codes* codes, uint64_t* sizes) {
    return guarded([&] {
        sizes[0] = codes->rows();
        sizes[1] = codes->bytes();
        sizes[2] = codes->chunk_bytes();
        sizes[3] = flowvec::CHUNK_ROWS;
    });
}

// How vectors are turned: see flowvec::Frame. The basis may be null.
FLOWVEC_API int flowvec_hnsw_codes_begin(flowvec::Codes* codes, const float* centre,
                                         const float* basis, size_t part, float margin) {
    return guarded([&] { codes->begin(centre, basis, part, margin); });
}

FLOWVEC_API int flowvec_hnsw_codes_copy(const flowvec::Codes* codes, size_t first, size_t count,
                                        uint8_t* bytes) {
    return guarded([&] { codes->copy(first, count, bytes); });
}

FLOWVEC_API int flowvec_hnsw_codes_map(flowvec::Codes* codes, const uint8_t* blocks, size_t stride,
                                       size_t count) {
    return guarded([&] { codes->map(blocks, stride, count); });
}

// Checksums of blocks of a multiple of 8 bytes, each of which begins with a number of its own.
FLOWVEC_API int flowvec_hnsw_checksums(const uint8_t* blocks, size_t bytes, size_t stride,
                                       size_t count, const uint64_t* starts, size_t threads,
                                       uint64_t* sums) {
    return guarded([&] {
        flowvec::in_threads(count, threads, [&](size_t i) {
            sums[i] = flowvec::checksum(blocks + i * stride, bytes / 8, starts[i]);
        });
    });
}

// Adds rows, and says whether a scan may be asked: not if one is too long.
FLOWVEC_API int flowvec_hnsw_codes_add(flowvec::Codes* codes, const float* vectors, size_t count,
                                       size_t threads, int* are_short) {
    return guarded([&] { *are_short = codes->add(vectors, count, std::max<size_t>(threads, 1)); });
}

// The k best of rows `first` to before `last`. Vectors: see flowvec::Vectors.
FLOWVEC_API int flowvec_hnsw_codes_search(const flowvec::Codes* codes, const float* queries,
                                          size_t count, size_t k, size_t first, size_t last,
                                          const uint8_t* allowed, float reach, const char* blocks,
                                          size_t in_blocks, size_t block_rows, size_t block_bytes,
                                          const float* others, uint8_t* used, size_t threads,
                                          int64_t* rows, float* scores) {
    return guarded([&] {
        const auto vectors = vectors_at(blocks, in_blocks, block_rows, block_bytes, others, used);
        codes->search({queries, count, k, first, last, allowed, reach, &vectors},
                      std::max<size_t>(threads, 1), rows, scores);
    });
}

// --- pairs: see pairs.h --------------------------------------------------------------------------

// The rows must stay where they are. For the frame, see flowvec::Frame.
FLOWVEC_API int flowvec_hnsw_pairs_create(const float* rows, size_t count, size_t dim,
                                          const float* centre, const float* basis, size_t part,
                                          flowvec::PairScan** result) {
    return guarded([&] {
        check_sizes(dim, 2);
        *result = new flowvec::PairScan(rows, count, dim, centre, basis, part);
    });
}

FLOWVEC_API void flowvec_hnsw_pairs_free(flowvec::PairScan* scan) { delete scan; }

// Encodes so many more rows.
FLOWVEC_API int flowvec_hnsw_pairs_add(flowvec::PairScan* scan, size_t count, size_t threads) {
    return guarded([&] { scan->add(count, std::max<size_t>(threads, 1)); });
}

// The k best pairs of a row from `first` to before `last` with a later one, whose products reach a
// floor, and how many there are: SIZE_MAX if that takes more than `most` products.
FLOWVEC_API int flowvec_hnsw_pairs_best(const flowvec::PairScan* scan, size_t first, size_t last,
                                        size_t k, float floor, size_t most, size_t threads,
                                        float* scores, int64_t* pairs, size_t* count) {
    return guarded([&] {
        flowvec::BestPairs best(k, floor);
        *count = SIZE_MAX;
        if (!scan->offer(first, last, most, std::max<size_t>(threads, 1), best)) return;
        const auto& hits = best.sorted();
        for (size_t i = 0; i < hits.size(); i++) {
            scores[i] = hits[i].score;
            pairs[2 * i] = int64_t(hits[i].left);
            pairs[2 * i + 1] = int64_t(hits[i].right);
        }
        *count = hits.size();
    });
}
