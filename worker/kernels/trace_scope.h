// Names for what the trace of a step (worker/trainer/trace.h) shows beside LibTorch's operators:
// kernels of ours, phases, waits. Without a trace that runs, a scope costs some nanoseconds.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <initializer_list>
#include <vector>

namespace tessera {

// Names a stretch of this thread's time in the trace that runs, if one does. Scopes nest.
class TraceScope {
 public:
  explicit TraceScope(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name);
  }
  // With the shapes of these tensors.
  TraceScope(const char* name, std::initializer_list<at::Tensor> shown)
      : record_(at::RecordScope::USER_SCOPE) {
    if (!record_.isActive()) return;
    const std::vector<c10::IValue> values(shown.begin(), shown.end());
    record_.before(name, &values);
  }

 private:
  at::RecordFunction record_;
};

}  // namespace tessera
