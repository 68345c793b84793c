// Values of YAML as TRL's and accelerate's programs read them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cpp/yaml_tree.h"

namespace tessera::trl {

// As people see it: the text of a scalar, "null", "a list", "a section".
std::string shown(const YamlNode& node);

// Asks for nothing: null, an empty text, list or section.
bool is_nothing(const YamlNode& node);

// One of `words`, which stand between bars, whatever its case.
bool is_one_of(const YamlNode& node, const char* words);

// YAML 1.1's words, as PyYAML has them, and numbers 0 and 1, as argparse takes them.
std::optional<bool> as_bool(const YamlNode& node);

// Of a whole number; underscores may be in it.
std::optional<int> as_int(const YamlNode& node);

// The texts of a list, or of one scalar. None: something else is in it.
std::optional<std::vector<std::string>> as_texts(const YamlNode& node);

// A section; or the JSON of one as a text, as on a command line. None: neither.
std::optional<YamlNode> as_section(const YamlNode& node);

}  // namespace tessera::trl
