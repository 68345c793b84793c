// The one currency between data, model and objectives: a flat stream of tokens.
//
// Shape legend, used in all of worker/: T tokens of a microbatch on this rank, D model width, N
// query heads, K key/value heads, H head width, V vocabulary, S documents, F feed-forward width.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

inline constexpr int64_t kIgnoredLabel = -100;

// Where documents begin and end in the stream. Attention never crosses a boundary.
struct Documents {
  std::vector<int64_t>
      cu_seqlens;          // S + 1 offsets: document s is tokens [cu_seqlens[s], cu_seqlens[s + 1])
  at::Tensor positions_T;  // int64, restarts at 0 in each document

  int64_t num_documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

// A microbatch of one rank. T is at least 1: a rank without rows gets one ignored token, since it
// has to take part in the collectives.
struct Batch {
  at::Tensor tokens_T;  // int64
  at::Tensor labels_T;  // int64: what the model should predict at each token, or kIgnoredLabel
  // int64: the tokens whose label is not ignored, ascending. Known to the loader, so that nobody
  // has to look for them on the device: there no size may depend on values.
  at::Tensor label_rows_L;
  Documents documents;
  int64_t num_tokens = 0;  // tokens that came from the data, padding not counted
  int64_t num_labels = 0;  // labels that are not ignored: L
};

// The batch with its tensors on `device`.
inline Batch to_device(Batch batch, at::Device device) {
  if (device.is_cpu()) return batch;
  for (at::Tensor* tensor :
       {&batch.tokens_T, &batch.labels_T, &batch.label_rows_L, &batch.documents.positions_T}) {
    *tensor = tensor->to(device);
  }
  return batch;
}

}  // namespace tessera
