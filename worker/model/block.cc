#include "worker/model/block.h"

#include <ATen/TensorOperators.h>

#include "worker/model/attention.h"
#include "worker/model/attention_cache.h"
#include "worker/model/dropout.h"
#include "worker/model/embed.h"
#include "worker/model/extend_block.h"
#include "worker/model/feed_forward.h"
#include "worker/model/functions.h"
#include "worker/model/fused_block.h"
#include "worker/model/linear.h"
#include "worker/model/tiled.h"

namespace tessera {
namespace {

// What a layer draws for.
enum class Draw : uint64_t { kEmbedding, kProbabilities, kAttention, kFeedForward };

at::Tensor drop(const at::Tensor& x, double share, const Stream& stream, int64_t layer, Draw what) {
  if (!stream.training) return x;
  return seeded_dropout(x, share,
                        make_draw({stream.draw, static_cast<uint64_t>(layer), uint64_t(what)}),
                        stream.drawn);
}

class Embedding : public Layer {
 public:
  explicit Embedding(const ModelConfig& config)
      : weight_{"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}},
        padding_idx_(config.pad_token_id),
        dropout_(config.hidden_dropout) {
    if (config.tie_word_embeddings) weight_.also_stored_as = {{"lm_head.weight", weight_.shape, 0}};
  }
  at::Tensor forward(const at::Tensor& tokens_T, const Stream& stream) override {
    return drop(embed(weight_, tokens_T, padding_idx_), dropout_, stream, 0, Draw::kEmbedding);
  }
  std::vector<Parameter*> parameters() override { return {&weight_}; }

 private:
  Parameter weight_;
  int64_t padding_idx_;
  double dropout_;
};

class DecoderBlock : public Layer {
 public:
  DecoderBlock(const ModelConfig& c, int64_t index, const std::string& name)
      : config_(c),
        index_(index),
        input_norm_{name + ".input_layernorm.weight", {c.hidden_size}},
        q_(name + ".self_attn.q_proj", c.hidden_size, c.num_heads * c.head_dim, c.qkv_bias),
        k_(name + ".self_attn.k_proj", c.hidden_size, c.num_kv_heads * c.head_dim, c.qkv_bias),
        v_(name + ".self_attn.v_proj", c.hidden_size, c.num_kv_heads * c.head_dim, c.qkv_bias),
        o_(name + ".self_attn.o_proj", c.num_heads * c.head_dim, c.hidden_size, c.o_bias),
        q_norm_{name + ".self_attn.q_norm.weight", {c.head_dim}},
        k_norm_{name + ".self_attn.k_norm.weight", {c.head_dim}},
        post_norm_{name + ".post_attention_layernorm.weight", {c.hidden_size}},
        feed_forward_(c.has_experts(index) ? make_experts(c, name) : make_mlp(c, name)) {
    if (std::optional<GatedMlp> mlp = feed_forward_->gated())
      fused_.emplace(self_attention(), &post_norm_, std::move(*mlp));
    normed_feed_forward_.run = [this](const at::Tensor& x_TD, const Stream& stream) {
      return feed_forward_->forward(norm(x_TD, post_norm_), stream);
    };
  }

  at::Tensor forward(const at::Tensor& x_TD, const Stream& stream) override {
    if (fused_ && stream.cache != nullptr && can_extend_fused(x_TD, linears(), stream))
      return extend_block(x_TD, *fused_, index_, stream);
    const at::Tensor mixed_TD =
        x_TD + dropped(attention(norm(x_TD, input_norm_), stream), stream, Draw::kAttention);
    const at::Tensor y_TD = stream.mlp_tile_tokens > 0
                                ? run_in_tiles(mixed_TD, with_parameters(), stream)
                                : normed_feed_forward_.run(mixed_TD, stream);
    return mixed_TD + dropped(y_TD, stream, Draw::kFeedForward);
  }

