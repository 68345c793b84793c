#include "worker/data/pre_tokenizer.h"

#include "worker/data/byte_level.h"
#include "worker/data/split.h"

namespace tessera {
namespace {

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(const JsonNode& node) {
    for (const JsonNode& part : node.at("pretokenizers").elements()) {
      if (to_bytes()) part.fail("follows ByteLevel, which has to be the last");
      parts_.push_back(make_pre_tokenizer(part));
    }
  }
  void apply(Pieces& pieces, Regex::Matcher& matcher) const override {
    for (const auto& part : parts_) part->apply(pieces, matcher);
  }
  bool to_bytes() const override { return !parts_.empty() && parts_.back()->to_bytes(); }

 private:
  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
};

template <typename T>
std::unique_ptr<const PreTokenizer> make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

std::unique_ptr<const PreTokenizer> make_digits(const JsonNode& node) {
  return std::make_unique<Split>(Regex(R"(\p{N})"), node.boolean("individual_digits", false)
                                                        ? SplitBehavior::kIsolated
                                                        : SplitBehavior::kContiguous);
}

struct Kind {
  std::string_view type;
  std::unique_ptr<const PreTokenizer> (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"ByteLevel", make<ByteLevel>},
    {"Digits", make_digits},
    {"Sequence", make<PreTokenizerSequence>},
    {"Split", make<Split>},
};

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  const auto type = node.at("type").string();
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.make(node);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace tessera
