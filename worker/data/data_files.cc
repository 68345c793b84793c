#include "worker/data/data_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <system_error>

#include "worker/absent_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using Paths = std::vector<fs::path>;

bool is_pattern(const fs::path& path) {
  return path.native().find_first_of("*?[") != std::string::npos;
}

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

bool has_records(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".jsonl" || extension == ".json" || extension == ".parquet";
}

class Search {
 public:
  explicit Search(const std::string& field) : field_(field) {}

  Paths below(const fs::path& directory) const {
    Paths found;
    for (const fs::path& entry : entries(directory)) {
      if (is_hidden(entry)) continue;
      if (fs::is_directory(entry)) {
        if (!fs::is_symlink(entry)) append(below(entry), found);
      } else if (has_records(entry)) {
        append({entry}, found);
      }
    }
    return found;
  }

  // What the components [part, end) of a pattern match below a directory.
  Paths matches(const fs::path& directory, fs::path::iterator part, fs::path::iterator end) const {
    const fs::path name = *part;
    const bool last = std::next(part) == end;
    if (name == "**") return matches_anywhere(directory, std::next(part), end);
    Paths found;
    const auto take = [&](const fs::path& entry) {
      if (!last && fs::is_directory(entry)) append(matches(entry, std::next(part), end), found);
      if (last && fs::is_regular_file(entry)) append({entry}, found);
    };
    if (!is_pattern(name)) {
      take(directory / name);
      return found;
    }
    for (const fs::path& entry : entries(directory)) {
      if (::fnmatch(name.c_str(), entry.filename().c_str(), FNM_PERIOD) == 0) take(entry);
    }
    return found;
  }

 private:
  Paths matches_anywhere(const fs::path& directory, fs::path::iterator part,
                         fs::path::iterator end) const {
    if (part == end) return below(directory);
    Paths found = matches(directory, part, end);
    for (const fs::path& entry : entries(directory)) {
      if (is_hidden(entry) || !fs::is_directory(entry) || fs::is_symlink(entry)) continue;
      append(matches_anywhere(entry, part, end), found);
    }
    return found;
  }

  // Sorted.
  Paths entries(const fs::path& directory) const {
    Paths found;
    std::error_code error;
    for (fs::directory_iterator it(directory, error), end; it != end; it.increment(error)) {
      found.push_back(it->path());
      check(found.size());
    }
    if (error) {
      throw UserError(field_, "cannot read " + directory.string() + ": " + error.message());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  void append(Paths more, Paths& found) const {
    std::move(more.begin(), more.end(), std::back_inserter(found));
    check(found.size());
  }

  void check(size_t num_files) const {
    if (num_files <= kMaxDataFiles) return;
    throw UserError(field_, field_ + " stands for more than " + std::to_string(kMaxDataFiles) +
                                " files; join some of them");
  }

  const std::string& field_;
};

Paths find(const fs::path& path, const std::string& field) {
  const Search search(field);
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::is_directory(status)) {
    Paths found = search.below(path);
    if (found.empty()) {
      throw UserError(field,
                      path.string() + ": there are no .jsonl, .json or .parquet files in it");
    }
    return found;
  }
  if (fs::exists(status) || !is_pattern(path)) return {path};
  const fs::path whole = fs::absolute(path);
  const fs::path relative = whole.relative_path();
  Paths found = search.matches(whole.root_path(), relative.begin(), relative.end());
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.empty()) throw AbsentError(field, path.string() + ": no file matches the pattern");
  return found;
}

}  // namespace

std::vector<RecordFile> find_data_files(std::span<const fs::path> paths, const std::string& field) {
  std::vector<RecordFile> files;
  for (const fs::path& path : paths) {
    for (fs::path& found : find(path, field)) files.push_back({std::move(found), field});
  }
  return files;
}

}  // namespace tessera
