#include "worker/trainer/plan_job.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "proto/spec/bytes.h"
#include "proto/spec/rules.h"
#include "proto/spec/threads.h"
#include "worker/errors.h"
#include "worker/planner/planner.h"
#include "worker/trainer/check.h"
#include "worker/trainer/cpu_rates.h"
#include "worker/trainer/rehearsal.h"

namespace tessera {
namespace {

// Reading data that no cache holds yet; beyond it rows are taken to be full.
constexpr double kDataSeconds = 20;

double now_seconds() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

// Another number of ranks: as many more copies where the spec has copies of shards of a given size,
// else the shards become others.
void set_world_size(v1::JobSpec& spec, int32_t world_size) {
  v1::Parallelism& mesh = *spec.mutable_parallelism();
  if (mesh.num_processes() == world_size) return;
  mesh.set_num_processes(world_size);
  const int64_t copy = int64_t{mesh.dp_shard_size()} * std::max(1, mesh.cp_size());
  if (mesh.dp_replicate_size() > 1 && copy > 0 && world_size % copy == 0) {
    mesh.set_dp_replicate_size(static_cast<int32_t>(world_size / copy));
  } else {
    mesh.clear_dp_shard_size();
  }
}

// The device's rates, where it is a known model; sets the kind where the request names one. Of what
// is there the model need not be known, and nobody has asked for it.
std::optional<DeviceRates> set_device(v1::PlanRequest& request) {
  if (!request.has_device()) return find_device(request.device_model());
  v1::Resources& resources = *request.mutable_spec()->mutable_resources();
  const std::string& name = request.device();
  if (name == "cpu" || name == "cuda") {
    resources.set_device(name);
    return std::nullopt;
  }
  const std::optional<DeviceRates> known = find_device(name);
  if (!known) {
    std::string names;
    for (const DeviceRates& device : known_devices()) names += ", " + device.name;
    throw UserError("device", "device is \"" + name + "\", must be one of cpu, cuda" + names);
  }
  resources.set_device(known->kind);
  return known;
}

// 0: not known.
int64_t device_memory(const v1::PlanRequest& request, const std::optional<DeviceRates>& rates) {
  const v1::Resources& resources = request.spec().resources();
  const std::string text =
      request.has_device_memory() ? request.device_memory() : resources.device_memory();
  if (text.empty()) return rates ? spec::tensor_bytes_of_gpu(rates->memory_bytes) : 0;
  const std::optional<int64_t> bytes = spec::parse_device_memory(text);
  if (!bytes) {
    throw UserError("device_memory",
                    "device_memory is \"" + text + "\", must be " + spec::kDeviceMemoryRule);
  }
  return *bytes;
}

DeviceRates measured_rates(const v1::JobSpec& spec) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(
      spec::threads_of_rank(spec.resources(), spec.parallelism().num_processes(), cores));
  return cpu_rates(spec.data().cache_dir());
}

}  // namespace

v1::Plan plan_job(v1::PlanRequest request) {
  if (request.has_world_size()) {
    if (request.world_size() < 1) {
      throw UserError("world_size", "world_size is " + std::to_string(request.world_size()) +
                                        ", must be at least 1");
    }
    set_world_size(*request.mutable_spec(), request.world_size());
  }
  std::optional<DeviceRates> rates = set_device(request);
  const int64_t memory = device_memory(request, rates);
  v1::JobSpec filled = request.spec();
  spec::fill_defaults(filled);
  // Broken rules are the planner's to tell.
  if (spec::validate(filled).empty()) check_plan(filled);
  if (filled.resources().device() == "cpu") rates = measured_rates(filled);
  RehearsalData data(impatient_reports(kDataSeconds));
  return make_plan(request, memory,
                   {.rehearse = [&](const v1::JobSpec& spec) { return rehearse(spec, data); },
                    .seconds = now_seconds,
                    .rates = rates});
}

}  // namespace tessera
