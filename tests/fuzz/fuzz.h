// What fuzz targets share. A target is a file TARGET.cc with LLVMFuzzerTestOneInput, a few lines
// over the product's own functions: what a function's contract says it throws is caught, all else
// is a finding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tessera::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Between the parts of an input that stands for several files.
inline constexpr std::string_view kBetween = "\n=====\n";

// The first N parts of the text; those that are not there are empty.
template <size_t N>
std::array<std::string_view, N> parts_of(std::string_view text) {
  std::array<std::string_view, N> parts;
  for (size_t i = 0; i < N && text.data() != nullptr; ++i) {
    const size_t end = i + 1 < N ? text.find(kBetween) : std::string_view::npos;
    parts[i] = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + kBetween.size());
  }
  return parts;
}

// Ends the process where a promise of the product does not hold.
void require(bool holds, const char* promise);

// A file that is on no disk.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Regular, while this lives.
  std::filesystem::path path() const;

 private:
  int fd_;
};

// A new directory, deleted with what is in it at the end.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::fuzz
