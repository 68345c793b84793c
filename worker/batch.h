// The one currency between data, model and objectives: a flat stream of tokens.
//
// Shape legend, used in all of worker/: T tokens of a microbatch on this rank, D model width, N
// query heads, K key/value heads, H head width, V vocabulary, S documents, F feed-forward width.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera {

inline constexpr int64_t kIgnoredLabel = -100;

class ContextExchange;  // worker/model/context.h

// What is known of completions that are trained on by how good they are. Tensors are float32; those
// of L are of the labels, as Batch::label_rows_L, and those of S of the sequences. Undefined: the
// method needs none.
struct CompletionTargets {
  at::Tensor advantages_S;          // how much better than others
  at::Tensor advantages_L;          // the same of tokens, where those of a completion differ
  at::Tensor old_logprobs_L;        // of the policy, before it was trained on them
  at::Tensor reference_logprobs_L;  // of the reference
  // Of what they were sampled with; where that is not known, those of old_logprobs_L.
  at::Tensor sampling_logprobs_L;
  at::Tensor weights_L;  // what losses count, for the difference between these two
  // Of a value model: what it said before it was trained on them, and what it should have said, at
  // each label and at the last token of each sequence.
  at::Tensor values_L, returns_L, end_values_S, end_returns_S;
  at::Tensor end_counts_S;            // 1 where that last one counts, else 0
  int64_t num_values = 0;             // that count in the microbatch, over all ranks
  int64_t num_generation_labels = 0;  // of all completions that were made at once
  int64_t longest_labels = 0;         // of the longest one of these
  int64_t most_labels = 0;            // that any data-parallel rank has of the microbatch

  static constexpr std::array kTensors = {&CompletionTargets::advantages_S,
                                          &CompletionTargets::advantages_L,
                                          &CompletionTargets::old_logprobs_L,
                                          &CompletionTargets::reference_logprobs_L,
                                          &CompletionTargets::sampling_logprobs_L,
                                          &CompletionTargets::weights_L,
                                          &CompletionTargets::values_L,
                                          &CompletionTargets::returns_L,
                                          &CompletionTargets::end_values_S,
                                          &CompletionTargets::end_returns_S,
                                          &CompletionTargets::end_counts_S};
};

// How the ranks that share a stream attend to each other's tokens.
enum class ContextStrategy : uint8_t {
  kAllGather,  // each gathers the keys and values of all
  kRing,       // keys and values go round
  kUlysses,    // each takes some of the heads, and for these all tokens
};

// A rank's part of a stream that several share (context parallelism). The stream is cut into
// 2 * size chunks of one length, and a rank has one from the front and the one as far from the
// back: whatever the documents are, ranks then have about as many keys to attend to.
struct StreamPart {
  int rank = 0;  // among those that share the stream
  int size = 1;
  int64_t chunk_tokens = 0;
  int64_t padding = 0;  // tokens at the end of the stream that make its chunks even
  ContextStrategy strategy = ContextStrategy::kAllGather;
  ContextExchange* exchange = nullptr;  // reaches the others; outlives the batch

  int64_t num_chunks() const { return 2 * int64_t{size}; }
  int64_t num_stream_tokens() const { return num_chunks() * chunk_tokens; }
  // The chunks of rank `r`: which = 0 is the one at the front, 1 the one at the back. On that rank
  // their tokens are [which * chunk_tokens, (which + 1) * chunk_tokens).
  int64_t chunk(int r, int which) const { return which == 0 ? r : num_chunks() - 1 - r; }
  // First token of this rank's chunk, in the stream.
  int64_t begin(int which) const { return chunk(rank, which) * chunk_tokens; }
};

// Where documents begin and end in the stream. Attention never crosses a boundary.
struct Documents {
  // S + 1 offsets: document s is tokens [cu_seqlens[s], cu_seqlens[s + 1]) of the stream: of the
  // whole one, also where this rank has a part of it.
  std::vector<int64_t> cu_seqlens;
  at::Tensor positions_T;  // int64, restarts at 0 in each document; of this rank's tokens
  // None: this rank has the whole stream. Else T is 2 * chunk_tokens.
  std::optional<StreamPart> part = {};

  int64_t num_documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

// A microbatch of one rank, or its part of one that several share: then tensors of T or L are of
// its own tokens, and those of S are whole on each. T is at least 1: a rank without rows gets one
// ignored token, since it has to take part in the collectives.
struct Batch {
  at::Tensor tokens_T;  // int64
  at::Tensor labels_T;  // int64: what the model should predict at each token, or kIgnoredLabel
  // int64: the tokens whose label is not ignored, ascending. Known to the loader, so that nobody
  // has to look for them on the device: there no size may depend on values.
  at::Tensor label_rows_L;
  at::Tensor label_documents_L;  // int64: the document of each of those tokens
  Documents documents;
  // Tokens that came from the data; padding is not counted, and comes after them.
  int64_t num_tokens = 0;
  int64_t num_labels = 0;  // labels that are not ignored: L

  // Documents [0, num_sequences) are the rows', in their order; what follows is padding. A row of
  // preferences is two documents, the chosen one and then the rejected one.
  int64_t num_sequences = 0;
  // Rows of each data-parallel rank in the microbatch, and of all of them together.
  std::vector<int64_t> rows_of_rank;
  int64_t num_rows_of_all = 0;

  // int64 [num_sequences], of pairs only, else undefined: tokens of the completions. That is one
  // more than a document has labels where nothing is left of its prompt.
  at::Tensor completion_tokens_S;
  // float32 [num_sequences], undefined where records carry none. KTO: 1 for a desirable completion,
  // else 0. Reward: the margin of the pair, on both of its documents.
  at::Tensor values_S;
  // float32 [num_sequences]: the reference's log-probabilities of the completions, summed, where
  // they were computed before training; else undefined.
  at::Tensor reference_logps_S;
  // KTO: of each row the prompt with the completion of another row, as many documents as here; null
  // where the loss does not need them. Its rows_of_rank and num_rows_of_all are those of this one.
  std::shared_ptr<const Batch> mismatched;
  // Of models that score documents: the token of the (whole) stream at which each of the sequences
  // is scored. Empty: each one's last.
  std::vector<int64_t> scored_tokens;
  // int64 [L], on the CPU: of rollouts, the number of each label among those of all completions
  // that were made at once; else undefined.
  at::Tensor label_numbers_L;
  std::optional<CompletionTargets> completions;  // of methods that have such targets
};

// The batch with its tensors on `device`.
inline Batch to_device(Batch batch, at::Device device) {
  if (device.is_cpu()) return batch;
  for (at::Tensor* tensor :
       {&batch.tokens_T, &batch.labels_T, &batch.label_rows_L, &batch.label_documents_L,
        &batch.documents.positions_T, &batch.completion_tokens_S, &batch.values_S,
        &batch.reference_logps_S}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  if (batch.completions) {
    for (const auto tensor : CompletionTargets::kTensors) {
      at::Tensor& values = (*batch.completions).*tensor;
      if (values.defined()) values = values.to(device);
    }
  }
  if (batch.mismatched != nullptr) {
    batch.mismatched = std::make_shared<const Batch>(to_device(*batch.mismatched, device));
  }
  return batch;
}

}  // namespace tessera
