#include "client/cpp/job_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cpp/yaml_message.h"
#include "client/cpp/yaml_tree.h"
#include "proto/spec/rules.h"

namespace tessera {
namespace {

std::string render(const std::string& file, const FileError& error) {
  if (error.mark.line == 0) return absl::StrCat(file, ": ", error.message);
  return absl::StrCat(file, ":", error.mark.line, ":", error.mark.column, ": ", error.message);
}

std::vector<std::string> render_all(const std::string& file, std::vector<FileError> errors) {
  std::stable_sort(errors.begin(), errors.end(), [](const FileError& a, const FileError& b) {
    return std::pair(a.mark.line, a.mark.column) < std::pair(b.mark.line, b.mark.column);
  });
  std::vector<std::string> lines;
  for (const FileError& error : errors) {
    if (lines.size() == kMaxJobFileErrors) {
      lines.push_back(absl::StrCat(file, ": ", errors.size() - lines.size(), " more errors"));
      break;
    }
    lines.push_back(render(file, error));
  }
  return lines;
}

// Where `field` stands, or the closest section around it that is in the file.
Mark find_mark(const std::map<std::string, Mark>& marks, std::string field) {
  while (true) {
    if (const auto it = marks.find(field); it != marks.end()) return it->second;
    const size_t dot = field.rfind('.');
    if (dot == std::string::npos) return {};
    field.resize(dot);
  }
}

JobFile whole_file_error(const std::string& file, const std::string& message) {
  return {.spec = {}, .written = {}, .errors = {render(file, {{}, message})}};
}

}  // namespace

JobFile parse_job_file(const std::string& text, const std::string& file,
                       const std::filesystem::path& base) {
  JobFile job;
  FilledMessage filled;
  try {
    filled = fill_from_yaml(parse_yaml(text), job.spec);
  } catch (const YamlError& error) {
    filled.errors.push_back({error.mark, error.what()});
  }
  // Rules are checked on what was meant: after a misspelt name they would report it missing as
  // well.
  if (filled.errors.empty()) {
    spec::resolve_paths(job.spec, base);
    job.written = job.spec;
    spec::fill_defaults(job.spec);
    for (const spec::Violation& violation : spec::validate(job.spec)) {
      filled.errors.push_back({find_mark(filled.marks, violation.field), violation.message});
    }
  }
  job.errors = render_all(file, std::move(filled.errors));
  return job;
}

JobFile read_job_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return whole_file_error(file, "there is no such file");
  if (std::filesystem::is_directory(status)) {
    return whole_file_error(file, "is a directory, must be a YAML or JSON file");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return whole_file_error(file, absl::StrCat("cannot be read: ", strerror(errno)));
  std::string text(kMaxJobFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (stream.bad()) return whole_file_error(file, "cannot be read");
  if (text.size() > kMaxJobFileBytes) {
    return whole_file_error(file, absl::StrCat("is larger than ", kMaxJobFileBytes,
                                               " bytes, too large for a job file"));
  }
  return parse_job_file(text, file, std::filesystem::absolute(path).parent_path());
}

}  // namespace tessera
