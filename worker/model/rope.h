// Rotary position tables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/batch.h"
#include "worker/model/rope_config.h"

namespace tessera {

// By each pair of channels, the angle that one position turns: float32 [head_dim / 2]. For
// kDynamic, that of a document of `length` tokens; other types do not depend on it.
at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t length);

struct RotaryTables {
  at::Tensor cos_TH;  // [T, head_dim / 2] in `dtype`, times the attention factor
  at::Tensor sin_TH;
};
// The angles of every token of the stream, computed in float32 as transformers does. A document
// gets the table it would get alone: with kDynamic its own length counts, not that of its
// neighbours.
RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim, const Documents& documents,
                           at::ScalarType dtype);
// Those of tokens at positions_T (int64 [T]), each of a document of lengths[t] tokens.
RotaryTables rotary_tables(const RopeConfig& rope, int64_t head_dim, const at::Tensor& positions_T,
                           const std::vector<int64_t>& lengths, at::ScalarType dtype);

}  // namespace tessera
