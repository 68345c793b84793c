#include "worker/trainer/generation_weights.h"

#include "worker/parallel/byte_exchange.h"
#include "worker/trainer/rehearsal.h"

namespace tessera {

v1::JobSpec with_generation_weights(v1::JobSpec spec, const Mesh& mesh, at::Device device,
                                    int ranks_per_machine) {
  v1::Generation& generation = *spec.mutable_generation();
  if (generation.weights() != "auto") return spec;
  // Of one rank nothing is gathered.
  if (mesh.shard.size() == 1 || !spec.resources().has_device_memory()) {
    generation.set_weights("gather");
    return spec;
  }
  std::string chosen;
  if (mesh.world.rank() == 0) {
    RehearsalData data;
    chosen =
        gather_fits(spec, data, {.ranks_per_machine = ranks_per_machine}) ? "gather" : "layerwise";
  }
  generation.set_weights(broadcast_bytes(mesh.world, device, chosen));
  return spec;
}

}  // namespace tessera
