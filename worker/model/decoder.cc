#include "worker/model/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pow.h>

#include <cmath>

#include "worker/model/attention.h"
#include "worker/model/functions.h"

namespace tessera {
namespace {

struct Linear {
  Parameter weight;  // [out, in]
  Parameter bias;    // [out]; no name where there is none

  Linear(const std::string& name, int64_t in, int64_t out, bool has_bias)
      : weight{name + ".weight", {out, in}, {}} {
    if (has_bias) bias = {name + ".bias", {out}, {}};
  }
  at::Tensor operator()(const at::Tensor& x) const {
    return bias.name.empty() ? at::linear(x, weight.value)
                             : at::linear(x, weight.value, bias.value);
  }
  void list(std::vector<Parameter*>& parameters) {
    parameters.push_back(&weight);
    if (!bias.name.empty()) parameters.push_back(&bias);
  }
};

class Embedding : public Layer {
 public:
  explicit Embedding(const ModelConfig& config)
      : weight_{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, {}},
        padding_idx_(config.pad_token_id) {}
  at::Tensor forward(const at::Tensor& tokens_T, const Stream&) override {
    return at::embedding(weight_.value, tokens_T, padding_idx_);
  }
  std::vector<Parameter*> parameters() override { return {&weight_}; }

 private:
  Parameter weight_;
  int64_t padding_idx_;
};

class DecoderBlock : public Layer {
 public:
  DecoderBlock(const ModelConfig& c, const std::string& name)
      : config_(c),
        input_norm_{name + ".input_layernorm.weight", {c.hidden_size}, {}},
        q_(name + ".self_attn.q_proj", c.hidden_size, c.num_heads * c.head_dim, c.attention_bias),
        k_(name + ".self_attn.k_proj", c.hidden_size, c.num_kv_heads * c.head_dim,
           c.attention_bias),
        v_(name + ".self_attn.v_proj", c.hidden_size, c.num_kv_heads * c.head_dim,
           c.attention_bias),
        o_(name + ".self_attn.o_proj", c.num_heads * c.head_dim, c.hidden_size, c.attention_bias),
        q_norm_{name + ".self_attn.q_norm.weight", {c.head_dim}, {}},
        k_norm_{name + ".self_attn.k_norm.weight", {c.head_dim}, {}},
        post_norm_{name + ".post_attention_layernorm.weight", {c.hidden_size}, {}},
        gate_(name + ".mlp.gate_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        up_(name + ".mlp.up_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        down_(name + ".mlp.down_proj", c.intermediate_size, c.hidden_size, c.mlp_bias) {}

  at::Tensor forward(const at::Tensor& x_TD, const Stream& stream) override {
    const at::Tensor mixed_TD = x_TD + attention(norm(x_TD, input_norm_), stream);
    const at::Tensor y_TD = norm(mixed_TD, post_norm_);
    return mixed_TD + down_(swiglu(gate_(y_TD), up_(y_TD)));
  }

  std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list{&input_norm_};
    for (Linear* linear : {&q_, &k_, &v_, &o_}) linear->list(list);
    if (config_.qk_norm) list.insert(list.end(), {&q_norm_, &k_norm_});
    list.push_back(&post_norm_);
    for (Linear* linear : {&gate_, &up_, &down_}) linear->list(list);
    return list;
  }

 private:
  at::Tensor norm(const at::Tensor& x, const Parameter& weight) const {
    return rms_norm(x, weight.value, config_.rms_norm_eps);
  }

  at::Tensor attention(const at::Tensor& x_TD, const Stream& stream) const {
    at::Tensor q_TNH = q_(x_TD).view({-1, config_.num_heads, config_.head_dim});
    at::Tensor k_TKH = k_(x_TD).view({-1, config_.num_kv_heads, config_.head_dim});
    const at::Tensor v_TKH = v_(x_TD).view({-1, config_.num_kv_heads, config_.head_dim});
    if (config_.qk_norm) {
      q_TNH = norm(q_TNH, q_norm_);
      k_TKH = norm(k_TKH, k_norm_);
    }
    q_TNH = rotate(q_TNH, stream.cos_TH, stream.sin_TH);
    k_TKH = rotate(k_TKH, stream.cos_TH, stream.sin_TH);
    return o_(attend(q_TNH, k_TKH, v_TKH, *stream.documents).flatten(1));
  }

  ModelConfig config_;
  Parameter input_norm_;
  Linear q_, k_, v_, o_;
  Parameter q_norm_, k_norm_, post_norm_;
  Linear gate_, up_, down_;
};

// Rotary angles of each token, as transformers computes them: in float32, then rounded to `dtype`.
Stream make_stream(const Batch& batch, const ModelConfig& config, at::ScalarType dtype) {
  const auto wide = batch.documents.positions_T.options().dtype(at::kFloat);
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, wide).div_(config.head_dim);
  const at::Tensor inverse_frequencies_H =
      at::Scalar(1.0) / at::pow(at::Scalar(config.rope_theta), exponents);
  const at::Tensor angles_TH =
      batch.documents.positions_T.to(at::kFloat).unsqueeze(1) * inverse_frequencies_H.unsqueeze(0);
  return {&batch.documents, angles_TH.cos().to(dtype), angles_TH.sin().to(dtype)};
}

}  // namespace

DecoderModel::DecoderModel(const ModelConfig& config, int64_t head_chunk_tokens)
    : config_(config),
      head_chunk_tokens_(head_chunk_tokens),
      norm_{"model.norm.weight", {config.hidden_size}, {}},
      output_{"lm_head.weight", {config.vocab_size, config.hidden_size}, {}} {
  layers_.push_back(std::make_unique<Embedding>(config));
  embedding_ = layers_.front()->parameters().front();
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_.push_back(std::make_unique<DecoderBlock>(config, "model.layers." + std::to_string(i)));
  }
}

std::vector<Parameter*> DecoderModel::head_parameters() {
  if (tied()) return {&norm_};
  return {&norm_, &output_};
}

at::Tensor DecoderModel::forward(const Batch& batch) {
  at::Tensor x = batch.tokens_T;
  stream_ = make_stream(batch, config_, embedding_->value.scalar_type());
  for (const auto& layer : layers_) x = layer->forward(x, stream_);
  return x;
}

HeadOutput DecoderModel::head(const at::Tensor& hidden_TD, const at::Tensor& labels_T,
                              const HeadRequest& request) {
  head_gate_->open();
  const at::Tensor normed_TD = rms_norm(hidden_TD, norm_.value, config_.rms_norm_eps);
  const Parameter& output = tied() ? *embedding_ : output_;
  HeadOutput out = fused_head(normed_TD, output.value, labels_T, head_chunk_tokens_, request);
  out.logprobs_T = head_gate_->close(out.logprobs_T);
  return out;
}

}  // namespace tessera
