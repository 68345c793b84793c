#include "worker/trainer/checkpointing.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "worker/checkpoint/reader.h"
#include "worker/data/chat_template.h"
#include "worker/memory/attribution.h"
#include "worker/model/adapter_files.h"
#include "worker/trainer/input.h"
#include "worker/trainer/merged_weights.h"
#include "worker/trainer/peft_options.h"

namespace tessera {
namespace {

std::vector<FlatShard> weight_vectors(const TrainableModel& trainable) {
  std::vector<FlatShard> vectors;
  for (const ShardedUnit* unit : trainable.trainable_units()) {
    vectors.push_back(
        {unit->layout().name + "/parameter", unit->shard(), unit->layout().used_numel});
  }
  return vectors;
}

// Read before it may be gone. Empty: the tokenizer's.
std::string given_chat_template(const v1::Sft& sft) {
  if (sft.chat_template_path().empty()) return "";
  return read_chat_templates(sft.chat_template_path(), "method.sft.chat_template_path")["default"];
}

}  // namespace

std::vector<FlatShard> state_vectors(const TrainableModel& trainable, const AdamW& optimizer) {
  std::vector<FlatShard> vectors = optimizer.state();
  for (FlatShard& weights : weight_vectors(trainable)) vectors.push_back(std::move(weights));
  return vectors;
}

Checkpointing::Checkpointing(const v1::TrainerInput& input, Collectives& ranks, Reporter& reporter)
    : input_(input),
      ranks_(ranks),
      reporter_(reporter),
      lease_(input),
      chat_template_(given_chat_template(input.spec().method().sft())),
      resume_from_(find_resume_point(input)),
      writer_(writer_options(), ranks) {}

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
  at::Tensor steps = at::zeros({ranks_.size()}, at::kLong);
  auto* begin = steps.mutable_data_ptr<int64_t>();
  begin[ranks_.rank()] = resume_from_ ? resume_from_->step : -1;
  ranks_.all_reduce_sum(steps);
  if (std::any_of(begin, begin + ranks_.size(), [&](int64_t step) { return step != begin[0]; })) {
    throw NetworkError("the ranks see different checkpoints in " +
                       input_.spec().training().output_dir());
  }
}

std::optional<v1::CheckpointState> Checkpointing::resume(const TrainableModel& trainable,
                                                         AdamW& optimizer) {
  agree_on_resume();
  if (!resume_from_) return std::nullopt;
  // Here too, as the run may have nothing left to save.
  if (ranks_.rank() == 0) delete_leftovers(input_.spec().training().output_dir());
  const OwnerScope owner(Owner::kCheckpoint);
  CheckpointReader reader(resume_from_->path, resume_from_->field);
  check_optimizer_states(*resume_from_, reader.state(), input_.spec().memory());
  reader.load(state_vectors(trainable, optimizer), ranks_.rank());
  trainable.weights_changed();
  optimizer.set_step(reader.state().step());
  saved_step_ = reader.state().step();
  v1::CheckpointState state = reader.state();
  // The best checkpoint of another job stays where it is: load_best() looks among this job's.
  if (state.job_id() != input_.job_id()) state.mutable_best()->clear_checkpoint_step();
  return state;
}

void Checkpointing::save(v1::CheckpointState& state, const TrainableModel& trainable,
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
  complete.set_world_size(ranks_.size());
  complete.set_seed(training.seed());
  complete.set_model_path(input_.spec().model().path());
  complete.set_tokenizer_path(tokenizer_directory(input_.spec()));
  complete.set_dtype(input_.spec().model().dtype());
  complete.set_optimizer_state_dtype(input_.spec().memory().optimizer_state_dtype());
  if (input_.spec().has_peft()) *complete.mutable_peft() = without_path(input_.spec().peft());
  writer_.begin(complete, state_vectors(trainable, optimizer));
  if (!training.async_save()) writer_.finish();
  saved_step_ = state.step();
}

int Checkpointing::load_best(const v1::CheckpointState& state, const TrainableModel& trainable) {
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
  CheckpointReader(path, "training.output_dir").load(weight_vectors(trainable), ranks_.rank());
  trainable.weights_changed();
  return step;
}

std::string Checkpointing::export_model(int step, TrainableModel& trainable) {
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
  if (spec.has_peft() && spec.peft().merge_adapter()) {
    export_merged(options, trainable);
    return final_dir.string();
  }
  if (spec.has_peft()) {
    options.adapter_config =
        adapter_config_text(*trainable.model, lora_of_job(spec.peft()), spec.model().path());
    if (trains_tied_matrix(*trainable.model)) options.also_as = kTiedNames;
    options.dtype = at::kFloat;  // nothing of what was learned is rounded away
  }
  const std::vector<ShardedUnit*> units = trainable.trainable_units();
  std::vector<FlatLayout> layouts;
  for (const ShardedUnit* unit : units) layouts.push_back(unit->layout());
  const auto shards = [&](size_t unit, int64_t begin, int64_t numel) {
    return units[unit]->shard().narrow(0, begin, numel);
  };
  export_hugging_face(options, layouts, shards, ranks_);
  return final_dir.string();
}

void Checkpointing::export_merged(ExportOptions options, TrainableModel& trainable) {
  MergedWeights merged(trainable, ranks_);
  options.before_layout = [&](size_t layout) { merged.enter(layout); };
  const auto read = [&](size_t, int64_t begin, int64_t numel) { return merged.read(begin, numel); };
  export_hugging_face(options, merged.layouts(), read, ranks_);
}

}  // namespace tessera
