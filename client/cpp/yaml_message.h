// Fills a protobuf message from a YAML tree by field name, strictly: a name that is no field, a
// value of another type, a name given twice and two members of a oneof are errors with their
// places.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <google/protobuf/message.h>

#include "client/cpp/yaml_tree.h"

namespace tessera {

struct FileError {
  Mark mark;
  std::string message;
};

struct FilledMessage {
  std::vector<FileError> errors;
  // Place of every field that was given, by its path ("training.max_steps").
  std::map<std::string, Mark> marks;
};

// A list of one may be written without its brackets. Requires: `message` is empty, and its lists
// are of texts, of int32 or of sections.
FilledMessage fill_from_yaml(const YamlNode& root, google::protobuf::Message& message);

}  // namespace tessera
