#include "worker/planner/techniques.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "proto/spec/fields.h"
#include "proto/spec/method_fields.h"
#include "proto/spec/rules.h"

namespace tessera {
namespace {

using Spec = v1::JobSpec;

struct Change {
  const char* field = nullptr;
  const char* value = nullptr;
};

bool always(const Spec&) { return true; }
bool is_sharded(const Spec& spec) {
  return spec.parallelism().dp_shard_size() * spec.parallelism().cp_size() > 1;
}
bool shares_streams(const Spec& spec) { return spec.parallelism().cp_size() > 1; }
bool has_long_microbatches(const Spec& spec) {
  return int64_t{spec.training().per_device_train_batch_size()} *
             std::max<int64_t>(1, spec::method_fields(spec.method()).max_length) >
         1024;
}
bool has_adapters(const Spec& spec) { return spec.has_peft(); }

// One row a setting; rows of one knob stand together.
struct Row {
  const char* knob;
  const char* title;
  bool exact;
  bool (*applies)(const Spec&);
  std::array<Change, 3> changes;  // those that are none come last
};

constexpr Row kRows[] = {
    {"recompute",
     "gradient checkpointing: none",
     true,
     always,
     {{{"memory.gradient_checkpointing", "false"}}}},
    {"recompute",
     "gradient checkpointing: every 2nd block",
     true,
     always,
     {{{"memory.gradient_checkpointing", "true"},
       {"memory.gradient_checkpointing_policy", "attention"},
       {"memory.gradient_checkpointing_every", "2"}}}},
    {"recompute",
     "gradient checkpointing: all but attention",
     true,
     always,
     {{{"memory.gradient_checkpointing", "true"},
       {"memory.gradient_checkpointing_policy", "attention"},
       {"memory.gradient_checkpointing_every", "1"}}}},
    {"recompute",
     "gradient checkpointing: full",
     true,
     always,
     {{{"memory.gradient_checkpointing", "true"},
       {"memory.gradient_checkpointing_policy", "full"},
       {"memory.gradient_checkpointing_every", "1"}}}},
    {"activations",
     "activations kept on the device",
     true,
     always,
     {{{"memory.activation_offloading", "false"}}}},
    {"activations",
     "activation offloading to host memory",
     true,
     always,
     {{{"memory.activation_offloading", "true"}, {"memory.activation_offloading_target", "host"}}}},
    {"activations",
     "activation offloading to disk",
     true,
     always,
     {{{"memory.activation_offloading", "true"}, {"memory.activation_offloading_target", "disk"}}}},
    {"tiles", "feed-forward part whole", true, always, {{{"memory.mlp_tile_tokens", "0"}}}},
    {"tiles",
     "feed-forward part in tiles of 1024 tokens",
     true,
     has_long_microbatches,
     {{{"memory.mlp_tile_tokens", "1024"}}}},
    {"tiles",
     "feed-forward part in tiles of 256 tokens",
     true,
     has_long_microbatches,
     {{{"memory.mlp_tile_tokens", "256"}}}},
    {"head",
     "head in chunks of 64 MiB of logits",
     true,
     always,
     {{{"memory.head_chunk_tokens", "0"}}}},
    {"head", "head in chunks of 512 tokens", true, always, {{{"memory.head_chunk_tokens", "512"}}}},
    {"head", "head in chunks of 128 tokens", true, always, {{{"memory.head_chunk_tokens", "128"}}}},
    {"sharding", "sharding: zero1", true, is_sharded, {{{"memory.sharding", "zero1"}}}},
    {"sharding", "sharding: zero2", true, is_sharded, {{{"memory.sharding", "zero2"}}}},
    {"sharding",
     "sharding: zero3, weights kept after forward",
     true,
     is_sharded,
     {{{"memory.sharding", "zero3"}, {"memory.reshard_after_forward", "false"}}}},
    {"sharding",
     "sharding: zero3, last 4 blocks kept after forward",
     true,
     is_sharded,
     {{{"memory.sharding", "zero3"},
       {"memory.reshard_after_forward", "true"},
       {"memory.reshard_keeps_last", "4"}}}},
    {"sharding",
     "sharding: zero3",
     true,
     is_sharded,
     {{{"memory.sharding", "zero3"},
       {"memory.reshard_after_forward", "true"},
       {"memory.reshard_keeps_last", "0"}}}},
    {"context",
     "context parallelism: keys and values gathered",
     true,
     shares_streams,
     {{{"parallelism.cp_strategy", "allgather"}}}},
    {"context",
     "context parallelism: keys and values go round",
     true,
     shares_streams,
     {{{"parallelism.cp_strategy", "ring"}}}},
    {"context",
     "context parallelism: heads dealt to ranks",
     true,
     shares_streams,
     {{{"parallelism.cp_strategy", "ulysses"}}}},
    {"optimizer step",
     "optimizer step in backward",
     true,
     always,
     {{{"memory.optimizer_in_backward", "true"}}}},
    {"optimizer states",
     "optimizer states on the device",
     true,
     always,
     {{{"memory.offload_optimizer_device", "none"}}}},
    {"optimizer states",
     "optimizer states in host memory",
     true,
     always,
     {{{"memory.offload_optimizer_device", "cpu"}}}},
    {"parameters",
     "parameters on the device",
     true,
     always,
     {{{"memory.offload_param_device", "none"}}}},
    {"parameters",
     "parameters in host memory",
     true,
     always,
     {{{"memory.offload_param_device", "cpu"}}}},
    {"state type",
     "optimizer states in bfloat16",
     false,
     always,
     {{{"memory.optimizer_state_dtype", "bfloat16"}}}},
    {"state type",
     "optimizer states in 8 bits",
     false,
     always,
     {{{"memory.optimizer_state_dtype", "int8"}}}},
    {"quantization",
     "base weights in 8 bits",
     false,
     has_adapters,
     {{{"peft.quantization", "int8"}}}},
    {"quantization",
     "base weights in 4 bits (NF4)",
     false,
     has_adapters,
     {{{"peft.quantization", "nf4"}}}},
};

Setting setting_of(const Row& row) {
  Setting setting{.title = row.title, .changes = {}, .exact = row.exact};
  for (const Change& change : row.changes) {
    if (change.field == nullptr) break;
    v1::FieldChange& added = setting.changes.emplace_back();
    added.set_field(change.field);
    added.set_value(change.value);
  }
  return setting;
}

bool changes_something(const Spec& spec, const Setting& setting) {
  return std::any_of(setting.changes.begin(), setting.changes.end(), [&](const auto& change) {
    return spec::get_field(spec, change.field()) != change.value();
  });
}

// Draws of random numbers follow the microbatches, so another split of a step is another run.
bool draws_random_numbers(const Spec& spec) {
  return spec.model().hidden_dropout() > 0 || spec.training().neftune_noise_alpha() > 0 ||
         (spec.has_peft() && spec.peft().lora_dropout() > 0);
}

std::string mesh_title(const v1::Parallelism& mesh) {
  return "mesh: dp_replicate " + std::to_string(mesh.dp_replicate_size()) + " x dp_shard " +
         std::to_string(mesh.dp_shard_size()) + " x cp " + std::to_string(mesh.cp_size());
}

void add_change(Setting& setting, const char* field, int64_t value) {
  v1::FieldChange& change = setting.changes.emplace_back();
  change.set_field(field);
  change.set_value(std::to_string(value));
}

// The same rows a step on the same ranks: streams of a cp axis are shared, so that each of them is
// dealt as many rows more as there are fewer to deal to.
Setting mesh_setting(const Spec& spec, int32_t replicate, int32_t shard, int32_t cp) {
  const v1::Parallelism& mesh = spec.parallelism();
  v1::Parallelism other;
  other.set_dp_replicate_size(replicate);
  other.set_dp_shard_size(shard);
  other.set_cp_size(cp);
  Setting setting{.title = mesh_title(other), .changes = {}};
  add_change(setting, "parallelism.dp_replicate_size", replicate);
  add_change(setting, "parallelism.dp_shard_size", shard);
  add_change(setting, "parallelism.cp_size", cp);
  const int64_t before = int64_t{mesh.dp_replicate_size()} * mesh.dp_shard_size();
  const int64_t after = int64_t{replicate} * shard;
  const int64_t rows = spec.training().per_device_train_batch_size() *
                       spec.training().gradient_accumulation_steps() * before;
  const int64_t steps = spec.training().gradient_accumulation_steps();
  if (after == before) return setting;
  if (rows % after != 0) return {};
  // As many rows a microbatch where they divide, else more microbatches.
  const int64_t of_rank = rows / after;
  const int64_t size = of_rank % steps == 0 ? of_rank / steps : 1;
  add_change(setting, "training.per_device_train_batch_size", size);
  add_change(setting, "training.gradient_accumulation_steps", of_rank / size);
  return setting;
}

// Other meshes of the same ranks, one axis twice or half as long as it is.
Knob meshes(const Spec& spec) {
  Knob knob{.name = "mesh", .settings = {}};
  const v1::Parallelism& mesh = spec.parallelism();
  if (mesh.num_processes() == 1 || draws_random_numbers(spec) ||
      spec.training().accelerator_config().split_batches() ||
      spec.training().dataloader_drop_last()) {
    return knob;
  }
  const int32_t r = mesh.dp_replicate_size(), s = mesh.dp_shard_size(), c = mesh.cp_size();
  const auto add = [&](int32_t replicate, int32_t shard, int32_t cp) {
    if (replicate * shard * cp != mesh.num_processes()) return;
    Setting setting = mesh_setting(spec, replicate, shard, cp);
    if (!setting.changes.empty()) knob.settings.push_back(std::move(setting));
  };
  if (s % 2 == 0) add(r, s / 2, c * 2);
  if (s % 2 == 0) add(r * 2, s / 2, c);
  if (c % 2 == 0) add(r, s * 2, c / 2);
  if (r % 2 == 0) add(r / 2, s * 2, c);
  if (s > 2) add(r, 1, c * s);
  return knob;
}

// The same rows a step, in more or fewer microbatches. With dataloader_drop_last another size drops
// other rows at an epoch's end.
Knob microbatches(const Spec& spec) {
  Knob knob{.name = "microbatches", .settings = {}};
  const v1::Training& training = spec.training();
  if (draws_random_numbers(spec) || training.accelerator_config().split_batches() ||
      training.dataloader_drop_last()) {
    return knob;
  }
  const int64_t rows = training.per_device_train_batch_size();
  const int64_t steps = training.gradient_accumulation_steps();
  for (int64_t size = rows * steps; size >= 1; size /= 2) {
    if (rows * steps % size != 0) break;
    Setting setting{.title = "microbatches of " + std::to_string(size) +
                             (size == 1 ? " row, " : " rows, ") +
                             std::to_string(rows * steps / size) + " a step",
                    .changes = {}};
    v1::FieldChange& batch = setting.changes.emplace_back();
    batch.set_field("training.per_device_train_batch_size");
    batch.set_value(std::to_string(size));
    v1::FieldChange& accumulation = setting.changes.emplace_back();
    accumulation.set_field("training.gradient_accumulation_steps");
    accumulation.set_value(std::to_string(rows * steps / size));
    knob.settings.push_back(std::move(setting));
  }
  return knob;
}

}  // namespace

bool is_allowed(const v1::JobSpec& spec) { return spec::validate(spec).empty(); }

v1::JobSpec with_setting(v1::JobSpec spec, const Setting& setting) {
  for (const v1::FieldChange& change : setting.changes) {
    if (!spec::set_field(spec, change.field(), change.value())) {
      throw std::logic_error(setting.title + " sets " + change.field() + " to " + change.value() +
                             ", which is no value of a field");
    }
  }
  return spec;
}

std::vector<Knob> knobs_of(const v1::JobSpec& spec) {
  std::vector<Knob> knobs;
  for (const Row& row : kRows) {
    if (!row.applies(spec)) continue;
    if (knobs.empty() || knobs.back().name != row.knob) knobs.push_back({row.knob, {}});
    knobs.back().settings.push_back(setting_of(row));
  }
  knobs.push_back(microbatches(spec));
  knobs.push_back(meshes(spec));
  for (Knob& knob : knobs) {
    std::erase_if(knob.settings, [&](const Setting& setting) {
      return !changes_something(spec, setting) || !is_allowed(with_setting(spec, setting));
    });
  }
  std::erase_if(knobs, [](const Knob& knob) { return knob.settings.empty(); });
  return knobs;
}

}  // namespace tessera
