#include "proto/spec/method_fields.h"

namespace tessera::spec {
namespace {

template <typename Message>
MethodFields fields_of(const char* method, const Message& message) {
  MethodFields fields;
  fields.method = method;
  fields.pad_to_multiple_of = message.pad_to_multiple_of();
  if constexpr (requires { message.max_length(); }) fields.max_length = message.max_length();
  if constexpr (requires { message.chat_template_path(); }) {
    fields.chat_template_path = message.chat_template_path();
  }
  if constexpr (requires { message.eos_token(); }) {
    fields.has_eos_field = true;
    fields.eos_token = message.eos_token();
  }
  if constexpr (requires { message.disable_dropout(); }) {
    fields.disable_dropout = message.disable_dropout();
  }
  if constexpr (requires { message.precompute_ref_log_probs(); }) {
    fields.precompute_ref_log_probs = message.precompute_ref_log_probs();
  }
  if constexpr (requires { message.router_aux_loss_coef(); }) {
    if (message.has_router_aux_loss_coef()) {
      fields.router_aux_loss_coef = message.router_aux_loss_coef();
    }
  }
  return fields;
}

}  // namespace

MethodFields method_fields(const v1::Method& method) {
  switch (method.kind_case()) {
    case v1::Method::kDpo:
      return fields_of("method.dpo", method.dpo());
    case v1::Method::kKto:
      return fields_of("method.kto", method.kto());
    case v1::Method::kReward:
      return fields_of("method.reward", method.reward());
    case v1::Method::kGkd:
      return fields_of("method.gkd", method.gkd());
    case v1::Method::kGrpo:
      return fields_of("method.grpo", method.grpo());
    case v1::Method::kRloo:
      return fields_of("method.rloo", method.rloo());
    case v1::Method::kOnlineDpo:
      return fields_of("method.online_dpo", method.online_dpo());
    case v1::Method::kPpo:
      return fields_of("method.ppo", method.ppo());
    case v1::Method::kSft:
    case v1::Method::KIND_NOT_SET:
      break;
  }
  return fields_of("method.sft", method.sft());
}

}  // namespace tessera::spec
