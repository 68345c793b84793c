// Where a service is, as flags and environment variables have it: one address, or those of several
// coordinators, of which one leads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::spec {

// Addresses, unix:PATH or HOST:PORT, separated by commas. What follows a comma and is neither
// belongs to the path before it. At least one; whether they are addresses is not looked at.
std::vector<std::string> split_addresses(std::string_view text);

// Whether an answer with this reason (google.rpc.ErrorInfo; empty: none, the call has not arrived)
// leaves it open that another coordinator takes the call. Of calls that ended UNAVAILABLE.
bool may_be_elsewhere(std::string_view reason);

}  // namespace tessera::spec
