#include "worker/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/kernels/row_product.h"
#include "worker/memory/ledger.h"
#include "worker/model/block.h"
#include "worker/model/context.h"
#include "worker/model/functions.h"
#include "worker/model/rope.h"
#include "worker/model/scored_rows.h"

namespace tessera {

namespace {

Parameter make_output(const ModelConfig& config) {
  if (!config.is_classifier()) return {"lm_head.weight", {config.vocab_size, config.hidden_size}};
  Parameter scores{"score.weight", {config.num_labels, config.hidden_size}};
  scores.fresh = Fresh::kNormal;
  scores.fresh_deviation = config.initializer_range;
  return scores;
}

// float32, without a graph.
at::Tensor logits_of(const at::Tensor& normed_CD, const at::Tensor& weight_VD) {
  if (!has_row_products(normed_CD)) return at::linear(normed_CD, weight_VD).to(at::kFloat);
  at::Tensor logits_CV = at::empty({normed_CD.size(0), weight_VD.size(0)}, normed_CD.options());
  row_product_out(logits_CV, normed_CD, weight_VD);
  return logits_CV;
}

DrawnTokens drawn_tokens(const Documents& documents) {
  if (!documents.part) return {};
  const StreamPart& part = *documents.part;
  return {part.num_stream_tokens() - part.padding,
          {{part.begin(0), part.chunk_tokens}, {part.begin(1), part.chunk_tokens}}};
}

}  // namespace

DecoderModel::DecoderModel(const ModelConfig& config, int64_t head_chunk_tokens,
                           int64_t mlp_tile_tokens)
    : config_(config),
      head_chunk_tokens_(head_chunk_tokens > 0 ? head_chunk_tokens
                                               : fitting_chunk_tokens(config.vocab_size)),
      mlp_tile_tokens_(mlp_tile_tokens),
      norm_{"model.norm.weight", {config.hidden_size}},
      output_(make_output(config)) {
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
  stream_ = {.documents = &batch.documents,
             .cos_TH = rotary.cos_TH,
             .sin_TH = rotary.sin_TH,
             .training = options.training,
             .draw = options.draw,
             .drawn = drawn_tokens(batch.documents),
             .balance = balance_ ? &*balance_ : nullptr};
  stream_.mlp_tile_tokens = mlp_tile_tokens_;
  stream_.adapters = options.adapters;
  if (balance_) balance_->begin(batch.num_tokens, options.aux_loss_weight);
  at::Tensor x = batch.tokens_T;
  for (const auto& layer : layers_) x = layer->forward(x, stream_);
  if (balance_) aux_loss_ = balance_->finish();
  return x;
}

at::Tensor DecoderModel::extend(const ExtensionTokens& tokens, AttentionCache& cache,
                                bool adapters) {
  const c10::NoGradGuard no_grad;
  const RotaryTables rotary = rotary_tables(config_.rope, config_.head_dim, tokens.positions_T,
                                            tokens.lengths, embedding_->value.scalar_type());
  Stream stream{.documents = nullptr, .cos_TH = rotary.cos_TH, .sin_TH = rotary.sin_TH};
  stream.balance = balance_ ? &*balance_ : nullptr;
  stream.adapters = adapters;
  stream.cache = &cache;
  at::Tensor x = tokens.tokens_T;
  for (const auto& layer : layers_) x = layer->forward(x, stream);
  return x;
}

void DecoderModel::read_logits(
    const at::Tensor& hidden_SD,
    const std::function<void(int64_t row, const at::Tensor& logits_CV)>& read) {
  const c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::kHead);
  const LogitFactors factors = open_head(hidden_SD);
  // Of one size, or nearly: how BLAS rounds a row may depend on how few rows a product has.
  const int64_t rows = hidden_SD.size(0), chunks = (rows - 1) / head_chunk_tokens_ + 1;
  for (int64_t i = 0; i < chunks && rows > 0; ++i) {
    const int64_t row = i * rows / chunks, count = (i + 1) * rows / chunks - row;
    read(row, logits_of(factors.hidden_TD.narrow(0, row, count), factors.weight_VD));
  }
  head_gate_->close(hidden_SD);
}

HeadOutput DecoderModel::head(const at::Tensor& hidden_TD, const Batch& batch,
                              const HeadRequest& request) {
  const LogitFactors factors = open_head(hidden_TD, request.temperature);
  // The embedding, where it is the same weight, comes later in backward.
  HeadOutput out =
      fused_head(factors.hidden_TD, factors.weight_VD, {batch.labels_T, batch.label_rows_L},
                 head_chunk_tokens_, request, {output().gradient_sink, /*is_last_use=*/!tied()});
  out.logprobs_T = head_gate_->close(out.logprobs_T);
  return out;
}

LogitFactors DecoderModel::open_head(const at::Tensor& hidden_TD, double temperature) {
  head_gate_->open();
  at::Tensor normed_TD = rms_norm(hidden_TD, norm_.value, config_.rms_norm_eps);
  if (temperature != 1) normed_TD = normed_TD / temperature;
  return {normed_TD, output().value};
}

at::Tensor DecoderModel::divergence(const at::Tensor& hidden_TD, DecoderModel& teacher,
                                    const at::Tensor& teacher_TD, const Batch& batch,
                                    const DivergenceRequest& request) {
  LogitFactors teachers;
  {
    const c10::NoGradGuard no_grad;
    teachers = teacher.open_head(teacher_TD);
  }
  const LogitFactors students = open_head(hidden_TD);
  const at::Tensor divergence_T =
      fused_divergence(students, teachers, batch.label_rows_L, head_chunk_tokens_, request,
                       {output().gradient_sink, /*is_last_use=*/!tied()});
  {
    // The teacher's weights have no backward to stay for.
    const c10::NoGradGuard no_grad;
    teacher.head_gate_->close(divergence_T.detach());
  }
  return head_gate_->close(divergence_T);
}

at::Tensor DecoderModel::score(const at::Tensor& hidden_TD, const Batch& batch) {
  const OwnerScope scope(Owner::kHead);
  const ScoredRows rows = scored_rows(batch, hidden_TD.device());
  at::Tensor scores_S = scores_at(hidden_TD, rows.rows_S);
  if (rows.here_S.defined()) scores_S = scores_S * rows.here_S;
  return sum_over_context(scores_S, batch.documents);
}

at::Tensor DecoderModel::scores_at(const at::Tensor& hidden_TD, const at::Tensor& rows_V) {
  const OwnerScope scope(Owner::kHead);
  const LogitFactors factors = open_head(hidden_TD.index_select(0, rows_V));
  return head_gate_->close(
      at::linear(factors.hidden_TD, factors.weight_VD).squeeze(1).to(at::kFloat));
}

}  // namespace tessera
