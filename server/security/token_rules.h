// What requests about credentials must be.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tessera/v1/access.pb.h"

namespace tessera::server {

// INVALID_ARGUMENT: names every field that breaks a rule.
absl::Status check_token_request(const v1::CreateTokenRequest& request);

// INVALID_ARGUMENT: `node` is no name for a node in a certificate.
absl::Status check_node_name(const std::string& field, const std::string& node);

}  // namespace tessera::server
