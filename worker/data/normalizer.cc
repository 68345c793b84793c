#include "worker/data/normalizer.h"

#include <string>
#include <vector>

#include "worker/data/character_normalizers.h"
#include "worker/data/precompiled.h"
#include "worker/data/replace.h"
#include "worker/data/unicode_form.h"

namespace tessera {
namespace {

using Made = std::unique_ptr<const Normalizer>;

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonNode& node) {
    for (const JsonNode& part : node.at("normalizers").elements()) {
      parts_.push_back(make_normalizer(part));
    }
  }
  explicit NormalizerSequence(std::vector<Made> parts) : parts_(std::move(parts)) {}
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<Made> parts_;
};

template <typename T>
Made make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

template <typename T>
Made make_plain(const JsonNode&) {
  return std::make_unique<T>();
}

template <bool kCompatible, bool kComposed>
Made make_form(const JsonNode&) {
  return std::make_unique<UnicodeForm>(kCompatible, kComposed);
}

struct Kind {
  std::string_view type;
  Made (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"BertNormalizer", make<BertNormalizer>},
    {"ByteLevel", make_plain<ByteLevelNormalizer>},
    {"Lowercase", make_plain<Lowercase>},
    {"NFC", make_form<false, true>},
    {"NFD", make_form<false, false>},
    {"NFKC", make_form<true, true>},
    {"NFKD", make_form<true, false>},
    {"Nmt", make_plain<Nmt>},
    {"Precompiled", make<Precompiled>},
    {"Prepend", make<Prepend>},
    {"Replace", make<Replace>},
    {"Sequence", make<NormalizerSequence>},
    {"Strip", make<StripSpace>},
    {"StripAccents", make_plain<StripAccents>},
};

}  // namespace

Made chain(std::vector<Made> parts) {
  if (parts.empty()) return nullptr;
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

Made make_normalizer(const JsonNode& node) {
  const auto type = node.at("type").string();
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.make(node);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace tessera
