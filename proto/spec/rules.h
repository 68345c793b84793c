// The rules of a job spec, as its fields' options state them (proto/tessera/v1/options.proto).
//
// One reflection pass each: nothing here knows a field by name, except for the few rules that
// relate fields to each other. Links protobuf and absl only: the coordinator, the clients and the
// trainer share it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

// One broken rule. `message` is a whole sentence that names field, value and rule.
struct Violation {
  std::string field;  // "training.learning_rate"
  std::string message;
};

// Gives every absent optional field its default, sub-messages included.
void fill_defaults(v1::JobSpec& spec);

// Every broken rule: those of single fields, in the order of the fields, then those between
// fields. Empty when the spec is good. Call it after fill_defaults.
std::vector<Violation> validate(const v1::JobSpec& spec);

// A path that the spec gives, by its field: "data.train[1]".
struct NamedPath {
  std::string field;
  std::string value;
};

// All of them, in the order of the fields.
std::vector<NamedPath> paths_of(const v1::JobSpec& spec);

// Makes relative path fields absolute and lexically normal. Requires: `base` is absolute.
void resolve_paths(v1::JobSpec& spec, const std::filesystem::path& base);

}  // namespace tessera::spec
