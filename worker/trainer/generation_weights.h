// Where weights are while completions are made.
#pragma once

#include "tessera/v1/job.pb.h"
#include "worker/parallel/mesh.h"

namespace tessera {

// The job with generation.weights auto replaced by one of the others: gather where that fits
// resources.device_memory, as a rehearsal on world rank 0 has it, or where there is no such bound;
// else layerwise. `ranks_per_machine` as in RehearsalOptions. Collective over the world. Throws
// UserError.
v1::JobSpec with_generation_weights(v1::JobSpec spec, const Mesh& mesh, at::Device device,
                                    int ranks_per_machine);

}  // namespace tessera
