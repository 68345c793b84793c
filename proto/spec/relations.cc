#include "proto/spec/relations.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"
#include "proto/spec/elastic.h"
#include "proto/spec/method_relations.h"
#include "proto/spec/online_relations.h"
#include "proto/spec/reward_relations.h"
#include "proto/spec/training_relations.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

void check_name(const char* field, const std::string& name, Violations& out) {
  for (const char c : name) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.') continue;
    out.push_back({field, absl::StrCat(field, " is \"", name.substr(0, 64),
                                       "\", must hold only letters, digits, '-', '_' and '.'")});
    return;
  }
}

void check_method(const v1::Method& method, Violations& out) {
  if (method.kind_case() == v1::Method::KIND_NOT_SET) {
    out.push_back({"method",
                   "method is empty, must hold exactly one training method: sft, dpo, kto, reward, "
                   "gkd, grpo, rloo, online_dpo or ppo"});
    return;
  }
  const v1::Sft& sft = method.sft();
  if (sft.packing() && sft.has_max_length() && sft.max_length() == 0) {
    out.push_back(
        {"method.sft.max_length",
         "method.sft.max_length is 0, must be above 0 with packing: it is the row length"});
  }
}

void check_data(const v1::Data& data, Violations& out) {
  if (data.train().empty() && data.mixture().empty() && data.rollouts().empty()) {
    out.push_back({"data.train", "data.train is missing"});
  }
  if (!data.train().empty() && !data.mixture().empty()) {
    out.push_back({"data.mixture",
                   "data.mixture is given beside data.train, must be the only one of the two"});
  }
}

// Steps that are whole, or a share.
void check_steps(const char* field, double steps, Violations& out) {
  if (steps < 1 || !std::isfinite(steps) || steps == std::floor(steps)) return;
  out.push_back({field, absl::StrCat(field, " is ", steps,
                                     ", must be a whole number of steps, or below 1 a share of "
                                     "them")});
}

void check_training(const v1::JobSpec& spec, Violations& out) {
  const v1::Training& training = spec.training();
  if (training.has_max_steps() && training.max_steps() == 0) {
    out.push_back(
        {"training.max_steps",
         "training.max_steps is 0, must be above 0, or -1 to let num_train_epochs decide"});
  }
  check_steps("training.warmup_steps", training.warmup_steps(), out);
  check_steps("training.save_steps", training.save_steps(), out);
  check_steps("training.eval_steps", training.eval_steps(), out);
  check_steps("training.logging_steps", training.logging_steps(), out);
  if (training.has_average_tokens_across_devices() && !training.average_tokens_across_devices() &&
      spec.parallelism().num_processes() > 1) {
    out.push_back({"training.average_tokens_across_devices",
                   absl::StrCat("training.average_tokens_across_devices is false, must be true "
                                "with parallelism.num_processes ",
                                spec.parallelism().num_processes(),
                                ": every label token of a step counts the same")});
  }
  for (const int32_t step : training.profile_steps()) {
    if (step >= 1) continue;
    out.push_back({"training.profile_steps", absl::StrCat("training.profile_steps holds ", step,
                                                          ", must hold steps, which begin at 1")});
  }
  check_evaluation(spec, out);
  check_schedule(training, out);
}

void check_mesh(const v1::Parallelism& mesh, Violations& out) {
  const int64_t others = int64_t{mesh.dp_replicate_size()} * mesh.cp_size();
  if (!mesh.has_dp_shard_size()) {
    if (others > 0 && mesh.num_processes() > 0) {
      out.push_back({"parallelism.num_processes",
                     absl::StrCat("parallelism.num_processes is ", mesh.num_processes(),
                                  ", must be a multiple of dp_replicate_size * cp_size = ",
                                  mesh.dp_replicate_size(), " * ", mesh.cp_size(), " = ", others)});
    }
    return;
  }
  const int64_t product = others * mesh.dp_shard_size();
  if (product == mesh.num_processes()) return;
  out.push_back({"parallelism.num_processes",
                 absl::StrCat("parallelism.num_processes is ", mesh.num_processes(),
                              ", must be dp_replicate_size * dp_shard_size * cp_size = ",
                              mesh.dp_replicate_size(), " * ", mesh.dp_shard_size(), " * ",
                              mesh.cp_size(), " = ", product)});
}

// Of fewer ranks: with rules kept, their number over cp_size divides what it was.
void check_elastic(const v1::JobSpec& spec, Violations& out) {
  const v1::Parallelism& mesh = spec.parallelism();
  if (!mesh.has_min_num_processes()) return;
  const int least = mesh.min_num_processes(), most = mesh.num_processes();
  const char* field = "parallelism.min_num_processes";
  if (least > most) {
    out.push_back(
        {field, absl::StrCat(field, " is ", least,
                             ", must be at most parallelism.num_processes, which is ", most)});
  } else if (least < most && out.empty() && process_counts(spec).size() == 1) {
    out.push_back({field, absl::StrCat(field, " is ", least, ", must leave a smaller number of ",
                                       "ranks to run with: a multiple of cp_size = ",
                                       mesh.cp_size(), " that divides ", most,
                                       ", with which the other fields keep their rules")});
  }
}

void check_resources(const v1::Resources& resources, Violations& out) {
  const std::string& memory = resources.device_memory();
  if (!resources.has_device_memory() || parse_device_memory(memory)) return;
  out.push_back({"resources.device_memory", absl::StrCat("resources.device_memory is \"", memory,
                                                         "\", must be ", kDeviceMemoryRule)});
}

}  // namespace

void fill_mesh(v1::Parallelism& mesh) {
  const int64_t others = int64_t{mesh.dp_replicate_size()} * mesh.cp_size();
  if (mesh.has_dp_shard_size() || others <= 0 || mesh.num_processes() <= 0) return;
  if (mesh.num_processes() % others != 0) return;
  mesh.set_dp_shard_size(static_cast<int32_t>(mesh.num_processes() / others));
}

void fill_learning_rate(v1::JobSpec& spec) {
  if (spec.training().has_learning_rate()) return;
  const v1::Method& method = spec.method();
  const auto rate = [&] {
    switch (method.kind_case()) {
      case v1::Method::kDpo:
      case v1::Method::kKto:
      case v1::Method::kGrpo:
      case v1::Method::kRloo:
        return 1e-6;
      case v1::Method::kReward:
        return 1e-4;
      case v1::Method::kOnlineDpo:
        return 5e-7;
      case v1::Method::kPpo:
        return 3e-6;
      case v1::Method::kSft:
      case v1::Method::kGkd:
      case v1::Method::KIND_NOT_SET:
        break;
    }
    return 2e-5;
  };
  spec.mutable_training()->set_learning_rate(rate());
}

void validate_relations(const v1::JobSpec& spec, Violations& out) {
  check_name("name", spec.name(), out);
  check_name("project", spec.project(), out);
  if (spec.has_method()) check_method(spec.method(), out);
  check_method_relations(spec, out);
  check_online_relations(spec, out);
  check_reward_relations(spec, out);
  if (spec.has_data()) check_data(spec.data(), out);
  if (spec.has_training()) check_training(spec, out);
  if (spec.has_parallelism()) check_mesh(spec.parallelism(), out);
  if (spec.has_resources()) check_resources(spec.resources(), out);
  if (spec.has_parallelism()) check_elastic(spec, out);
}

}  // namespace tessera::spec
