#include "worker/memory/ledger.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <utility>

#include "proto/spec/bytes.h"
#include "worker/errors.h"
#include "worker/memory/allocators.h"

namespace tessera {
namespace {

// LibTorch's own allocators register with priority 0.
constexpr uint8_t kAllocatorPriority = 100;

// "activations of model.layers.3 in backward"
std::string describe(const Attribution& who) {
  std::string text(owner_name(who.owner));
  if (who.block != 0) text += " of " + block_name(who.block);
  return text + " in " + std::string(phase_name(who.phase));
}

// "parameters 98.1 MiB, activations 20.0 MiB", the largest first.
std::string describe(const BytesByOwner& bytes) {
  std::vector<std::pair<int64_t, int>> owners;
  for (int i = 0; i < kNumOwners; ++i) {
    if (bytes[i] > 0) owners.emplace_back(-bytes[i], i);
  }
  std::sort(owners.begin(), owners.end());
  std::string text;
  for (const auto& [negative, i] : owners) {
    text += text.empty() ? "" : ", ";
    text += std::string(owner_name(static_cast<Owner>(i))) + " " + spec::format_bytes(-negative);
  }
  return text;
}

}  // namespace

std::string describe(const MemoryRefusal& refusal) {
  const MemoryTotals& totals = refusal.totals[static_cast<size_t>(refusal.who.space)];
  std::string text = "cannot allocate " + spec::format_bytes(refusal.bytes) + " for " +
                     describe(refusal.who) + ": " + spec::format_bytes(totals.current_bytes);
  if (refusal.who.space == Space::kHost) {
    text += " of host memory";
  } else if (refusal.device_limit > 0) {
    text += " of " + spec::format_bytes(refusal.device_limit);
  }
  text += " are taken";
  const std::string owners = describe(totals.current_by_owner);
  return owners.empty() ? text : text + ": " + owners;
}

MemoryLedger& MemoryLedger::install() {
  // Never destroyed, like the next: LibTorch keeps the allocator, and tensors may outlive main.
  static MemoryLedger* const ledger = [] {
    auto* made = new MemoryLedger;
    c10::SetCPUAllocator(make_cpu_allocator(*made).release(), kAllocatorPriority);
    return made;
  }();
  return *ledger;
}

MemoryLedger& MemoryLedger::install_meta() {
  static MemoryLedger* const ledger = [] {
    auto* made = new MemoryLedger;
    c10::SetAllocator(c10::kMeta, make_meta_allocator(*made).release(), kAllocatorPriority);
    return made;
  }();
  return *ledger;
}

MemoryTotals MemoryLedger::snapshot(Space space) const {
  std::lock_guard lock(mutex_);
  return counts(space).totals();
}

SpacePeak MemoryLedger::peak(Space space) const {
  std::lock_guard lock(mutex_);
  MemoryCounts& of = counts(space);
  return {of.totals().peak_bytes, of.cells_at_peak(), of.reached_peak()};
}

void MemoryLedger::reset_peak() {
  std::lock_guard lock(mutex_);
  for (MemoryCounts& space : counts_) space.reset_peak();
}

void MemoryLedger::set_device_limit(int64_t bytes) {
  std::lock_guard lock(mutex_);
  device_limit_ = bytes;
}

int64_t MemoryLedger::device_limit() const {
  std::lock_guard lock(mutex_);
  return device_limit_;
}

std::optional<MemoryRefusal> MemoryLedger::last_refusal() const {
  std::lock_guard lock(mutex_);
  return last_refusal_;
}

void MemoryLedger::start_recording() {
  std::lock_guard lock(mutex_);
  recording_.emplace();
  recording_->begin_ns = recording_clock();
  for (int space = 0; space < kNumSpaces; ++space) {
    recording_->at_begin[space] = counts_[space].cells_now();
  }
}

MemoryRecording MemoryLedger::stop_recording() {
  std::lock_guard lock(mutex_);
  return std::exchange(recording_, std::nullopt).value_or(MemoryRecording());
}

void MemoryLedger::add(const Attribution& who, int64_t bytes) {
  counts(who.space).add(who, bytes);
  if (recording_) recording_->add(who, bytes);
}

void MemoryLedger::charge(const Attribution& who, int64_t bytes) {
  std::unique_lock lock(mutex_);
  const bool fits = who.space == Space::kHost || device_limit_ == 0 ||
                    counts(who.space).current_bytes() + bytes <= device_limit_;
  if (fits) return add(who, bytes);
  keep_refusal(who, bytes);
  const MemoryRefusal refusal = *last_refusal_;
  lock.unlock();
  throw MemoryError(describe(refusal));
}

void MemoryLedger::charge_given(const Attribution& who, int64_t bytes) {
  std::lock_guard lock(mutex_);
  add(who, bytes);
}

void MemoryLedger::release(const Attribution& who, int64_t bytes) {
  std::lock_guard lock(mutex_);
  counts(who.space).remove(who, bytes);
  if (recording_) recording_->add(who, -bytes);
}

void MemoryLedger::keep_refusal(const Attribution& who, int64_t bytes) {
  MemoryRefusal& refusal = last_refusal_.emplace();
  refusal.who = who;
  refusal.bytes = bytes;
  for (int space = 0; space < kNumSpaces; ++space) refusal.totals[space] = counts_[space].totals();
  refusal.cells = counts(who.space).cells_now();
  refusal.device_limit = device_limit_;
}

MemoryRefusal MemoryLedger::refuse(const Attribution& who, int64_t bytes) {
  std::lock_guard lock(mutex_);
  keep_refusal(who, bytes);
  return *last_refusal_;
}

}  // namespace tessera
