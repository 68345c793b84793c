#include "proto/spec/method_fields.h"

#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

TEST(MethodFields, AreThoseOfTheMethodThatIsSet) {
  v1::Method method;
  EXPECT_EQ(method_fields(method).method, "method.sft");
  method.mutable_dpo()->set_max_length(7);
  method.mutable_dpo()->set_precompute_ref_log_probs(true);
  method.mutable_dpo()->set_disable_dropout(true);
  method.mutable_dpo()->set_chat_template_path("a.jinja");
  const MethodFields dpo = method_fields(method);
  EXPECT_EQ(dpo.field("max_length"), "method.dpo.max_length");
  EXPECT_EQ(dpo.max_length, 7);
  EXPECT_TRUE(dpo.precompute_ref_log_probs);
  EXPECT_TRUE(dpo.disable_dropout);
  EXPECT_EQ(dpo.chat_template_path, "a.jinja");
  EXPECT_FALSE(dpo.has_eos_field);
  EXPECT_FALSE(dpo.router_aux_loss_coef);
  method.mutable_kto()->set_router_aux_loss_coef(0);
  EXPECT_EQ(method_fields(method).router_aux_loss_coef, 0);
  EXPECT_EQ(method_fields(method).max_length, 0);
  method.mutable_reward()->set_eos_token("<end>");
  EXPECT_TRUE(method_fields(method).has_eos_field);
  EXPECT_EQ(method_fields(method).eos_token, "<end>");
  EXPECT_FALSE(method_fields(method).router_aux_loss_coef);
  method.mutable_gkd()->set_pad_to_multiple_of(8);
  EXPECT_EQ(method_fields(method).method, "method.gkd");
  EXPECT_EQ(method_fields(method).pad_to_multiple_of, 8);
}

}  // namespace
}  // namespace tessera::spec
