#include "worker/data/token_model.h"

#include "worker/data/bpe.h"

namespace tessera {
namespace {

template <typename T>
std::unique_ptr<const TokenModel> make(const JsonNode& node) {
  return std::make_unique<T>(node);
}

struct Kind {
  std::string_view type;
  std::unique_ptr<const TokenModel> (*make)(const JsonNode&);
};
constexpr Kind kKinds[] = {
    {"BPE", make<Bpe>},
};

}  // namespace

std::unique_ptr<const TokenModel> make_token_model(const JsonNode& node) {
  const auto type = node.find("type");
  // Files of old say nothing and have merges.
  const auto name = type ? type->string() : node.find("merges") ? "BPE" : "(none)";
  for (const Kind& kind : kKinds) {
    if (kind.type == name) return kind.make(node);
  }
  node.fail("is of type " + std::string(name) + ", which is not supported");
}

}  // namespace tessera
