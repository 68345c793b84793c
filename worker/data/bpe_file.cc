// Reads a BPE model of tokenizer.json.
#include "worker/data/bpe.h"

namespace tessera {
namespace {

std::string text_of(const JsonNode& options, std::string_view key) {
  const auto node = options.find(key);
  return node ? std::string(node->string()) : "";
}

class MergeReader {
 public:
  MergeReader(const JsonNode& merges, BpeParts& parts) : merges_(merges), parts_(parts) {}

  void read() {
    const auto list = merges_.array();
    for (const auto element : list) {
      if (index_ >= static_cast<size_t>(kMaxTokens)) merges_.fail("are too many");
      std::string_view text;
      element.get(text) ? read_pair(element) : read_line(text);
      ++index_;
    }
  }

 private:
  void read_pair(simdjson::dom::element element) {
    simdjson::dom::array pair;
    std::string_view left, right;
    if (element.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) {
      merges_.fail("has at " + std::to_string(index_) + " something that is not a pair of tokens");
    }
    add(left, right);
  }

  // As files of old have it.
  void read_line(std::string_view line) {
    if (line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      merges_.fail("has \"" + std::string(line.substr(0, 64)) + "\", which is not a pair");
    }
    add(line.substr(0, space), line.substr(space + 1));
  }

  int32_t id_of(std::string_view token) const {
    const auto id = parts_.vocabulary.id_of(token);
    if (!id) {
      merges_.fail("has at " + std::to_string(index_) + " the token \"" +
                   std::string(token.substr(0, 64)) + "\", which is not in the vocabulary");
    }
    return *id;
  }

  void add(std::string_view left, std::string_view right) {
    const size_t prefix = parts_.continuing_subword_prefix.size();
    if (right.size() < prefix) {
      merges_.fail("has at " + std::to_string(index_) + " a token without the prefix");
    }
    parts_.merges.push_back(
        {id_of(left), id_of(right), id_of(std::string(left).append(right.substr(prefix)))});
  }

  const JsonNode& merges_;
  BpeParts& parts_;
  size_t index_ = 0;
};

}  // namespace

BpeParts read_bpe(const JsonNode& options, const JsonNode& model) {
  if (const auto dropout = options.find("dropout"); dropout && dropout->number() != 0) {
    dropout->fail("is set, which is not supported");
  }
  BpeParts parts{.vocabulary = Vocabulary(model.at("vocab")),
                 .merges = {},
                 .unk_token = text_of(options, "unk_token"),
                 .continuing_subword_prefix = text_of(options, "continuing_subword_prefix"),
                 .end_of_word_suffix = text_of(options, "end_of_word_suffix"),
                 .fuse_unk = options.boolean("fuse_unk", false),
                 .byte_fallback = options.boolean("byte_fallback", false),
                 .ignore_merges = options.boolean("ignore_merges", false)};
  if (parts.byte_fallback &&
      !(parts.continuing_subword_prefix.empty() && parts.end_of_word_suffix.empty())) {
    options.at("byte_fallback").fail("is set beside a prefix or suffix, which is not supported");
  }
  MergeReader(model.at("merges"), parts).read();
  return parts;
}

}  // namespace tessera
