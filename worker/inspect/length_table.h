// What a max_length, with and without packing, makes of documents. Pure: lengths in, counts out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/v1/inspect.pb.h"
#include "worker/data/dataset.h"

namespace tessera {

struct LengthTableOptions {
  // Values of max_length above 0.
  std::vector<int32_t> max_lengths;
  int32_t batch_rows = 1;
  // Of the random order of documents in batches; the order of packing is that of the documents.
  uint64_t seed = 0;
  int num_threads = 0;  // 0: as many as the machine has cores
  Truncation truncation;
  bool packs = true;  // also count packed rows
};

// One entry a max_length, in their order. Requires num_tokens >= 0 and
// 0 <= first_label <= num_tokens.
std::vector<v1::LengthChoice> make_length_table(std::span<const DocumentLength> documents,
                                                const LengthTableOptions& options);

}  // namespace tessera
