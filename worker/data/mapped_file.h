// A file mapped for reading.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

class MappedFile {
 public:
  // Throws UserError(field) naming the path: not there, not a regular file, not readable.
  MappedFile(const std::filesystem::path& path, const std::string& field);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view contents() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
