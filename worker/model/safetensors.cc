#include "worker/model/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "worker/errors.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
// The format's own limit.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kStagingBytes = 1 << 20;
constexpr size_t kDataAlignment = 8;  // as the safetensors package pads

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array kDtypes = {
    DtypeName{"F32", at::kFloat},
    DtypeName{"BF16", at::kBFloat16},
    DtypeName{"F16", at::kHalf},
    DtypeName{"F64", at::kDouble},
    DtypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    DtypeName{"F8_E5M2", at::kFloat8_e5m2},
    DtypeName{"I64", at::kLong},
    DtypeName{"I32", at::kInt},
    DtypeName{"I16", at::kShort},
    DtypeName{"I8", at::kChar},
    DtypeName{"U8", at::kByte},
    DtypeName{"BOOL", at::kBool},
};

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const DtypeName& known : kDtypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

std::string_view name_of(at::ScalarType dtype) {
  for (const DtypeName& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  TORCH_CHECK(false, "safetensors has no name for ", dtype);
}

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

// What is wrong with a file; the caller adds which file.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Entry {
  TensorInfo info;
  int64_t begin = 0;  // in the data
  int64_t end = 0;
};

// Names come from the file and go into messages.
std::string shown(const std::string& name) {
  constexpr size_t kMaxShown = 120;
  return "'" + (name.size() <= kMaxShown ? name : name.substr(0, kMaxShown) + "...") + "'";
}

int64_t to_extent(const Json& value, const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw FormatError(what + " is not a list of sizes");
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

const Json& member(const Json& json, const char* key, Json::value_t type,
                   const std::string& tensor) {
  const auto found = json.find(key);
  if (found == json.end() || found->type() != type) {
    throw FormatError("tensor " + shown(tensor) + " has no valid '" + key + "'");
  }
  return *found;
}

Entry to_entry(const std::string& name, const Json& json) {
  Entry entry;
  const auto& dtype =
      member(json, "dtype", Json::value_t::string, name).get_ref<const std::string&>();
  const auto known = dtype_of(dtype);
  if (!known) throw FormatError("tensor " + shown(name) + " has the unknown dtype " + shown(dtype));
  entry.info.dtype = *known;
  entry.info.numel = 1;
  for (const Json& value : member(json, "shape", Json::value_t::array, name)) {
    const int64_t extent = to_extent(value, "the shape of " + shown(name));
    if (__builtin_mul_overflow(entry.info.numel, extent, &entry.info.numel)) {
      throw FormatError("the shape of " + shown(name) + " is too large");
    }
    entry.info.shape.push_back(extent);
  }
  const Json& offsets = member(json, "data_offsets", Json::value_t::array, name);
  if (offsets.size() != 2)
    throw FormatError("tensor " + shown(name) + " has no valid 'data_offsets'");
  entry.begin = to_extent(offsets[0], "data_offsets of " + shown(name));
  entry.end = to_extent(offsets[1], "data_offsets of " + shown(name));
  int64_t bytes = 0;
  if (entry.end < entry.begin ||
      __builtin_mul_overflow(entry.info.numel, bytes_of(entry.info.dtype), &bytes) ||
      entry.end - entry.begin != bytes) {
    throw FormatError("the data_offsets of " + shown(name) + " do not match its shape and dtype");
  }
  return entry;
}

// Takes each tensor as its object ends and drops the object, so that a header's JSON is never whole
// in memory.
class HeaderReader {
 public:
  std::map<std::string, Entry> parse(std::string_view header) {
    const auto callback = [this](int depth, Json::parse_event_t event, Json& parsed) {
      return on_event(depth, event, parsed);
    };
    try {
      if (!Json::parse(header.begin(), header.end(), callback).is_object()) {
        throw FormatError("the header is not a JSON object");
      }
    } catch (const Json::exception&) {
      throw FormatError("the header is not valid JSON");
    }
    return std::move(entries_);
  }

 private:
  static constexpr int kMaxDepth = 2;

  // Depths: 0 is the header, 1 a tensor in it, 2 a list in that.
  bool on_event(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth > kMaxDepth) {
      throw FormatError("the header is nested too deeply");
    }
    if (event == Event::key && depth == 1) name_ = parsed.get<std::string>();
    if (depth != 1 || event == Event::key || event == Event::object_start ||
        event == Event::array_start) {
      return true;
    }
    if (name_ == "__metadata__") return false;
    if (event != Event::object_end)
      throw FormatError("tensor " + shown(name_) + " is not an object");
    if (!entries_.emplace(name_, to_entry(name_, parsed)).second) {
      throw FormatError("tensor " + shown(name_) + " is there twice");
    }
    return false;
  }

  std::string name_;
  std::map<std::string, Entry> entries_;
};

// The data must be covered once, from its first byte to its last, as the format says.
void check_coverage(const std::map<std::string, Entry>& entries, int64_t data_bytes) {
  std::vector<std::pair<const Entry*, const std::string*>> in_order;
  for (const auto& [name, entry] : entries) in_order.emplace_back(&entry, &name);
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  int64_t covered = 0;
  for (const auto& [entry, name] : in_order) {
    if (entry->begin < covered) throw FormatError("tensor " + shown(*name) + " overlaps another");
    if (entry->begin > covered) throw FormatError("there is a gap before tensor " + shown(*name));
    covered = entry->end;
  }
  if (covered > data_bytes) {
    throw FormatError("it is truncated: its header describes " + std::to_string(covered) +
                      " bytes of data, there are " + std::to_string(data_bytes));
  }
  if (covered < data_bytes) {
    throw FormatError(std::to_string(data_bytes - covered) + " bytes after its last tensor");
  }
}

