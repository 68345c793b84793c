#include "worker/parallel/gate.h"

#include <c10/core/GradMode.h>

namespace tessera {

void ShardGate::open() {
  enter_block(options_.block);
  gather();
  if (next_ != nullptr) next_->start_gather();
}

at::Tensor ShardGate::close(const at::Tensor& output) {
  const bool trains = c10::GradMode::is_enabled() && output.requires_grad();
  if (trains) {
    output.register_hook([this](const at::Tensor&) { before_backward(); });
  }
  if (c10::GradMode::is_enabled()) has_backward_ = trains;
  if (!trains || options_.reshard_after_forward) release();
  enter_block(0);
  return output;
}

void ShardGate::before_backward() {
  enter_backward(options_.block);
  // Of a unit that is trained, its last gradient has freed the weights already.
  if (next_ != nullptr) next_->release();
  if (options_.needed_in_backward) gather();
  for (ShardedUnit* unit : units_) unit->expect_gradients();
  const bool goes_on = previous_ != nullptr && previous_->has_backward_;
  if (goes_on && previous_->options_.needed_in_backward) previous_->start_gather();
}

void ShardGate::start_gather() {
  for (ShardedUnit* unit : units_) unit->start_gather();
}

void ShardGate::gather() {
  start_gather();
  for (ShardedUnit* unit : units_) unit->gather();
}

void ShardGate::release() {
  for (ShardedUnit* unit : units_) unit->release();
}

}  // namespace tessera
