// What a rank tells that becomes an event of its job.
#pragma once

#include <optional>

#include "tessera/v1/coordinator.pb.h"
#include "tessera/v1/trainer.pb.h"

namespace tessera::server {

// Empty: it is for the coordinator alone (Started, Finished), or for the agent (Progress, Failure).
std::optional<v1::Event> event_of_job(const v1::TrainerEvent& event, int rank);

}  // namespace tessera::server
