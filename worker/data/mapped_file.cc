#include "worker/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "worker/absent_error.h"

namespace tessera {

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& field) {
  const auto message = [&](const std::string& problem) {
    return "cannot read " + path.string() + ": " + problem;
  };
  const auto fail = [&](const std::string& problem) { throw UserError(field, message(problem)); };
  // Not to wait for a writer, should the path name a FIFO.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) throw AbsentError(field, message(std::strerror(ENOENT)));
  if (fd < 0) fail(std::strerror(errno));
  struct stat status{};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  void* mapped = MAP_FAILED;
  if (regular && status.st_size > 0) {
    mapped = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (!regular) fail("not a regular file");
  if (status.st_size == 0) return;
  if (mapped == MAP_FAILED) fail(std::strerror(error));
  data_ = static_cast<const char*>(mapped);
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace tessera
