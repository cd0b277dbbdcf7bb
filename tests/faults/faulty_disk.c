/* Lets calls that change files under one folder fail, and keeps a log of them.

   Preloaded into a process. `faulty_disk_arm(folder, at, error, once)` counts from its call on: the
   call number `at` (from 1; 0: none) fails with `error`, and so do all later ones unless `once`. Every
   call is written to the file that FAULTY_DISK_LOG names, as "<call> <path>". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static atomic_int armed, calls;
static int fail_at, fail_with, fail_once, log_file = -1;

int faulty_disk_arm(const char *path, int at, int error, int once) {
    const char *name = getenv("FAULTY_DISK_LOG");
    armed = 0;
    if (name && log_file < 0)
        log_file = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND, 0644);
    snprintf(folder, sizeof folder, "%s", path ? path : "");
    fail_at = at, fail_with = error, fail_once = once, calls = 0;
    armed = path != NULL;
    return 0;
}

int faulty_disk_calls(void) { return calls; }

static int fails(const char *call, const char *path) {
    char line[PATH_MAX + 32];
    int number, length;
    if (!armed || strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    number = ++calls;
    if (log_file >= 0) {
        length = snprintf(line, sizeof line, "%s %s\n", call, path);
        syscall(SYS_write, log_file, line, length);
    }
    if (fail_at && (fail_once ? number == fail_at : number >= fail_at)) {
        errno = fail_with;
        return 1;
    }
    return 0;
}

static int handle_fails(const char *call, int handle) {
    char link[64], path[PATH_MAX];
    ssize_t length;
    if (!armed)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return fails(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int f, const void *b, size_t n) {
    return handle_fails("write", f) ? -1 : REAL(write)(f, b, n);
}
ssize_t writev(int f, const struct iovec *v, int n) {
    return handle_fails("write", f) ? -1 : REAL(writev)(f, v, n);
}
ssize_t pwrite(int f, const void *b, size_t n, off_t o) {
    return handle_fails("write", f) ? -1 : REAL(pwrite)(f, b, n, o);
}
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o) {
    return handle_fails("write", f) ? -1 : REAL(pwrite64)(f, b, n, o);
}
int fsync(int f) { return handle_fails("sync", f) ? -1 : REAL(fsync)(f); }
int fdatasync(int f) { return handle_fails("sync", f) ? -1 : REAL(fdatasync)(f); }
int ftruncate(int f, off_t n) { return handle_fails("truncate", f) ? -1 : REAL(ftruncate)(f, n); }
int ftruncate64(int f, off64_t n) {
    return handle_fails("truncate", f) ? -1 : REAL(ftruncate64)(f, n);
}
int rename(const char *a, const char *b) { return fails("rename", b) ? -1 : REAL(rename)(a, b); }
int renameat(int d, const char *a, int e, const char *b) {
    return fails("rename", b) ? -1 : REAL(renameat)(d, a, e, b);
}
int unlink(const char *a) { return fails("unlink", a) ? -1 : REAL(unlink)(a); }
