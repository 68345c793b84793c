// Runs models forward and backward and writes what comes out, for compare_models.py.
//
//   model_outputs LIST
//
// Each line of LIST: MODEL_DIRECTORY OUTPUT_FILE DTYPE RECOMPUTE LENGTH...; the documents are as
// long as the LENGTHs say, and token i of the stream is (7 i^2 + 3 i + 1) mod vocab_size.
// OUTPUT_FILE gets `logits` [T, V], `loss` (the mean negative log-likelihood of each token's
// successor in its document, and the weighted load-balancing loss), and the gradient of the loss by
// each parameter, by its name.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "proto/spec/rules.h"
#include "worker/model/functions.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

Batch make_batch(const std::vector<int64_t>& lengths, int64_t vocab_size) {
  Batch batch;
  batch.documents.cu_seqlens = {0};
  std::vector<at::Tensor> positions, labels;
  for (const int64_t length : lengths) {
    batch.documents.cu_seqlens.push_back(batch.documents.cu_seqlens.back() + length);
    positions.push_back(at::arange(length, at::kLong));
  }
  batch.num_tokens = batch.documents.cu_seqlens.back();
  const at::Tensor i = at::arange(batch.num_tokens, at::kLong);
  batch.documents.positions_T = at::cat(positions);
  batch.tokens_T = (i * i * 7 + i * 3 + 1).remainder(vocab_size);
  batch.labels_T = batch.tokens_T.roll(-1);
  for (size_t s = 1; s < batch.documents.cu_seqlens.size(); ++s)
    batch.labels_T[batch.documents.cu_seqlens[s] - 1].fill_(kIgnoredLabel);
  batch.label_rows_L = at::nonzero(batch.labels_T != kIgnoredLabel).squeeze(1);
  return batch;
}

at::Tensor logits_of(DecoderModel& model, const at::Tensor& hidden_TD) {
  const std::vector<Parameter*> head = model.head_parameters();
  const at::Tensor output =
      model.tied() ? model.layers().front()->parameters().front()->value : head[1]->value;
  return at::linear(rms_norm(hidden_TD, head[0]->value, model.config().rms_norm_eps), output);
}

void write(const std::string& path,
           const std::vector<std::pair<std::string, at::Tensor>>& outputs) {
  std::vector<std::pair<std::string, TensorInfo>> infos;
  for (const auto& [name, tensor] : outputs)
    infos.emplace_back(name, TensorInfo{at::kFloat, tensor.sizes().vec(), tensor.numel()});
  const SafetensorsLayout layout = lay_out_safetensors(infos);
  std::ofstream file(path, std::ios::binary);
  file << layout.prefix;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor values = outputs[i].second.to(at::kFloat).contiguous();
    file.seekp(layout.offsets[i]);
    file.write(static_cast<const char*>(values.const_data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  }
}

struct Run {
  std::string model, output, dtype;
  bool recompute;
  std::vector<int64_t> lengths;
};

void run(const Run& run) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_dtype(run.dtype);
  spec.mutable_memory()->set_gradient_checkpointing(run.recompute);
  spec::fill_defaults(spec);
  const auto ranks = make_single_collectives();
  const WeightFiles weights = WeightFiles::open(run.model);
  TrainableModel trainable = build_model(spec, read_model_config(run.model), *ranks, at::kCPU);
  DecoderModel& model = *trainable.model;
  check_weights(model, weights);
  load_weights(spec, trainable, weights, /*rank=*/0);

  const Batch batch = make_batch(run.lengths, model.config().vocab_size);
  const double aux_weight = model.config().experts.router_aux_loss_coef;
  const double num_labels = batch.num_tokens - batch.documents.num_documents();
  std::vector<std::pair<std::string, at::Tensor>> outputs;
  const at::Tensor hidden_TD = model.forward(batch, {.aux_loss_weight = aux_weight});
  const double aux_loss = model.aux_loss();
  const HeadOutput head = model.head(hidden_TD, batch);
  {
    const c10::AutoGradMode no_grad(false);
    outputs.emplace_back("logits", logits_of(model, hidden_TD));
  }
  const at::Tensor loss = head.logprobs_T.sum() / -num_labels;
  outputs.emplace_back("loss", (loss.detach() + aux_weight * aux_loss).reshape({1}));
  torch::autograd::backward({loss}, {});
  trainable.finish_backward();
  for (const auto& unit : trainable.units) {
    for (const FlatEntry& entry : unit->layout().entries) {
      outputs.emplace_back(entry.name,
                           unit->gradient().narrow(0, entry.offset, entry.numel).view(entry.shape));
    }
  }
  write(run.output, outputs);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "model_outputs LIST\n";
    return 2;
  }
  std::ifstream list(argv[1]);
  for (std::string line; std::getline(list, line);) {
    std::istringstream fields(line);
    tessera::Run run;
    fields >> run.model >> run.output >> run.dtype >> run.recompute;
    for (int64_t length; fields >> length;) run.lengths.push_back(length);
    tessera::run(run);
  }
  return 0;
}
