#include "worker/trainer/reward_models.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "proto/spec/online_relations.h"
#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/model/stored_weights.h"
#include "worker/parallel/byte_exchange.h"
#include "worker/trainer/model_options.h"

namespace tessera {
namespace {

constexpr char kScores[] = "score.weight";

ModelSource source_of(const v1::JobSpec& spec, int index) {
  return {spec.reward_funcs(index).model().path(),
          "reward_funcs[" + std::to_string(index) + "].model.path"};
}

// All that is wrong with a model's files begins with the field that names it.
template <typename Work>
auto naming_model(const ModelSource& source, const Work& work) {
  try {
    return naming_its_field(source, work);
  } catch (const UserError& error) {
    const std::string message = error.what();
    if (error.field() != source.field || message.starts_with(source.field)) throw;
    throw UserError(source.field, source.field + ": " + message);
  }
}

std::unique_ptr<DecoderModel> make_reward_layers(const v1::JobSpec& spec,
                                                 const ModelSource& source) {
  ModelConfig config = naming_model(source, [&] { return read_model_config(source.path); });
  config.num_labels = 1;
  auto model = std::make_unique<DecoderModel>(config, spec.memory().head_chunk_tokens(),
                                              spec.memory().mlp_tile_tokens());
  freeze(*model);
  return model;
}

// What else would be scored with new numbers, or in a sentence on shapes.
void check_classifier(const ModelSource& source, const WeightFiles& weights) {
  const auto refuse = [&](const std::string& rest) {
    throw UserError(source.field, source.field + " is " + source.path.string() +
                                      ", must be a sequence classifier with one label: " + rest);
  };
  const auto scores = weights.tensors().find(kScores);
  if (scores == weights.tensors().end())
    refuse("its weights have no tensor " + std::string(kScores));
  const std::vector<int64_t>& shape = scores->second.shape;
  if (shape.size() == 2 && shape[0] != 1)
    refuse("its " + std::string(kScores) + " scores " + std::to_string(shape[0]) + " labels");
}

WeightFiles open_classifier(const ModelSource& source, DecoderModel& model) {
  return naming_model(source, [&] {
    WeightFiles weights = WeightFiles::open(source.path);
    check_classifier(source, weights);
    check_weights(model, weights);
    return weights;
  });
}

// Of these texts, each a document that is scored at its last token; of none, a token that nobody
// asks about.
Batch batch_of(const std::vector<std::vector<int32_t>>& texts, const std::vector<int64_t>& pass,
               at::Device device) {
  const OwnerScope scope(Owner::kData);
  Batch batch;
  batch.documents.cu_seqlens = {0};
  for (const int64_t text : pass)
    batch.documents.cu_seqlens.push_back(batch.documents.cu_seqlens.back() +
                                         std::ssize(texts[text]));
  if (pass.empty()) batch.documents.cu_seqlens.push_back(1);
  batch.num_sequences = batch.documents.num_documents();
  batch.num_tokens = batch.documents.cu_seqlens.back();
  const auto options = at::TensorOptions(host_device(device)).dtype(at::kLong);
  batch.tokens_T = at::empty({batch.num_tokens}, options);
  batch.documents.positions_T = at::empty({batch.num_tokens}, options);
  if (!batch.tokens_T.is_meta()) {
    auto* tokens = batch.tokens_T.mutable_data_ptr<int64_t>();
    auto* positions = batch.documents.positions_T.mutable_data_ptr<int64_t>();
    if (pass.empty()) *tokens = *positions = 0;
    for (const int64_t text : pass) {
      tokens = std::ranges::copy(texts[text], tokens).out;
      std::iota(positions, positions + texts[text].size(), int64_t{0});
      positions += texts[text].size();
    }
  }
  return to_device(std::move(batch), device);
}

std::vector<int64_t> lengths_of(const std::vector<std::vector<int32_t>>& texts) {
  std::vector<int64_t> lengths;
  for (const auto& text : texts) lengths.push_back(std::ssize(text));
  return lengths;
}

// Texts as ranks send them: the length of each, then all tokens.
std::vector<std::vector<int32_t>> unpack_texts(const std::string& bytes, size_t count) {
  std::vector<int64_t> lengths(count);
  std::memcpy(lengths.data(), bytes.data(), count * sizeof(int64_t));
  const char* at = bytes.data() + count * sizeof(int64_t);
  std::vector<std::vector<int32_t>> texts;
  for (const int64_t length : lengths) {
    std::vector<int32_t>& text = texts.emplace_back(static_cast<size_t>(length));
    if (!text.empty()) std::memcpy(text.data(), at, text.size() * sizeof(int32_t));
    at += text.size() * sizeof(int32_t);
  }
  return texts;
}

}  // namespace

bool RewardModels::any(const v1::JobSpec& spec) {
  return spec::makes_completions(spec) &&
         std::any_of(spec.reward_funcs().begin(), spec.reward_funcs().end(),
                     [](const v1::RewardFunc& func) { return func.has_model(); });
}

RewardModels::RewardModels(const v1::JobSpec& spec, const Mesh& mesh, at::Device device)
    : mesh_(mesh),
      device_(device),
      num_funcs_(spec.reward_funcs_size()),
      most_tokens_(spec.generation().max_num_batched_tokens()) {
  for (int i = 0; i < spec.reward_funcs_size(); ++i) {
    if (!spec.reward_funcs(i).has_model()) continue;
    const ModelSource source = source_of(spec, i);
    models_.push_back({.index = i,
                       .source = source,
                       .model = std::make_unique<TrainableModel>(
                           shard_model(without_adapters(spec), make_reward_layers(spec, source),
                                       mesh, device, ModelRole::kFrozen))});
  }
}

void RewardModels::load(const v1::JobSpec& spec) {
  for (Model& model : models_) {
    const WeightFiles weights = open_classifier(model.source, *model.model->model);
    naming_model(model.source, [&] {
      load_weights(without_adapters(spec), *model.model, weights, mesh_.shard.rank());
    });
    if (mesh_.world.rank() == 0)
      model.text = std::make_unique<RewardText>(model.source.path, model.source.field);
  }
}

std::string RewardModels::pack_texts(Model& model,
                                     std::span<const JudgedCompletion> completions) const {
  const int64_t vocab_size = model.model->model->config().vocab_size;
  std::vector<int64_t> lengths;
  std::vector<int32_t> all;
  for (const JudgedCompletion& completion : completions) {
    const std::vector<int32_t> tokens =
        model.text->tokens(completion.record, completion.completion);
    const auto unknown =
        std::ranges::find_if(tokens, [&](int32_t token) { return token >= vocab_size; });
    if (unknown != tokens.end()) {
      throw UserError(model.source.field, model.source.field + " is " + model.source.path.string() +
                                              ", whose tokenizer gives the token " +
                                              std::to_string(*unknown) +
                                              ", must give those of the model's vocabulary of " +
                                              std::to_string(vocab_size));
    }
    lengths.push_back(std::ssize(tokens));
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  std::string bytes(reinterpret_cast<const char*>(lengths.data()),
                    lengths.size() * sizeof(int64_t));
  return bytes.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(int32_t));
}

std::vector<float> RewardModels::run_pass(Model& model, const Texts& texts,
                                          const std::vector<int64_t>& pass) const {
  DecoderModel& scorer = *model.model->model;
  const Batch batch = batch_of(texts, pass, device_);
  const at::Tensor scores_S = scorer.score(scorer.forward(batch), batch);
  const std::vector<double> values = host_values(scores_S.to(at::kDouble));
  return {values.begin(), values.end()};
}

std::vector<float> RewardModels::scores_of(Model& model, const Texts& texts,
                                           const std::function<void()>& alive) const {
  const c10::NoGradGuard no_grad;
  const OwnerScope owner(Owner::kActivations);
  const ScorePasses passes =
      deal_scores(lengths_of(texts), mesh_.world.size(), most_tokens_)[mesh_.world.rank()];
  std::vector<float> scores(texts.size());
  for (const std::vector<int64_t>& pass : passes) {
    alive();
    const std::vector<float> of_pass = run_pass(model, texts, pass);
    for (size_t i = 0; i < pass.size(); ++i) scores[pass[i]] = of_pass[i];
  }
  // Each is one rank's, and 0 on the others.
  const OwnerScope exchange(Owner::kCommunication);
  at::Tensor sums =
      at::empty({std::ssize(scores)}, at::TensorOptions(host_device(device_)).dtype(at::kFloat));
  if (!sums.is_meta()) std::memcpy(sums.mutable_data_ptr(), scores.data(), sums.nbytes());
  sums = sums.to(device_);
  mesh_.world.all_reduce_sum(sums);
  const std::vector<double> values = host_values(sums.to(at::kDouble));
  scores.assign(values.begin(), values.end());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) scores[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return scores;
}

void RewardModels::score(std::span<const JudgedCompletion> completions, std::span<float> rewards,
                         const std::function<void()>& alive) {
  const PhaseScope phase(Phase::kGenerate);
  const size_t columns = static_cast<size_t>(num_funcs_), count = rewards.size() / columns;
  for (Model& model : models_) {
    const bool reads = mesh_.world.rank() == 0;
    const std::string bytes =
        broadcast_bytes(mesh_.world, device_, reads ? pack_texts(model, completions) : "");
    const std::vector<float> scores = scores_of(model, unpack_texts(bytes, count), alive);
    for (size_t i = 0; i < count; ++i)
      rewards[i * columns + static_cast<size_t>(model.index)] = scores[i];
  }
}

void RewardModels::rehearse(std::span<const std::vector<int64_t>> lengths) {
  for (size_t i = 0; i < models_.size(); ++i) {
    Texts texts;
    int64_t bytes = 0;
    for (const int64_t length : lengths[i]) {
      texts.emplace_back(static_cast<size_t>(length));
      bytes +=
          static_cast<int64_t>(sizeof(int64_t)) + length * static_cast<int64_t>(sizeof(int32_t));
    }
    rehearse_all_gather_bytes(mesh_.world, device_, bytes);
    scores_of(models_[i], texts, [] {});
  }
}

void check_reward_model(const v1::JobSpec& spec, int index, const std::string& record) {
  if (!spec.reward_funcs(index).has_model()) return;
  const ModelSource source = source_of(spec, index);
  open_classifier(source, *make_reward_layers(spec, source));
  RewardText text(source.path, source.field);
  if (!record.empty()) text.tokens(record, "An answer.");
}

}  // namespace tessera
