// Errors of the native libraries. `interface.h` turns them into statuses.
#pragma once

#include <cerrno>
#include <stdexcept>

namespace flowvec {

// A wrong argument: the caller's mistake.
struct ArgumentError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A file whose content is not what it should be.
struct FileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The system could not read or write a file.
struct SystemError : std::runtime_error {
    int number;
    SystemError() : std::runtime_error("cannot read or write"), number(errno ? errno : EIO) {}
};

}  // namespace flowvec
