#include "worker/model/config_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxDimension = int64_t{1} << 24;
constexpr size_t kMaxShownBytes = 80;

std::string shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, kMaxShownBytes);
}

}  // namespace

bool ConfigObject::mentions(const std::string& field) const { return value_->contains(field); }

bool ConfigObject::has(const std::string& field) const { return find(field) != nullptr; }

const json* ConfigObject::find(const std::string& field) const {
  read_.insert(field);
  const auto found = value_->find(field);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

void ConfigObject::fail(const std::string& what) const {
  throw UserError(source_->field, source_->path + " " + what);
}

void ConfigObject::fail_value(const std::string& field, const std::string& rule) const {
  const json* value = find(field);
  fail("has " + place_ + field + " = " + (value ? shown(*value) : "null") + ", " + rule);
}

int64_t ConfigObject::dimension(const std::string& field) const {
  if (!has(field)) fail("has no " + place_ + field);
  return dimension_or(field, 0);
}

int64_t ConfigObject::dimension_or(const std::string& field, int64_t otherwise) const {
  return integer_or(field, otherwise, 1, kMaxDimension);
}

int64_t ConfigObject::integer_or(const std::string& field, int64_t otherwise, int64_t min,
                                 int64_t max) const {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    fail_value(field,
               "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value->get<int64_t>();
}

double ConfigObject::number_or(const std::string& field, double otherwise) const {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) fail_value(field, "must be a number");
  return value->get<double>();
}

double ConfigObject::positive(const std::string& field) const {
  if (!has(field)) fail("has no " + place_ + field);
  return positive_or(field, 0);
}

double ConfigObject::positive_or(const std::string& field, double otherwise) const {
  const double value = number_or(field, otherwise);
  if (has(field) && !(value > 0 && std::isfinite(value))) {
    fail_value(field, "must be a number above 0");
  }
  return value;
}

double ConfigObject::share_or(const std::string& field, double otherwise) const {
  const double value = number_or(field, otherwise);
  if (!(value >= 0 && value < 1)) fail_value(field, "must be a number from 0 to below 1");
  return value;
}

bool ConfigObject::flag(const std::string& field, bool otherwise) const {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) fail_value(field, "must be true or false");
  return value->get<bool>();
}

std::string ConfigObject::text_or(const std::string& field, const std::string& otherwise) const {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) fail_value(field, "must be a string");
  return value->get<std::string>();
}

std::vector<int64_t> ConfigObject::integers(const std::string& field) const {
  std::vector<int64_t> list;
  const json* value = find(field);
  if (value == nullptr) return list;
  if (!value->is_array()) fail_value(field, "must be a list of whole numbers");
  for (const json& element : *value) {
    if (!element.is_number_integer()) fail_value(field, "must be a list of whole numbers");
    list.push_back(element.get<int64_t>());
  }
  return list;
}

std::vector<std::string> ConfigObject::texts(const std::string& field) const {
  std::vector<std::string> list;
  const json* value = find(field);
  if (value == nullptr) return list;
  if (!value->is_array()) fail_value(field, "must be a list of strings");
  for (const json& element : *value) {
    if (!element.is_string()) fail_value(field, "must be a list of strings");
    list.push_back(element.get<std::string>());
  }
  return list;
}

bool ConfigObject::is_off(const std::string& field) const {
  const json* value = find(field);
  return value == nullptr || *value == false || *value == 0 || value->empty();
}

bool ConfigObject::is_text(const std::string& field) const {
  const json* value = find(field);
  return value != nullptr && value->is_string();
}

ConfigObject ConfigObject::object(const std::string& field) const {
  const json* value = find(field);
  if (value == nullptr || !value->is_object()) fail_value(field, "must be an object");
  return {*source_, place_ + field + ".", *value};
}

bool ConfigObject::is_nested() const {
  for (const json& member : *value_) {
    if (member.is_object()) return true;
  }
  return false;
}

bool ConfigObject::is_empty() const { return value_->empty(); }

std::vector<std::string> ConfigObject::unread() const {
  std::vector<std::string> fields;
  for (const auto& [field, value] : value_->items()) {
    if (!read_.contains(field)) fields.push_back(place_ + field);
  }
  return fields;
}

ConfigFile::ConfigFile(const std::filesystem::path& path, std::string field)
    : source_{path.string(), std::move(field)}, value_(std::make_unique<json>()) {
  const auto fail = [&](const std::string& what) {
    throw UserError(source_.field, source_.path + " " + what);
  };
  // Not to wait for a writer, should the path name a FIFO.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(std::string("cannot be read: ") + std::strerror(errno));
  const std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(fd, "rb"), std::fclose);
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) fail("is not a regular file");
  std::string text(kMaxConfigBytes, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get())) fail("cannot be read");
  if (text.size() == kMaxConfigBytes) fail("is larger than 1 MiB");
  *value_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value_->is_object()) fail("is not a JSON object");
  root_.reset(new ConfigObject(source_, "", *value_));
}

ConfigFile::~ConfigFile() = default;

}  // namespace tessera
