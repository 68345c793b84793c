// Where the result of a job lies, in words.
#pragma once

#include <string>

#include "tessera/v1/job.pb.h"

namespace tessera::cli {

// "OUTPUT_DIR/final", and what that is where it is no whole model.
inline std::string describe_result(const v1::JobSpec& spec) {
  const bool is_adapter = spec.has_peft() && !spec.peft().merge_adapter();
  return spec.training().output_dir() + "/final" + (is_adapter ? " (an adapter for PEFT)" : "");
}

}  // namespace tessera::cli
