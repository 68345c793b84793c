#include "worker/model/scored_rows.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

// In the stream.
int64_t scored_token(const Batch& batch, int64_t sequence) {
  return batch.scored_tokens.empty() ? batch.documents.cu_seqlens[sequence + 1] - 1
                                     : batch.scored_tokens[sequence];
}

// The row that a token of the stream has on this rank.
std::optional<int64_t> row_of(int64_t token, const std::optional<StreamPart>& part) {
  if (!part) return token;
  const int64_t chunk = token / part->chunk_tokens, place = token % part->chunk_tokens;
  for (const int which : {0, 1}) {
    if (part->chunk(part->rank, which) == chunk) return which * part->chunk_tokens + place;
  }
  return std::nullopt;
}

}  // namespace

ScoredRows scored_rows(const Batch& batch, at::Device device) {
  const at::TensorOptions options(host_device(device));
  const std::optional<StreamPart>& part = batch.documents.part;
  const at::Tensor rows_S = at::empty({batch.num_sequences}, options.dtype(at::kLong));
  at::Tensor here_S;
  if (part) here_S = at::empty({batch.num_sequences}, options.dtype(at::kFloat));
  if (!rows_S.is_meta()) {
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
      const std::optional<int64_t> row = row_of(scored_token(batch, s), part);
      rows_S.mutable_data_ptr<int64_t>()[s] = row.value_or(0);
      if (part) here_S.mutable_data_ptr<float>()[s] = row ? 1 : 0;
    }
  }
  return {rows_S.to(device), part ? here_S.to(device) : here_S};
}

}  // namespace tessera
