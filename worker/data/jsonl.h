// A JSONL file, line by line. Blank lines are skipped, as datasets' json loader does.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/mapped_file.h"

namespace tessera {

inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

class JsonlFile {
 public:
  struct Line {
    int64_t number = 0;  // the first is 1
    std::string_view text;
  };

  // Maps the file and finds its lines, the first `max_lines` that are not blank (0: all). `field`
  // of the job file is what errors are charged to. Throws UserError: not readable, a line above
  // kMaxLineBytes.
  JsonlFile(std::filesystem::path path, std::string field, int64_t max_lines = 0);

  const std::vector<Line>& lines() const { return lines_; }
  // Throws UserError "PATH:17: problem".
  [[noreturn]] void fail(const Line& line, const std::string& problem) const;
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  std::filesystem::path path_;
  std::string field_;
  MappedFile file_;
  std::vector<Line> lines_;
};

// Reads strings out of lines; one a thread.
class JsonlParser {
 public:
  explicit JsonlParser(const JsonlFile& file) : file_(file) {}

  // The string under `key`, valid until the next call. Throws UserError: not JSON, not UTF-8, not
  // an object, no such key, not a string.
  std::string_view string(const JsonlFile::Line& line, std::string_view key);

 private:
  const JsonlFile& file_;
  simdjson::dom::parser parser_;
  std::string padded_;
};

}  // namespace tessera
