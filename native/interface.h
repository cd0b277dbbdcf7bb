// What the C interfaces of the native libraries share. One file of each library includes it.
//
// Python calls them by ctypes, which releases its lock in every call. Functions return a status;
// `message` says what went wrong in this thread's last call.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "errors.h"

#ifdef _WIN32
#define FLOWVEC_API extern "C" __declspec(dllexport)
#else
#define FLOWVEC_API extern "C" __attribute__((visibility("default")))
#endif

namespace {

enum Status { OK, BAD_ARGUMENT, BAD_FILE, SYSTEM, NO_MEMORY, INTERNAL };

thread_local std::string message;
thread_local int system_error_number;

template <typename Work>
int guarded(const Work& work) {
    try {
        work();
        return OK;
    } catch (const flowvec::ArgumentError& error) {
        message = error.what();
        return BAD_ARGUMENT;
    } catch (const flowvec::FileError& error) {
        message = error.what();
        return BAD_FILE;
    } catch (const flowvec::SystemError& error) {
        message = error.what();
        system_error_number = error.number;
        return SYSTEM;
    } catch (const std::bad_alloc&) {
        message = "there is not enough memory";
        return NO_MEMORY;
    } catch (const std::exception& error) {
        message = error.what();
        // hnswlib has no type for it.
        return message.find("Not enough memory") == std::string::npos ? INTERNAL : NO_MEMORY;
    }
}

}  // namespace
