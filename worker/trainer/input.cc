#include "worker/trainer/input.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "proto/spec/rules.h"
#include "worker/errors.h"

namespace tessera {

v1::TrainerInput read_trainer_input(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("", path.string() + " cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  v1::TrainerInput input;
  if (path.extension() == ".json") {
    const auto status = google::protobuf::util::JsonStringToMessage(bytes, &input);
    if (!status.ok())
      throw UserError("", path.string() + " is no TrainerInput: " + status.ToString());
    spec::resolve_paths(*input.mutable_spec(), std::filesystem::absolute(path).parent_path());
  } else if (!input.ParseFromString(bytes)) {
    throw UserError("", path.string() + " is no TrainerInput");
  }
  spec::fill_defaults(*input.mutable_spec());
  const auto violations = spec::validate(input.spec());
  if (!violations.empty()) throw UserError(violations.front().field, violations.front().message);
  return input;
}

std::unique_ptr<Dataset> read_documents(const v1::JobSpec& spec, bool held_out, int64_t vocab_size,
                                        const Reports& reports) {
  DatasetOptions options = dataset_options(spec, held_out, vocab_size);
  options.reports = reports;
  return load_dataset(options);
}

LoaderOptions loader_options(const v1::JobSpec& spec, bool held_out, const ModelConfig& config,
                             int rank, int world_size) {
  const v1::Training& training = spec.training();
  LoaderOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.seed = training.seed();
  options.pad_to_multiple_of = spec.method().sft().pad_to_multiple_of();
  options.pad_token_id = std::max<int64_t>(0, config.pad_token_id);
  if (held_out) {
    options.batch_rows = training.per_device_eval_batch_size();
    options.shuffle = false;
    return options;
  }
  options.batch_rows = training.per_device_train_batch_size();
  options.split_batches = training.accelerator_config().split_batches();
  options.shuffle = training.has_train_sampling_strategy()
                        ? training.train_sampling_strategy() == "random"
                        : training.shuffle_dataset();
  options.drop_last = training.dataloader_drop_last();
  return options;
}

std::filesystem::path logging_directory(const v1::TrainerInput& input) {
  const v1::Training& training = input.spec().training();
  if (!training.logging_dir().empty()) return training.logging_dir();
  return std::filesystem::path(training.output_dir()) / "runs" / input.job_id();
}

}  // namespace tessera
