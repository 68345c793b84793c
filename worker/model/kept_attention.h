// How a layer that is run again in backward takes attention's outputs from its first run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

// What attention's backward needs beside its inputs.
struct AttentionOutputs {
  at::Tensor out_TNH;
  at::Tensor lse;  // of the kernel that made it; undefined where its backward needs none
};

// What is kept at the address `kept_pointer`, or, where nothing is yet, what `run` makes, which is
// then kept there. With a null pointer nothing is.
template <typename Run>
AttentionOutputs kept_or_run(int64_t kept_pointer, const Run& run) {
  auto* kept = reinterpret_cast<AttentionOutputs*>(kept_pointer);
  if (kept == nullptr) return run();
  if (!kept->out_TNH.defined()) *kept = run();
  // An alias: autograd makes what a function returns part of its graph.
  return {kept->out_TNH.detach(), kept->lse};
}

}  // namespace tessera
