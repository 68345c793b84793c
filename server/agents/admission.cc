#include "server/agents/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"
#include "proto/spec/fields.h"
#include "server/agents/device_kinds.h"
#include "server/agents/plan_text.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

// Of what a plan takes, the rehearsals; a job that fits nowhere is refused within a few seconds.
constexpr double kPlanSeconds = 3;

absl::Status invalid(const google::protobuf::RepeatedPtrField<v1::Failure>& failures) {
  std::vector<spec::Violation> violations;
  for (const v1::Failure& failure : failures) {
    violations.push_back({failure.field(), failure.message()});
  }
  return invalid_request(violations);
}

absl::Status invalid(const v1::Failure& failure) {
  return invalid_request({{failure.field(), failure.message()}});
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

}  // namespace

std::optional<v1::Failure> Admission::misfit(const v1::JobSpec& spec) const {
  const std::vector<NodeView> ready = nodes_.ready();
  // A node that is away may hold what the others lack.
  if (ready.empty() || ready.size() < nodes_.all().size()) return std::nullopt;
  const std::string& kind = spec.resources().device();
  const int wanted = spec.parallelism().num_processes();
  int present = 0;
  for (const NodeView& node : ready) {
    for (const DeviceView& device : node.devices) present += device.kind == kind;
  }
  if (wanted <= present) return std::nullopt;
  v1::Failure failure;
  failure.set_kind(v1::Failure::USER);
  failure.set_rank(-1);
  if (present == 0) {
    failure.set_field("resources.device");
    failure.set_message(absl::StrCat("resources.device is \"", kind,
                                     "\", and no connected node has such a device"));
  } else {
    failure.set_field("parallelism.num_processes");
    failure.set_message(absl::StrCat("parallelism.num_processes is ", wanted,
                                     ", must be at most the number of ", kind,
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
                  if (!answer.ok()) {
                    outcome.note = absl::StrCat("accepted unchecked: ", answer.status().message());
                    return done(std::move(outcome));
                  }
                  if (answer->has_failure()) {
                    outcome.status = invalid(answer->failure());
                    return done(std::move(outcome));
                  }
                  checked(submitted, std::move(outcome), answer->checked(), std::move(done));
                });
}

void Admission::checked(const v1::JobSpec& submitted, Outcome outcome,
                        const v1::CheckResult& result, Done done) {
  outcome.note = "checked by an agent";
  if (!result.violations().empty()) {
    outcome.status = invalid(result.violations());
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
  plan_to_fit(submitted, std::move(outcome), /*failed=*/false, std::move(done));
}

v1::PlanRequest Admission::request_for(const v1::JobSpec& submitted, const v1::JobSpec& spec) {
  v1::PlanRequest request;
  *request.mutable_spec() = submitted;
  const int64_t memory = device_memory_to_plan_for(spec, nodes_);
  if (memory > 0) request.set_device_memory(absl::StrCat(memory));
  if (spec.resources().device() == "cuda") request.set_device(device_of_job(spec, nodes_));
  request.set_peak_ratio(peak_ratio(spec));
  request.set_max_seconds(kPlanSeconds);
  return request;
}

void Admission::plan(v1::PlanRequest request, PlanDone done) {
  v1::Probe probe;
  const std::string device = request.spec().resources().device();
  *probe.mutable_plan() = std::move(request);
  probes_.start(std::move(probe), device, check_timeout_,
                [done = std::move(done)](absl::StatusOr<v1::Probed> answer) mutable {
                  if (!answer.ok()) {
                    return done(error(absl::StatusCode::kUnavailable, "NO_AGENT",
                                      std::string(answer.status().message())));
                  }
                  const bool broke = answer->has_failure();
                  if (!broke && !answer->planned().has_failure()) return done(answer->planned());
                  const v1::Failure& why = broke ? answer->failure() : answer->planned().failure();
                  if (why.kind() == v1::Failure::USER) return done(invalid(why));
                  done(error(absl::StatusCode::kInternal, "PLAN_FAILED", why.message()));
                });
}

void Admission::replan(const v1::JobSpec& submitted, const v1::JobSpec& failed, Done done) {
  Outcome outcome;
  outcome.spec = failed;
  plan_to_fit(submitted, std::move(outcome), /*failed=*/true, std::move(done));
}

void Admission::plan_to_fit(const v1::JobSpec& submitted, Outcome outcome, bool failed, Done done) {
  v1::PlanRequest request = request_for(submitted, outcome.spec);
  if (failed) *request.mutable_failed() = outcome.spec;
  plan(std::move(request), [outcome = std::move(outcome), submitted, failed,
                            done = std::move(done)](absl::StatusOr<v1::Plan> plan) mutable {
    const bool wants_choice = outcome.spec.memory().auto_() || failed;
    if (!plan.ok()) {
      // Without a plan the job as written is as good as it was.
      if (failed) outcome.status = plan.status();
      absl::StrAppend(&outcome.note, "; not planned: ", plan.status().message());
    } else if (!wants_choice || !plan->has_choice()) {
      outcome.status = out_of_memory(describe_misfit(*plan));
    } else {
      outcome.spec = submitted;
      spec::fill_defaults(outcome.spec);
      for (const v1::FieldChange& change : plan->choice().changes()) {
        spec::set_field(outcome.spec, change.field(), change.value());
      }
      outcome.rehearsal = plan->choice().rehearsal();
      outcome.plan = chosen(*plan, describe_choice(*plan));
    }
    done(std::move(outcome));
  });
}

}  // namespace tessera::server
