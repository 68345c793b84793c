#include "worker/objectives/objective.h"

#include <stdexcept>

namespace tessera {

std::unique_ptr<Objective> make_objective(const v1::JobSpec& spec) {
  switch (spec.method().kind_case()) {
    case v1::Method::kSft:
      return make_sft(spec);
    case v1::Method::KIND_NOT_SET:
      break;
  }
  throw std::logic_error("the spec was not validated: it has no method");
}

}  // namespace tessera
