// Forgets scopes when the block that made them ends.
#pragma once

#include "worker/data/jinja/frame.h"

namespace tessera::jinja {

class ScopeMark {
 public:
  explicit ScopeMark(Rendering& rendering)
      : rendering_(rendering),
        num_scopes_(rendering.num_scopes()),
        num_macros_(rendering.num_macros()) {}
  // Where a macro was made in between, it may refer to the scopes, and they stay.
  ~ScopeMark() {
    if (rendering_.num_macros() == num_macros_) rendering_.drop_scopes(num_scopes_);
  }
  ScopeMark(const ScopeMark&) = delete;
  ScopeMark& operator=(const ScopeMark&) = delete;

 private:
  Rendering& rendering_;
  size_t num_scopes_;
  int64_t num_macros_;
};

}  // namespace tessera::jinja
