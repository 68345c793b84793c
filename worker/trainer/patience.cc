#include "worker/trainer/patience.h"

#include <ATen/ops/full.h>

#include "worker/memory/ledger.h"

namespace tessera {

// Whether anybody works.
bool Patience::hear(bool works) {
  if (group_.size() == 1) return works;
  const OwnerScope owner(Owner::kCommunication);
  const at::Tensor num_working =
      at::full({1}, works ? 1 : 0, at::TensorOptions(device_).dtype(at::kLong));
  group_.all_reduce_sum(num_working);
  alive_();
  return num_working.item<int64_t>() > 0;
}

void Patience::wait_for_all() {
  while (hear(false)) {
  }
}

}  // namespace tessera
