// A file that is named and is not on this machine. Others may have it: a run there is refused, and
// what is only planned here is not.
#pragma once

#include "worker/errors.h"

namespace tessera {

class AbsentError : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace tessera
