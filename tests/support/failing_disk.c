// LD_PRELOAD: lets chosen calls on chosen files fail as a bad disk would. See failing_disk.h.
#define _GNU_SOURCE
#include "tests/support/failing_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile struct FailingDisk* control;
static const char* prefix;

__attribute__((constructor)) static void begin(void) {
  const char* path = getenv(FAILING_DISK_CONTROL);
  prefix = getenv(FAILING_DISK_PATHS);
  if (path == NULL || prefix == NULL) return;
  int (*real_open)(const char*, int, ...) = dlsym(RTLD_NEXT, "open");
  const int fd = real_open(path, O_RDWR | O_CLOEXEC);
  void* map =
      fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    fprintf(stderr, "failing_disk: no %s\n", path);
    abort();
  }
  close(fd);
  control = map;
}

// Whether this call fails; errno is set then.
static int fails(const char* path) {
  if (control == NULL || strncmp(path, prefix, strlen(prefix)) != 0) return 0;
  const int64_t number = __atomic_add_fetch(&control->num_calls, 1, __ATOMIC_SEQ_CST);
  if (control->first == 0 || number < control->first || number > control->last) return 0;
  errno = (int)control->error;
  return 1;
}

static int fails_fd(int fd) {
  if (control == NULL) return 0;
  char link[64];
  char path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                       \
  int name(const char* path, int flags, ...) {                                           \
    va_list arguments;                                                                   \
    va_start(arguments, flags);                                                          \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0; \
    va_end(arguments);                                                                   \
    if ((flags & (O_WRONLY | O_RDWR)) && fails(path)) return -1;                         \
    return REAL(name)(path, flags, mode);                                                \
  }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void* data, size_t size) {
  return fails_fd(fd) ? -1 : REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return fails_fd(fd) ? -1 : REAL(pwrite)(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return fails_fd(fd) ? -1 : REAL(pwrite64)(fd, data, size, offset);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return fails_fd(fd) ? -1 : REAL(pread)(fd, data, size, offset);
}

ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  return fails_fd(fd) ? -1 : REAL(pread64)(fd, data, size, offset);
}

int fsync(int fd) { return fails_fd(fd) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return fails_fd(fd) ? -1 : REAL(fdatasync)(fd); }

int ftruncate(int fd, off_t size) { return fails_fd(fd) ? -1 : REAL(ftruncate)(fd, size); }

int ftruncate64(int fd, off64_t size) { return fails_fd(fd) ? -1 : REAL(ftruncate64)(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t size) {
  return fails_fd(fd) ? errno : REAL(posix_fallocate)(fd, offset, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
  return fails_fd(fd) ? errno : REAL(posix_fallocate64)(fd, offset, size);
}

int rename(const char* from, const char* to) { return fails(to) ? -1 : REAL(rename)(from, to); }
