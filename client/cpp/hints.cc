#include "client/cpp/hints.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tessera/v1/job.pb.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr size_t kMaxName = 64;

struct ForeignName {
  std::string_view name;
  const char* advice;
};

// Names of TRL, transformers, accelerate and PEFT that mean something else here, or nothing yet.
constexpr ForeignName kForeignNames[] = {
    {"accelerator", "use resources.device"},
    {"attn_implementation", "attention never crosses documents on any backend; remove it"},
    {"auto_find_batch_size", "use memory.auto"},
    {"batch_size", "use training.per_device_train_batch_size"},
    {"bf16", "use model.dtype: bfloat16"},
    {"bnb_4bit_quant_type", "use peft.quantization: nf4"},
    {"compute_environment", "jobs run where their agents run; remove it"},
    {"dataloader_num_workers", "the trainer reads its own rows; remove it"},
    {"dataset_name", "use data.train with the path of a JSONL or Parquet file"},
    {"dataset_num_proc", "the trainer reads its own rows; remove it"},
    {"dataset_path", "use data.train"},
    {"ddp_backend", "it follows resources.device; remove it"},
    {"ddp_timeout", "use resources.hang_timeout"},
    {"deepspeed", "use memory.sharding: zero1, zero2 or zero3"},
    {"disable_tqdm", "progress is the client's matter; remove it"},
    {"distributed_type", "use memory.sharding and parallelism"},
    {"do_eval", "use training.eval_strategy"},
    {"do_train", "a job always trains; remove it"},
    {"epochs", "use training.num_train_epochs"},
    {"eval_dataset", "use data.eval"},
    {"eval_file", "use data.eval"},
    {"evaluation_strategy", "use training.eval_strategy"},
    {"fp16", "float16 is not built; use model.dtype: bfloat16"},
    {"fsdp", "use memory.sharding: zero3 for full_shard, zero2 for shard_grad_op"},
    {"fsdp_config", "use memory.sharding and memory.reshard_after_forward"},
    {"full_determinism", "runs are deterministic as they are; remove it"},
    {"gpus", "use parallelism.num_processes with resources.device: cuda"},
    {"gradient_checkpointing_kwargs", "use memory.gradient_checkpointing"},
    {"group_by_length", "it is not built yet; packing avoids padding better"},
    {"load_in_4bit", "use peft.quantization: nf4"},
    {"load_in_8bit", "use peft.quantization: int8"},
    {"lr", "use training.learning_rate"},
    {"max_seq_length", "use max_length under method.sft"},
    {"mixed_precision", "use model.dtype: bfloat16"},
    {"model_name_or_path", "use model.path with a local Hugging Face directory"},
    {"num_machines", "use parallelism.num_processes; the scheduler places ranks on machines"},
    {"offload_optimizer", "use memory.offload_optimizer_device"},
    {"offload_param", "use memory.offload_param_device"},
    {"optim", "it is AdamW; for 8-bit states use memory.optimizer_state_dtype: int8"},
    {"overwrite_output_dir", "a job goes on from what output_dir holds; remove it"},
    {"packing_efficiency", "use method.sft.packing_strategy"},
    {"peft_config", "use a section peft"},
    {"per_gpu_train_batch_size", "use training.per_device_train_batch_size"},
    {"push_to_hub", "results stay on this machine; remove it"},
    {"remove_unused_columns", "only the columns of the format are read; remove it"},
    {"reward", "use method.reward"},
    {"reward_functions", "use reward_funcs"},
    {"run_name", "use name, at the top of the file"},
    {"save_safetensors", "weights are always safetensors; remove it"},
    {"steps", "use training.max_steps"},
    {"tf32", "use model.dtype"},
    {"torch_compile", "it is not built; remove it"},
    {"torch_dtype", "use model.dtype"},
    {"tp_size", "tensor parallelism is not built; use dp_shard_size"},
    {"train_dataset", "use data.train"},
    {"train_file", "use data.train"},
    {"use_cpu", "use resources.device: cpu"},
    {"use_liger_kernel", "the fused head is always on; remove it"},
    {"use_liger_loss", "the fused head is always on; remove it"},
    {"use_peft", "use a section peft"},
    {"use_vllm", "there is no vLLM here; remove it"},
    {"warmup_ratio", "use training.warmup_steps with a value below 1"},
    {"zero_stage", "use memory.sharding: zero1, zero2 or zero3"},
};

// Paths of the sections of a job file that have a field called `name`.
void find_sections(const Descriptor& message, const std::string& path, const std::string& name,
                   std::vector<std::string>& out) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.name() == name) out.push_back(path);
    if (field.message_type() != nullptr && field.message_type()->file() == message.file()) {
      const std::string inner = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
      find_sections(*field.message_type(), inner, name, out);
    }
  }
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The field of `message` closest to `name`, or empty when none is close.
std::string nearest_field(const Descriptor& message, const std::string& name) {
  if (name.size() > kMaxName) return "";
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (int i = 0; i < message.field_count(); ++i) {
    const std::string& candidate = message.field(i)->name();
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return best < name.size() ? nearest : "";
}

std::string list_fields(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return absl::StrJoin(names, ", ");
}

}  // namespace

std::string explain_unknown_field(const Descriptor& message, const std::string& path,
                                  const std::string& name) {
  const std::string shown = name.size() <= kMaxName ? name : name.substr(0, kMaxName) + "...";
  const std::string full = path.empty() ? shown : absl::StrCat(path, ".", shown);
  std::vector<std::string> sections;
  find_sections(*v1::JobSpec::descriptor(), "", name, sections);
  if (!sections.empty()) {
    const std::string& section = sections.front();
    return section.empty() ? absl::StrCat(full, " stands at the top of the file, as ", name)
                           : absl::StrCat(full, " stands under ", section);
  }
  const auto* foreign = std::ranges::find(kForeignNames, name, &ForeignName::name);
  if (foreign != std::end(kForeignNames)) {
    return absl::StrCat(full, " is not a field: ", foreign->advice);
  }
  if (const std::string nearest = nearest_field(message, name); !nearest.empty()) {
    return absl::StrCat(full, " is not a field; did you mean ", nearest, "?");
  }
  return absl::StrCat(full, " is not a field; ", path.empty() ? "a job file" : path,
                      " has: ", list_fields(message));
}

}  // namespace tessera
