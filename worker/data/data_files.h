// Which files the paths of a job stand for.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "worker/data/record_reader.h"

namespace tessera {

inline constexpr size_t kMaxDataFiles = 100'000;

// A file stands for itself; a directory for the .jsonl, .json and .parquet files in it and below,
// sorted by path, hidden ones left out; a pattern with *, ? or [...] for the files it matches,
// sorted, where ** is any number of directories. The paths' files follow each other in the order of
// the paths. Throws UserError(field): there is no such file, or nothing is matched.
std::vector<RecordFile> find_data_files(std::span<const std::filesystem::path> paths,
                                        const std::string& field);

}  // namespace tessera
