// Who an allocation is for: an owner, and the block and the phase of the step it happens in. Scopes
// set it for their thread; the ledger's allocators read it at each allocation, so setting it costs
// a few thread-local moves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class Owner : uint8_t {
  kOther,
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kHead,
  kKvCache,
  kCommunication,  // gathered blocks, reduction buffers
  kData,
  kCheckpoint,  // values that wait to be written
  kReference,   // weights of frozen models beside the one that is trained
};
inline constexpr int kNumOwners = 11;
std::string_view owner_name(Owner owner);  // "parameters"; zero-terminated, like the next two

// What a rank is doing.
enum class Phase : uint8_t {
  kLoad,  // all before the first step
  kData,
  kGenerate,  // completions are made and judged
  kForward,
  kBackward,
  kOptimizer,
  kEval,
  kCheckpoint,
};
inline constexpr int kNumPhases = 8;
std::string_view phase_name(Phase phase);  // "forward"

// Memory of two kinds, counted apart. On a CPU both are the same RAM: what is offloaded leaves the
// device's count there as it would leave a GPU.
enum class Space : uint8_t {
  kDevice,
  kHost,  // what offloading keeps in the machine's memory
};
inline constexpr int kNumSpaces = 2;
std::string_view space_name(Space space);  // "device"

// A part of the model, such as a decoder layer. 0: none.
using BlockId = uint16_t;
// The id of the block of that name; the same one each time. A process has at most kMaxBlocks; those
// beyond share the last id. Thread safe.
inline constexpr BlockId kMaxBlocks = 1024;
BlockId block_id(std::string_view name);
std::string block_name(BlockId block);  // "model.layers.3"; of none ""

struct Attribution {
  Owner owner = Owner::kOther;
  Phase phase = Phase::kLoad;
  Space space = Space::kDevice;
  BlockId block = 0;
};
// This thread's.
const Attribution& current_attribution();

// Each scope sets one part of this thread's attribution while it lives. Scopes nest.
class OwnerScope {
 public:
  explicit OwnerScope(Owner owner);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  Owner previous_;
};

class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase previous_;
};

class BlockScope {
 public:
  explicit BlockScope(BlockId block);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  BlockId previous_;
};

// From here on this thread works on `block`, until the scope around ends or the next call.
void enter_block(BlockId block);
// From here on this thread runs backward of `block`. Backward has no call that encloses one block,
// and on a GPU it runs in a thread of LibTorch's, which has no scopes: what has no owner is then
// charged to activations.
void enter_backward(BlockId block);

class HostSpaceScope {
 public:
  HostSpaceScope();
  ~HostSpaceScope();
  HostSpaceScope(const HostSpaceScope&) = delete;
  HostSpaceScope& operator=(const HostSpaceScope&) = delete;

 private:
  Space previous_;
};

}  // namespace tessera
