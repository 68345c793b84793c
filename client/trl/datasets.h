// Which files of a machine TRL's data sets are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::trl {

struct SplitFiles {
  // Absolute: the files of the split, or the directory or file as a whole.
  std::vector<std::string> paths;
  // Why there are none, and what to do. Empty: there are some.
  std::string error;
};

// Whether `name` is of this machine: absolute, below "." or "~", or there beneath `directory`.
bool is_local(const std::string& name, const std::filesystem::path& directory);
// Absolute; "~" is left as it is, for a job file has no home.
std::filesystem::path local_path(const std::string& name, const std::filesystem::path& directory);

// The files of a split ("train") below `path`, as the datasets library finds them by their names:
// those that have the split's name in theirs, or in a folder's. Where no file is named for any
// split, all are of the split train. Of a path that is not there yet, all of it is train.
SplitFiles find_split(const std::filesystem::path& path, const std::string& split);

// What to do to get a data set of the Hub here, for a refusal.
std::string how_to_export(const std::string& name, const std::string& config,
                          const std::string& split, const std::string& file);

}  // namespace tessera::trl
