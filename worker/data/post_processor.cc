#include "worker/data/post_processor.h"

#include <string>

#include "worker/data/token_model.h"

namespace tessera {
namespace {

void read(const JsonNode& node, PostProcessor& processor);

void read_sequence(const JsonNode& node, PostProcessor& processor) {
  for (const JsonNode& part : node.at("processors").elements()) read(part, processor);
}

void read_byte_level(const JsonNode& node, PostProcessor& processor) {
  if (!node.boolean("trim_offsets", true)) return;
  if (processor.trim) node.fail("trims the offsets a second time");
  processor.trim = PostProcessor::Trim{.add_prefix_space = node.boolean("add_prefix_space", true),
                                       .after_prefix = !processor.prefix.empty()};
}

std::vector<int32_t> ids_of(const JsonNode& special_token) {
  std::vector<int32_t> ids;
  for (const JsonNode& id : special_token.at("ids").elements()) {
    if (id.integer() < 0 || id.integer() >= kMaxTokens) id.fail("is out of range");
    ids.push_back(static_cast<int32_t>(id.integer()));
  }
  return ids;
}

// "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...], the ids under
// "special_tokens".
void read_template(const JsonNode& node, PostProcessor& processor) {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool has_text = false;
  for (const JsonNode& piece : node.at("single").elements()) {
    if (const auto token = piece.find("SpecialToken")) {
      const auto ids = ids_of(node.at("special_tokens").at(token->at("id").string()));
      auto& side = has_text ? after : before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (piece.at("Sequence").at("id").string() != "A" || has_text) {
      piece.fail("is not the one text of the template");
    } else {
      has_text = true;
    }
  }
  if (!has_text) node.at("single").fail("has no place for the text");
  processor.prefix.insert(processor.prefix.begin(), before.begin(), before.end());
  processor.suffix.insert(processor.suffix.end(), after.begin(), after.end());
}

// ["</s>", 2]
int32_t id_of_pair(const JsonNode& pair) {
  const auto parts = pair.elements();
  if (parts.size() != 2) pair.fail("is not a pair of a token and its id");
  if (parts[1].integer() < 0 || parts[1].integer() >= kMaxTokens) parts[1].fail("is out of range");
  return static_cast<int32_t>(parts[1].integer());
}

void read_bert(const JsonNode& node, PostProcessor& processor) {
  processor.prefix.insert(processor.prefix.begin(), id_of_pair(node.at("cls")));
  processor.suffix.push_back(id_of_pair(node.at("sep")));
}

void read_roberta(const JsonNode& node, PostProcessor& processor) {
  read_byte_level(node, processor);
  read_bert(node, processor);
}

struct Kind {
  std::string_view type;
  void (*read)(const JsonNode&, PostProcessor&);
};
constexpr Kind kKinds[] = {
    {"BertProcessing", read_bert},         {"ByteLevel", read_byte_level},
    {"RobertaProcessing", read_roberta},   {"Sequence", read_sequence},
    {"TemplateProcessing", read_template},
};

void read(const JsonNode& node, PostProcessor& processor) {
  const auto type = node.at("type").string();
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.read(node, processor);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace

PostProcessor make_post_processor(const JsonNode& node) {
  PostProcessor processor;
  read(node, processor);
  return processor;
}

}  // namespace tessera