void read_fully(int fd, void* to, int64_t bytes, int64_t offset) {
  auto* cursor = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, cursor, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FormatError(std::strerror(errno));
    if (got == 0) throw FormatError("it ends before its data does");
    cursor += got;
    offset += got;
    bytes -= got;
  }
}

}  // namespace

class SafetensorsFile::Impl {
 public:
  Impl(const std::filesystem::path& path, const std::string& field) : path_(path), field_(field) {}
  ~Impl() {
    if (fd_ >= 0) ::close(fd_);
  }

  // Takes the descriptor.
  void open(int fd) {
    fd_ = fd;
    struct stat status{};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) throw FormatError(std::strerror(errno));
    if (!S_ISREG(status.st_mode)) throw FormatError("it is not a regular file");
    uint64_t header_bytes = 0;
    if (status.st_size < kLengthBytes) throw FormatError("it is truncated: it has no header");
    read_fully(fd_, &header_bytes, kLengthBytes, 0);
    if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
      throw FormatError("its header would be " + std::to_string(header_bytes) +
                        " bytes; the limit is " + std::to_string(kMaxHeaderBytes));
    }
    data_offset_ = kLengthBytes + static_cast<int64_t>(header_bytes);
    if (data_offset_ > status.st_size) throw FormatError("it is truncated within its header");
    std::string header(header_bytes, '\0');
    read_fully(fd_, header.data(), static_cast<int64_t>(header_bytes), kLengthBytes);
    std::map<std::string, Entry> entries = HeaderReader().parse(header);
    check_coverage(entries, status.st_size - data_offset_);
    for (auto& [name, entry] : entries) {
      begins_.emplace(name, entry.begin);
      tensors_.emplace(name, std::move(entry.info));
    }
  }

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }

  void read(const std::string& name, int64_t begin, const at::Tensor& out) const {
    const auto found = tensors_.find(name);
    TORCH_CHECK(found != tensors_.end(), "no tensor ", name, " in ", path_.string());
    const TensorInfo& info = found->second;
    TORCH_CHECK(out.is_contiguous() && out.is_cpu() && begin >= 0 && out.numel() <= info.numel &&
                    begin <= info.numel - out.numel(),
                "read of ", out.numel(), " elements at ", begin, " of ", name);
    const int64_t offset = data_offset_ + begins_.at(name) + begin * bytes_of(info.dtype);
    try {
      if (out.scalar_type() == info.dtype) {
        read_fully(fd_, out.data_ptr(), static_cast<int64_t>(out.nbytes()), offset);
      } else {
        read_converted(info.dtype, offset, out);
      }
    } catch (const FormatError& error) {
      fail(error);
    }
  }

  [[noreturn]] void fail(const FormatError& error) const {
    throw UserError(field_, path_.string() + ": " + error.what());
  }

 private:
  void read_converted(at::ScalarType dtype, int64_t offset, const at::Tensor& out) const {
    c10::NoGradGuard no_grad;
    const at::Tensor flat = out.view({-1});
    const int64_t chunk = std::min(kStagingBytes / bytes_of(dtype), flat.numel());
    const at::Tensor staging = at::empty({chunk}, at::TensorOptions(dtype));
    for (int64_t begin = 0; begin < flat.numel(); begin += chunk) {
      const int64_t numel = std::min(chunk, flat.numel() - begin);
      read_fully(fd_, staging.data_ptr(), numel * bytes_of(dtype),
                 offset + begin * bytes_of(dtype));
      flat.narrow(0, begin, numel).copy_(staging.narrow(0, 0, numel));
    }
  }

  const std::filesystem::path path_;
  const std::string field_;
  int fd_ = -1;
  int64_t data_offset_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, int64_t> begins_;  // byte of each tensor, in the data
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, const std::string& field) {
  // Not blocking: a FIFO in place of a file must not hang us.
  return open(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path, field);
}

SafetensorsFile SafetensorsFile::open(int fd, const std::filesystem::path& path,
                                      const std::string& field) {
  auto impl = std::make_unique<Impl>(path, field);
  try {
    impl->open(fd);
  } catch (const FormatError& error) {
    impl->fail(error);
  }
  return SafetensorsFile(std::move(impl));
}

const std::map<std::string, TensorInfo>& SafetensorsFile::tensors() const {
  return impl_->tensors();
}

void SafetensorsFile::read(const std::string& name, int64_t begin, at::Tensor out) const {
  impl_->read(name, begin, out);
}

SafetensorsLayout lay_out_safetensors(
    const std::vector<std::pair<std::string, TensorInfo>>& tensors) {
  SafetensorsLayout layout;
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t end = 0;
  for (const auto& [name, info] : tensors) {
    const int64_t begin = end;
    end += info.numel * bytes_of(info.dtype);
    header[name] = {
        {"dtype", name_of(info.dtype)}, {"shape", info.shape}, {"data_offsets", {begin, end}}};
    layout.offsets.push_back(begin);
  }
  std::string text = header.dump();
  const size_t unpadded = kLengthBytes + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t length = text.size();
  layout.prefix.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
  layout.prefix += text;
  for (int64_t& offset : layout.offsets) offset += static_cast<int64_t>(layout.prefix.size());
  layout.file_bytes = end + static_cast<int64_t>(layout.prefix.size());
  return layout;
}

}  // namespace tessera
