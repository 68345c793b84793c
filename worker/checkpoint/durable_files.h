// Files and directories that are there after a crash, or not at all. All functions throw
// std::system_error with the path in its message.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "worker/parallel/collectives.h"

namespace tessera {

// A file being written.
class OutputFile {
 public:
  // A new file of `bytes` bytes, whose room on the disk is taken at once: a full disk shows here.
  static OutputFile create(const std::filesystem::path& path, int64_t bytes);
  // To write into a file that another rank created.
  static OutputFile open(const std::filesystem::path& path);
  OutputFile(OutputFile&& other) noexcept;
  ~OutputFile();

  void write(const void* data, int64_t bytes, int64_t offset);
  // Blocks until what was written is durable, and closes.
  void sync_and_close();

 private:
  OutputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::filesystem::path path_;
  int fd_;
};

void write_durably(const std::filesystem::path& path, std::string_view contents);
void sync_directory(const std::filesystem::path& directory);

// The name, beside `directory`, under which it is made or taken away.
std::filesystem::path temporary_name(const std::filesystem::path& directory);
bool is_temporary_name(const std::filesystem::path& path);

// Puts the finished directory temporary_name(directory) in the place of `directory` in one step,
// whether or not there is one already. Durable on return.
void publish_directory(const std::filesystem::path& directory);

// Takes `directory` away so that no part of it is ever seen under its name.
void retire_directory(const std::filesystem::path& directory);

// Runs `body`, which may differ between ranks, and agrees on how it went. When it threw
// std::system_error on any rank, all of them throw: that rank its own error, the others one that
// names the rank.
void run_together(Collectives& ranks, const std::string& what, const std::function<void()>& body);

}  // namespace tessera
