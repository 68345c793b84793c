#include "worker/memory/attribution.h"

#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr std::array<std::string_view, kNumOwners> kOwnerNames = {
    "other",    "parameters",    "gradients", "optimizer",  "activations", "head",
    "kv_cache", "communication", "data",      "checkpoint", "reference"};
constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {
    "load", "data", "generate", "forward", "backward", "optimizer", "eval", "checkpoint"};
constexpr std::array<std::string_view, kNumSpaces> kSpaceNames = {"device", "host"};

struct BlockNames {
  std::mutex mutex;
  std::map<std::string, BlockId, std::less<>> ids;  // guarded by mutex, as is the next
  std::vector<std::string> names{""};
};

BlockNames& blocks() {
  static BlockNames* const names = new BlockNames;  // leaked: read until the process ends
  return *names;
}

thread_local Attribution current;

}  // namespace

std::string_view owner_name(Owner owner) { return kOwnerNames[static_cast<size_t>(owner)]; }
std::string_view phase_name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }
std::string_view space_name(Space space) { return kSpaceNames[static_cast<size_t>(space)]; }

BlockId block_id(std::string_view name) {
  BlockNames& all = blocks();
  std::lock_guard lock(all.mutex);
  if (const auto found = all.ids.find(name); found != all.ids.end()) return found->second;
  if (all.names.size() == kMaxBlocks) return kMaxBlocks - 1;
  // The last id is of all that find no place.
  all.names.emplace_back(all.names.size() == kMaxBlocks - 1 ? "others" : name);
  const auto id = static_cast<BlockId>(all.names.size() - 1);
  all.ids.emplace(all.names.back(), id);
  return id;
}

std::string block_name(BlockId block) {
  BlockNames& all = blocks();
  std::lock_guard lock(all.mutex);
  return all.names.at(block);
}

const Attribution& current_attribution() { return current; }

OwnerScope::OwnerScope(Owner owner) : previous_(std::exchange(current.owner, owner)) {}
OwnerScope::~OwnerScope() { current.owner = previous_; }

PhaseScope::PhaseScope(Phase phase) : previous_(std::exchange(current.phase, phase)) {}
PhaseScope::~PhaseScope() { current.phase = previous_; }

BlockScope::BlockScope(BlockId block) : previous_(std::exchange(current.block, block)) {}
BlockScope::~BlockScope() { current.block = previous_; }

void enter_block(BlockId block) { current.block = block; }

void enter_backward(BlockId block) {
  current.block = block;
  current.phase = Phase::kBackward;
  if (current.owner == Owner::kOther) current.owner = Owner::kActivations;
}

HostSpaceScope::HostSpaceScope() : previous_(std::exchange(current.space, Space::kHost)) {}
HostSpaceScope::~HostSpaceScope() { current.space = previous_; }

}  // namespace tessera
