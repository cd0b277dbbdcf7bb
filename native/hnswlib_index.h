// A graph of float32 vectors, whose file the package hnswlib reads.
#pragma once

#include "graph_file.h"

namespace flowvec {

class FloatSpace : public hnswlib::SpaceInterface<float> {
  public:
    FloatSpace(size_t dim, bool squared)
        : dim_(dim), distance_(squared ? kernels().squared : kernels().inner_product) {}
    size_t get_data_size() override { return dim_ * sizeof(float); }
    Distance get_dist_func() override { return distance_; }
    void* get_dist_func_param() override { return &dim_; }
    size_t dim() const { return dim_; }

  private:
    size_t dim_;
    Distance distance_;
};

class HnswlibIndex : public hnswlib::HierarchicalNSW<float> {
  public:
    HnswlibIndex(FloatSpace& space, size_t capacity, size_t m, size_t ef_construction)
        : HierarchicalNSW(&space, capacity, m, ef_construction), dim_(space.dim()) {}

    // Adds new vectors in several threads. After an exception it must not be used.
    void add(const float* vectors, const int64_t* labels, size_t count, size_t threads) {
        const auto add_row = [&](size_t i) {
            addPoint(vectors + i * dim_, hnswlib::labeltype(labels[i]));
        };
        const size_t first = !cur_element_count && count;  // the others are linked to it
        if (first) add_row(0);
        in_threads(count - first, threads, [&](size_t i) { add_row(first + i); });
    }

    void save(const char* path) const {
        File file(path, true);
        GraphFile::write_nodes(file, *this);
        file.close();
    }

  private:
    size_t dim_;
};

}  // namespace flowvec
