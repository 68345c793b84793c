#include "client/trl/datasets.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::trl {
namespace {

namespace fs = std::filesystem;

struct SplitWords {
  const char* split;
  std::vector<std::string> words;
};

const std::vector<SplitWords>& split_words() {
  static const std::vector<SplitWords> words = {
      {"train", {"train", "training"}},
      {"validation", {"validation", "valid", "val", "dev"}},
      {"test", {"test", "testing", "eval", "evaluation"}},
  };
  return words;
}

bool is_data(const fs::path& file) {
  const std::string name = file.filename().string();
  // Beside the data of a directory, none of it.
  if (name.starts_with('.') || name == "dataset_infos.json" || name == "dataset_info.json") {
    return false;
  }
  const std::string extension = file.extension().string();
  return extension == ".jsonl" || extension == ".json" || extension == ".parquet";
}

// The words of a path: what stands between characters that are no letters or digits.
std::vector<std::string> words_of(const fs::path& relative) {
  std::string text = absl::AsciiStrToLower(relative.string());
  std::ranges::replace_if(text, [](char c) { return !absl::ascii_isalnum(c); }, ' ');
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

bool has_any(const std::vector<std::string>& words, const std::vector<std::string>& wanted) {
  return std::ranges::find_first_of(words, wanted) != words.end();
}

bool names_a_split(const std::vector<std::string>& words) {
  return std::ranges::any_of(split_words(),
                             [&](const SplitWords& known) { return has_any(words, known.words); });
}

std::vector<fs::path> data_below(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(
           directory, fs::directory_options::skip_permission_denied, error)) {
    if (entry.is_regular_file(error) && is_data(entry.path())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

SplitFiles find_among(const std::vector<fs::path>& files, const fs::path& directory,
                      const std::string& split) {
  const auto known = std::ranges::find(split_words(), split, &SplitWords::split);
  const std::vector<std::string> wanted =
      known == split_words().end() ? std::vector<std::string>{split} : known->words;
  SplitFiles found;
  bool any_named = false;
  for (const fs::path& file : files) {
    const std::vector<std::string> words = words_of(fs::relative(file, directory));
    any_named = any_named || names_a_split(words);
    if (has_any(words, wanted)) found.paths.push_back(file.string());
  }
  if (found.paths.empty() && !any_named && split == "train") found.paths = {directory.string()};
  if (found.paths.empty()) {
    found.error = absl::StrCat("no .jsonl, .json or .parquet file in ", directory.string(),
                               " is named for the split ", split);
  }
  return found;
}

}  // namespace

bool is_local(const std::string& name, const fs::path& directory) {
  if (name.starts_with('/') || name.starts_with('.') || name.starts_with('~')) return true;
  std::error_code error;
  return !name.empty() && fs::exists(directory / name, error);
}

fs::path local_path(const std::string& name, const fs::path& directory) {
  fs::path path = (directory / name).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

SplitFiles find_split(const fs::path& path, const std::string& split) {
  std::error_code error;
  if (split.find('[') != std::string::npos || split.find('+') != std::string::npos) {
    return {.paths = {},
            .error = absl::StrCat("the split \"", split,
                                  "\" is a part or a sum; write it to a file of its "
                                  "own")};
  }
  if (fs::is_directory(path, error)) {
    if (fs::exists(path / "state.json", error) || fs::exists(path / "dataset_dict.json", error)) {
      return {.paths = {},
              .error = absl::StrCat(path.string(),
                                    " was written by save_to_disk; read it with load_from_disk, "
                                    "and write it with to_parquet")};
    }
    return find_among(data_below(path), path, split);
  }
  if (split != "train") {
    return {.paths = {}, .error = absl::StrCat("there is no split ", split, " in ", path.string())};
  }
  return {.paths = {path.string()}, .error = ""};
}

std::string how_to_export(const std::string& name, const std::string& config,
                          const std::string& split, const std::string& file) {
  const std::string arguments =
      absl::StrCat("'", name, "'", config.empty() ? "" : absl::StrCat(", '", config, "'"),
                   ", split='", split, "'");
  return absl::StrCat("python -c \"from datasets import load_dataset; load_dataset(", arguments,
                      ").to_json('", file, "')\"");
}

}  // namespace tessera::trl
