#include "worker/rewards/json_schema.h"

#include <cctype>
#include <set>
#include <stdexcept>

#include "worker/rewards/json_schema_check.h"
#include "worker/rewards/json_schema_draft7.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Against schemas that refer to each other without end, and those that try every combination.
constexpr int kMaxSteps = 1'000'000;
constexpr int kMaxDepth = 512;

// What later drafts check, and draft 7 would pass over in silence.
constexpr const char* kOfLaterDrafts[] = {
    "$dynamicRef", "$recursiveRef", "dependentRequired", "dependentSchemas",     "maxContains",
    "minContains", "prefixItems",   "unevaluatedItems",  "unevaluatedProperties"};

constexpr const char* kSchemas[] = {
    "additionalItems",      "contains", "else",          "if",  "not",
    "additionalProperties", "items",    "propertyNames", "then"};
constexpr const char* kListsOfSchemas[] = {"allOf", "anyOf", "items", "oneOf"};
constexpr const char* kMapsOfSchemas[] = {"$defs", "definitions", "dependencies",
                                          "patternProperties", "properties"};

constexpr const char* kDraft7Name = "draft-07/schema";

bool is_schema(const Json& value) { return value.is_object() || value.is_boolean(); }

}  // namespace

bool SchemaCheck::is_valid(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  take_step();
  struct Level {
    int& depth;
    explicit Level(int& d) : depth(d) { ++depth; }
    ~Level() { --depth; }
  } const level(depth_);
  if (depth_ > kMaxDepth) throw Exhausted();
  // Whatever stands beside a $ref is not looked at, as the draft says.
  if (const auto ref = schema.find("$ref"); ref != schema.end())
    return is_valid(*tables_.refs.find(ref->get_ref<const std::string&>())->second, value);
  for (const auto& [keyword, argument] : schema.items()) {
    const KeywordCheck check = keyword_check(keyword);
    if (check != nullptr && !check(*this, schema, argument, value)) return false;
  }
  return true;
}

bool SchemaCheck::matches(const std::string& pattern, std::string_view text) {
  take_step();
  const std::optional<bool> matches = tables_.patterns.find(pattern)->second.matches(text);
  if (!matches) throw Exhausted();
  return *matches;
}

void SchemaCheck::take_step() {
  if (++num_steps_ > kMaxSteps) throw Exhausted();
}

struct JsonSchema::State {
  Json document;
  SchemaTables tables;
};

namespace {

// Goes through a schema once, and fills its tables.
class Reader {
 public:
  // `draft`: what every schema in it has to keep; null: it is that itself.
  Reader(const Json& document, const JsonSchema* draft, SchemaTables& tables)
      : document_(document), draft_(draft), tables_(tables) {}

  void read(const Json& schema, const std::string& place) {
    if (!seen_.insert(&schema).second) return;
    if (schema.is_object()) read_parts(schema, place);
    if (draft_ != nullptr && draft_->allows(schema) != true) fail(place, "is no schema of draft 7");
    if (!schema.is_object()) return;
    if (&schema != &document_) check_id(schema, place);
    for (const char* keyword : kOfLaterDrafts) {
      if (schema.contains(keyword))
        fail(place, std::string("has ") + keyword + ", which draft 7 does not have");
    }
    if (const auto pattern = schema.find("pattern"); pattern != schema.end())
      add_pattern(*pattern, place + "/pattern");
    if (const auto patterns = schema.find("patternProperties"); patterns != schema.end()) {
      for (const auto& [pattern, wanted] : patterns->items())
        add_pattern(pattern, place + "/patternProperties");
    }
    if (const auto ref = schema.find("$ref"); ref != schema.end()) resolve(*ref, place);
  }

 private:
  [[noreturn]] static void fail(const std::string& place, const std::string& problem) {
    throw std::invalid_argument(place + " " + problem);
  }

  void read_parts(const Json& schema, const std::string& place) {
    for (const char* name : kSchemas) {
      const auto found = schema.find(name);
      if (found != schema.end() && is_schema(*found)) read(*found, place + "/" + name);
    }
    for (const char* name : kListsOfSchemas) {
      const auto found = schema.find(name);
      if (found == schema.end() || !found->is_array()) continue;
      for (size_t i = 0; i < found->size(); ++i)
        read((*found)[i], place + "/" + name + "/" + std::to_string(i));
    }
    for (const char* name : kMapsOfSchemas) {
      const auto found = schema.find(name);
      if (found == schema.end() || !found->is_object()) continue;
      for (const auto& [key, part] : found->items()) {
        if (is_schema(part)) read(part, place + "/" + name + "/" + key);
      }
    }
  }

