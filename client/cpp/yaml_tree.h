// A YAML or JSON document as a tree that knows its lines: what a job file is before it has a
// schema.
//
// The text is hostile until parsed: its size, depth and number of nodes are bounded, and anchors
// and aliases, whose expansion is not, are refused. JSON is read by the same grammar.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace tessera {

// A place in a file, from 1. Line 0: the file as a whole.
struct Mark {
  int line = 0;
  int column = 0;
};

// Thrown at the first place where the text is no document.
class YamlError : public std::runtime_error {
 public:
  YamlError(Mark mark, const std::string& message) : std::runtime_error(message), mark(mark) {}
  Mark mark;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  Mark mark;
  // Scalars: the text, and whether it stood in quotes ("3" is a text, 3 a number).
  std::string scalar;
  bool quoted = false;
  std::vector<YamlNode> items;
  // In the order of the file; keys may repeat.
  std::vector<YamlEntry> entries;
};

struct YamlEntry {
  std::string key;
  Mark mark;
  YamlNode value;
};

inline constexpr int kMaxYamlDepth = 16;
inline constexpr int kMaxYamlNodes = 10000;

// Reads the one document in `text`. Throws YamlError.
YamlNode parse_yaml(const std::string& text);

}  // namespace tessera
