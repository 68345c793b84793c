#include "worker/data/normalizer.h"

#include <string>
#include <vector>

#include "worker/data/nfc.h"

namespace tessera {
namespace {

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonNode& node) {
    for (const JsonNode& part : node.at("normalizers").elements()) {
      parts_.push_back(make_normalizer(part));
    }
  }
  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

template <typename T>
std::unique_ptr<const Normalizer> make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

struct Kind {
  std::string_view type;
  std::unique_ptr<const Normalizer> (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"NFC", make<Nfc>},
    {"Sequence", make<NormalizerSequence>},
};

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const JsonNode& node) {
  const auto type = node.at("type").string();
  for (const Kind& kind : kKinds) {
    if (kind.type == type) return kind.make(node);
  }
  node.fail("is of type " + std::string(type) + ", which is not supported");
}

}  // namespace tessera
