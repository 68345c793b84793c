#include "worker/trainer/generation_weights.h"

#include <stdexcept>

#include "worker/parallel/byte_exchange.h"
#include "worker/trainer/generation_choice.h"

namespace tessera {

v1::JobSpec with_generation_weights(v1::JobSpec spec, const Mesh& mesh, at::Device device,
                                    int ranks_per_machine) {
  v1::Generation& generation = *spec.mutable_generation();
  if (!spec.resources().has_device_memory()) {
    if (generation.weights() == "auto") generation.set_weights("gather");
    return spec;
  }
  if (generation.weights() != "auto" && !generation.kv_cache_memory().empty()) return spec;
  std::string chosen;
  if (mesh.world.rank() == 0) {
    RehearsalData data;
    chosen = choose_generation(spec, data, {.ranks_per_machine = ranks_per_machine})
                 .spec.generation()
                 .SerializeAsString();
  }
  if (!generation.ParseFromString(broadcast_bytes(mesh.world, device, chosen)))
    throw std::logic_error("world rank 0 decided nothing");
  return spec;
}

}  // namespace tessera
