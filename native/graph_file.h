// Graph files.
//
// Little-endian. First, as in the files of hnswlib 0.8: a header of 96 bytes; for every node its
// links on the lowest level (a count in two bytes, a mark of deletion, whether it has a group, 2 M
// ids), what it holds of its vector (nodes.h) and its label; then for every node the size of its
// links on the upper levels in bytes and those links, with room for M on each level.
//
// Behind that the dimension and whether distances are squared (8 bytes each); what was subtracted
// from all vectors, float32; the number of groups (8 bytes); for each its node, its number of
// vectors and its radius (4 bytes each); for each of these its number of rows and its hash (8 bytes
// each), the rows' labels (8 bytes each) and marks of deletion (1 byte each).
//
// hnswlib trusts its files: a wrong count, size or link makes it read or write outside its memory
// (hnswlib#673). Here everything is checked before it is used.
#pragma once

#ifdef _WIN32
#include <io.h>
#else
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <cerrno>

#include "graph.h"

namespace flowvec {

inline void need(bool condition, const char* what) {
    if (!condition) throw FileError(what);
}

class File {
  public:
    File(const char* path, bool writing) {
#ifdef _WIN32
        wchar_t wide[32768];
        if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 32768)) throw SystemError();
        file_ = _wfopen(wide, writing ? L"wb" : L"rb");
#else
        // Whoever has mapped the file that is there keeps it: it is not written again.
        struct stat about;
        if (writing && !stat(path, &about) && S_ISREG(about.st_mode) && unlink(path))
            throw SystemError();
        file_ = std::fopen(path, writing ? "wb" : "rb");
#endif
        if (!file_) throw SystemError();
        if (writing) buffer_.reserve(kBufferBytes);
        else std::setvbuf(file_, nullptr, _IOFBF, kBufferBytes);
    }
    ~File() {
        if (file_) std::fclose(file_);
    }
    File(const File&) = delete;

    uint64_t size() {
#ifdef _WIN32
        if (_fseeki64(file_, 0, SEEK_END)) throw SystemError();
        const int64_t end = _ftelli64(file_);
#else
        if (fseeko(file_, 0, SEEK_END)) throw SystemError();
        const int64_t end = ftello(file_);
#endif
        if (end < 0) throw SystemError();
        std::rewind(file_);
        return uint64_t(end);
    }
    void read(void* data, size_t size) {
        errno = 0;
        if (std::fread(data, 1, size, file_) == size) return;
        if (std::ferror(file_)) throw SystemError();
        throw FileError("its end is cut");
    }
    void skip(uint64_t size) {
#ifdef _WIN32
        if (_fseeki64(file_, int64_t(size), SEEK_CUR)) throw SystemError();
#else
        if (fseeko(file_, off_t(size), SEEK_CUR)) throw SystemError();
#endif
    }
    int descriptor() const {
#ifdef _WIN32
        return _fileno(file_);
#else
        return fileno(file_);
#endif
    }
    void write(const void* data, size_t size) {
        const char* bytes = static_cast<const char*>(data);
        if (buffer_.size() + size > kBufferBytes) flush();
        if (size >= kBufferBytes) write_now(bytes, size);
        else buffer_.insert(buffer_.end(), bytes, bytes + size);
    }
    void close() {
        flush();
        errno = 0;
        std::FILE* file = file_;
        file_ = nullptr;
        if (std::fclose(file)) throw SystemError();
    }

  private:
    static constexpr size_t kBufferBytes = 1 << 20;
    static constexpr size_t kMostBytes = 8 << 20;

    void flush() {
        write_now(buffer_.data(), buffer_.size());
        buffer_.clear();
    }
    // Calls `write` itself and not through `fwrite`, so that tests can let it fail: a preloaded
    // library does not see the calls inside libc.
    void write_now(const char* bytes, size_t size) {
        while (size) {
            errno = 0;
#ifdef _WIN32
            const auto written = ::_write(_fileno(file_), bytes, unsigned(std::min(size, kMostBytes)));
#else
            const auto written = ::write(fileno(file_), bytes, std::min(size, kMostBytes));
            if (written < 0 && errno == EINTR) continue;
#endif
            if (written <= 0) throw SystemError();
            bytes += written;
            size -= size_t(written);
            unflushed_ += size_t(written);
            if (unflushed_ >= kMostBytes) flush_to_disk();
        }
    }
    // Little by little: whoever flushes another file meanwhile, like SQLite at each change, may have
    // to wait for all that was written to the disk. The caller flushes the whole file, with its errors.
    void flush_to_disk() {
#ifdef _WIN32
        ::_commit(_fileno(file_));
#elif defined(__linux__)
        ::fdatasync(fileno(file_));
#else
        ::fsync(fileno(file_));
#endif
        unflushed_ = 0;
    }

    std::FILE* file_;
    std::vector<char> buffer_;
    size_t unflushed_ = 0;
};

