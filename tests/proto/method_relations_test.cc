// Rules between the fields of the methods.
#include "proto/spec/method_relations.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Violations of a job after `change`, defaults filled in after it.
std::vector<std::string> messages_after(const std::function<void(v1::JobSpec&)>& change) {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/t.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  change(spec);
  fill_defaults(spec);
  std::vector<std::string> out;
  for (const Violation& violation : validate(spec)) out.push_back(violation.message);
  return out;
}

struct Rule {
  const char* name;
  void (*change)(v1::JobSpec& spec);
  std::string message;
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

v1::Dpo& dpo(v1::JobSpec& spec) { return *spec.mutable_method()->mutable_dpo(); }
v1::Kto& kto(v1::JobSpec& spec) { return *spec.mutable_method()->mutable_kto(); }
v1::Gkd& gkd(v1::JobSpec& spec) {
  v1::Gkd& gkd = *spec.mutable_method()->mutable_gkd();
  gkd.set_teacher_model_name_or_path("/models/teacher");
  return gkd;
}

class MethodRelations : public ::testing::TestWithParam<Rule> {};

TEST_P(MethodRelations, IsKept) {
  EXPECT_THAT(messages_after(GetParam().change), ::testing::Contains(GetParam().message));
}

const Rule kRules[] = {
    {"WeightOfNoLoss",
     [](auto& s) {
       dpo(s).add_loss_type("sigmoid");
       dpo(s).add_loss_type("sft");
       dpo(s).add_loss_weights(0.5);
     },
     "method.dpo.loss_weights is a list of 1, must hold one for each of the 2 of "
     "method.dpo.loss_type"},
    {"WeightsOfTheDefaultLoss",
     [](auto& s) {
       dpo(s).add_loss_weights(0.5);
       dpo(s).add_loss_weights(1);
     },
     "method.dpo.loss_weights is a list of 2, must hold one for each of the 1 of "
     "method.dpo.loss_type"},
    {"DivergenceOfALossWithoutScores",
     [](auto& s) {
       dpo(s).add_loss_type("nca_pair");
       dpo(s).set_f_divergence_type("js_divergence");
     },
     "method.dpo.f_divergence_type is \"js_divergence\", must be reverse_kl with loss_type "
     "nca_pair"},
    {"ExoPairWithoutSmoothing", [](auto& s) { dpo(s).add_loss_type("exo_pair"); },
     "method.dpo.label_smoothing is 0, must be above 0 and below 1 with loss_type exo_pair"},
    {"ExoPairAllSmoothing",
     [](auto& s) {
       dpo(s).add_loss_type("exo_pair");
       dpo(s).set_label_smoothing(1);
     },
     "method.dpo.label_smoothing is 1, must be above 0 and below 1 with loss_type exo_pair"},
    {"RobustHalf",
     [](auto& s) {
       dpo(s).add_loss_type("robust");
       dpo(s).set_label_smoothing(0.5);
     },
     "method.dpo.label_smoothing is 0.5, must be below 0.5 with loss_type robust"},
    {"WeightedTransport",
     [](auto& s) {
       dpo(s).add_loss_type("aot");
       dpo(s).set_use_weighting(true);
     },
     "method.dpo.use_weighting is true, must be false with loss_type aot, which sorts pairs apart"},
    {"WeightedUnpairedTransport",
     [](auto& s) {
       dpo(s).add_loss_type("aot_unpaired");
       dpo(s).set_use_weighting(true);
     },
     "method.dpo.use_weighting is true, must be false with loss_type aot_unpaired, which sorts "
     "pairs apart"},
    {"SyncOfAnAdapter",
     [](auto& s) {
       dpo(s).set_sync_ref_model(true);
       s.mutable_peft();
     },
     "method.dpo.sync_ref_model is true, must be false with peft: the reference is of whole "
     "weights"},
    {"SyncOfScores",
     [](auto& s) {
       kto(s).set_sync_ref_model(true);
       kto(s).set_precompute_ref_log_probs(true);
     },
     "method.kto.sync_ref_model is true, must be false with precompute_ref_log_probs: scores of a "
     "reference that moves do not last"},
    {"ShuffledKto",
     [](auto& s) {
       kto(s);
       s.mutable_training()->set_train_sampling_strategy("random");
     },
     "training.train_sampling_strategy is \"random\", must be sequential with "
     "method.kto.loss_type kto: completions are exchanged between rows that come together"},
    {"KtoOfSingleRows",
     [](auto& s) {
       kto(s);
       s.mutable_training()->set_per_device_train_batch_size(1);
     },
     "training.per_device_train_batch_size is 1, must be above 1 with method.kto.loss_type kto: a "
     "row's completion goes to another one"},
    {"SmoothedLabelsOfPairs",
     [](auto& s) {
       dpo(s);
       s.mutable_training()->set_label_smoothing_factor(0.1);
     },
     "training.label_smoothing_factor is 0.1, must be 0 with method.dpo: only method.sft smooths "
     "the labels of tokens"},
};
INSTANTIATE_TEST_SUITE_P(All, MethodRelations, ::testing::ValuesIn(kRules),
                         [](const auto& rule) { return rule.param.name; });

TEST(MethodRelationsTest, AllowWhatIsNear) {
  EXPECT_THAT(messages_after([](auto& s) { dpo(s); }), IsEmpty());
  EXPECT_THAT(messages_after([](auto& s) { kto(s); }), IsEmpty());
  EXPECT_THAT(messages_after([](auto& s) {
                for (const char* type : {"sigmoid", "exo_pair", "robust", "sft"})
                  dpo(s).add_loss_type(type);
                for (int i = 0; i < 4; ++i) dpo(s).add_loss_weights(i);
                dpo(s).set_label_smoothing(0.4);
                dpo(s).set_f_divergence_type("forward_kl");
                dpo(s).set_use_weighting(true);
                dpo(s).set_sync_ref_model(true);
              }),
              IsEmpty());
  // Without the loss that exchanges completions.
  EXPECT_THAT(messages_after([](auto& s) {
                kto(s).set_loss_type("apo_zero_unpaired");
                s.mutable_training()->set_train_sampling_strategy("random");
                s.mutable_training()->set_per_device_train_batch_size(1);
              }),
              IsEmpty());
}

TEST(MethodRelationsTest, MetricsAreTheMethods) {
  EXPECT_THAT(messages_after([](auto& s) {
                dpo(s);
                s.mutable_training()->set_metric_for_best_model("eval_rewards/accuracies");
              }),
              IsEmpty());
  EXPECT_THAT(messages_after([](auto& s) {
                kto(s);
                s.mutable_training()->set_metric_for_best_model("rewards/accuracies");
              }),
              ElementsAre("training.metric_for_best_model is \"rewards/accuracies\", must be a "
                          "metric of the method: loss, entropy, kl, logits/chosen, "
                          "logits/rejected, rewards/chosen, rewards/rejected, rewards/margins, "
                          "logps/chosen, logps/rejected, aux_loss"));
}

}  // namespace
}  // namespace tessera::spec
