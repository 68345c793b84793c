#include "proto/spec/training_relations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <google/protobuf/message.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/spec/method_metrics.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

constexpr char kKwargs[] = "training.lr_scheduler_kwargs";

// The fields of LrSchedulerKwargs that a schedule takes.
std::vector<absl::string_view> kwargs_of(absl::string_view type) {
  if (type == "cosine" || type == "cosine_with_restarts") return {"num_cycles"};
  if (type == "polynomial") return {"lr_end", "power"};
  if (type == "inverse_sqrt") return {"timescale"};
  if (type == "cosine_with_min_lr") return {"num_cycles", "min_lr", "min_lr_rate"};
  if (type == "cosine_warmup_with_min_lr")
    return {"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"};
  if (type == "warmup_stable_decay") {
    return {"num_decay_steps", "num_stable_steps", "warmup_type",
            "decay_type",      "min_lr_ratio",     "num_cycles"};
  }
  if (type == "reduce_lr_on_plateau") {
    return {"mode",           "factor",   "patience", "threshold",
            "threshold_mode", "cooldown", "min_lr",   "eps"};
  }
  return {};
}

void refuse_foreign_kwargs(const v1::Training& training, Violations& out) {
  const std::vector<absl::string_view> taken = kwargs_of(training.lr_scheduler_type());
  const v1::LrSchedulerKwargs& kwargs = training.lr_scheduler_kwargs();
  std::vector<const google::protobuf::FieldDescriptor*> given;
  kwargs.GetReflection()->ListFields(kwargs, &given);
  for (const auto* field : given) {
    if (std::find(taken.begin(), taken.end(), field->name()) != taken.end()) continue;
    const std::string path = absl::StrCat(kKwargs, ".", field->name());
    out.push_back({path, absl::StrCat(path, " is given, must be absent with lr_scheduler_type \"",
                                      training.lr_scheduler_type(), "\", which takes ",
                                      taken.empty() ? "none" : absl::StrJoin(taken, ", "))});
  }
}

// The lowest rate of the schedules that need one: as a rate, or as a share.
void check_min_rate(const v1::Training& training, Violations& out) {
  const v1::LrSchedulerKwargs& kwargs = training.lr_scheduler_kwargs();
  if (kwargs.has_min_lr() == kwargs.has_min_lr_rate()) {
    out.push_back({kKwargs, absl::StrCat(kKwargs, " has ", kwargs.has_min_lr() ? "both" : "none of",
                                         " min_lr and min_lr_rate, must have one of them with "
                                         "lr_scheduler_type \"",
                                         training.lr_scheduler_type(), "\"")});
  } else if (kwargs.has_min_lr() && training.learning_rate() == 0) {
    out.push_back({"training.learning_rate",
                   "training.learning_rate is 0, must be above 0 with "
                   "lr_scheduler_kwargs.min_lr, which is a share of it"});
  }
}

void check_metric(const v1::JobSpec& spec, Violations& out) {
  const std::string& name = spec.training().metric_for_best_model();
  if (name.empty() || metrics_of(spec.method()).empty()) return;
  const auto known = evaluation_metrics(spec);
  if (std::find(known.begin(), known.end(), without_eval_prefix(name)) != known.end()) return;
  out.push_back({"training.metric_for_best_model",
                 absl::StrCat("training.metric_for_best_model is \"", name,
                              "\", must be a metric of the method: ", absl::StrJoin(known, ", "))});
}

bool needs_metric(const v1::Training& training) {
  return training.load_best_model_at_end() || training.early_stopping_patience() > 0 ||
         training.save_strategy() == "best" ||
         training.lr_scheduler_type() == "reduce_lr_on_plateau";
}

// A checkpoint of the best evaluation exists only where each checkpoint falls on an evaluation.
void check_best_model(const v1::Training& training, Violations& out) {
  constexpr char kField[] = "training.load_best_model_at_end";
  if (!training.load_best_model_at_end() || training.save_strategy() == "best") return;
  if (training.save_strategy() != training.eval_strategy()) {
    out.push_back({kField, absl::StrCat(kField, " is true, must be false with save_strategy \"",
                                        training.save_strategy(), "\" and eval_strategy \"",
                                        training.eval_strategy(),
                                        "\": they must be the same, or save_strategy best")});
    return;
  }
  if (training.eval_strategy() != "steps") return;
  const double eval_steps =
      training.has_eval_steps() ? training.eval_steps() : training.logging_steps();
  // In millionths, as transformers compares shares.
  const bool shares = training.save_steps() < 1 && eval_steps < 1;
  const double scale = shares ? 1e6 : 1;
  if ((training.save_steps() < 1) != (eval_steps < 1) ||
      std::fmod(training.save_steps() * scale, eval_steps * scale) != 0) {
    out.push_back(
        {"training.save_steps", absl::StrCat("training.save_steps is ", training.save_steps(),
                                             ", must be a multiple of eval_steps (", eval_steps,
                                             ") with load_best_model_at_end")});
  }
}

}  // namespace

void check_evaluation(const v1::JobSpec& spec, Violations& out) {
  const v1::Training& training = spec.training();
  const bool has_data = !spec.data().eval().empty();
  check_metric(spec, out);
  if (training.eval_strategy() != "no" && training.has_eval_strategy() && !has_data) {
    out.push_back({"training.eval_strategy",
                   absl::StrCat("training.eval_strategy is \"", training.eval_strategy(),
                                "\", must be \"no\" when data.eval is absent")});
  }
  if (training.eval_on_start() && !has_data) {
    out.push_back({"training.eval_on_start",
                   "training.eval_on_start is true, must be false when data.eval is absent"});
  }
  if (needs_metric(training) && training.eval_strategy() == "no") {
    out.push_back({"training.eval_strategy",
                   "training.eval_strategy is \"no\", must be steps or epoch with "
                   "load_best_model_at_end, early_stopping_patience, save_strategy best or "
                   "lr_scheduler_type reduce_lr_on_plateau: they follow metric_for_best_model"});
    return;
  }
  check_best_model(training, out);
}

void check_schedule(const v1::Training& training, Violations& out) {
  refuse_foreign_kwargs(training, out);
  const std::string& type = training.lr_scheduler_type();
  const v1::LrSchedulerKwargs& kwargs = training.lr_scheduler_kwargs();
  if (type == "cosine_with_min_lr" || type == "cosine_warmup_with_min_lr")
    check_min_rate(training, out);
  const double lr_end = kwargs.has_lr_end() ? kwargs.lr_end() : 1e-7;
  if (type == "polynomial" && training.learning_rate() <= lr_end) {
    out.push_back({"training.learning_rate",
                   absl::StrCat("training.learning_rate is ", training.learning_rate(),
                                ", must be above lr_scheduler_kwargs.lr_end (", lr_end, ")")});
  }
  if (type == "warmup_stable_decay" && !kwargs.has_num_decay_steps()) {
    const std::string path = absl::StrCat(kKwargs, ".num_decay_steps");
    out.push_back(
        {path, absl::StrCat(path, " is missing: lr_scheduler_type \"", type, "\" needs it")});
  }
}

}  // namespace tessera::spec
