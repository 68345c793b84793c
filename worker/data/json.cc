#include "worker/data/json.h"

#include "worker/data/mapped_file.h"
#include "worker/errors.h"

namespace tessera {

JsonFile::JsonFile(std::filesystem::path path, std::string field)
    : path_(std::move(path)), field_(std::move(field)) {
  const MappedFile file(path_, field_);
  if (static_cast<int64_t>(file.contents().size()) > kMaxJsonFileBytes) {
    fail("has " + std::to_string(file.contents().size()) + " bytes, more than the " +
         std::to_string(kMaxJsonFileBytes) + " allowed");
  }
  parse(file.contents());
}

JsonFile::JsonFile(std::string name, std::string_view text, std::string field)
    : path_(std::move(name)), field_(std::move(field)) {
  parse(text);
}

void JsonFile::parse(std::string_view text) {
  auto error = parser_.allocate(text.size() + 1, kMaxJsonDepth);
  if (!error) error = parser_.parse(text.data(), text.size()).get(root_);
  if (error) fail(std::string("is not valid JSON: ") + simdjson::error_message(error));
}

void JsonFile::fail(const std::string& problem) const {
  throw UserError(field_, path_.string() + ": " + problem);
}

void JsonNode::fail(const std::string& problem) const {
  file_->fail((place_.empty() ? "the file" : place_) + " " + problem);
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!is_object()) fail("is not an object");
  simdjson::dom::element member;
  if (value_.at_key(key).get(member)) fail("has no \"" + std::string(key) + "\"");
  std::string place = place_;
  if (!place.empty()) place += '.';
  return {*file_, place.append(key), member};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  if (!is_object()) fail("is not an object");
  simdjson::dom::element member;
  if (value_.at_key(key).get(member) || member.is_null()) return std::nullopt;
  return at(key);
}

std::string_view JsonNode::string() const {
  std::string_view value;
  if (value_.get(value)) fail("is not a string");
  return value;
}

int64_t JsonNode::integer() const {
  int64_t value;
  if (value_.get(value)) fail("is not a whole number");
  return value;
}

double JsonNode::number() const {
  double value;
  if (value_.get(value)) fail("is not a number");
  return value;
}

bool JsonNode::boolean() const {
  bool value;
  if (value_.get(value)) fail("is not true or false");
  return value;
}

bool JsonNode::boolean(std::string_view key, bool absent) const {
  const auto member = find(key);
  return member ? member->boolean() : absent;
}

std::vector<JsonNode> JsonNode::elements() const {
  std::vector<JsonNode> nodes;
  for (auto element : array()) {
    nodes.emplace_back(*file_, place_ + "[" + std::to_string(nodes.size()) + "]", element);
  }
  return nodes;
}

simdjson::dom::object JsonNode::object() const {
  simdjson::dom::object value;
  if (value_.get(value)) fail("is not an object");
  return value;
}

simdjson::dom::array JsonNode::array() const {
  simdjson::dom::array value;
  if (value_.get(value)) fail("is not a list");
  return value;
}

}  // namespace tessera
