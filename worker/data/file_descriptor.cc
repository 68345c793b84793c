#include "worker/data/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "worker/absent_error.h"

namespace tessera {

FileDescriptor open_regular_file(const std::filesystem::path& path, const std::string& field) {
  const auto message = [&](const std::string& problem) {
    return "cannot read " + path.string() + ": " + problem;
  };
  const auto fail = [&](const std::string& problem) { throw UserError(field, message(problem)); };
  // Not to wait for a writer, should the path name a FIFO.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) throw AbsentError(field, message(std::strerror(ENOENT)));
  if (!file.is_open()) fail(std::strerror(errno));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) fail("not a regular file");
  return file;
}

size_t read_at(int fd, void* buffer, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::pread(fd, static_cast<char*>(buffer) + done, size - done,
                                  offset + static_cast<int64_t>(done));
    if (count == 0) break;
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "read");
    }
  }
  return done;
}

void write_all(int fd, const void* buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = ::write(fd, static_cast<const char*>(buffer) + done, size - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "write");
    }
  }
}

}  // namespace tessera
