#include "worker/trainer/checkpointing.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "proto/spec/method_fields.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"
#include "worker/data/chat_template.h"
#include "worker/memory/attribution.h"
#include "worker/model/adapter_files.h"
#include "worker/trainer/input.h"
#include "worker/trainer/merged_weights.h"
#include "worker/trainer/model_options.h"
#include "worker/trainer/peft_options.h"
#include "worker/trainer/value_model.h"

namespace tessera {
namespace {

std::vector<FlatShard> weight_vectors(const TrainedModels& trained) {
  std::vector<FlatShard> vectors;
  for (const ShardedUnit* unit : trained.units()) {
    vectors.push_back(
        {unit->layout().name + "/parameter", unit->shard(), unit->layout().used_numel});
  }
  return vectors;
}

// Read before they may be gone, like the next. Nothing: the job trains none.
std::optional<AdapterOfJob> given_adapter(const v1::JobSpec& spec) {
  if (!spec.has_peft()) return std::nullopt;
  return adapter_of_job(spec.peft());
}

// Empty: the tokenizer's.
std::string given_chat_template(const v1::Method& method) {
  const spec::MethodFields fields = spec::method_fields(method);
  if (fields.chat_template_path.empty()) return "";
  return read_chat_templates(fields.chat_template_path,
                             fields.field("chat_template_path"))["default"];
}

}  // namespace

std::vector<FlatShard> state_vectors(const TrainedModels& trained, const AdamW& optimizer,
                                     const TrainableModel* reference) {
  std::vector<FlatShard> vectors = optimizer.state();
  for (FlatShard& weights : weight_vectors(trained)) vectors.push_back(std::move(weights));
  if (reference == nullptr) return vectors;
  for (const auto& unit : reference->units) {
    vectors.push_back(
        {unit->layout().name + "/reference", unit->shard(), unit->layout().used_numel});
  }
  return vectors;
}

Checkpointing::Checkpointing(const v1::TrainerInput& input, const Mesh& mesh, Reporter& reporter)
    : input_(input),
      mesh_(mesh),
      reporter_(reporter),
      lease_(input),
      chat_template_(given_chat_template(input.spec().method())),
      adapter_(given_adapter(input.spec())),
      resume_from_(find_resume_point(input)),
      writer_(writer_options(), mesh) {}

CheckpointWriter::Options Checkpointing::writer_options() {
  CheckpointWriter::Options options;
  options.output_dir = input_.spec().training().output_dir();
  options.total_limit = input_.spec().training().save_total_limit();
  options.before_publish = [this] { lease_.check(); };
  options.on_saved = [this](const SavedCheckpoint& saved) {
    v1::CheckpointSaved report;
    report.set_step(saved.step);
    report.set_path(saved.path.string());
    report.set_bytes(saved.bytes);
    report.set_seconds(saved.seconds);
    report.set_stall_seconds(saved.stall_seconds);
    reporter_.saved(report);
  };
  return options;
}

// Each rank has looked for itself.
void Checkpointing::agree_on_resume() const {
  Collectives& ranks = mesh_.world;
  at::Tensor steps = at::zeros({ranks.size()}, at::kLong);
  auto* begin = steps.mutable_data_ptr<int64_t>();
  begin[ranks.rank()] = resume_from_ ? resume_from_->step : -1;
  ranks.all_reduce_sum(steps);
  if (std::any_of(begin, begin + ranks.size(), [&](int64_t step) { return step != begin[0]; })) {
    throw NetworkError("the ranks see different checkpoints in " +
                       input_.spec().training().output_dir());
  }
}

std::optional<v1::CheckpointState> Checkpointing::resume(const TrainedModels& trained,
                                                         AdamW& optimizer) {
  agree_on_resume();
  if (!resume_from_) return std::nullopt;
  // Here too, as the run may have nothing left to save.
  if (mesh_.world.rank() == 0) delete_leftovers(input_.spec().training().output_dir());
  const OwnerScope owner(Owner::kCheckpoint);
  CheckpointReader reader(resume_from_->path, resume_from_->field);
  check_optimizer_states(*resume_from_, reader.state(), input_.spec().memory());
  reader.load(state_vectors(trained, optimizer, reference_), mesh_.shard.rank());
  trained.weights_changed();
  if (reference_ != nullptr) reference_->weights_changed();
  optimizer.set_step(reader.state().step());
  saved_step_ = reader.state().step();
  v1::CheckpointState state = reader.state();
  if (state.job_id() == input_.job_id())
    reporter_.take_up_log(resume_from_->path, /*tells=*/input_.attempt() > 1);
  // The best checkpoint of another job stays where it is: load_best() looks among this job's.
  if (state.job_id() != input_.job_id()) state.mutable_best()->clear_checkpoint_step();
  return state;
}

void Checkpointing::save(v1::CheckpointState& state, const TrainedModels& trained,
                         const AdamW& optimizer) {
  if (saved_step_ == state.step()) return;
  const OwnerScope owner(Owner::kCheckpoint);
  const PhaseScope phase(Phase::kCheckpoint);
  if (state.best().has_value() && state.best().step() == state.step())
    state.mutable_best()->set_checkpoint_step(state.step());
  reporter_.progress("save", state.step());
  lease_.check();
  const v1::Training& training = input_.spec().training();
  v1::CheckpointState complete = state;
  complete.set_job_id(input_.job_id());
  complete.set_seed(training.seed());
  complete.set_model_path(input_.spec().model().path());
  complete.set_tokenizer_path(tokenizer_directory(input_.spec()));
  complete.set_dtype(input_.spec().model().dtype());
  complete.set_optimizer_state_dtype(input_.spec().memory().optimizer_state_dtype());
  if (adapter_) *complete.mutable_peft() = adapter_->peft;
  const ModelConfig& config = trained.policy.model->config();
  if (config.is_classifier()) {
    complete.mutable_classifier()->set_num_labels(static_cast<int32_t>(config.num_labels));
    complete.mutable_classifier()->set_pad_token_id(config.score_pad_token_id);
  }
  writer_.begin(complete, state_vectors(trained, optimizer, reference_),
                {.name = kMetricsLogFile, .bytes = reporter_.metrics_log()});
  if (!training.async_save()) writer_.finish();
  saved_step_ = state.step();
}

int Checkpointing::load_best(const v1::CheckpointState& state, const TrainedModels& trained) {
  const int step = state.best().checkpoint_step();
  const std::filesystem::path path = checkpoint_path(input_.spec().training().output_dir(), step);
  if (step == 0 || !std::filesystem::exists(path)) {
    reporter_.warn("no checkpoint of the best evaluation is in " +
                   input_.spec().training().output_dir() +
                   ": the final weights are those of the last step");
    return 0;
  }
  const OwnerScope owner(Owner::kCheckpoint);
  const PhaseScope phase(Phase::kCheckpoint);
  CheckpointReader(path, "training.output_dir").load(weight_vectors(trained), mesh_.shard.rank());
  trained.weights_changed();
  return step;
}

std::string Checkpointing::export_models(int step, const TrainedModels& trained) {
  reporter_.progress("save", step);
  lease_.check();
  const OwnerScope owner(Owner::kCheckpoint);
  const PhaseScope phase(Phase::kCheckpoint);
  const v1::JobSpec& spec = input_.spec();
  const std::filesystem::path final_dir =
      std::filesystem::path(spec.training().output_dir()) / "final";
  ExportOptions options;
  options.directory = final_dir;
  options.model_source = spec.model().path();
  options.tokenizer_source = tokenizer_directory(spec);
  options.chat_template = chat_template_;
  options.dtype = spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat;
  options.classifier = classifier_config(trained.policy.model->config());
  export_policy(options, trained.policy);
  if (trained.value != nullptr)
    export_whole(value_export(spec, *trained.value, options, final_dir / "value_model"),
                 *trained.value);
  return final_dir.string();
}

void Checkpointing::export_policy(ExportOptions options, TrainableModel& policy) {
  const v1::JobSpec& spec = input_.spec();
  if (spec.has_peft() && spec.peft().merge_adapter()) return export_merged(options, policy);
  if (adapter_) {
    write_as_adapter(*policy.model, adapter_->lora, spec.model().path(), options);
    options.dtype = at::kFloat;  // nothing of what was learned is rounded away
  }
  export_whole(options, policy);
}

// All that is trained of a model.
void Checkpointing::export_whole(const ExportOptions& options, const TrainableModel& model) {
  const std::vector<ShardedUnit*> units = model.trainable_units();
  std::vector<FlatLayout> layouts;
  for (const ShardedUnit* unit : units) layouts.push_back(unit->layout());
  const auto shards = [&](size_t unit, int64_t begin, int64_t numel) {
    return units[unit]->shard().narrow(0, begin, numel);
  };
  write_final(options.directory,
              [&] { export_hugging_face(options, layouts, shards, mesh_.shard); });
}

// One copy of the weights is written, and the ranks of the others wait for that.
void Checkpointing::write_final(const std::filesystem::path& directory,
                                const std::function<void()>& write) {
  run_together(mesh_.world, "cannot write " + directory.string(), [&] {
    if (mesh_.replicate.rank() == 0) write();
  });
}

void Checkpointing::export_merged(ExportOptions options, TrainableModel& policy) {
  MergedWeights merged(policy, mesh_.shard);
  options.before_layout = [&](size_t layout) { merged.enter(layout); };
  const auto read = [&](size_t, int64_t begin, int64_t numel) { return merged.read(begin, numel); };
  write_final(options.directory,
              [&] { export_hugging_face(options, merged.layouts(), read, mesh_.shard); });
}

}  // namespace tessera
