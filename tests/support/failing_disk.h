// What a test and failing_disk.c, preloaded into the process under test, share: a file that both
// have mapped. All zeroes: nothing fails, calls are counted.
#pragma once

#include <stdint.h>

// Names of environment variables: the shared file, and the prefix of the paths that are meant.
#define FAILING_DISK_CONTROL "FAILING_DISK_CONTROL"
#define FAILING_DISK_PATHS "FAILING_DISK_PATHS"

struct FailingDisk {
  // Calls on such paths so far: open (of a file that is to be written), write, pwrite, pread,
  // fsync, fdatasync, ftruncate, posix_fallocate and rename.
  int64_t num_calls;
  // Calls number `first` to `last`, counted from 1, fail with `error`, an errno. 0: none does.
  int64_t first;
  int64_t last;
  int64_t error;
};
