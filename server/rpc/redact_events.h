// What ranks wrote and failed of may hold secrets of theirs: they go no further than this.
#pragma once

#include "tessera/v1/agent.pb.h"

namespace tessera::server {

// Takes secrets (proto/spec/redact.h) out of log lines, failures, and what ranks wait
// for.
void redact_events(v1::SessionRequest& message);

}  // namespace tessera::server
