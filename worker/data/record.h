// One entry of a data file, whatever the file's format.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A view of the entry that a reader stands on: it, and what it returns, is valid until the reader
// goes on. Used by one thread at a time. A JSONL line and a Parquet row of the same content are the
// same record; null and missing are the same.
class Record {
 public:
  virtual ~Record() = default;

  // Whether there is such a field and it is not null.
  virtual bool has(std::string_view field) const = 0;
  // Whether the field is there and a string.
  virtual bool is_string(std::string_view field) const = 0;
  // Throws UserError naming place() when the field is missing, no string, or not UTF-8.
  virtual std::string_view string(std::string_view field) const = 0;
  // Any field, keys in the file's order. Throws UserError naming place() when it is missing.
  virtual nlohmann::ordered_json json(std::string_view field) const = 0;
  // All fields that have a value that JSON can tell.
  virtual nlohmann::ordered_json object() const = 0;
  // "corpus.jsonl:17" or "corpus.parquet row 17".
  virtual std::string place() const = 0;
  // Throws UserError "PLACE: problem", charged to the job file's field that named the file.
  [[noreturn]] virtual void fail(const std::string& problem) const = 0;
};

}  // namespace tessera