  // Another base for the references below it would be.
  static void check_id(const Json& schema, const std::string& place) {
    const auto id = schema.find("$id");
    if (id == schema.end() || id->get_ref<const std::string&>().starts_with('#')) return;
    fail(place, "has $id " + id->dump() + ", must have one that begins with #, or none");
  }

  void add_pattern(const std::string& pattern, const std::string& place) {
    if (tables_.patterns.contains(pattern)) return;
    try {
      tables_.patterns.emplace(pattern, Pattern(pattern));
    } catch (const std::invalid_argument& error) {
      fail(place, "is \"" + pattern + "\": " + error.what());
    }
  }

  void resolve(const std::string& ref, const std::string& place) {
    if (tables_.refs.contains(ref)) return;
    const Json* target = find(ref);
    if (target == nullptr || !is_schema(*target))
      fail(place, "refers to \"" + ref +
                      "\", must refer to a schema of the same file, as in "
                      "#/definitions/NAME");
    tables_.refs.emplace(ref, target);
    read(*target, ref);
  }

  const Json* find(const std::string& ref) const {
    if (!ref.starts_with('#')) return nullptr;
    if (ref == "#" || ref[1] == '/') {
      try {
        const Json::json_pointer pointer(unescaped(ref.substr(1)));
        return document_.contains(pointer) ? &document_.at(pointer) : nullptr;
      } catch (const Json::exception&) {
        return nullptr;
      }
    }
    return find_id(document_, ref);
  }

  // The schema that is named so by its $id.
  static const Json* find_id(const Json& json, const std::string& id) {
    if (!json.is_structured()) return nullptr;
    if (json.is_object() && json.contains("$id") && json["$id"] == id) return &json;
    for (const Json& part : json) {
      if (const Json* found = find_id(part, id)) return found;
    }
    return nullptr;
  }

  // Of a URI's fragment: %25 is %.
  static std::string unescaped(const std::string& fragment) {
    std::string text;
    for (size_t i = 0; i < fragment.size(); ++i) {
      const bool is_escape = fragment[i] == '%' && i + 2 < fragment.size() &&
                             std::isxdigit(static_cast<unsigned char>(fragment[i + 1])) != 0 &&
                             std::isxdigit(static_cast<unsigned char>(fragment[i + 2])) != 0;
      if (!is_escape) {
        text += fragment[i];
        continue;
      }
      text += static_cast<char>(std::stoi(fragment.substr(i + 1, 2), nullptr, 16));
      i += 2;
    }
    return text;
  }

  const Json& document_;
  const JsonSchema* const draft_;
  SchemaTables& tables_;
  std::set<const Json*> seen_;
};

}  // namespace

JsonSchema::JsonSchema(Json document) : JsonSchema(std::move(document), &draft7()) {}

JsonSchema::JsonSchema(Json document, const JsonSchema* draft) {
  auto state = std::make_unique<State>();
  state->document = std::move(document);
  if (draft != nullptr && state->document.is_object()) {
    const auto version = state->document.find("$schema");
    if (version != state->document.end() && version->dump().find(kDraft7Name) == std::string::npos)
      throw std::invalid_argument("# has $schema " + version->dump() + ", must be of draft 7");
  }
  Reader(state->document, draft, state->tables).read(state->document, "#");
  state_ = std::move(state);
}

const JsonSchema& JsonSchema::draft7() {
  static const JsonSchema& draft = *new JsonSchema(Json::parse(kDraft7), nullptr);
  return draft;
}

JsonSchema::~JsonSchema() = default;
JsonSchema::JsonSchema(JsonSchema&&) noexcept = default;

std::optional<bool> JsonSchema::allows(const Json& value) const {
  try {
    return SchemaCheck(state_->tables).is_valid(state_->document, value);
  } catch (const SchemaCheck::Exhausted&) {
    return std::nullopt;
  }
}

std::optional<Json> parse_json(std::string_view text) {
  bool is_too_deep = false;
  const auto keep = [&](int depth, Json::parse_event_t, Json&) {
    is_too_deep |= depth > kMaxJsonNesting;
    return !is_too_deep;
  };
  Json value = Json::parse(text, keep, /*allow_exceptions=*/false);
  if (is_too_deep || value.is_discarded()) return std::nullopt;
  return value;
}

}  // namespace tessera
