#include "worker/model/decoder.h"

#include "worker/model/block.h"
#include "worker/model/functions.h"
#include "worker/model/rope.h"

namespace tessera {

DecoderModel::DecoderModel(const ModelConfig& config, int64_t head_chunk_tokens,
                           int64_t mlp_tile_tokens)
    : config_(config),
      head_chunk_tokens_(head_chunk_tokens > 0 ? head_chunk_tokens
                                               : fitting_chunk_tokens(config.vocab_size)),
      mlp_tile_tokens_(mlp_tile_tokens),
      norm_{"model.norm.weight", {config.hidden_size}},
      output_{"lm_head.weight", {config.vocab_size, config.hidden_size}} {
  layers_.push_back(make_embedding(config));
  embedding_ = layers_.front()->parameters().front();
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(make_decoder_block(config, i));
  }
  if (config.is_mixture()) {
    balance_.emplace(config.experts.num_experts, config.experts.num_experts_per_token);
  }
}

std::vector<Parameter*> DecoderModel::head_parameters() {
  if (tied()) return {&norm_};
  return {&norm_, &output_};
}

void DecoderModel::set_router_sum(RouterBalance::Sum sum) {
  if (balance_) balance_->set_sum(std::move(sum));
}

at::Tensor DecoderModel::forward(const Batch& batch, const ForwardOptions& options) {
  RotaryTables rotary = rotary_tables(config_.rope, config_.head_dim, batch.documents,
                                      embedding_->value.scalar_type());
  stream_ = {&batch.documents, rotary.cos_TH, rotary.sin_TH,
             options.training, options.draw,  balance_ ? &*balance_ : nullptr};
  stream_.mlp_tile_tokens = mlp_tile_tokens_;
  if (balance_) balance_->begin(batch.num_tokens, options.aux_loss_weight);
  at::Tensor x = batch.tokens_T;
  for (const auto& layer : layers_) x = layer->forward(x, stream_);
  if (balance_) aux_loss_ = balance_->finish();
  return x;
}

HeadOutput DecoderModel::head(const at::Tensor& hidden_TD, const Batch& batch,
                              const HeadRequest& request) {
  head_gate_->open();
  const at::Tensor normed_TD = rms_norm(hidden_TD, norm_.value, config_.rms_norm_eps);
  const Parameter& output = tied() ? *embedding_ : output_;
  // The embedding, where it is the same weight, comes later in backward.
  HeadOutput out =
      fused_head(normed_TD, output.value, {batch.labels_T, batch.label_rows_L}, head_chunk_tokens_,
                 request, {output.gradient_sink, /*is_last_use=*/!tied()});
  out.logprobs_T = head_gate_->close(out.logprobs_T);
  return out;
}

}  // namespace tessera
