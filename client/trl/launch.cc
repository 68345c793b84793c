#include "client/trl/launch.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/trl/keys.h"
#include "client/trl/values.h"

namespace tessera::trl {
namespace {

using Kind = YamlNode::Kind;

constexpr char kFsdp[] = "fsdp_";
constexpr char kParallelism[] = "parallelism_config_";

}  // namespace

void Launch::add_file(const YamlNode& root) {
  if (root.kind != Kind::kMap) {
    draft_.refuse(root.mark, "accelerate's file must be a section of keys");
    return;
  }
  for (const YamlEntry& entry : root.entries) {
    if (add(entry)) continue;
    draft_.refuse(entry.mark,
                  absl::StrCat(entry.key, " is no key of accelerate 1.15's configuration"));
  }
}

void Launch::add_section(const YamlNode& section, const std::string& prefix) {
  for (YamlEntry entry : section.entries) {
    if (!absl::StartsWith(entry.key, prefix)) entry.key = prefix + entry.key;
    if (!add(entry))
      draft_.refuse(entry.mark, absl::StrCat(entry.key, " is no key of accelerate 1.15"));
  }
}

void Launch::add_fsdp(const YamlNode& section) {
  YamlNode named = section;
  for (YamlEntry& entry : named.entries) {
    // FSDP2's name in transformers for what accelerate calls offload_params.
    if (entry.key == "cpu_offload" || entry.key == "fsdp_cpu_offload")
      entry.key = "fsdp_offload_params";
  }
  add_section(named, kFsdp);
}
void Launch::add_parallelism(const YamlNode& section) { add_section(section, kParallelism); }

bool Launch::add(const YamlEntry& entry) {
  if (entry.key == "fsdp_config" || entry.key == "deepspeed_config" ||
      entry.key == "parallelism_config") {
    if (entry.value.kind == Kind::kMap) {
      add_section(entry.value, entry.key == "fsdp_config"          ? kFsdp
                               : entry.key == "parallelism_config" ? kParallelism
                                                                   : "");
    } else if (!is_nothing(entry.value)) {
      draft_.refuse(entry.mark, absl::StrCat(entry.key, " is ", shown(entry.value),
                                             ", must be a section of keys"));
    }
    return true;
  }
  const Key* key = find_launch_key(entry.key);
  if (key == nullptr) return false;
  const std::string what = absl::StrCat(entry.key, ": ", shown(entry.value));
  if (key->fate == Fate::kSpecial && !is_nothing(entry.value)) {
    values_[entry.key] = {entry.value, entry.mark, draft_.file()};
  } else if (is_nothing(entry.value) || is_one_of(entry.value, key->neutral)) {
    draft_.note(what, "as it is here");
  } else if (key->fate == Fate::kNoted) {
    draft_.note(what, key->why);
  } else {
    draft_.refuse(entry.mark, absl::StrCat(entry.key, " is ", shown(entry.value), ": ", key->why));
  }
  return true;
}

std::string Launch::text(const std::string& key) {
  used_.insert(key);
  const auto it = values_.find(key);
  if (it == values_.end()) return "";
  if (it->second.node.kind == Kind::kScalar) return absl::AsciiStrToLower(it->second.node.scalar);
  if (!is_nothing(it->second.node)) refuse(key, "it must be a word or a number");
  return "";
}

bool Launch::is_true(const std::string& key) {
  used_.insert(key);
  const auto it = values_.find(key);
  if (it == values_.end() || is_nothing(it->second.node)) return false;
  const auto value = as_bool(it->second.node);
  if (!value) refuse(key, "it must be true or false");
  return value.value_or(false);
}

int Launch::count(const std::string& key, int otherwise) {
  used_.insert(key);
  const auto it = values_.find(key);
  if (it == values_.end() || is_nothing(it->second.node)) return otherwise;
  const auto value = as_int(it->second.node);
  if (value && *value >= 1) return *value;
  refuse(key, "it must be a whole number of at least 1");
  return otherwise;
}

void Launch::refuse(const std::string& key, const std::string& why) {
  const Value& value = values_.at(key);
  const std::string file = draft_.file();
  draft_.go_to_file(value.file);
  draft_.refuse(value.mark, absl::StrCat(key, " is ", shown(value.node), ": ", why));
  draft_.go_to_file(file);
}

std::string Launch::strategy() {
  const std::string type = text("distributed_type");
  if (type == "fsdp" || is_true("use_fsdp")) return "fsdp";
  if (type == "deepspeed" || is_true("use_deepspeed")) return "deepspeed";
  if (type == "multi_gpu" || type == "multi_cpu" || is_true("multi_gpu")) return "ddp";
  if (type == "no") return "no";
  if (!type.empty()) {
    refuse("distributed_type",
           "of accelerate's types NO, MULTI_GPU, MULTI_CPU, FSDP and DEEPSPEED have a counterpart");
    return "no";
  }
  return count("num_processes", 1) > 1 ? "ddp" : "no";
}

// Of FSDP1 the strategy has a name or a number, of FSDP2 it is whether weights are freed.
void Launch::apply_fsdp() {
  std::string sharding = text("fsdp_sharding_strategy");
  if (const std::string reshard = text("fsdp_reshard_after_forward"); !reshard.empty()) {
    sharding = reshard;
  }
  const auto one_of = [&](std::initializer_list<const char*> words) {
    return std::ranges::find(words, sharding) != words.end();
  };
  const bool keeps = one_of({"false", "no", "shard_grad_op", "2", "hybrid_shard_zero2", "5"});
  replicates_ = one_of({"no_shard", "3"});
  is_hybrid_ = one_of({"hybrid_shard", "4", "hybrid_shard_zero2", "5"});
  if (!sharding.empty() && !keeps && !replicates_ && !is_hybrid_ &&
      !one_of({"true", "yes", "full_shard", "1"})) {
    const char* key = values_.contains("fsdp_reshard_after_forward") ? "fsdp_reshard_after_forward"
                                                                     : "fsdp_sharding_strategy";
    refuse(key, "it is no strategy of FSDP");
  }
  draft_.set("memory.sharding", "zero3",
             {absl::StrCat("FSDP", sharding.empty() ? "" : absl::StrCat(" (", sharding, ")"),
                           " shards weights, gradients and optimizer states.")});
  if (keeps) {
    draft_.set("memory.reshard_after_forward", "false",
               {"Weights stay gathered between a block's forward and backward (SHARD_GRAD_OP)."});
  }
  if (is_true("fsdp_offload_params")) {
    draft_.set("memory.offload_param_device", "cpu");
    draft_.set("memory.offload_optimizer_device", "cpu",
               {"FSDP's offload_params takes the optimizer along."});
  }
  if (is_true("fsdp_activation_checkpointing")) draft_.set("memory.gradient_checkpointing", "true");
  if (is_true("fsdp_activation_checkpointing_offload")) {
    draft_.set("memory.activation_offloading", "true");
  }
}

void Launch::apply_offload(const std::string& key, const std::string& field) {
  const std::string device = text(key);
  if (device.empty() || device == "none") return;
  if (device != "cpu") return refuse(key, "it must be none or cpu");
  draft_.set(field, "cpu");
}

void Launch::apply_deepspeed() {
  const std::string stage = text("zero_stage");
  if (stage == "0") {
    replicates_ = true;
  } else if (stage.empty() || stage == "1" || stage == "2" || stage == "3") {
    draft_.set("memory.sharding", "zero" + (stage.empty() ? "2" : stage),
               {stage.empty() ? "DeepSpeed's default." : absl::StrCat("zero_stage: ", stage)});
  } else {
    refuse("zero_stage", "it must be 0, 1, 2 or 3");
  }
  apply_offload("offload_optimizer_device", "memory.offload_optimizer_device");
  apply_offload("offload_param_device", "memory.offload_param_device");
  const std::string clipping = text("gradient_clipping");
  const std::string norm = draft_.value("training.max_grad_norm");
  double own = 0;
  double theirs = 1;
  if (clipping.empty() || clipping == "auto" || clipping == "none") return;
  if (absl::SimpleAtod(clipping, &own) && absl::SimpleAtod(norm.empty() ? "1" : norm, &theirs) &&
      own == theirs) {
    return;
  }
  refuse("gradient_clipping",
         absl::StrCat("max_grad_norm is ", norm.empty() ? "1" : norm, "; make them the same"));
}

void Launch::apply_context() {
  const int cp = count(absl::StrCat(kParallelism, "cp_size"), 1);
  const int sp = count(absl::StrCat(kParallelism, "sp_size"), 1);
  const std::string strategy_key = absl::StrCat(kParallelism, "cp_comm_strategy");
  if (cp > 1 && sp > 1) {
    return refuse(absl::StrCat(kParallelism, "sp_size"), "cp_size is given, too; use one of them");
  }
  if (cp * sp == 1) return;
  draft_.set("parallelism.cp_size", absl::StrCat(cp * sp));
  if (sp > 1) {
    return draft_.set("parallelism.cp_strategy", "ulysses",
                      {"accelerate's sp_size: ranks share attention by heads."});
  }
  const std::string strategy = text(strategy_key);
  if (strategy == "alltoall") {
    draft_.set("parallelism.cp_strategy", "ring",
               {"accelerate's alltoall: keys and values go round."});
  } else if (strategy.empty() || strategy == "allgather") {
    draft_.set("parallelism.cp_strategy", "allgather");
  } else {
    refuse(strategy_key, "it must be allgather or alltoall");
  }
}

void Launch::apply_mesh(const std::string& strategy) {
  apply_context();
  const int replicate = count(absl::StrCat(kParallelism, "dp_replicate_size"), 0);
  const int shard = count(absl::StrCat(kParallelism, "dp_shard_size"), 0);
  int ranks = count("num_processes", 1);
  std::vector<std::string> why;
  if (strategy == "no" && ranks > 1) {
    draft_.note(absl::StrCat("num_processes: ", ranks), "distributed_type NO starts one process");
    ranks = 1;
  }
  if (!values_.contains("num_processes")) {
    why = {"TRL starts a process for each GPU that it sees; say here how many."};
  }
  draft_.set("parallelism.num_processes", absl::StrCat(ranks), why);
  if (replicate > 1) draft_.set("parallelism.dp_replicate_size", absl::StrCat(replicate));
  if (shard > 1) draft_.set("parallelism.dp_shard_size", absl::StrCat(shard));
  if (replicate > 1 || shard > 1 || ranks == 1) return;
  const int context = std::max(1, count(absl::StrCat(kParallelism, "cp_size"), 1) *
                                      count(absl::StrCat(kParallelism, "sp_size"), 1));
  if (strategy == "ddp" || replicates_) {
    draft_.set("parallelism.dp_replicate_size", absl::StrCat(ranks / context),
               {"Every rank holds all of the model. Without this line its weights, gradients and",
                "optimizer states are shared out: the same numbers in less memory."});
  } else if (is_hybrid_) {
    draft_.set("parallelism.dp_replicate_size", absl::StrCat(count("num_machines", 1)),
               {"Hybrid sharding: a copy of the model on each machine."});
  }
}

void Launch::apply_device() {
  const bool is_multi_cpu = text("distributed_type") == "multi_cpu";
  const bool says_cpu = is_true("use_cpu");
  if (is_true("cpu") || says_cpu || is_multi_cpu) draft_.set("resources.device", "cpu");
}

void Launch::note_unused() {
  for (const auto& [key, value] : values_) {
    if (used_.contains(key)) continue;
    draft_.note(absl::StrCat(key, ": ", shown(value.node)), "without effect beside the others");
  }
}

void Launch::apply() {
  const std::string kind = strategy();
  if (kind == "fsdp") apply_fsdp();
  if (kind == "deepspeed") apply_deepspeed();
  apply_mesh(kind);
  apply_device();
  const std::string precision = mixed_precision();
  if (precision == "fp8") {
    refuse("mixed_precision", "8-bit floating point is not built; use bf16");
  } else if (!precision.empty() && precision != "bf16" && precision != "fp16" &&
             precision != "no") {
    refuse("mixed_precision", "it must be no or bf16");
  }
  note_unused();
}

}  // namespace tessera::trl
