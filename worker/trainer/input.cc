#include "worker/trainer/input.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"
#include "proto/spec/rules.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {

namespace {

void read_message(const std::filesystem::path& path, google::protobuf::Message& message) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("", path.string() + " cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto fail = [&](const std::string& why) {
    throw UserError("", path.string() + " is no " + message.GetDescriptor()->name() + why);
  };
  if (path.extension() == ".json") {
    const auto status = google::protobuf::util::JsonStringToMessage(bytes, &message);
    if (!status.ok()) fail(": " + status.ToString());
  } else if (!message.ParseFromString(bytes)) {
    fail("");
  }
}

// Paths in a binary message are absolute.
void resolve_paths(const std::filesystem::path& path, v1::JobSpec& spec) {
  if (path.extension() == ".json")
    spec::resolve_paths(spec, std::filesystem::absolute(path).parent_path());
}

}  // namespace

v1::TrainerInput read_trainer_input(const std::filesystem::path& path) {
  v1::TrainerInput input;
  read_message(path, input);
  resolve_paths(path, *input.mutable_spec());
  spec::fill_defaults(*input.mutable_spec());
  const auto violations = spec::validate(input.spec());
  if (!violations.empty()) throw UserError(violations.front().field, violations.front().message);
  return input;
}

v1::PlanRequest read_plan_request(const std::filesystem::path& path) {
  v1::PlanRequest request;
  read_message(path, request);
  resolve_paths(path, *request.mutable_spec());
  return request;
}

v1::GenerateRequest read_generate_request(const std::filesystem::path& path) {
  v1::GenerateRequest request;
  read_message(path, request);
  return request;
}

std::unique_ptr<Dataset> read_documents(const v1::JobSpec& spec, bool held_out, int64_t vocab_size,
                                        const Reports& reports) {
  DatasetOptions options = dataset_options(spec, held_out, vocab_size);
  options.reports = reports;
  return load_dataset(options);
}

std::unique_ptr<LiveRollouts> read_prompts(const v1::JobSpec& spec, bool held_out,
                                           int64_t vocab_size, const Reports& reports) {
  DatasetOptions options = dataset_options(spec, held_out, vocab_size);
  options.reports = reports;
  return load_prompts(options);
}

bool shuffles_rows(const v1::JobSpec& spec) {
  const v1::Training& training = spec.training();
  return training.has_train_sampling_strategy()
             ? training.train_sampling_strategy() == "random"
             : training.shuffle_dataset() && !spec.method().has_kto();
}

LoaderOptions loader_options(const v1::JobSpec& spec, bool held_out, const ModelConfig& config,
                             int rank, int world_size) {
  const v1::Training& training = spec.training();
  LoaderOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.seed = training.seed();
  options.pad_to_multiple_of = spec::method_fields(spec.method()).pad_to_multiple_of;
  options.pad_token_id = std::max<int64_t>(0, config.pad_token_id);
  if (config.score_pad_token_id >= 0) options.score_pad_token_id = config.score_pad_token_id;
  if (held_out) {
    options.batch_rows = training.per_device_eval_batch_size();
    options.shuffle = false;
    return options;
  }
  options.batch_rows = spec::step_plan(spec).batch_rows;
  options.split_batches = training.accelerator_config().split_batches();
  // Rollouts come in the order in which they were, or are to be, trained on.
  const bool is_live = spec::makes_completions(spec);
  options.is_shuffled_already = is_live && shuffles_rows(spec);
  options.shuffle = shuffles_rows(spec) && spec.data().rollouts().empty() && !is_live;
  options.drop_last = training.dataloader_drop_last();
  return options;
}

int64_t score_padding(const v1::JobSpec& spec, const ModelConfig& config) {
  const std::filesystem::path directory = tokenizer_directory(spec);
  if (!has_tokenizer(directory)) return config.pad_token_id;
  const Tokenizer tokenizer(directory);
  const v1::Reward& reward = spec.method().reward();
  const std::string& eos_token =
      reward.has_eos_token() ? reward.eos_token() : tokenizer.eos_token();
  const std::string& token = tokenizer.pad_token().empty() ? eos_token : tokenizer.pad_token();
  return tokenizer.id_of(token).value_or(-1);
}

std::filesystem::path logging_directory(const v1::TrainerInput& input) {
  const v1::Training& training = input.spec().training();
  if (!training.logging_dir().empty()) return training.logging_dir();
  return std::filesystem::path(training.output_dir()) / "runs" / input.job_id();
}

}  // namespace tessera
