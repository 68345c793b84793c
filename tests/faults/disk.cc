#include "tests/faults/disk.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace tessera::faults {
namespace {

constexpr char kFiller[] = "filler";

}  // namespace

std::optional<SmallDisk> SmallDisk::mount(const std::filesystem::path& at, int64_t bytes,
                                          std::string& why) {
  std::filesystem::create_directories(at);
  // Seen by this thread and what it starts alone, and gone with them.
  ::unshare(CLONE_NEWNS);
  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  const std::string options = "mode=0700,size=" + std::to_string(bytes);
  if (::mount("tmpfs", at.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    why = std::string("a tmpfs cannot be mounted here: ") + std::strerror(errno);
    return std::nullopt;
  }
  return SmallDisk(at);
}

SmallDisk::~SmallDisk() {
  if (!at_.empty()) ::umount2(at_.c_str(), MNT_DETACH);
}

void SmallDisk::fill() const {
  const int fd = ::open((at_ / kFiller).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) throw std::runtime_error("no file to fill the disk with");
  // First by pages, then what is left of the last one.
  for (const size_t size : {size_t{4096}, size_t{1}}) {
    const std::vector<char> zeros(size);
    while (::write(fd, zeros.data(), size) > 0) {
    }
  }
  ::close(fd);
}

void SmallDisk::empty() const { std::filesystem::remove(at_ / kFiller); }

FaultyCalls::FaultyCalls(const std::filesystem::path& control,
                         const std::filesystem::path& prefix) {
  const int fd = ::open(control.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(FailingDisk)) != 0) {
    throw std::runtime_error("no file " + control.string());
  }
  void* map = ::mmap(nullptr, sizeof(FailingDisk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (map == MAP_FAILED) throw std::runtime_error("cannot map " + control.string());
  shared_ = static_cast<FailingDisk*>(map);
  ::setenv(FAILING_DISK_CONTROL, control.c_str(), 1);
  ::setenv(FAILING_DISK_PATHS, prefix.c_str(), 1);
  ::setenv("LD_PRELOAD", FAILING_DISK_LIBRARY, 1);
}

FaultyCalls::~FaultyCalls() {
  for (const char* name : {FAILING_DISK_CONTROL, FAILING_DISK_PATHS, "LD_PRELOAD"}) {
    ::unsetenv(name);
  }
  ::munmap(const_cast<FailingDisk*>(shared_), sizeof(FailingDisk));
}

void FaultyCalls::arm(int64_t first, int64_t last, int error) {
  shared_->first = 0;
  shared_->num_calls = 0;
  shared_->error = error;
  shared_->last = last;
  shared_->first = first;
}

void FaultyCalls::disarm() { shared_->first = 0; }

int64_t FaultyCalls::num_calls() const { return shared_->num_calls; }

std::string integrity(const std::filesystem::path& database) {
  SQLite::Database opened(database.string(), SQLite::OPEN_READWRITE);
  return opened.execAndGet("PRAGMA integrity_check").getString();
}

}  // namespace tessera::faults