struct Header {
    uint64_t offset_level0, max_elements, count, element_bytes, label_offset, data_offset;
    int32_t max_level;
    uint32_t entry_point;
    uint64_t max_m, max_m0, m;
    double mult;
    uint64_t ef_construction;
};
static_assert(sizeof(Header) == 96, "the header is written as it is in memory");

class GraphFile {
  public:
    static void write(const Graph& graph, const char* path) {
        File file(path, true);
        write_nodes(file, graph);
        const uint64_t sizes[2] = {graph.nodes().dim(), graph.nodes().squared()};
        file.write(sizes, sizeof sizes);
        file.write(graph.nodes().centre().data(), 4 * graph.nodes().dim());
        write_groups(file, graph);
        file.close();
    }

    // As hnswlib's saveIndex does, but for the room, which is that of its nodes: the reader may
    // choose another one.
    static void write_nodes(File& file, const hnswlib::HierarchicalNSW<float>& graph) {
        const uint64_t count = graph.cur_element_count;
        const Header header = {graph.offsetLevel0_, count, count, graph.size_data_per_element_,
                               graph.label_offset_, graph.offsetData_, graph.maxlevel_,
                               graph.enterpoint_node_, graph.maxM_, graph.maxM0_, graph.M_,
                               graph.mult_, graph.ef_construction_};
        file.write(&header, sizeof header);
        file.write(graph.data_level0_memory_, count * graph.size_data_per_element_);
        for (size_t i = 0; i < count; i++) {
            const uint32_t bytes = uint32_t(graph.element_levels_[i] * graph.size_links_per_element_);
            file.write(&bytes, sizeof bytes);
            if (bytes) file.write(graph.linkLists_[i], bytes);
        }
    }

    static uint64_t size(Graph& graph) {
        uint64_t size = graph.indexFileSize() + 16 + 4 * graph.nodes().dim() + 8;
        for (const auto& [id, group] : graph.groups()) {
            size += 12;
            for (const auto& copies : group.copies()) size += 16 + 9 * copies.labels.size();
        }
        return size;
    }

    // Reads a graph with links of M and room for this many nodes, or more if the file has more.
    static std::unique_ptr<Graph> read(const char* path, Nodes& nodes, size_t m, size_t capacity) {
        File file(path, false);
        uint64_t left = file.size();
        need(left >= sizeof(Header), "it is shorter than a header");
        Header header;
        file.read(&header, sizeof header);
        left -= sizeof header;
        check(header, nodes.bytes(), m, left);
        const uint64_t count = header.count;
        std::unique_ptr<Graph> graph(new Graph(nodes, std::max<uint64_t>({capacity, count, 1}), m,
                                               header.ef_construction, 0));
        graph->ef_construction_ = header.ef_construction;
        if (count) {
            const uint64_t bytes = count * header.element_bytes;
            if (graph->map_nodes(file.descriptor(), sizeof header, count)) file.skip(bytes);
            else file.read(graph->data_level0_memory_, bytes);
            left -= count * header.element_bytes;
            graph->cur_element_count = count;
            read_upper_levels(file, *graph, left);
            graph->enterpoint_node_ = header.entry_point;
            graph->maxlevel_ = header.max_level;
            check_nodes(*graph);
        }
        const uint64_t rest = 16 + 4 * nodes.dim();
        need(left >= rest, "its end is cut");
        uint64_t sizes[2];
        file.read(sizes, sizeof sizes);
        equal(sizes[0], nodes.dim(), "dimension");
        equal(sizes[1], nodes.squared(), "kind of distance");
        file.read(nodes.centre().data(), 4 * nodes.dim());
        left -= rest;
        for (const float number : nodes.centre())
            need(std::isfinite(number), "its centre holds NaN or infinity");
        need(count || left == 8, "it is longer than its header says");
        read_groups(file, *graph, left);
        need(!left, "it is longer than its header says");
        return graph;
    }

