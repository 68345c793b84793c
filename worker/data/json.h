// Small JSON files of a model directory (tokenizer.json and its like), read as untrusted input:
// bounded in size and depth, and every error names the file and the place in it.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr int64_t kMaxJsonFileBytes = int64_t{256} << 20;
inline constexpr size_t kMaxJsonDepth = 64;

class JsonFile;

// A value and where it stands. Valid while its JsonFile lives. Every getter throws UserError when
// the value is of another type, naming file and place.
class JsonNode {
 public:
  JsonNode(const JsonFile& file, std::string place, simdjson::dom::element value)
      : file_(&file), place_(std::move(place)), value_(value) {}

  JsonNode at(std::string_view key) const;  // throws where there is none
  // Empty where there is none, or it is null.
  std::optional<JsonNode> find(std::string_view key) const;
  bool is_string() const { return value_.is_string(); }
  bool is_object() const { return value_.is_object(); }
  bool is_array() const { return value_.is_array(); }
  std::string_view string() const;
  int64_t integer() const;
  double number() const;
  bool boolean() const;
  bool boolean(std::string_view key, bool absent) const;
  std::vector<JsonNode> elements() const;
  // For the large ones (vocabularies), which have no use for the places of their members.
  simdjson::dom::object object() const;
  simdjson::dom::array array() const;
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const JsonFile* file_;
  std::string place_;
  simdjson::dom::element value_;
};

class JsonFile {
 public:
  // `field` of the job file is what errors are charged to. Throws UserError.
  JsonFile(std::filesystem::path path, std::string field);
  // Takes the text itself, which errors call `name`.
  JsonFile(std::string name, std::string_view text, std::string field);
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  JsonNode root() const { return {*this, "", root_}; }
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  void parse(std::string_view text);

  std::filesystem::path path_;
  std::string field_;
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
};

}  // namespace tessera