  std::optional<at::Tensor> lean_forward(const at::Tensor& x_TD, const Stream& stream,
                                         RecomputePolicy policy) override {
    const bool drops =
        stream.training && (config_.attention_dropout > 0 || config_.hidden_dropout > 0);
    if (!fused_ || drops || !can_run_fused(x_TD, parameters(), linears(), stream)) return {};
    return fused_block(x_TD, *fused_, stream, policy);
  }

  std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list{&input_norm_};
    for (Linear* linear : {&q_, &k_, &v_, &o_}) linear->list(list);
    if (config_.qk_norm) list.insert(list.end(), {&q_norm_, &k_norm_});
    list.push_back(&post_norm_);
    feed_forward_->list(list);
    return list;
  }

  std::vector<Linear*> linears() override {
    std::vector<Linear*> list{&q_, &k_, &v_, &o_};
    for (Linear* linear : feed_forward_->linears()) list.push_back(linear);
    return list;
  }

 private:
  // Listed when first needed: adapters come after the block is made.
  const TokenwiseLayer& with_parameters() {
    if (normed_feed_forward_.parameters.empty()) {
      normed_feed_forward_.parameters = {&post_norm_};
      feed_forward_->list(normed_feed_forward_.parameters);
    }
    return normed_feed_forward_;
  }

  at::Tensor norm(const at::Tensor& x, const Parameter& weight) const {
    return rms_norm(x, weight.value, config_.rms_norm_eps);
  }

  at::Tensor dropped(const at::Tensor& x, const Stream& stream, Draw what) const {
    return drop(x, config_.hidden_dropout, stream, index_, what);
  }

  at::Tensor attention(const at::Tensor& x_TD, const Stream& stream) const {
    at::Tensor q_TNH = q_(x_TD, stream).view({-1, config_.num_heads, config_.head_dim});
    at::Tensor k_TKH = k_(x_TD, stream).view({-1, config_.num_kv_heads, config_.head_dim});
    const at::Tensor v_TKH = v_(x_TD, stream).view({-1, config_.num_kv_heads, config_.head_dim});
    if (config_.qk_norm) {
      q_TNH = norm(q_TNH, q_norm_);
      k_TKH = norm(k_TKH, k_norm_);
    }
    q_TNH = rotate(q_TNH, stream.cos_TH, stream.sin_TH);
    k_TKH = rotate(k_TKH, stream.cos_TH, stream.sin_TH);
    if (stream.cache != nullptr) {
      const at::Tensor out_TNH =
          stream.cache->attend(index_, q_TNH, k_TKH, v_TKH, config_.window(index_));
      return o_(out_TNH.flatten(1), stream);
    }
    AttentionOptions options{.window = config_.window(index_), .kept = stream.kept_attention};
    if (stream.training) {
      options.dropout = config_.attention_dropout;
      options.draw =
          make_draw({stream.draw, static_cast<uint64_t>(index_), uint64_t(Draw::kProbabilities)});
    }
    return o_(attend(q_TNH, k_TKH, v_TKH, *stream.documents, options).flatten(1), stream);
  }

  SelfAttention self_attention() const {
    const ModelConfig& c = config_;
    return {&input_norm_,
            c.qk_norm ? &q_norm_ : nullptr,
            c.qk_norm ? &k_norm_ : nullptr,
            c.rms_norm_eps,
            Projection({&q_, &k_, &v_}),
            Projection({&o_}),
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
            c.window(index_)};
  }

  ModelConfig config_;
  int64_t index_;
  Parameter input_norm_;
  Linear q_, k_, v_, o_;
  Parameter q_norm_, k_norm_, post_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  TokenwiseLayer normed_feed_forward_;
  std::optional<FusedBlock> fused_;  // where there is no mixture of experts
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const ModelConfig& config) {
  return std::make_unique<Embedding>(config);
}

std::unique_ptr<Layer> make_decoder_block(const ModelConfig& config, int64_t index) {
  return std::make_unique<DecoderBlock>(config, index, "model.layers." + std::to_string(index));
}

}  // namespace tessera
