#include "server/agents/device_kinds.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"

namespace tessera::server {
namespace {

int64_t tensor_bytes(const v1::DeviceFit& kind) {
  return kind.kind() == "cuda" ? spec::tensor_bytes_of_gpu(kind.memory_bytes())
                               : kind.memory_bytes();
}

const v1::DeviceFit* largest(const std::vector<v1::DeviceFit>& kinds, const std::string& kind) {
  const v1::DeviceFit* found = nullptr;
  for (const v1::DeviceFit& fit : kinds) {
    if (fit.kind() != kind) continue;
    if (found == nullptr || fit.memory_bytes() > found->memory_bytes()) found = &fit;
  }
  return found;
}

}  // namespace

std::vector<v1::DeviceFit> device_kinds(const Nodes& nodes) {
  // CPU devices are slots of a machine, whose memory is theirs together.
  std::map<std::pair<std::string, std::string>, v1::DeviceFit> kinds;
  for (const auto& [name, node] : nodes.all()) {
    if (!takes_work(node)) continue;
    int64_t machine_bytes = 0;
    for (const v1::Device& device : node.info.devices()) {
      if (device.kind() == "cpu") machine_bytes += device.memory_bytes();
    }
    for (const v1::Device& device : node.info.devices()) {
      v1::DeviceFit& fit = kinds[{device.kind(), device.model()}];
      fit.set_kind(device.kind());
      fit.set_model(device.model());
      fit.set_num_devices(fit.num_devices() + 1);
      const int64_t bytes = device.kind() == "cpu" ? machine_bytes : device.memory_bytes();
      fit.set_memory_bytes(std::max(fit.memory_bytes(), bytes));
    }
  }
  std::vector<v1::DeviceFit> all;
  for (auto& [key, fit] : kinds) all.push_back(std::move(fit));
  return all;
}

int64_t known_device_memory(const v1::JobSpec& spec, const Nodes& nodes) {
  if (spec.resources().has_device_memory()) {
    return spec::parse_device_memory(spec.resources().device_memory()).value_or(0);
  }
  if (spec.resources().device() != "cuda") return 0;
  const auto kinds = device_kinds(nodes);
  const v1::DeviceFit* kind = largest(kinds, "cuda");
  return kind == nullptr ? 0 : tensor_bytes(*kind);
}

int64_t device_memory_to_plan_for(const v1::JobSpec& spec, const Nodes& nodes) {
  if (const int64_t known = known_device_memory(spec, nodes); known > 0) return known;
  const auto kinds = device_kinds(nodes);
  const v1::DeviceFit* kind = largest(kinds, spec.resources().device());
  if (kind == nullptr) return 0;
  return kind->memory_bytes() / std::max(1, spec.parallelism().num_processes());
}

std::string device_of_job(const v1::JobSpec& spec, const Nodes& nodes) {
  if (spec.resources().device() != "cuda") return spec.resources().device();
  const auto kinds = device_kinds(nodes);
  const v1::DeviceFit* kind = largest(kinds, "cuda");
  return kind == nullptr ? "cuda" : kind->model();
}

void find_obstacles(const v1::Rehearsal& job, std::vector<v1::DeviceFit>& kinds) {
  const int64_t peak_bytes = job.peak_bytes();
  const int ranks = job.world_size();
  for (v1::DeviceFit& kind : kinds) {
    const bool shared = kind.kind() == "cpu";
    const int64_t needed = shared ? peak_bytes * ranks : peak_bytes;
    if (kind.num_devices() < ranks) {
      kind.set_obstacle(absl::StrCat("the job has ", ranks, " ranks"));
    } else if (needed > tensor_bytes(kind)) {
      kind.set_obstacle(absl::StrCat(shared && ranks > 1 ? "its ranks need " : "a rank needs ",
                                     spec::format_bytes(needed)));
    }
  }
}

}  // namespace tessera::server
