#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace tessera::fuzz {
namespace {

void write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    require(count > 0, "the machine takes what is written");
    content.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", promise);
  std::abort();
}

MemoryFile::MemoryFile(std::string_view content) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
  require(fd_ >= 0, "the machine has files in memory");
  write_all(fd_, content);
}

MemoryFile::~MemoryFile() { ::close(fd_); }

std::filesystem::path MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(fd_); }

Directory::Directory() {
  std::string name = "/dev/shm/tessera-fuzz-XXXXXX";
  require(::mkdtemp(name.data()) != nullptr, "the machine has /dev/shm");
  path_ = name;
}

Directory::~Directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Directory::write(const std::string& name, std::string_view content) const {
  std::ofstream(path_ / name, std::ios::binary)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace tessera::fuzz
