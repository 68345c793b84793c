#include "worker/parallel/shared_blocks.h"

#include <ATen/ceil_div.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "worker/memory/allocators.h"
#include "worker/parallel/byte_exchange.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return at::ceil_div(bytes, kAlignment) * kAlignment; }

// The blocks are in the memory of rank 0's ring; of the others the header is used alone.
std::unique_ptr<SharedRings> make_rings(const Collectives& group, int64_t bytes,
                                        std::chrono::milliseconds timeout, std::string* address) {
  try {
    auto rings = std::make_unique<SharedRings>(group.rank(), group.size(), timeout,
                                               group.rank() == 0 ? bytes : 0);
    *address = rings->address();
    return rings;
  } catch (const std::exception&) {
    return nullptr;
  }
}

bool open_peers(SharedRings& rings, const std::vector<std::string>& addresses) {
  try {
    rings.open_peers(addresses);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

// What a tensor's storage holds of a half.
struct SharedBlocks::Lease {
  SharedBlocks& blocks;
  size_t half;
  c10::DataPtr charged;

  static void release(void* context) {
    const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
    lease->blocks.give_back(lease->half);
  }
};

class SharedBlocks::Filling final : public Work {
 public:
  Filling(SharedBlocks& blocks, int64_t number) : blocks_(blocks), number_(number) {}
  void wait() override { blocks_.await(number_); }

 private:
  SharedBlocks& blocks_;
  int64_t number_;
};

std::unique_ptr<SharedBlocks> SharedBlocks::open(Collectives& group, at::Device device,
                                                 int64_t block_bytes,
                                                 std::chrono::milliseconds timeout) {
  if (!device.is_cpu() || group.size() == 1 || block_bytes == 0) return nullptr;
  const int64_t half_bytes = aligned(block_bytes);
  std::string address;
  std::unique_ptr<SharedRings> rings = make_rings(group, 2 * half_bytes, timeout, &address);
  const std::vector<std::string> addresses = all_gather_bytes(group, device, address);
  const bool is_open = rings && std::ranges::none_of(addresses, &std::string::empty) &&
                       open_peers(*rings, addresses);
  for (const std::string& opened : all_gather_bytes(group, device, is_open ? "yes" : "no")) {
    if (opened != "yes") return nullptr;
  }
  return std::unique_ptr<SharedBlocks>(
      new SharedBlocks(std::move(rings), group.size(), half_bytes));
}

std::optional<c10::DataPtr> SharedBlocks::take(int64_t bytes) {
  const int64_t size = aligned(bytes);
  for (size_t half = 0; half < 2; ++half) {
    Half& h = halves_[half];
    if (h.used + size > half_bytes_) continue;
    std::byte* data = rings_->memory(0) + static_cast<int64_t>(half) * half_bytes_ + h.used;
    auto lease = std::make_unique<Lease>(*this, half, charge_mapped(data, bytes));
    h.used += size;
    ++h.num_taken;
    free_from_ = num_given_back_;
    const c10::Device device = lease->charged.device();
    return c10::DataPtr(data, lease.release(), &Lease::release, device);
  }
  return std::nullopt;
}

std::unique_ptr<Work> SharedBlocks::fill(std::function<void()> write) {
  pending_.push_back({num_filled_, free_from_, std::move(write)});
  auto filling = std::make_unique<Filling>(*this, num_filled_++);
  write_pending();
  return filling;
}

// In order, as far as the other ranks are.
void SharedBlocks::write_pending() {
  while (!pending_.empty() && rings_->have_finished(pending_.front().free_from)) {
    pending_.front().write();
    rings_->publish(pending_.front().number);
    pending_.pop_front();
  }
}

void SharedBlocks::await(int64_t number) {
  rings_->wait_until([&] {
    write_pending();
    for (int rank = 0; rank < size_; ++rank) {
      if (!rings_->is_published(rank, number)) return false;
    }
    return true;
  });
}

// A half is used again from its beginning once nothing of it is.
void SharedBlocks::give_back(size_t half) {
  if (--halves_[half].num_taken == 0) halves_[half].used = 0;
  rings_->finish(num_given_back_++);
}

}  // namespace tessera
