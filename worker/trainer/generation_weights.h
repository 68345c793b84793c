// Where weights are while completions are made.
#pragma once

#include "tessera/v1/job.pb.h"
#include "worker/parallel/mesh.h"

namespace tessera {

// The job with what it leaves open of `generation` as choose_generation() has it, by a rehearsal on
// world rank 0; without resources.device_memory weights are gathered. `ranks_per_machine` as in
// RehearsalOptions. Collective over the world. Throws UserError.
v1::JobSpec with_generation_weights(v1::JobSpec spec, const Mesh& mesh, at::Device device,
                                    int ranks_per_machine);

}  // namespace tessera
