// Says what autograd saves for backward, thread by thread: what `saved_tensors_hooks` is in Python.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace tessera {

class SavedTensors {
 public:
  virtual ~SavedTensors() = default;
  // Of the next tensor that is saved.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

// While it lives, what functions of this thread save goes through the hooks of `saved`. Scopes
// nest: the innermost counts, and null is none. The first scope of a process puts an engine of ours
// in place of autograd's.
class SavedTensorsScope {
 public:
  explicit SavedTensorsScope(SavedTensors* saved);
  ~SavedTensorsScope();
  SavedTensorsScope(const SavedTensorsScope&) = delete;
  SavedTensorsScope& operator=(const SavedTensorsScope&) = delete;

 private:
  SavedTensors* previous_;
};

}  // namespace tessera
