// Work in several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flowvec {

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

}  // namespace flowvec
