#include "worker/data/pre_tokenizer.h"

#include <algorithm>

#include "worker/data/byte_level.h"
#include "worker/data/character_splits.h"
#include "worker/data/metaspace.h"
#include "worker/data/split.h"

namespace tessera {
namespace {

using Made = std::unique_ptr<const PreTokenizer>;

class PreTokenizerSequence final : public PreTokenizer {
 public:
  PreTokenizerSequence(const JsonNode& node, bool keep_bytes) {
    const auto parts = node.at("pretokenizers").elements();
    for (size_t i = 0; i < parts.size(); ++i) {
      parts_.push_back(make_pre_tokenizer(parts[i], keep_bytes && i + 1 == parts.size()));
    }
  }
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override {
    for (const auto& part : parts_) part->apply(pieces, matcher);
  }
  bool needs_origins() const override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const Made& part) { return part->needs_origins(); });
  }

 private:
  std::vector<Made> parts_;
};

template <typename T>
Made make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

struct Kind {
  std::string_view type;
  Made (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"BertPreTokenizer", make_bert},
    {"CharDelimiterSplit", make_delimiter_split},
    {"Digits", make_digits},
    {"FixedLength", make<FixedLength>},
    {"Metaspace", make<Metaspace>},
    {"Punctuation", make_punctuation},
    {"Split", make<Split>},
    {"Whitespace", [](const JsonNode&) -> Made { return std::make_unique<WordSplit>(); }},
    {"WhitespaceSplit", make_whitespace_split},
};

}  // namespace

bool ends_in_byte_level(const JsonNode& node) {
  const auto type = node.at("type").string();
  if (type != "Sequence") return type == "ByteLevel";
  const auto parts = node.at("pretokenizers").elements();
  return !parts.empty() && ends_in_byte_level(parts.back());
}

Made make_pre_tokenizer(const JsonNode& node, bool keep_bytes) {
  const auto type = node.at("type").string();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>(node, keep_bytes);
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(node, keep_bytes);
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.make(node);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace tessera
