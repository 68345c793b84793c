#include "worker/checkpoint/durable_files.h"

#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kTemporarySuffix[] = ".tmp";

[[noreturn]] void throw_errno(int error, const fs::path& path) {
  throw std::system_error(error, std::generic_category(), path.string());
}

void take_room(int fd, int64_t bytes, const fs::path& path) {
  if (bytes == 0 || ::fallocate(fd, 0, 0, bytes) == 0) return;
  // A file system that cannot: a full disk then shows when writing.
  if (errno == EOPNOTSUPP && ::ftruncate(fd, bytes) == 0) return;
  throw_errno(errno, path.string() + " (" + std::to_string(bytes) + " bytes)");
}

}  // namespace

OutputFile OutputFile::create(const fs::path& path, int64_t bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) throw_errno(errno, path);
  OutputFile file(path, fd);
  take_room(fd, bytes, path);
  return file;
}

OutputFile OutputFile::open(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) throw_errno(errno, path);
  return OutputFile(path, fd);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(const void* data, int64_t bytes, int64_t offset) {
  const auto* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(fd_, cursor, static_cast<size_t>(bytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(errno, path_);
    cursor += written;
    offset += written;
    bytes -= written;
  }
}

void OutputFile::sync_and_close() {
  if (::fsync(fd_) != 0) throw_errno(errno, path_);
  if (::close(std::exchange(fd_, -1)) != 0) throw_errno(errno, path_);
}

void write_durably(const fs::path& path, std::string_view contents) {
  const auto bytes = static_cast<int64_t>(contents.size());
  OutputFile file = OutputFile::create(path, bytes);
  file.write(contents.data(), bytes, 0);
  file.sync_and_close();
}

void sync_directory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno(errno, directory);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0) throw_errno(error, directory);
}

fs::path temporary_name(const fs::path& directory) {
  std::string name(".");
  name += directory.filename().string();
  name += kTemporarySuffix;
  return directory.parent_path() / name;
}

bool is_temporary_name(const fs::path& path) {
  return path.filename().string().starts_with(".") && path.extension() == kTemporarySuffix;
}

void publish_directory(const fs::path& directory) {
  const fs::path temporary = temporary_name(directory);
  sync_directory(temporary);
  if (fs::exists(fs::symlink_status(directory))) {
    // Not two renames: a crash between them would leave neither.
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, directory.c_str(), RENAME_EXCHANGE) !=
        0) {
      throw_errno(errno, directory);
    }
    sync_directory(directory.parent_path());
    fs::remove_all(temporary);
  } else {
    fs::rename(temporary, directory);
    sync_directory(directory.parent_path());
  }
}

void retire_directory(const fs::path& directory) {
  const fs::path temporary = temporary_name(directory);
  fs::remove_all(temporary);
  fs::rename(directory, temporary);
  fs::remove_all(temporary);
}

void run_together(Collectives& ranks, const std::string& what, const std::function<void()>& body) {
  std::exception_ptr own;
  at::Tensor errors_by_rank = at::zeros({ranks.size()}, at::kLong);
  int64_t* errors = errors_by_rank.data_ptr<int64_t>();
  try {
    body();
  } catch (const std::system_error& error) {
    own = std::current_exception();
    errors[ranks.rank()] = std::max(error.code().value(), 1);
  }
  ranks.all_reduce_sum(errors_by_rank);
  if (own) std::rethrow_exception(own);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (errors[rank] == 0) continue;
    throw std::system_error(static_cast<int>(errors[rank]), std::generic_category(),
                            what + " on rank " + std::to_string(rank));
  }
}

}  // namespace tessera
