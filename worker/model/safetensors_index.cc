// The files that make up the weights of a Hugging Face directory.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "worker/absent_error.h"
#include "worker/model/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kField[] = "model.path";
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int kMaxIndexDepth = 2;
// One descriptor a file; below the usual limit of 1024 a process.
constexpr size_t kMaxFiles = 512;

[[noreturn]] void fail(const fs::path& path, const std::string& problem) {
  throw UserError(kField, path.string() + ": " + problem);
}

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// The file's true path. A snapshot in the Hugging Face cache is a folder of links into ../../blobs.
fs::path resolve(const fs::path& directory, const std::string& name) {
  const fs::path path = directory / name;
  std::error_code error;
  fs::path root = fs::canonical(directory, error);
  if (error) fail(directory, error.message());
  if (root.parent_path().filename() == "snapshots") root = root.parent_path().parent_path();
  fs::path resolved = fs::canonical(path, error);
  if (error == std::errc::no_such_file_or_directory)
    throw AbsentError(kField, path.string() + ": " + error.message());
  if (error) fail(path, error.message());
  if (!is_within(resolved, root)) fail(path, "it links to a file outside of the model's directory");
  return resolved;
}

std::string read_index(const fs::path& path) {
  if (!fs::is_regular_file(path)) fail(path, "it is not a regular file");
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[64 << 10];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > kMaxIndexBytes) {
      fail(path, "it is larger than " + std::to_string(kMaxIndexBytes) + " bytes");
    }
  }
  if (!file.eof()) fail(path, "it cannot be read");
  return text;
}

// Tensor to file name, as the index has it.
std::map<std::string, std::string> parse_index(const fs::path& path) {
  const auto bounded = [&](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth > kMaxIndexDepth) fail(path, "it is nested too deeply");
    return true;
  };
  Json json;
  try {
    json = Json::parse(read_index(path), bounded);
  } catch (const Json::exception&) {
    fail(path, "it is not valid JSON");
  }
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail(path, "it has no 'weight_map'");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) fail(path, "the file of tensor '" + tensor + "' is not a string");
    const auto& name = file.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      fail(path, "'" + name + "' is not the name of a file in this directory");
    }
    files.emplace(tensor, name);
  }
  if (files.empty()) fail(path, "its 'weight_map' is empty");
  return files;
}

}  // namespace

class WeightFiles::Impl {
 public:
  void add(const fs::path& path) {
    const size_t index = files_.size();
    files_.push_back(SafetensorsFile::open(path, kField));
    for (const auto& [name, info] : files_.back().tensors()) {
      if (!tensors_.emplace(name, info).second)
        fail(path, "tensor '" + name + "' is in another file, too");
      file_of_.emplace(name, index);
    }
  }

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }

  void read(const std::string& name, int64_t begin, at::Tensor out) const {
    const auto found = file_of_.find(name);
    TORCH_CHECK(found != file_of_.end(), "no tensor ", name);
    files_[found->second].read(name, begin, std::move(out));
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, size_t> file_of_;
};

WeightFiles::WeightFiles(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightFiles::WeightFiles(WeightFiles&&) noexcept = default;
WeightFiles::~WeightFiles() = default;

WeightFiles WeightFiles::open(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) fail(directory, "it is not a directory");
  auto impl = std::make_unique<Impl>();
  if (fs::exists(fs::symlink_status(directory / kSingleFile, ignored))) {
    impl->add(resolve(directory, kSingleFile));
    return WeightFiles(std::move(impl));
  }
  if (!fs::exists(fs::symlink_status(directory / kIndexFile, ignored))) {
    throw AbsentError(
        kField, directory.string() + ": it holds neither " + kSingleFile + " nor " + kIndexFile);
  }
  const fs::path index = resolve(directory, kIndexFile);
  const std::map<std::string, std::string> file_of = parse_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, name] : file_of) names.insert(name);
  if (names.size() > kMaxFiles)
    fail(index, "it names more than " + std::to_string(kMaxFiles) + " files");
  for (const std::string& name : names) impl->add(resolve(directory, name));
  for (const auto& [tensor, name] : file_of) {
    if (!impl->tensors().contains(tensor))
      fail(directory / name, "it lacks the tensor '" + tensor + "'");
  }
  return WeightFiles(std::move(impl));
}

const std::map<std::string, TensorInfo>& WeightFiles::tensors() const { return impl_->tensors(); }

void WeightFiles::read(const std::string& name, int64_t begin, at::Tensor out) const {
  impl_->read(name, begin, std::move(out));
}

}  // namespace tessera
