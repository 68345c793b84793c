// Reads job files: YAML or JSON text into a JobSpec, field by field and by name.
//
// Every mistake is a line "FILE:LINE:COLUMN: sentence", all of them found in one pass. Nothing is
// started and no other file is opened.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera {

struct JobFile {
  // Paths absolute and defaults filled in. Meaningful only without errors, as is `written`.
  v1::JobSpec spec;
  // Paths absolute, and only what the file says: what is submitted, for a planner leaves that
  // alone.
  v1::JobSpec written;
  // In the order of the file; mistakes of the whole file have no line.
  std::vector<std::string> errors;
};

inline constexpr size_t kMaxJobFileBytes = size_t{1} << 20;
inline constexpr size_t kMaxJobFileErrors = 20;

// Parses `text`. `file` stands in front of errors; relative paths are taken relative to `base`.
JobFile parse_job_file(const std::string& text, const std::string& file,
                       const std::filesystem::path& base);

// Reads the file at `path`; relative paths in it are relative to its folder.
JobFile read_job_file(const std::filesystem::path& path);

}  // namespace tessera
