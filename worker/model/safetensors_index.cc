// The files that make up the weights of a Hugging Face directory.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
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
// The kernel asks for another try where a directory was moved while it looked.
constexpr int kMaxTries = 64;
// One descriptor a file; below the usual limit of 1024 a process.
constexpr size_t kMaxFiles = 512;

[[noreturn]] void fail(const fs::path& path, const std::string& problem) {
  throw UserError(kField, path.string() + ": " + problem);
}

// Opens files of a model's directory. A snapshot in the Hugging Face cache is a directory of links
// into ../../blobs, so there they may lie in all of its repository.
class ModelFolder {
 public:
  explicit ModelFolder(fs::path directory) : directory_(std::move(directory)) {
    std::error_code error;
    fs::path root = fs::canonical(directory_, error);
    if (error) fail(directory_, error.message());
    if (root.parent_path().filename() == "snapshots") {
      inside_ = fs::path("snapshots") / root.filename();
      root = root.parent_path().parent_path();
    }
    fd_ = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) fail(directory_, std::strerror(errno));
  }
  ~ModelFolder() { ::close(fd_); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  fs::path path_of(const std::string& name) const { return directory_ / name; }

  // Whether there is something of that name, be it a link to nothing.
  bool holds(const std::string& name) const {
    struct stat status{};
    return ::fstatat(fd_, (inside_ / name).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  }

  // A descriptor. The kernel follows links beneath the directory alone, whatever becomes of them
  // meanwhile. Not blocking: a FIFO in place of a file must not hang us.
  int open(const std::string& name) const {
    open_how how{};
    how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    for (int tries = 0; tries < kMaxTries; ++tries) {
      const long fd = ::syscall(SYS_openat2, fd_, (inside_ / name).c_str(), &how, sizeof how);
      if (fd >= 0) return static_cast<int>(fd);
      if (errno != EAGAIN) break;
    }
    if (errno == EXDEV) {
      fail(path_of(name),
           "it links to a file outside of the model's directory, or by an absolute path");
    }
    const std::string problem = path_of(name).string() + ": " + std::strerror(errno);
    if (errno == ENOENT) throw AbsentError(kField, problem);
    throw UserError(kField, problem);
  }

 private:
  const fs::path directory_;
  fs::path inside_ = ".";
  int fd_ = -1;
};

// Closes the descriptor.
std::string read_index(int fd, const fs::path& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(fd, "rb"), std::fclose);
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) fail(path, "it is not a regular file");
  std::string text;
  char buffer[64 << 10];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, count);
    if (static_cast<int64_t>(text.size()) > kMaxIndexBytes) {
      fail(path, "it is larger than " + std::to_string(kMaxIndexBytes) + " bytes");
    }
  }
  if (std::ferror(file.get())) fail(path, "it cannot be read");
  return text;
}

// Tensor to file name, as the index has it.
std::map<std::string, std::string> parse_index(const std::string& text, const fs::path& path) {
  const auto bounded = [&](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth > kMaxIndexDepth) fail(path, "it is nested too deeply");
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, bounded);
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
  void add(const ModelFolder& folder, const std::string& file) {
    const size_t index = files_.size();
    const fs::path path = folder.path_of(file);
    files_.push_back(SafetensorsFile::open(folder.open(file), path, kField));
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
  const ModelFolder folder(directory);
  if (folder.holds(kSingleFile)) {
    impl->add(folder, kSingleFile);
    return WeightFiles(std::move(impl));
  }
  if (!folder.holds(kIndexFile)) {
    throw AbsentError(
        kField, directory.string() + ": it holds neither " + kSingleFile + " nor " + kIndexFile);
  }
  const fs::path index = folder.path_of(kIndexFile);
  const std::map<std::string, std::string> file_of =
      parse_index(read_index(folder.open(kIndexFile), index), index);
  std::set<std::string> names;
  for (const auto& [tensor, name] : file_of) names.insert(name);
  if (names.size() > kMaxFiles)
    fail(index, "it names more than " + std::to_string(kMaxFiles) + " files");
  for (const std::string& name : names) impl->add(folder, name);
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
