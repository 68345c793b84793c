// Whether a job may run, and with which memory techniques: checked and rehearsed on an agent's
// machine before it is accepted, and planned anew when it ran out of memory.
//
// Belongs to the control loop's thread.
#pragma once

#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/agents/probes.h"
#include "server/jobs/store.h"

namespace tessera::server {

class Admission {
 public:
  struct Outcome {
    // OK: accepted. INVALID_ARGUMENT with the broken rules, FAILED_PRECONDITION where it cannot
    // fit.
    absl::Status status;
    // One sentence on who checked, or why nobody did.
    std::string note;
    // Defaults filled in, with what the planner set.
    v1::JobSpec spec;
    std::optional<v1::Rehearsal> rehearsal;
    // Where the planner set something.
    std::optional<v1::PlanChosen> plan;
  };
  using Done = absl::AnyInvocable<void(Outcome)>;
  using PlanDone = absl::AnyInvocable<void(absl::StatusOr<v1::Plan>)>;

  Admission(const Nodes& nodes, Probes& probes, Store& store, absl::Duration check_timeout)
      : nodes_(nodes), probes_(probes), store_(store), check_timeout_(check_timeout) {}

  // `submitted` as it came, `spec` with defaults filled in and valid. Calls `done` once. Where no
  // agent answers, nothing is known against the job, and it is accepted.
  void start(const v1::JobSpec& submitted, const v1::JobSpec& spec, Done done);

  // The plan for a request of anybody; `spec` is the request's, defaults filled in and valid. What
  // the request leaves open is that of the devices that are here, as for a job that is submitted.
  // INVALID_ARGUMENT, UNAVAILABLE.
  void plan(v1::PlanRequest request, const v1::JobSpec& spec, PlanDone done);

  // After a run with `failed` ran out of memory: the next plan. The outcome's status is
  // FAILED_PRECONDITION where there is none, UNAVAILABLE where no agent answers.
  void replan(const v1::JobSpec& submitted, const v1::JobSpec& failed, Done done);

 private:
  // Why the job would wait for ever, where that is known.
  std::optional<v1::Failure> misfit(const v1::JobSpec& spec) const;
  void checked(const v1::JobSpec& submitted, Outcome outcome, const v1::CheckResult& result,
               Done done);
  // Why a plan is wanted for a job.
  enum class Need { kDoesNotFit, kWantsChoice, kFailed };
  // Plans for the outcome's spec, and concludes.
  void plan_to_fit(const v1::JobSpec& submitted, Outcome outcome, Need need, Done done);
  void conclude(const v1::JobSpec& submitted, Need need, const absl::StatusOr<v1::Plan>& plan,
                Outcome& outcome);
  double peak_ratio(const v1::JobSpec& spec);

  const Nodes& nodes_;
  Probes& probes_;
  Store& store_;
  const absl::Duration check_timeout_;
};

}  // namespace tessera::server
