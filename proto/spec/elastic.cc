#include "proto/spec/elastic.h"

#include <numeric>

#include "proto/spec/rules.h"

namespace tessera::spec {
namespace {

// Microbatches that completions are made for at once, where the method's section says it.
template <typename Options>
void grow_generation(Options& options, int factor) {
  if (options.has_steps_per_generation()) {
    options.set_steps_per_generation(options.steps_per_generation() * factor);
  }
}

}  // namespace

v1::JobSpec with_processes(v1::JobSpec spec, int num_processes) {
  v1::Parallelism& mesh = *spec.mutable_parallelism();
  const int factor = mesh.num_processes() / num_processes;
  if (factor == 1) return spec;
  const int data_ranks = num_processes / mesh.cp_size();
  const int shard = std::gcd(data_ranks, mesh.dp_shard_size());
  mesh.set_num_processes(num_processes);
  mesh.set_dp_shard_size(shard);
  mesh.set_dp_replicate_size(data_ranks / shard);
  mesh.clear_min_num_processes();
  v1::Training& training = *spec.mutable_training();
  // With split_batches a microbatch is dealt to the ranks that there are.
  if (training.accelerator_config().split_batches()) return spec;
  training.set_gradient_accumulation_steps(training.gradient_accumulation_steps() * factor);
  v1::Method& method = *spec.mutable_method();
  if (method.has_grpo()) grow_generation(*method.mutable_grpo(), factor);
  if (method.has_rloo()) grow_generation(*method.mutable_rloo(), factor);
  return spec;
}

std::vector<int> process_counts(const v1::JobSpec& spec) {
  const v1::Parallelism& mesh = spec.parallelism();
  std::vector<int> counts{mesh.num_processes()};
  if (!mesh.has_min_num_processes() || mesh.cp_size() < 1) return counts;
  const int data_ranks = mesh.num_processes() / mesh.cp_size();
  for (int fewer = data_ranks - 1; fewer >= 1; --fewer) {
    const int count = fewer * mesh.cp_size();
    if (count < mesh.min_num_processes()) break;
    if (data_ranks % fewer == 0 && validate(with_processes(spec, count)).empty()) {
      counts.push_back(count);
    }
  }
  return counts;
}

}  // namespace tessera::spec
