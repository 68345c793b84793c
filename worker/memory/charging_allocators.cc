// Allocators that keep what a free must know in the block's context, apart from its data.
#include <ATen/ceil_div.h>

#include <utility>

#include "worker/kernels/stand_in.h"
#include "worker/memory/allocators.h"

namespace tessera {
namespace {

struct Charge {
  c10::DataPtr block;  // of a meta tensor: none
  MemoryLedger& ledger;
  Attribution who;
  int64_t bytes;
};

void release(void* context) {
  const std::unique_ptr<Charge> charge(static_cast<Charge*>(context));
  charge->ledger.release(charge->who, charge->bytes);
}

c10::DataPtr charged(MemoryLedger& ledger, c10::DataPtr block, size_t bytes) {
  auto charge = std::make_unique<Charge>(
      Charge{std::move(block), ledger, current_attribution(), static_cast<int64_t>(bytes)});
  ledger.charge(charge->who, charge->bytes);
  void* data = charge->block.get();
  const c10::Device device = charge->block.device();
  return {data, charge.release(), &release, device};
}

class MetaAllocator final : public c10::Allocator {
 public:
  explicit MetaAllocator(MemoryLedger& ledger) : ledger_(ledger) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr none(nullptr, c10::Device(c10::DeviceType::Meta));
    if (bytes == 0) return none;
    const bool of_device = current_attribution().space == Space::kDevice;
    const auto multiple = static_cast<size_t>(of_device ? stand_in().granularity : 1);
    return charged(ledger_, std::move(none), at::round_up(bytes, multiple));
  }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  MemoryLedger& ledger_;
};

class ChargingAllocator final : public c10::Allocator {
 public:
  ChargingAllocator(MemoryLedger& ledger, c10::Allocator& inner) : ledger_(ledger), inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = inner_.allocate(bytes);
    return bytes == 0 ? std::move(block) : charged(ledger_, std::move(block), bytes);
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    inner_.copy_data(destination, source, bytes);
  }

 private:
  MemoryLedger& ledger_;
  c10::Allocator& inner_;
};

}  // namespace

std::unique_ptr<c10::Allocator> make_meta_allocator(MemoryLedger& ledger) {
  return std::make_unique<MetaAllocator>(ledger);
}

std::unique_ptr<c10::Allocator> make_charging_allocator(MemoryLedger& ledger,
                                                        c10::Allocator& inner) {
  return std::make_unique<ChargingAllocator>(ledger, inner);
}

}  // namespace tessera
