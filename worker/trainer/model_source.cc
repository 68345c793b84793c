#include "worker/trainer/model_source.h"

namespace tessera {

ModelConfig read_config_of(const ModelSource& source, const ModelConfig& policy) {
  const ModelConfig config =
      naming_its_field(source, [&] { return read_model_config(source.path); });
  if (config.vocab_size == policy.vocab_size) return config;
  throw UserError(source.field, source.field + " " + source.path.string() +
                                    " has a vocabulary of " + std::to_string(config.vocab_size) +
                                    ", must have model.path's of " +
                                    std::to_string(policy.vocab_size));
}

}  // namespace tessera
