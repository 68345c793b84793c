#include "worker/trainer/check.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "proto/spec/bytes.h"
#include "proto/spec/online_relations.h"
#include "worker/absent_error.h"
#include "worker/data/data_files.h"
#include "worker/generate/end_tokens.h"
#include "worker/model/adapter_files.h"
#include "worker/model/stored_weights.h"
#include "worker/rewards/judge.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/input.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/rehearsal.h"
#include "worker/trainer/resume.h"
#include "worker/trainer/reward_models.h"
#include "worker/trainer/stream_share.h"
#include "worker/trainer/value_model.h"

namespace tessera {
namespace {

// Documents read of each file: enough to find a wrong field or a malformed beginning at once.
constexpr int64_t kSampleDocuments = 1000;
// For reading data that no cache holds yet, of which a rehearsal wants the lengths.
constexpr double kDataSeconds = 10;

// Room for what the job writes at least: the final weights, and one checkpoint where it makes any.
int64_t bytes_needed(const v1::JobSpec& spec, const ParameterCounts& size) {
  const int64_t weight_bytes = spec.model().dtype() == "bfloat16" ? 2 : 4;
  const std::string& states = spec.memory().optimizer_state_dtype();
  const int64_t state_bytes = states == "int8" ? 1 : states == "bfloat16" ? 2 : 4;
  const int64_t checkpoint_bytes =
      spec.training().save_strategy() == "no" ? 0 : 4 + 2 * state_bytes;
  const bool keeps_reference =
      checkpoint_bytes > 0 && reference_options(spec.method()).sync_steps > 0;
  const int64_t reference_bytes = keeps_reference ? weight_bytes : 0;
  const bool writes_adapter = spec.has_peft() && !spec.peft().merge_adapter();
  return (writes_adapter ? size.trainable * 4 : size.stored * weight_bytes) +
         size.trainable * (checkpoint_bytes + reference_bytes);
}

// What there is of a directory that the job will make and write to.
std::filesystem::path check_writable(const std::string& field,
                                     const std::filesystem::path& directory) {
  std::filesystem::path existing = directory;
  while (!std::filesystem::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  if (!std::filesystem::is_directory(existing) || access(existing.c_str(), W_OK | X_OK) != 0) {
    throw UserError(field, field + " " + directory.string() + " cannot be written: " +
                               existing.string() + " is not a writable directory");
  }
  return existing;
}

void check_output(const v1::JobSpec& spec, const ParameterCounts& size) {
  const std::filesystem::path output = spec.training().output_dir();
  const std::filesystem::path existing = check_writable("training.output_dir", output);
  struct statvfs disk;
  if (statvfs(existing.c_str(), &disk) != 0) return;
  const int64_t free_bytes =
      static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  const int64_t needed = bytes_needed(spec, size);
  if (free_bytes < needed) {
    throw UserError("training.output_dir", "training.output_dir " + output.string() + " has " +
                                               spec::format_bytes(free_bytes) +
                                               " free, and the job needs " +
                                               spec::format_bytes(needed));
  }
}

// As far as the first prompts tell.
void check_completions(const v1::JobSpec& spec, bool held_out, const ModelConfig& config,
                       const LiveRollouts& prompts) {
  const v1::JobSpec job = held_out ? spec::evaluation_job(spec) : spec;
  engine_options(job, config, generation_work(job, prompts.longest_prompt()));
  if (held_out) return;
  SamplingParams sampling = sampling_of(spec);
  sampling.stop_tokens = end_tokens(spec.model().path(), Tokenizer(tokenizer_directory(spec)));
  check_sampling(sampling, "generation");
  if (!spec.generation().record_to().empty())
    check_writable("generation.record_to", spec.generation().record_to());
}

// The first of them, as JSON.
std::string first_record(const DatasetOptions& options) {
  const DataSource& source = options.sources.front();
  const auto records = open_records(find_data_files(source.paths, source.field).front());
  const auto block = records->next_block();
  const Record* record = block ? block->next() : nullptr;
  return record ? record->object().dump() : "";
}

void check_offloading(const v1::Memory& memory) {
  if (memory.activation_offloading() && memory.activation_offloading_target() == "disk" &&
      memory.has_activation_offloading_dir())
    check_writable("memory.activation_offloading_dir", memory.activation_offloading_dir());
}

// A job that cannot be rehearsed may run all the same.
void add_rehearsal(const v1::JobSpec& spec, const RehearsalOptions& options,
                   v1::CheckResult& result) {
  try {
    RehearsalData data(impatient_reports(kDataSeconds));
    *result.mutable_rehearsal() = rehearse(spec, data, options);
  } catch (const std::exception& error) {
    result.clear_rehearsal();
    std::cerr << "not rehearsed: " << error.what() << std::endl;
  }
}

// What is wrong with a job's files, part by part.
class Checks {
 public:
  // `is_plan`: files that are not on this machine are none of its mistakes.
  Checks(const v1::JobSpec& spec, bool is_plan) : spec_(spec), is_plan_(is_plan) {}

  // What is read of the job.
  void inputs() {
    guarded([&] { refuse_combinations(spec_); });
    guarded([&] { model(); });
    guarded([&] { value_model(); });
    for (const bool held_out : {false, true}) {
      if (held_out && spec_.data().eval().empty()) continue;
      guarded([&] { documents(held_out); });
    }
    guarded([&] { checkpoint(); });
    for (int i = 0; i < spec_.reward_funcs_size(); ++i) {
      guarded([&] { check_judge(spec_, i); });
      if (are_elsewhere(spec_.reward_funcs(i).model().path())) continue;
      guarded([&] { check_reward_model(spec_, i, prompt_); });
    }
  }

  // What it writes.
  void outputs() {
    guarded([&] { check_output(spec_, size_); });
    guarded([&] { check_offloading(spec_.memory()); });
  }

  const std::vector<UserError>& mistakes() const { return mistakes_; }

 private:
  void guarded(const std::function<void()>& check) {
    try {
      check();
    } catch (const AbsentError& error) {
      if (!is_plan_) mistakes_.push_back(error);
    } catch (const UserError& error) {
      mistakes_.push_back(error);
    }
  }

  // Weights of a plan that only the machine of a run has to hold.
  bool are_elsewhere(const std::filesystem::path& model) const {
    if (!is_plan_) return false;
    try {
      WeightFiles::open(model);
    } catch (const AbsentError&) {
      return true;
    } catch (const UserError&) {
    }
    return false;
  }
  bool are_elsewhere(const std::optional<ModelSource>& model) const {
    return model && are_elsewhere(model->path);
  }

  void model() {
    config_ = model_of_job(spec_, read_model_config(spec_.model().path()));
    check_strategy(spec_.parallelism(), *config_);
    const std::unique_ptr<DecoderModel> model = make_layers(spec_, *config_);
    size_ = count_parameters(*model);
    layouts_ = trainable_layouts(*model, /*world_size=*/1);
    if (!are_elsewhere(spec_.model().path()))
      check_weights(*model, WeightFiles::open(spec_.model().path()));
    if (!spec_.peft().adapter_path().empty()) open_adapter(*model, spec_.peft().adapter_path());
    if (!are_elsewhere(reference_in_memory(spec_)) && !are_elsewhere(teacher_of_job(spec_)) &&
        !are_elsewhere(reference_to_precompute(spec_)))
      check_frozen(spec_, *config_);
  }

  // Of a job that trains one.
  void value_model() {
    if (!value_model_of_job(spec_)) return;
    const ModelConfig policy = read_model_config(spec_.model().path());
    const auto model = make_value_layers(spec_, policy);
    check_strategy(spec_.parallelism(), model->config());
    size_ += count_parameters(*model);
    for (FlatLayout& layout : trainable_layouts(*model, /*world_size=*/1, ModelRole::kValue))
      layouts_.push_back(std::move(layout));
    if (!are_elsewhere(value_model_of_job(spec_))) check_value_model(spec_, policy);
  }

  void documents(bool held_out) {
    DatasetOptions options = dataset_options(spec_, held_out, config_ ? config_->vocab_size : 0);
    options.max_documents = kSampleDocuments;
    if (!spec::makes_completions(spec_, held_out)) {
      load_dataset(options);
    } else if (const auto prompts = load_prompts(options); config_) {
      if (!held_out) prompt_ = first_record(options);
      check_completions(spec_, held_out, *config_, *prompts);
    }
  }

  void checkpoint() {
    const auto requested = requested_checkpoint(spec_.training());
    if (!requested) return;
    check_optimizer_states(*requested, check_checkpoint(*requested, layouts_), spec_.memory());
  }

  const v1::JobSpec& spec_;
  const bool is_plan_;
  std::optional<ModelConfig> config_;
  ParameterCounts size_;
  std::vector<FlatLayout> layouts_;
  std::string prompt_;  // the first of those that completions are made of
  std::vector<UserError> mistakes_;
};

}  // namespace

v1::CheckResult check_job(const v1::JobSpec& spec, const RehearsalOptions& options) {
  Checks checks(spec, /*is_plan=*/false);
  checks.inputs();
  checks.outputs();
  v1::CheckResult result;
  for (const UserError& mistake : checks.mistakes()) {
    v1::Failure& failure = *result.add_violations();
    failure.set_kind(v1::Failure::USER);
    failure.set_field(mistake.field());
    failure.set_message(mistake.what());
    failure.set_rank(-1);
  }
  if (result.violations().empty()) add_rehearsal(spec, options, result);
  return result;
}

void check_plan(const v1::JobSpec& spec) {
  Checks checks(spec, /*is_plan=*/true);
  checks.inputs();
  if (!checks.mistakes().empty()) throw checks.mistakes().front();
}

}  // namespace tessera
