// Turns records into tokens with a loss mask, as TRL's trainers prepare their datasets.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/data/record.h"

namespace tessera {

// What a record becomes, before truncation and packing: one document, or several, one after the
// other.
struct Example {
  std::vector<int32_t> tokens;
  // For each token, 1 where predicting it counts, else 0. Empty: all count.
  std::vector<uint8_t> loss_mask;
  std::vector<int32_t> lengths;  // of the documents; empty: it is one
  std::vector<float> values;     // of the documents (Batch::values_S); empty: they have none

  void clear() {
    tokens.clear();
    loss_mask.clear();
    lengths.clear();
    values.clear();
  }
};

// A document of an example.
struct ExampleDocument {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> loss_mask;  // as that of the example
  std::optional<float> value;
};

// One a thread: it holds buffers.
class ExampleEncoder {
 public:
  virtual ~ExampleEncoder() = default;
  // Replaces `example`. Throws UserError through record.fail.
  virtual void encode(const Record& record, Example& example) = 0;
};

}  // namespace tessera
