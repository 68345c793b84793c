// Fields that the methods' messages have in common, whichever of them a job has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

// Where a method has no such field, its value is what the others' absent one means.
struct MethodFields {
  std::string method;  // "method.dpo"
  int64_t max_length = 0;
  int64_t pad_to_multiple_of = 0;
  std::string chat_template_path;
  bool has_eos_field = false;
  std::string eos_token;
  bool disable_dropout = false;
  bool precompute_ref_log_probs = false;
  std::optional<double> router_aux_loss_coef;

  // "method.dpo.max_length"
  std::string field(const char* name) const { return method + "." + name; }
};

// Of a method that is set, with defaults filled in; of none: those of an empty message.
MethodFields method_fields(const v1::Method& method);

}  // namespace tessera::spec