  private:
    static void equal(uint64_t value, uint64_t expected, const char* name) {
        if (value != expected)
            throw FileError("its " + std::string(name) + " is " + std::to_string(value) +
                            " instead of " + std::to_string(expected));
    }

    static void check(const Header& header, size_t node_bytes, size_t m, uint64_t left) {
        const uint64_t links = 4 * (2 * m) + 4;
        equal(header.offset_level0, 0, "offset_level0");
        equal(header.max_m, m, "max_m");
        equal(header.max_m0, 2 * m, "max_m0");
        equal(header.m, m, "m");
        equal(header.data_offset, links, "data_offset");
        equal(header.label_offset, links + node_bytes, "label_offset");
        equal(header.element_bytes, links + node_bytes + 8, "element_bytes");
        need(header.count <= left / header.element_bytes, "it is shorter than its number of nodes");
        need(header.count <= header.max_elements, "its header has more nodes than room for them");
        need(header.count < 1u << 31, "it has too many nodes");
        need(header.ef_construction > 0 && header.ef_construction < 1u << 20,
             "its ef_construction is out of range");
        need(std::abs(header.mult * std::log(double(m)) - 1) < 1e-6,
             "its level multiplier does not match M");
    }

    static void read_upper_levels(File& file, Graph& graph, uint64_t& left) {
        const size_t level_bytes = graph.size_links_per_element_;
        for (size_t i = 0; i < graph.cur_element_count; i++) {
            uint32_t bytes;
            need(left >= sizeof bytes, "its end is cut");
            file.read(&bytes, sizeof bytes);
            left -= sizeof bytes;
            if (!bytes) continue;
            need(bytes % level_bytes == 0, "a node's upper links are not whole levels");
            need(left >= bytes, "its end is cut");
            // With room for the prefetch behind the last link.
            auto* links = static_cast<char*>(std::malloc(bytes + sizeof(Id)));
            if (!links) throw std::bad_alloc();
            std::memset(links + bytes, 0, sizeof(Id));
            graph.linkLists_[i] = links;  // freed with the graph
            graph.element_levels_[i] = int(bytes / level_bytes);
            file.read(links, bytes);
            left -= bytes;
        }
    }

    static void write_groups(File& file, const Graph& graph) {
        std::vector<Id> nodes;
        for (const auto& item : graph.groups()) nodes.push_back(item.first);
        std::sort(nodes.begin(), nodes.end());  // equal graphs have equal files
        const uint64_t count = nodes.size();
        file.write(&count, sizeof count);
        for (const Id id : nodes) {
            const Group& group = graph.groups().at(id);
            const uint32_t head[2] = {id, uint32_t(group.copies().size())};
            file.write(head, sizeof head);
            file.write(&group.radius, sizeof group.radius);
            for (const Copies& copies : group.copies()) {
                const uint64_t rows = copies.labels.size();
                file.write(&rows, sizeof rows);
                file.write(&copies.hash, sizeof copies.hash);
                file.write(copies.labels.data(), 8 * rows);
                for (size_t i = 0; i < rows; i++) {
                    const unsigned char deleted = Graph::is_deleted(copies, i);
                    file.write(&deleted, 1);
                }
            }
        }
    }

