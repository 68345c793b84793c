// Memory that LibTorch's CPU operators take beside their outputs, and that meta tensors do not
// show.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace tessera {

// While it lives, operators of this thread on tensors that stand for a CPU's (stand_in.h) take that
// memory, too, for as long as they run. Matrix products in bfloat16 are oneDNN's: what they take
// follows from the processor and the number of threads in ways of its own, so each shape is run
// once on real memory, no dimension above 1,024, and remembered. The peaks of the ledger of real
// tensors begin anew with each.
class CpuScratchScope {
 public:
  CpuScratchScope();
  ~CpuScratchScope();
  CpuScratchScope(const CpuScratchScope&) = delete;
  CpuScratchScope& operator=(const CpuScratchScope&) = delete;

  // The most that one matrix product took, so far.
  int64_t largest_product() const;

 private:
  at::CallbackHandle callback_;
};

}  // namespace tessera
