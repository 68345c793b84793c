// The coordinator without its wires: what clients and agents ask, and what time brings.
//
// Every method runs on the control loop's thread. Answers go out through AfterCommit, so they never
// tell of what a crash could undo.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/agents/admission.h"
#include "server/agents/dispatch.h"
#include "server/agents/gangs.h"
#include "server/agents/lifetimes.h"
#include "server/agents/nodes.h"
#include "server/jobs/job_table.h"
#include "server/jobs/store.h"
#include "server/launchers/launches.h"

namespace tessera::server {

struct ControlOptions {
  LeaseOptions lease;
  GangOptions gang;
  // A project's use of devices counts half as much after this long.
  absl::Duration fair_share_half_life = absl::Hours(24);
  absl::Duration check_timeout = absl::Seconds(60);
  LaunchOptions launch;
};

class Control {
 public:
  using JobReply = absl::AnyInvocable<void(absl::StatusOr<v1::Job>)>;
  using PlanReply = absl::AnyInvocable<void(absl::StatusOr<v1::PlanJobResponse>)>;
  // Gets every part, and the status once no more come.
  using GenerateParts = absl::AnyInvocable<void(const v1::GeneratedPart&)>;
  using GenerateEnd = absl::AnyInvocable<void(const absl::Status&)>;
  using ProfileReply = absl::AnyInvocable<void(absl::StatusOr<v1::DataProfile>)>;
  // Told what was committed, right after it was.
  using Observer = std::function<void(const std::vector<JobChange>&)>;

  Control(Store& store, const Clock& clock, ControlOptions options,
          std::function<uint32_t()> random, AfterCommit after_commit, Observer observer);

  // Before anything else: jobs may name this launcher.
  void add_launcher(std::shared_ptr<LaunchThread> launcher) { launches_.add(std::move(launcher)); }

  // Clients.
  void submit(v1::SubmitJobRequest request, JobReply reply);
  void cancel(const std::string& id, JobReply reply);
  void suspend(const std::string& id, JobReply reply);
  void resume(const std::string& id, JobReply reply);
  // Of ranks of a running job: answered once they are asked. See Gangs.
  void trace(const v1::TraceJobRequest& request, JobReply reply);
  void record_collectives(const std::string& id, JobReply reply);
  v1::ListQueueResponse queue(size_t limit) const { return dispatch_.queue(limit); }
  // The answer may be given once committed.
  absl::StatusOr<v1::Project> set_project(const v1::Project& project);
  std::vector<v1::Project> projects() const { return dispatch_.projects(); }
  std::vector<v1::Node> nodes() const;
  void plan(v1::PlanRequest request, PlanReply reply);
  void profile(v1::InspectRequest request, ProfileReply reply);
  // The request names a model. Returns a number to cancel it by; 0: it has ended.
  int64_t generate(v1::GenerateRequest request, GenerateParts parts, GenerateEnd end);
  // `end` is not called then.
  void cancel_generation(int64_t number) { probes_.cancel(number); }

  // Sessions of agents: hello first, closed last. Messages of a superseded session are dropped.
  void hello(const std::shared_ptr<AgentLink>& link, const v1::Hello& hello);
  void receive(const std::shared_ptr<AgentLink>& link, const v1::SessionRequest& message);
  void closed(const std::shared_ptr<AgentLink>& link);

  const JobTable& jobs() const { return jobs_; }

  // Answers what waits, ends all sessions, and refuses new ones.
  void shut_down();

  // The store cannot be written, and what was done since the last commit is not so: answers what
  // waits with `why`, and from now on everything that would change or read the store. Sessions
  // stay, their heartbeats are answered, all else that they bring is dropped. There is no way back:
  // make another Control.
  void begin_outage(absl::Status why);
  // OK: there is none.
  const absl::Status& outage() const { return outage_; }
  void end_sessions(const absl::Status& why) { nodes_.end_all(why); }

  // Leases and deadlines.
  void tick();
  // Ends a round: places queued jobs, writes, commits, tells the observer.
  void commit();

 private:
  // The job that the request id made before; NOT_FOUND: none.
  absl::StatusOr<v1::Job> submitted_before(const v1::SubmitJobRequest& request);
  void accept(const v1::SubmitJobRequest& request, const Admission::Outcome& outcome,
              JobReply reply);
  void answer(JobReply reply, absl::StatusOr<v1::Job> job);
  // UNAVAILABLE: shutting down; or why the store cannot be written.
  absl::Status takes_changes() const;
  // Whether an agent may be asked one question more. UNAVAILABLE, RESOURCE_EXHAUSTED.
  absl::Status can_ask() const;
  // Plans jobs that ran out of memory, and puts them back into the queue.
  void replan();
  void replanned(const std::string& job_id, const Admission::Outcome& outcome);
  // Lets `act` change an unfinished job; `unless` answers for one that has ended.
  void change(const std::string& id, JobReply reply,
              absl::AnyInvocable<absl::Status(JobRecord&)> act, const absl::Status& unless);

  Store& store_;
  const Clock& clock_;
  AfterCommit after_commit_;
  Observer observer_;
  JobTable jobs_;
  Nodes nodes_;
  Gangs gangs_;
  Lifetimes lifetimes_;
  Launches launches_;
  Dispatch dispatch_;
  Probes probes_;
  Admission admission_;
  // A job that waits for its next plan, by id. Of a hundred thousand there are few.
  struct Replanning {
    bool is_asked = false;
    int num_unanswered = 0;
    absl::Duration not_before;  // the next question, on Clock::uptime()
  };
  std::map<std::string, Replanning> replanning_;
  const absl::Duration replan_pause_;
  bool shutting_down_ = false;
  absl::Status outage_;
  // Something changed that the scheduler looks at.
  bool place_ = true;
  // A while has passed, and watchers of the queue may be told anew.
  bool explain_ = true;
};

}  // namespace tessera::server