    static void read_groups(File& file, Graph& graph, uint64_t& left) {
        const auto read = [&](void* data, uint64_t size) {
            need(left >= size, "the end of its groups is cut");
            file.read(data, size);
            left -= size;
        };
        uint64_t groups, marked = 0;
        read(&groups, sizeof groups);
        for (Id i = 0; i < graph.cur_element_count; i++) marked += graph.has_group(i);
        need(groups == marked, "its nodes have another number of groups");
        std::vector<int64_t> labels;
        std::vector<unsigned char> deleted;
        for (int64_t last = -1; groups; groups--) {
            uint32_t head[2];
            read(head, sizeof head);
            float radius;
            read(&radius, sizeof radius);
            need(radius >= 0 && std::isfinite(radius), "a group's radius is out of range");
            need(head[0] < graph.cur_element_count && int64_t(head[0]) > last,
                 "a group does not belong to a node");
            need(graph.has_group(head[0]), "a group's node is not marked");
            const Id id = head[0];
            last = id;
            for (uint32_t place = 0; place < head[1]; place++) {
                uint64_t rows, hash;
                read(&rows, sizeof rows);
                read(&hash, sizeof hash);
                need(place || hash == hash_of(graph.getDataByInternalId(id)),
                     "a group's first vector is not its node's");
                need(rows <= left / 9, "the end of its groups is cut");
                labels.resize(rows);
                deleted.resize(rows);
                read(labels.data(), 8 * rows);
                read(deleted.data(), rows);
                const auto own = std::find(labels.begin(), labels.end(),
                                           int64_t(graph.getExternalLabel(id)));
                need(place || own != labels.end(), "a group lacks the row of its node");
                // Before rows join it: the node's mark in the file is that of all rows.
                if (!place) graph.set_deleted(id, deleted[size_t(own - labels.begin())]);
                for (size_t i = 0; i < rows; i++) {
                    need(labels[i] >= 0, "a label is out of range");
                    need(deleted[i] <= 1, "a mark of deletion is not valid");
                    if (!place && i == size_t(own - labels.begin())) continue;
                    need(!graph.label_lookup_.count(hnswlib::labeltype(labels[i])),
                         "two nodes have the same label");
                    graph.join(id, hash, radius, labels[i], deleted[i]);
                }
            }
            need(graph.groups().count(id), "a group has one row");
        }
    }

    static void check_nodes(Graph& graph) {
        const size_t count = graph.cur_element_count;
        const Id entry = graph.enterpoint_node_;
        need(entry < count, "its entry point is not a node");
        const auto& levels = graph.element_levels_;
        need(graph.maxlevel_ == *std::max_element(levels.begin(), levels.begin() + count),
             "its highest level is not that of its nodes");
        need(levels[entry] == graph.maxlevel_, "its entry point is not on the highest level");
        graph.label_lookup_.reserve(graph.max_elements_);
        for (Id i = 0; i < count; i++) {
            for (int level = 0; level <= levels[i]; level++) check_links(graph, i, level);
            const auto mark = reinterpret_cast<unsigned char*>(graph.get_linklist0(i))[2];
            need(mark <= 1, "a mark of deletion is not valid");
            need(graph.group_mark(i) <= 1, "a mark of a group is not valid");
            const char* node = graph.getDataByInternalId(i);
            const NodeHead head = head_of(node);
            need(std::isfinite(head.scale) && head.scale >= 0, "a node's scale is out of range");
            need(!std::isnan(head.term), "a node's term is not a number");
            need(highest(node, graph.nodes().numbers()) <= graph.nodes().highest(),
                 "a node's number is out of range");
            const auto label = graph.getExternalLabel(i);
            need(label >> 63 == 0, "a label is out of range");
            need(graph.label_lookup_.emplace(label, i).second, "two nodes have the same label");
            graph.note_node(i);
        }
    }

    static int highest(const char* node, size_t count) {
        const int8_t* numbers = numbers_of(node);
        int8_t least = 0, most = 0;
        for (size_t j = 0; j < count; j++) {
            least = std::min(least, numbers[j]);
            most = std::max(most, numbers[j]);
        }
        return std::max(-int(least), int(most));
    }

    static void check_links(Graph& graph, Id id, int level) {
        const auto* links = graph.get_linklist_at_level(id, level);
        const size_t count = graph.getListCount(graph.get_linklist_at_level(id, level));
        need(count <= (level ? graph.maxM_ : graph.maxM0_), "a node has too many links");
        for (size_t i = 1; i <= count; i++) {
            need(links[i] < graph.cur_element_count, "a link does not lead to a node");
            need(graph.element_levels_[links[i]] >= level,
                 "a link leads to a node that is not on its level");
        }
    }
};

}  // namespace flowvec
