// A model small enough for exhaustive checks, its weights, and rows for it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "worker/trainer/plan.h"

namespace tessera::testing {

inline ModelConfig tiny_config(bool tied) {
  ModelConfig config;
  config.model_type = "qwen3";
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 3;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 10;
  config.qk_norm = true;
  config.tie_word_embeddings = tied;
  return config;
}

// Weights by name, the same at every world size.
inline void fill_weights(TrainableModel& trainable, int rank) {
  for (const auto& unit : trainable.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(rank)) {
      const double salt = static_cast<double>(std::hash<std::string>()(slice.entry->name) % 97);
      const at::Tensor index =
          at::arange(slice.entry_begin, slice.entry_begin + slice.numel, at::kDouble);
      const at::Tensor values =
          (index * 0.7 + salt).sin() * 0.3 + (slice.entry->shape.size() == 1 ? 1.0 : 0.0);
      unit->shard().narrow(0, slice.shard_begin, slice.numel).copy_(values);
    }
  }
}

// Documents of these lengths, {} of ones that depend on the seed.
inline Batch make_batch(int seed, std::vector<int64_t> lengths = {}) {
  Batch batch;
  if (lengths.empty()) lengths = {5 + seed, 3, 7};
  batch.documents.cu_seqlens = {0};
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) {
    batch.documents.cu_seqlens.push_back(batch.documents.cu_seqlens.back() + length);
    positions.push_back(at::arange(length, at::kLong));
  }
  const int64_t tokens = batch.documents.cu_seqlens.back();
  batch.documents.positions_T = at::cat(positions);
  batch.tokens_T = (at::arange(tokens, at::kLong) * 11 + seed) % 37;
  batch.labels_T = (batch.tokens_T * 5 + 1) % 37;
  batch.label_rows_L = at::arange(tokens, at::kLong);
  std::vector<at::Tensor> documents;
  for (int64_t s = 0; s < std::ssize(lengths); ++s)
    documents.push_back(at::full({lengths[s]}, s, at::kLong));
  batch.label_documents_L = at::cat(documents);
  batch.num_sequences = std::ssize(lengths);
  batch.num_tokens = batch.num_labels = tokens;
  return batch;
}

// Forward and backward of one microbatch.
inline void train_on(TrainableModel& trainable, const Batch& batch) {
  const HeadOutput head = trainable.model->head(trainable.model->forward(batch), batch);
  torch::autograd::backward({head.logprobs_T.sum() / -100.0}, {});
  trainable.finish_backward();
}

}  // namespace tessera::testing
