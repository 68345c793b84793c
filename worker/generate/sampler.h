// From logits to tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "worker/generate/request.h"

namespace tessera {

// What to draw from a row of logits.
struct RowDraws {
  const SamplingParams* sampling;
  std::span<const int32_t> tokens;  // of the sequence so far, for the repetition penalty
  std::span<const uint64_t> seeds;  // a token is drawn for each
  int64_t index = 0;                // of the token in its completion
};

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;           // as Completion::logprobs
  float sampling_logprob = 0;  // as Completion::sampling_logprobs
};

// There is no token to draw: a logit of the row is NaN or infinite, or all are -infinity.
class NonFiniteLogits : public std::runtime_error {
 public:
  NonFiniteLogits() : std::runtime_error("the model's logits are not finite") {}
};

// The uniform number in [0, 1) that chooses token `index` of the completion of `seed`.
double uniform_of(uint64_t seed, int64_t index);

// Row i of logits_SV (float32) by draws[i]; a list for each row, in the order of its seeds. A token
// is the first, in the order of ids, up to which the probabilities sum to more than the uniform
// number; with temperature 0 the first of the most likely. So rounding of the logits in another
// batch changes a choice only where that number lies within the rounding of a boundary, or where
// two tokens are equally likely within it.
//
// Where logits have no data the tokens are 0. Scratch is a row of logits and one of indices for
// each thread. Throws NonFiniteLogits.
std::vector<std::vector<SampledToken>> sample_rows(const at::Tensor& logits_SV,
                                                   const std::vector<RowDraws>& draws);

}  // namespace tessera
