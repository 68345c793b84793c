// The lengths of a job's documents, and what to make of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tessera/v1/inspect.pb.h"
#include "worker/data/dataset.h"

namespace tessera {

struct LengthProfileOptions {
  std::vector<int32_t> max_lengths;  // looked at in any case, each above 0
  int32_t job_max_length = 0;        // also looked at. 0: none
  int32_t batch_rows = 8;
  int64_t context = 0;  // of the model. 0: not known
  uint64_t seed = 42;
  int num_threads = 0;  // 0: as many as the machine has cores
  Truncation truncation;
  bool packs = true;  // the method can
};

// Values of max_length beyond those of the options: powers of two, of which the least holds half of
// the documents whole and the largest next to all tokens, as far as the context allows; a few.
v1::DataProfile profile_lengths(std::span<const DocumentLength> documents,
                                const LengthProfileOptions& options);

// Reads the documents as a job of the request would, but for their tokens, and replies. Throws
// UserError.
void profile(const v1::InspectRequest& request,
             const std::function<void(const v1::InspectReply&)>& reply);

}  // namespace tessera
