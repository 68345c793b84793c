#include "server/agents/admission.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"
#include "proto/spec/elastic.h"
#include "proto/spec/fields.h"
#include "proto/spec/rules.h"
#include "server/agents/device_kinds.h"
#include "server/agents/plan_text.h"
#include "server/jobs/errors.h"
#include "server/launchers/launches.h"

namespace tessera::server {
namespace {

// Of what a plan takes, the rehearsals; a job that fits nowhere is refused within a few seconds.
constexpr double kPlanSeconds = 3;

absl::Status invalid(const v1::Failure& failure) {
  return invalid_request({{failure.field(), failure.message()}});
}

// Of the violations that a check found. What broke the check itself is no mistake of the user's.
absl::Status refusal(const google::protobuf::RepeatedPtrField<v1::Failure>& failures) {
  std::vector<spec::Violation> violations;
  for (const v1::Failure& failure : failures) {
    if (failure.kind() != v1::Failure::USER) {
      return error(absl::StatusCode::kInternal, "PROBE_FAILED", failure.message());
    }
    violations.push_back({failure.field(), failure.message()});
  }
  return invalid_request(violations);
}

absl::Status out_of_memory(const std::string& message) {
  return error(absl::StatusCode::kFailedPrecondition, "OUT_OF_MEMORY", message);
}

v1::PlanChosen chosen(const v1::Plan& plan, const std::string& why) {
  v1::PlanChosen event;
  *event.mutable_changes() = plan.choice().changes();
  *event.mutable_rehearsal() = plan.choice().rehearsal();
  event.set_device_memory_bytes(plan.device_memory_bytes());
  event.set_time_ratio(plan.choice().time_ratio());
  event.set_reason(why);
  return event;
}

// Makes the outcome's job that of the plan's choice. INTERNAL: the agent that made it knows other
// fields than this coordinator.
absl::Status take_choice(const v1::JobSpec& submitted, const v1::Plan& plan,
                         Admission::Outcome& outcome) {
  v1::JobSpec spec = submitted;
  spec::fill_defaults(spec);
  for (const v1::FieldChange& change : plan.choice().changes()) {
    if (spec::set_field(spec, change.field(), change.value())) continue;
    return error(absl::StatusCode::kInternal, "BAD_PLAN",
                 absl::StrCat("the plan sets ", change.field(), " to \"", change.value(),
                              "\", which is no value of a field"));
  }
  outcome.spec = std::move(spec);
  outcome.rehearsal = plan.choice().rehearsal();
  outcome.plan = chosen(plan, describe_choice(plan));
  return absl::OkStatus();
}

}  // namespace

std::optional<v1::Failure> Admission::misfit(const v1::JobSpec& spec) const {
  if (is_launched(spec)) return std::nullopt;
  const std::string& kind = spec.resources().device();
  const std::string model = absl::AsciiStrToLower(spec.resources().device_model());
  const bool elastic = spec.parallelism().has_min_num_processes();
  const int wanted = spec::process_counts(spec).back();
  int of_kind = 0, present = 0;
  bool is_any_ready = false;
  for (const auto& [name, node] : nodes_.all()) {
    if (!node.info.allocation().empty()) continue;
    // A node that is away may hold what the others lack.
    if (!takes_work(node)) return std::nullopt;
    is_any_ready = true;
    for (const v1::Device& device : node.info.devices()) {
      if (device.kind() != kind) continue;
      ++of_kind;
      present += absl::StrContains(absl::AsciiStrToLower(device.model()), model);
    }
    // Most jobs are small beside the cluster: they cost as much as they need of it.
    if (wanted <= present) return std::nullopt;
  }
  if (!is_any_ready) return std::nullopt;
  v1::Failure failure;
  failure.set_kind(v1::Failure::USER);
  failure.set_rank(-1);
  if (of_kind > 0 && present == 0) {
    failure.set_field("resources.device_model");
    failure.set_message(absl::StrCat("resources.device_model is \"", model,
                                     "\", and no connected node has a ", kind,
                                     " device of such a model"));
  } else if (present == 0) {
    failure.set_field("resources.device");
    failure.set_message(absl::StrCat("resources.device is \"", kind,
                                     "\", and no connected node has such a device"));
  } else {
    failure.set_field(elastic ? "parallelism.min_num_processes" : "parallelism.num_processes");
    failure.set_message(absl::StrCat(failure.field(), " is ", wanted,
                                     ", must be at most the number of ", kind,
                                     model.empty() ? "" : absl::StrCat(" ", model),
                                     " devices of all nodes, which is ", present));
  }
  return failure;
}

double Admission::peak_ratio(const v1::JobSpec& spec) {
  // Fewer bytes than predicted are luck of the data.
  return std::max(1.0, store_.peak_ratio(device_of_job(spec, nodes_)));
}

void Admission::start(const v1::JobSpec& submitted, const v1::JobSpec& spec, Done done) {
  Outcome outcome;
  outcome.spec = spec;
  if (const auto failure = misfit(spec)) {
    outcome.status = invalid(*failure);
    return done(std::move(outcome));
  }
  v1::Probe probe;
  *probe.mutable_check() = spec;
  probes_.start(std::move(probe), spec.resources().device(), check_timeout_,
                [this, submitted, outcome = std::move(outcome),
                 done = std::move(done)](absl::StatusOr<v1::Probed> answer) mutable {
                  if (answer.ok()) {
                    return checked(submitted, std::move(outcome), answer->checked(),
                                   std::move(done));
                  }
                  if (absl::IsUnavailable(answer.status())) {
                    outcome.note = absl::StrCat("accepted unchecked: ", answer.status().message());
                  } else {
                    outcome.status = answer.status();
                  }
                  done(std::move(outcome));
                });
}

void Admission::checked(const v1::JobSpec& submitted, Outcome outcome,
                        const v1::CheckResult& result, Done done) {
  outcome.note = "checked by an agent";
  if (!result.violations().empty()) {
    outcome.status = refusal(result.violations());
    return done(std::move(outcome));
  }
  if (!result.has_rehearsal()) return done(std::move(outcome));
  outcome.rehearsal = result.rehearsal();
  const int64_t known = known_device_memory(outcome.spec, nodes_);
  const double peak =
      peak_ratio(outcome.spec) * static_cast<double>(result.rehearsal().peak_bytes());
  outcome.note = absl::StrCat("checked by an agent; a rank will hold at most ",
                              spec::format_bytes(result.rehearsal().peak_bytes()), " of tensors");
  const bool fits = known == 0 || peak <= static_cast<double>(known);
  if (fits && !outcome.spec.memory().auto_()) return done(std::move(outcome));
  plan_to_fit(submitted, std::move(outcome), fits ? Need::kWantsChoice : Need::kDoesNotFit,
              std::move(done));
}

void Admission::plan(v1::PlanRequest request, const v1::JobSpec& spec, PlanDone done) {
  if (!request.has_device()) {
    request.set_device_model(device_of_job(spec, nodes_));
    if (request.peak_ratio() == 0) request.set_peak_ratio(peak_ratio(spec));
    // More ranks than there are would not share the memory of a CPU that is here.
    const int64_t memory = request.has_world_size() ? known_device_memory(spec, nodes_)
                                                    : device_memory_to_plan_for(spec, nodes_);
    if (memory > 0 && !request.has_device_memory()) request.set_device_memory(absl::StrCat(memory));
  }
  v1::Probe probe;
  *probe.mutable_plan() = std::move(request);
  probes_.start(std::move(probe), spec.resources().device(), check_timeout_,
                [done = std::move(done)](absl::StatusOr<v1::Probed> answer) mutable {
                  if (!answer.ok()) return done(answer.status());
                  done(answer->planned());
                });
}

void Admission::replan(const v1::JobSpec& submitted, const v1::JobSpec& failed, Done done) {
  Outcome outcome;
  outcome.spec = failed;
  plan_to_fit(submitted, std::move(outcome), Need::kFailed, std::move(done));
}

void Admission::plan_to_fit(const v1::JobSpec& submitted, Outcome outcome, Need need, Done done) {
  v1::PlanRequest request;
  *request.mutable_spec() = submitted;
  request.set_max_seconds(kPlanSeconds);
  if (need == Need::kFailed) *request.mutable_failed() = outcome.spec;
  const v1::JobSpec spec = outcome.spec;
  plan(std::move(request), spec,
       [this, submitted, need, outcome = std::move(outcome),
        done = std::move(done)](const absl::StatusOr<v1::Plan>& plan) mutable {
         conclude(submitted, need, plan, outcome);
         done(std::move(outcome));
       });
}

void Admission::conclude(const v1::JobSpec& submitted, Need need,
                         const absl::StatusOr<v1::Plan>& plan, Outcome& outcome) {
  const bool takes_choice = need == Need::kFailed || outcome.spec.memory().auto_();
  if (!plan.ok()) {
    if (need == Need::kFailed) {
      outcome.status = plan.status();
    } else if (need == Need::kDoesNotFit) {
      outcome.status = out_of_memory(
          absl::StrCat(describe_need(outcome.rehearsal->peak_bytes(), peak_ratio(outcome.spec),
                                     known_device_memory(outcome.spec, nodes_)),
                       "; what would make it fit is not known: ", plan.status().message()));
    }
    // Without a choice the job as written is as good as it was.
    absl::StrAppend(&outcome.note, "; not planned: ", plan.status().message());
  } else if (takes_choice && plan->has_choice()) {
    outcome.status = take_choice(submitted, *plan, outcome);
  } else if (need == Need::kFailed) {
    outcome.status = out_of_memory(describe_exhausted(*plan));
  } else if (plan->fits()) {
    outcome.rehearsal = plan->as_written();
    absl::StrAppend(&outcome.note, takes_choice
                                       ? "; it fits as written, and nothing that was tried "
                                         "leaves memory.auto_margin free, too"
                                       : "");
  } else {
    outcome.status = out_of_memory(describe_misfit(*plan));
  }
}

}  // namespace tessera::server
