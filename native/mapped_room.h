// Memory that begins with the first bytes of a file. Processes that map the same file share what they
// do not change.
#pragma once

#include <cstddef>

#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace flowvec {

class MappedRoom {
  public:
    MappedRoom() = default;
    MappedRoom(const MappedRoom&) = delete;
    ~MappedRoom() { close(); }

    // Maps the first bytes of a file, with room for more behind them, which takes no memory until it
    // is used. False if this system cannot.
    bool open(int file, size_t bytes, size_t room) {
#ifdef _WIN32
        (void)file, (void)bytes, (void)room;
        return false;
#else
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        const auto whole = [&](size_t size) { return (size + page - 1) / page * page; };
        size_ = whole(room > bytes ? room : bytes);
        const int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_NORESERVE;
        void* address = mmap(nullptr, size_, access, flags | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED) return false;
        address_ = static_cast<char*>(address);
        if (mmap(address, whole(bytes), access, flags | MAP_FIXED, file, 0) != MAP_FAILED)
            return true;
        close();
        return false;
#endif
    }

    void close() {
#ifndef _WIN32
        if (address_) munmap(address_, size_);
#endif
        address_ = nullptr;
    }

    char* address() const { return address_; }  // null if nothing is mapped

  private:
    char* address_ = nullptr;
    size_t size_ = 0;
};

}  // namespace flowvec
