// What devices are busy with, for who may not see all jobs.
#pragma once

#include <functional>
#include <string>

#include "server/jobs/store.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

// Takes away the names of jobs of projects that `sees` is false of; that a device is held is seen.
// Throws SQLite::Exception.
void hide_jobs(Reader& reader, const std::function<bool(const std::string& project)>& sees,
               v1::ListNodesResponse& nodes);

}  // namespace tessera::server
