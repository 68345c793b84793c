#include "worker/objectives/objective.h"

#include <stdexcept>

namespace tessera {

std::unique_ptr<Objective> make_objective(const v1::JobSpec& spec) {
  switch (spec.method().kind_case()) {
    case v1::Method::kSft:
      return make_sft(spec);
    default:
      break;
  }
  throw std::logic_error("the spec was not validated: it has no method that is built");
}

}  // namespace tessera
