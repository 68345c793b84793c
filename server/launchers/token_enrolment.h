// Lets agents of allocations in by tokens of this coordinator.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "server/launchers/launcher.h"
#include "server/security/security.h"

namespace tessera::server {

struct EnrolmentOptions {
  // As for the agents' --coordinator.
  std::string coordinator;
  // Authority of the coordinator's certificate in PEM.
  std::filesystem::path authority;
};

// INVALID_ARGUMENT: agents cannot be let in so. `security` outlives it.
absl::StatusOr<std::shared_ptr<Enrolment>> make_enrolment(EnrolmentOptions options,
                                                          Security& security);

}  // namespace tessera::server
