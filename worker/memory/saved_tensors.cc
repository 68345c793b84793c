#include "worker/memory/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>

namespace tessera {
namespace {

thread_local SavedTensors* current = nullptr;

// Autograd's engine, that asks for default hooks where Python's would.
class HookedEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& get() {
    // Never destroyed: threads of the engine may outlive main.
    static HookedEngine* const engine = new HookedEngine;
    return *engine;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current == nullptr ? nullptr : current->make_hooks();
  }

 private:
  HookedEngine() = default;
  ~HookedEngine() override { stop(); }
};

}  // namespace

SavedTensorsScope::SavedTensorsScope(SavedTensors* saved) : previous_(current) {
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&HookedEngine::get);
    return true;
  }();
  static_cast<void>(installed);
  current = saved;
}

SavedTensorsScope::~SavedTensorsScope() { current = previous_; }

}  // namespace tessera
