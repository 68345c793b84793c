// config.json of a Hugging Face directory, or a file like it, read as untrusted input: bounded in
// size, every value checked against its rule, and every error names the file, the field, the value
// and the rule.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace tessera {

// One object of the file: the whole, or a member such as rope_parameters. A field that is null
// counts as absent. Getters throw UserError. Valid while its ConfigFile lives.
class ConfigObject {
 public:
  bool has(const std::string& field) const;
  // Whether the field is there, null or not.
  bool mentions(const std::string& field) const;

  // A size: from 1 to 2^24.
  int64_t dimension(const std::string& field) const;  // required
  int64_t dimension_or(const std::string& field, int64_t otherwise) const;
  // A whole number from `min` to `max`.
  int64_t integer_or(const std::string& field, int64_t otherwise, int64_t min, int64_t max) const;
  double number_or(const std::string& field, double otherwise) const;
  double positive(const std::string& field) const;  // required
  double positive_or(const std::string& field, double otherwise) const;
  // From 0 to below 1, as the share that dropout zeroes.
  double share_or(const std::string& field, double otherwise) const;
  bool flag(const std::string& field, bool otherwise) const;
  std::string text_or(const std::string& field, const std::string& otherwise) const;
  // Lists; empty where absent.
  std::vector<int64_t> integers(const std::string& field) const;
  std::vector<std::string> texts(const std::string& field) const;
  // Whether the field is absent, false, zero, or empty.
  bool is_off(const std::string& field) const;
  // Whether the field holds a string.
  bool is_text(const std::string& field) const;
  // The member object, where has(field).
  ConfigObject object(const std::string& field) const;
  // Whether any member is an object itself.
  bool is_nested() const;
  bool is_empty() const;

  [[noreturn]] void fail(const std::string& what) const;  // "PATH " + what
  [[noreturn]] void fail_value(const std::string& field, const std::string& rule) const;

  // Fields that no getter has asked for, in order of name.
  std::vector<std::string> unread() const;

 private:
  friend class ConfigFile;
  // What all objects of a file share: its path, and the field of the job file that led there.
  struct Source {
    std::string path, field;
  };
  ConfigObject(const Source& source, std::string place, const nlohmann::json& value)
      : source_(&source), place_(std::move(place)), value_(&value) {}
  // Null where absent.
  const nlohmann::json* find(const std::string& field) const;

  const Source* source_;
  std::string place_;  // "rope_scaling.", or nothing for the whole
  const nlohmann::json* value_;
  mutable std::set<std::string> read_;
};

class ConfigFile {
 public:
  // Throws UserError when the file cannot be read, is larger than 1 MiB, or is no JSON object.
  // `field` of the job file led here.
  explicit ConfigFile(const std::filesystem::path& path, std::string field = "model.path");
  ~ConfigFile();
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  const ConfigObject& root() const { return *root_; }

 private:
  ConfigObject::Source source_;
  std::unique_ptr<nlohmann::json> value_;
  std::unique_ptr<ConfigObject> root_;
};

}  // namespace tessera
