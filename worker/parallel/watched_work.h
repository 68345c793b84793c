// Work with the ranks of a group that is not done by its collectives, such as a gather through
// memory that they share: for those who decorate collectives to see it all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/parallel/collectives.h"

namespace tessera {

// What such a decorator is, too.
class WorkWatcher {
 public:
  virtual ~WorkWatcher() = default;
  // `kind` lives on; `bytes`: that this rank puts in.
  virtual std::unique_ptr<Work> watch(const char* kind, int64_t bytes,
                                      std::unique_ptr<Work> work) = 0;
};

// Shows `work` to the decorators of `group`; without any it stays as it is.
inline std::unique_ptr<Work> watched(Collectives& group, const char* kind, int64_t bytes,
                                     std::unique_ptr<Work> work) {
  auto* watcher = dynamic_cast<WorkWatcher*>(&group);
  return watcher == nullptr ? std::move(work) : watcher->watch(kind, bytes, std::move(work));
}

}  // namespace tessera
