// Which prompts are taken when: TRL's order.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace tessera {

struct PromptOrderOptions {
  int64_t num_prompts = 0;
  bool shuffle = true;  // else file order
  int64_t seed = 42;
  // One generator, seeded once, gives the permutation of one epoch after the other, as that of
  // TRL's RepeatSampler does; else each epoch's is seeded with seed + epoch, as Loader has it.
  bool continues = true;
};

// Thread safe.
class PromptOrder {
 public:
  explicit PromptOrder(const PromptOrderOptions& options) : options_(options) {}

  // Numbers of prompts, in their order in that epoch.
  std::vector<int64_t> of_epoch(int64_t epoch) const;

 private:
  std::vector<int64_t> permutation(int64_t epoch) const;

  const PromptOrderOptions options_;
  mutable std::mutex mutex_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::vector<int64_t> cached_;
};

}  // namespace tessera
