#include "server/jobs/hide_jobs.h"

#include <map>

namespace tessera::server {
namespace {

// In place of a job's id.
constexpr char kOtherProject[] = "(of another project)";

}  // namespace

void hide_jobs(Reader& reader, const std::function<bool(const std::string& project)>& sees,
               v1::ListNodesResponse& nodes) {
  std::map<std::string, bool> seen;
  for (v1::Node& node : *nodes.mutable_nodes()) {
    for (v1::Device& device : *node.mutable_devices()) {
      if (device.job().empty()) continue;
      const auto [found, is_new] = seen.try_emplace(device.job(), false);
      if (is_new) {
        const auto job = reader([&](Queries& queries) { return queries.find(device.job()); });
        found->second = job.ok() && sees(job->job().spec().project());
      }
      if (!found->second) device.set_job(kOtherProject);
    }
  }
}

}  // namespace tessera::server
