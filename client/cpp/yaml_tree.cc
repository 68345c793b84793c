#include "client/cpp/yaml_tree.h"

#include <sstream>
#include <utility>

#include <utf8proc.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

namespace tessera {
namespace {

Mark mark_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

// Builds the tree from the parser's events. `open_` is the path of containers from the root.
class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(YamlNode::Kind::kNull, mark, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw YamlError(mark_of(mark), "anchors and aliases are not allowed in a job file");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (tag != "?" && tag != "!") {
      throw YamlError(mark_of(mark), "tags are not allowed in a job file");
    }
    if (expects_key()) return add_key(mark, anchor, value);
    YamlNode& node = add(YamlNode::Kind::kScalar, mark, anchor);
    node.scalar = value;
    node.quoted = tag == "!";
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  // A map's events alternate between a key and its value.
  struct Open {
    YamlNode* node;
    bool has_key = false;
  };

  bool expects_key() const {
    return !open_.empty() && open_.back().node->kind == YamlNode::Kind::kMap &&
           !open_.back().has_key;
  }

  void count(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) {
      throw YamlError(mark_of(mark), "anchors and aliases are not allowed in a job file");
    }
    if (++num_nodes_ > kMaxYamlNodes) {
      throw YamlError(mark_of(mark),
                      "the file has more than " + std::to_string(kMaxYamlNodes) + " values");
    }
  }

  void add_key(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& key) {
    count(mark, anchor);
    open_.back().node->entries.push_back({key, mark_of(mark), {}});
    open_.back().has_key = true;
  }

  YamlNode& add(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (expects_key()) throw YamlError(mark_of(mark), "a field's name must be a text");
    count(mark, anchor);
    YamlNode& node = place();
    node.kind = kind;
    node.mark = mark_of(mark);
    return node;
  }

  YamlNode& place() {
    if (open_.empty()) return root_;
    YamlNode& parent = *open_.back().node;
    if (parent.kind == YamlNode::Kind::kList) return parent.items.emplace_back();
    open_.back().has_key = false;
    return parent.entries.back().value;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    YamlNode& node = add(kind, mark, anchor);
    if (open_.size() == kMaxYamlDepth) {
      throw YamlError(mark_of(mark), "the file is nested more than " +
                                         std::to_string(kMaxYamlDepth) + " levels deep");
    }
    open_.push_back({&node});
  }

  void close() { open_.pop_back(); }

  YamlNode root_;
  std::vector<Open> open_;
  int num_nodes_ = 0;
};

// The parser takes some control characters as the end of the file: what follows would be ignored.
void check_characters(const std::string& text) {
  Mark mark{1, 1};
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = -1;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
    const utf8proc_ssize_t width = utf8proc_iterate(bytes + at, left, &character);
    if (width <= 0) throw YamlError(mark, "the file is not valid UTF-8");
    const bool space = character == '\t' || character == '\n' || character == '\r';
    if ((character < 0x20 && !space) || character == 0x7f) {
      throw YamlError(mark, "the file holds a control character");
    }
    ++mark.column;
    if (character == '\n') mark = {mark.line + 1, 1};
    at += static_cast<size_t>(width);
  }
}

}  // namespace

YamlNode parse_yaml(const std::string& text) {
  check_characters(text);
  std::istringstream stream(text);
  TreeBuilder builder;
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) throw YamlError({}, "the file is empty");
    YamlNode root = builder.take();
    TreeBuilder rest;
    if (parser.HandleNextDocument(rest)) {
      throw YamlError(rest.take().mark, "the file must hold one document");
    }
    return root;
  } catch (const YAML::Exception& error) {
    throw YamlError(mark_of(error.mark), error.msg);
  }
}

}  // namespace tessera
