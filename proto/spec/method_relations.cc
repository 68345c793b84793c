#include "proto/spec/method_relations.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/method_fields.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

// Of losses that take another divergence than reverse_kl.
constexpr std::array kOfAnyDivergence{"sigmoid",  "sigmoid_norm", "hinge",    "ipo",
                                      "exo_pair", "robust",       "discopop", "sft"};

bool has_loss(const v1::Dpo& dpo, const char* type) {
  return std::find(dpo.loss_type().begin(), dpo.loss_type().end(), type) != dpo.loss_type().end();
}

void check_losses(const v1::Dpo& dpo, Violations& out) {
  const int num_losses = std::max(1, dpo.loss_type_size());
  if (dpo.loss_weights_size() > 0 && dpo.loss_weights_size() != num_losses) {
    out.push_back(
        {"method.dpo.loss_weights",
         absl::StrCat("method.dpo.loss_weights is a list of ", dpo.loss_weights_size(),
                      ", must hold one for each of the ", num_losses, " of method.dpo.loss_type")});
  }
  if (dpo.f_divergence_type() != "reverse_kl") {
    for (const std::string& type : dpo.loss_type()) {
      if (std::find(kOfAnyDivergence.begin(), kOfAnyDivergence.end(), type) !=
          kOfAnyDivergence.end())
        continue;
      out.push_back({"method.dpo.f_divergence_type",
                     absl::StrCat("method.dpo.f_divergence_type is \"", dpo.f_divergence_type(),
                                  "\", must be reverse_kl with loss_type ", type)});
    }
  }
}

void check_label_smoothing(const v1::Dpo& dpo, Violations& out) {
  const double smoothing = dpo.label_smoothing();
  const auto refuse = [&](const char* rule) {
    out.push_back({"method.dpo.label_smoothing",
                   absl::StrCat("method.dpo.label_smoothing is ", smoothing, ", must be ", rule)});
  };
  if (has_loss(dpo, "exo_pair") && (smoothing <= 0 || smoothing >= 1))
    refuse("above 0 and below 1 with loss_type exo_pair");
  if (has_loss(dpo, "robust") && smoothing >= 0.5) refuse("below 0.5 with loss_type robust");
}

void check_dpo(const v1::Dpo& dpo, Violations& out) {
  check_losses(dpo, out);
  check_label_smoothing(dpo, out);
  for (const char* type : {"aot", "aot_unpaired"}) {
    if (!dpo.use_weighting() || !has_loss(dpo, type)) continue;
    out.push_back({"method.dpo.use_weighting",
                   absl::StrCat("method.dpo.use_weighting is true, must be false with loss_type ",
                                type, ", which sorts pairs apart")});
  }
}

// Of a method with a reference.
template <typename Options>
void check_reference(const v1::JobSpec& spec, const Options& options, Violations& out) {
  if (!options.sync_ref_model()) return;
  const std::string field = method_fields(spec.method()).field("sync_ref_model");
  const auto refuse = [&](const char* beside) {
    out.push_back({field, absl::StrCat(field, " is true, must be false with ", beside)});
  };
  if (spec.has_peft()) refuse("peft: the reference is of whole weights");
  if (options.precompute_ref_log_probs())
    refuse("precompute_ref_log_probs: scores of a reference that moves do not last");
}

void check_kto(const v1::JobSpec& spec, Violations& out) {
  if (spec.method().kto().loss_type() != "kto") return;
  const v1::Training& training = spec.training();
  if (training.train_sampling_strategy() == "random") {
    out.push_back({"training.train_sampling_strategy",
                   "training.train_sampling_strategy is \"random\", must be sequential with "
                   "method.kto.loss_type kto: completions are exchanged between rows that come "
                   "together"});
  }
  if (training.has_per_device_train_batch_size() && training.per_device_train_batch_size() < 2) {
    out.push_back({"training.per_device_train_batch_size",
                   absl::StrCat("training.per_device_train_batch_size is ",
                                training.per_device_train_batch_size(),
                                ", must be above 1 with method.kto.loss_type kto: a row's "
                                "completion goes to another one")});
  }
}

void check_gkd(const v1::Gkd& gkd, bool has_rollouts, Violations& out) {
  if (!has_rollouts) return;
  if (gkd.has_lmbda() && gkd.lmbda() != 1) {
    out.push_back({"method.gkd.lmbda",
                   absl::StrCat("method.gkd.lmbda is ", gkd.lmbda(),
                                ", must be 1 with data.rollouts, which are all trained on")});
  }
  if (gkd.seq_kd()) {
    out.push_back({"method.gkd.seq_kd",
                   "method.gkd.seq_kd is true, must be false with data.rollouts: nothing is "
                   "generated"});
  }
}

// A field that the losses of other methods do not have.
void check_label_smoothing_factor(const v1::JobSpec& spec, Violations& out) {
  const double factor = spec.training().label_smoothing_factor();
  if (factor == 0) return;
  out.push_back({"training.label_smoothing_factor",
                 absl::StrCat("training.label_smoothing_factor is ", factor, ", must be 0 with ",
                              method_fields(spec.method()).method,
                              ": only method.sft smooths the labels of tokens")});
}

}  // namespace

void check_method_relations(const v1::JobSpec& spec, Violations& out) {
  const v1::Method& method = spec.method();
  switch (method.kind_case()) {
    case v1::Method::kDpo:
      check_dpo(method.dpo(), out);
      check_reference(spec, method.dpo(), out);
      break;
    case v1::Method::kKto:
      check_kto(spec, out);
      check_reference(spec, method.kto(), out);
      break;
    case v1::Method::kGkd:
      check_gkd(method.gkd(), !spec.data().rollouts().empty(), out);
      break;
    case v1::Method::kReward:
    case v1::Method::kGrpo:
    case v1::Method::kRloo:
    case v1::Method::kOnlineDpo:
    case v1::Method::kPpo:
      break;
    case v1::Method::kSft:
    case v1::Method::KIND_NOT_SET:
      return;
  }
  check_label_smoothing_factor(spec, out);
}

}  // namespace tessera::spec
