// A decoder-only model, as one device sees it: a language model, or one that scores documents
// (transformers' ForSequenceClassification; ModelConfig::num_labels). Sharding and recompute are
// put around its layers from outside (worker/trainer/plan.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/batch.h"
#include "worker/model/config.h"
#include "worker/model/divergence.h"
#include "worker/model/head.h"
#include "worker/model/layer.h"
#include "worker/model/router_balance.h"

namespace tessera {

struct ForwardOptions {
  bool training = false;  // with dropout and noise
  // Names the random draws (worker/model/dropout.h): the same number gives the same masks.
  uint64_t draw = 0;
  // What the load-balancing loss counts in the loss. Its gradient is added to that of whatever
  // backward runs for. With 0 it is not computed.
  double aux_loss_weight = 0;
  // Else the model is run as it is without its adapters. What is trained whole beside them stays.
  bool adapters = true;
};

// Tokens that sequences are extended by while text is generated.
struct ExtensionTokens {
  at::Tensor tokens_T;     // int64
  at::Tensor positions_T;  // int64: in their sequences
  // What each token's sequence counts as where rotary tables depend on it (rotary_tables).
  std::vector<int64_t> lengths;
};

class DecoderModel {
 public:
  // Parameters have names and shapes, and no values yet. `head_chunk_tokens`: see fused_head,
  // and 0 is fitting_chunk_tokens; `mlp_tile_tokens`: see Stream.
  DecoderModel(const ModelConfig& config, int64_t head_chunk_tokens, int64_t mlp_tile_tokens = 0);

  // The embedding, then the blocks: what forward() runs in order. A pass may wrap any of them.
  std::vector<std::unique_ptr<Layer>>& layers() { return layers_; }
  // The final norm, and the output matrix (or that of the scores, last) unless it is the
  // embedding's.
  std::vector<Parameter*> head_parameters();
  bool tied() const { return config_.tie_word_embeddings && !config_.is_classifier(); }
  // Opened and closed around each head(). Must outlive the model.
  void set_head_gate(WeightGate* gate) { head_gate_ = gate; }
  // How a mixture of experts adds up over ranks what its routers chose; not called otherwise.
  void set_router_sum(RouterBalance::Sum sum);

  // Hidden states [T, D] before the final norm. `batch` must live until backward is done. With
  // experts and an aux_loss_weight it is collective.
  at::Tensor forward(const Batch& batch, const ForwardOptions& options = {});
  // The same without a graph, of tokens whose sequences have their past in `cache`, which is asked
  // for each block's attention. T may be 0, for a rank that only takes part in gathering weights.
  at::Tensor extend(const ExtensionTokens& tokens, AttentionCache& cache, bool adapters = true);
  // Final norm, then the whole logits of these rows without a graph, some at a time: read(first
  // row, float32 [C, V]) for at most head_chunk_tokens of them, in order.
  void read_logits(const at::Tensor& hidden_SD,
                   const std::function<void(int64_t row, const at::Tensor& logits_CV)>& read);
  // The load-balancing loss of the last forward, over all ranks and not weighted; 0 without
  // experts.
  double aux_loss() const { return aux_loss_; }
  // Final norm, then fused_head.
  HeadOutput head(const at::Tensor& hidden_TD, const Batch& batch, const HeadRequest& request = {});

  // Final norms of both, then fused_divergence of this model from `teacher`, whose hidden states of
  // the same batch are teacher_TD: float32 [T]. The teacher gets no gradient.
  at::Tensor divergence(const at::Tensor& hidden_TD, DecoderModel& teacher,
                        const at::Tensor& teacher_TD, const Batch& batch,
                        const DivergenceRequest& request);
  // A classifier's score of each sequence of the batch at its last token (Batch::scored_tokens),
  // after the final norm: float32 [num_sequences], differentiable; the same on all ranks that share
  // the stream.
  at::Tensor score(const at::Tensor& hidden_TD, const Batch& batch);
  // A classifier's scores at these of this rank's tokens: float32 [V], differentiable.
  at::Tensor scores_at(const at::Tensor& hidden_TD, const at::Tensor& rows_V);

  const ModelConfig& config() const { return config_; }

 private:
  const Parameter& output() const { return tied() ? *embedding_ : output_; }
  // Opens the head's gate. The hidden states are divided by `temperature`.
  LogitFactors open_head(const at::Tensor& hidden_TD, double temperature = 1);

  ModelConfig config_;
  int64_t head_chunk_tokens_;
  int64_t mlp_tile_tokens_;
  std::vector<std::unique_ptr<Layer>> layers_;
  Parameter* embedding_;  // owned by layers_[0]
  Parameter norm_;
  Parameter output_;
  WeightGate* head_gate_ = nullptr;
  std::optional<RouterBalance> balance_;  // where there are experts
  Stream stream_;
  double aux_loss_ = 0;
};

}  // namespace tessera
