// Turns records into tokens with a loss mask, as TRL's SFTTrainer prepares its dataset.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/record.h"

namespace tessera {

// Before truncation and packing.
struct Example {
  std::vector<int32_t> tokens;
  // For each token, 1 where predicting it counts, else 0. Empty: all count.
  std::vector<uint8_t> loss_mask;

  void clear() {
    tokens.clear();
    loss_mask.clear();
  }
};

// One a thread: it holds buffers.
class ExampleEncoder {
 public:
  virtual ~ExampleEncoder() = default;
  // Replaces `example`. Throws UserError through record.fail.
  virtual void encode(const Record& record, Example& example) = 0;
};

}  // namespace tessera
