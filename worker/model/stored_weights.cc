#include "worker/model/stored_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <set>

#include "worker/errors.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

constexpr int64_t kComparedElements = 1 << 20;  // at a time
constexpr const char* kOutput = "lm_head.weight";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Whether the files hold the matrix of scores, which else is new. Those of another number of scores
// are none to go on from.
bool holds(const WeightFiles& weights, const Parameter& scores) {
  const auto found = weights.tensors().find(scores.name);
  if (found == weights.tensors().end()) return false;
  if (found->second.shape == scores.shape) return true;
  throw UserError("model.path", "tensor " + scores.name + " has shape " +
                                    shape_text(found->second.shape) + ", must have " +
                                    shape_text(scores.shape) + ": one score a document");
}

// Whether two tensors of the files hold the same numbers.
bool are_equal(const WeightFiles& weights, const std::string& one, const std::string& other) {
  const OwnerScope scope(Owner::kParameters);
  const TensorInfo &info = weights.tensors().at(one), &other_info = weights.tensors().at(other);
  if (info.shape != other_info.shape) return false;
  for (int64_t begin = 0; begin < info.numel; begin += kComparedElements) {
    const int64_t count = std::min(kComparedElements, info.numel - begin);
    const at::Tensor a = at::empty({count}, at::kFloat), b = at::empty({count}, at::kFloat);
    weights.read(one, begin, a);
    weights.read(other, begin, b);
    if (!at::equal(a, b)) return false;
  }
  return true;
}

void check_tied(const Parameter& embedding, const WeightFiles& weights) {
  const auto& tensors = weights.tensors();
  if (!tensors.contains(kOutput) || !tensors.contains(embedding.name)) return;
  if (are_equal(weights, embedding.name, kOutput)) return;
  throw UserError("model.path", "config.json has tie_word_embeddings = true, and the weights' " +
                                    std::string(kOutput) + " differs from " + embedding.name +
                                    "; set tie_word_embeddings to false, or drop one of the two");
}

// Tables that old checkpoints carry along, what the embedding serves for, and what scores replace.
bool is_harmless(const std::string& tensor, const DecoderModel& model) {
  const bool has_output = !model.tied() && !model.config().is_classifier();
  return tensor.ends_with(".rotary_emb.inv_freq") || (!has_output && tensor == kOutput);
}

}  // namespace

StoredPart find_stored(const Parameter& parameter, const WeightFiles& weights) {
  std::vector<StoredPart> candidates{{parameter.name, parameter.shape, 0}};
  candidates.insert(candidates.end(), parameter.also_stored_as.begin(),
                    parameter.also_stored_as.end());
  for (const StoredPart& candidate : candidates) {
    const auto found = weights.tensors().find(candidate.name);
    if (found == weights.tensors().end()) continue;
    if (found->second.shape == candidate.shape) return candidate;
    throw UserError("model.path", "tensor " + candidate.name + " has shape " +
                                      shape_text(found->second.shape) +
                                      ", and config.json calls for " + shape_text(candidate.shape));
  }
  throw UserError("model.path",
                  "the weights have no tensor " + parameter.name + ", which config.json calls for");
}

bool is_new(const Parameter& parameter, const WeightFiles& weights) {
  if (parameter.fresh == Fresh::kNormal) return !holds(weights, parameter);
  return parameter.fresh != Fresh::kNo;
}

std::vector<std::string> new_scores(DecoderModel& model, const WeightFiles& weights) {
  std::vector<std::string> names;
  for (const Parameter* parameter : all_parameters(model)) {
    if (parameter->fresh == Fresh::kNormal && is_new(*parameter, weights))
      names.push_back(parameter->name);
  }
  return names;
}

std::vector<const Parameter*> all_parameters(DecoderModel& model) {
  std::vector<const Parameter*> parameters;
  for (const auto& layer : model.layers()) {
    for (const Parameter* parameter : layer->parameters()) parameters.push_back(parameter);
  }
  for (const Parameter* parameter : model.head_parameters()) parameters.push_back(parameter);
  return parameters;
}

ParameterCounts count_parameters(DecoderModel& model) {
  ParameterCounts counts;
  for (const Parameter* parameter : all_parameters(model)) {
    const int64_t numel = parameter->numel();
    counts.all += numel;
    if (parameter->fresh == Fresh::kNo) counts.stored += numel;
    if (parameter->trainable) counts.trainable += numel;
  }
  return counts;
}

std::vector<std::string> check_weights(DecoderModel& model, const WeightFiles& weights) {
  std::set<std::string> used;
  for (const Parameter* parameter : all_parameters(model)) {
    if (is_new(*parameter, weights)) continue;
    used.insert(find_stored(*parameter, weights).name);
  }
  if (model.tied()) check_tied(*model.layers().front()->parameters().front(), weights);
  std::vector<std::string> unused;
  for (const auto& [tensor, info] : weights.tensors()) {
    if (!used.contains(tensor) && !is_harmless(tensor, model)) unused.push_back(tensor);
  }
  return unused;
}

}  // namespace tessera
