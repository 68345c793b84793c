// The life of an attempt: from placement over its two-phase start to the last of its processes.
//
// Belongs to the control loop's thread. All of an attempt that must survive a crash is in its
// JobRecord; here are only deadlines, which start anew with the process, and what explains a hang.
//
// An attempt is over when every node of its gang has ended: it said RunEnded, it refused to
// prepare, it came back without the run, or it was silent for so long that it fenced itself. What
// then became of the ranks decides the job's next state. Messages to agents may be sent twice (a
// reconnect, a kill that is repeated); an agent takes each as often as it comes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/hangs.h"
#include "server/agents/nodes.h"
#include "server/agents/stragglers.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

struct GangOptions {
  // From Prepare to the last Prepared, and from Start to the last Started.
  absl::Duration start_timeout = absl::Seconds(30);
  // What ranks get to end by themselves once another one failed, and once the job is cancelled.
  absl::Duration restart_grace = absl::Seconds(3);
  absl::Duration cancel_grace = absl::Seconds(10);
};

class Gangs {
 public:
  Gangs(JobTable& jobs, Nodes& nodes, Store& store, const Clock& clock, GangOptions options);

  // QUEUED to STARTING: a new attempt, one rank a spot. Fewer than the job asks for run the job
  // that spec::with_processes() makes of it.
  void launch(JobRecord& record, const std::vector<Spot>& spots);
  // To CANCELLING, or to CANCELLED at once where there is no gang. An ended or ending job stays as
  // it is.
  void cancel(JobRecord& record);
  // Ends the attempt at a checkpoint: to STOPPING from STARTING and RUNNING; in STOPPING and
  // RESTARTING what follows is changed. `failure`: of TIME. Requires: one of these states.
  void stop(JobRecord& record, Stop::Kind kind, const std::string& reason,
            const v1::Failure* failure = nullptr);
  // A RESTARTING job without a gang goes on: back to QUEUED, or to what its stop says.
  void requeue(JobRecord& record, const std::string& reason, const v1::Failure* failure = nullptr);

  // What a node says of a run. Anything about another attempt than the current one is ignored.
  void prepared(const std::string& node, const v1::Prepared& message);
  void events(const std::string& node, const v1::EventBatch& batch);
  void rank_exited(const std::string& node, const v1::RankExited& message);
  void run_ended(const std::string& node, const v1::RunEnded& message);
  // All ranks are asked what they wait for; the answers, or kMaxInquiry, end the attempt as HANG.
  void rank_hung(const std::string& node, const v1::RankHung& message);

  // Has ranks of a RUNNING job write traces. FAILED_PRECONDITION; INVALID_ARGUMENT: no such rank.
  absl::Status trace(const JobRecord& record, const v1::TraceJobRequest& request);
  // Asks all ranks for a record of their collectives. FAILED_PRECONDITION: they do not run.
  absl::Status record_collectives(const JobRecord& record);

  // Cursors of the runs of a Hello that are still wanted.
  std::vector<v1::Cursor> cursors(const v1::Hello& hello);
  // The node is back, and has been welcomed: repeats what it may have missed, and gives up what it
  // lost.
  void rejoined(const v1::Hello& hello);
  // The node's ranks have ended themselves; `why` is one sentence.
  void give_up(const std::string& node, const std::string& why);
  // The machines of the job's attempt are taken from it: an attempt that starts or runs has failed.
  // Requires: it has a gang.
  void break_up(JobRecord& record, const v1::Failure& failure);
  // Numbers of the jobs whose allocation the cluster has taken from them since the last call, as
  // their agents tell: nothing is to be started on it any more.
  std::set<int64_t> take_evicted() { return std::exchange(evicted_, {}); }
  // A job without a gang failed to start: it waits a while, or FAILED where its restarts are used
  // up. Says whether it goes on.
  bool count_restart(JobRecord& record, const v1::Failure& failure);

  // Deadlines of starts and inquiries, and kills that are repeated.
  void tick();

  // On the clock's uptime: when a queued job may start.
  absl::Duration not_before(const JobRecord& record) const;
  // On the clock's uptime: when its devices were taken. Requires: it has a gang.
  absl::Duration began(const JobRecord& record) const { return timings_.at(record.number()).begin; }
  // How long its attempts held their devices, all together.
  absl::Duration run_time(const JobRecord& record) const;
  // From now, after which its devices are free in any case. Requires: it has a gang.
  absl::Duration time_to_end(const JobRecord& record) const;
  // Jobs with a gang.
  const std::map<int64_t, JobRecord*>& active() const { return active_; }
  const GangOptions& options() const { return options_; }

 private:
  struct Timing {
    absl::Duration start_deadline;
    absl::Duration next_kill;
    absl::Duration not_before;
    // When the devices were taken.
    absl::Duration begin;
    // When STOPPING ranks are killed.
    absl::Duration stop_deadline;
  };

  // The record and its gang's entry of the node, if `run` is the current attempt and lives there.
  struct Member {
    JobRecord* record = nullptr;
    GangNode* node = nullptr;
    explicit operator bool() const { return node != nullptr; }
  };
  Member find(const std::string& node, const v1::RunId& run);

  // What ranks told of their collectives and have not gone on since, for when they hang.
  struct Inquiry {
    spec::HangReport report;
    std::optional<absl::Duration> deadline;  // set while they are asked, as the next ones
    int rank = -1;                           // that hangs; -1: which one is not known
    absl::Duration idle;
    // On the clock's uptime: when any rank last went on.
    absl::Duration last_progress;
    // Between two such times.
    absl::Duration longest_silence;
    // When ranks were asked since, as none of them goes on.
    std::optional<absl::Duration> suspected_at;
  };

  // To these ranks; none: to all.
  void relay(const JobRecord& record, const v1::TrainerCommand& command,
             const std::vector<int>& ranks = {});
  void note_collectives(JobRecord& record, int rank, const v1::TrainerEvent& event);
  void conclude(JobRecord& record);
  void check_inquiries();
  // Asks the ranks of a running gang that has been silent for a part of its hang_timeout, and ends
  // the attempt where some answer, and wait for one that does not.
  void suspect(JobRecord& record);
  void check_suspicion(JobRecord& record, Inquiry& inquiry);
  // Whether the coordinator has heard of all nodes of the gang since.
  bool heard_since(const JobRecord& record, absl::Duration time) const;
  // The failure, with what ranks waited for when it came where that explains it.
  v1::Failure explained(JobRecord& record, v1::Failure cause);
  void watch_stragglers(JobRecord& record, const v1::StepMetrics& step);
  void send_prepare(const JobRecord& record, const std::string& node);
  void send_start(const JobRecord& record, const std::string& node);
  void send_kill(JobRecord& record);
  void apply(JobRecord& record, int rank, const v1::TrainerEvent& event);
  bool is_known(const JobRecord& record, int rank, const v1::TrainerEvent& event);
  void rank_started(JobRecord& record, int rank, const v1::Started& started);
  void rank_finished(JobRecord& record, int rank, const v1::Finished& finished);
  void checkpoint_saved(JobRecord& record, const v1::CheckpointSaved& checkpoint);
  // Compares the first steps with the rehearsal.
  void memory_seen(JobRecord& record, int rank, const v1::MemorySnapshot& memory);
  // Notes the failure; the first one ends the attempt.
  void fail(JobRecord& record, const v1::Failure& failure);
  // Moves the job on once its attempt is over.
  void settle(JobRecord& record);
  void settle_failed(JobRecord& record);
  void settle_stopped(JobRecord& record);
  void succeed(JobRecord& record);
  // The state after an attempt that was stopped.
  void follow_stop(JobRecord& record);
  // Whether the job, out of memory, waits for another plan.
  bool settle_for_replan(JobRecord& record, const v1::Failure& cause);
  void release(JobRecord& record);
  // An agent of the job's allocation ends what the coordinator wants to go on: only the cluster can
  // have told it to. Nothing where the job has none.
  void evict(const JobRecord& record);

  JobTable& jobs_;
  Nodes& nodes_;
  Store& store_;
  const Clock& clock_;
  const GangOptions options_;
  std::map<int64_t, Timing> timings_;
  std::map<int64_t, JobRecord*> active_;
  std::map<int64_t, Inquiry> inquiries_;
  std::map<int64_t, StragglerRule> stragglers_;
  std::set<int64_t> evicted_;
  // Step of the latest evaluation that was told of, of jobs whose ranks repeat some.
  std::map<int64_t, int> last_evals_;
};

// Where the rank runs; empty: it has no place.
std::string node_of(const JobRecord& record, int rank);

// Of the attempt that the record stores.
v1::RunId run_of(const JobRecord& record);
v1::Failure make_failure(v1::Failure::Kind kind, const std::string& message, int rank = -1);

// Of a job that ran for longer than it may.
v1::Failure time_failure(absl::Duration limit);

// Beyond a job's grace period, until processes that were killed are known to be gone.
inline constexpr absl::Duration kStopSlack = absl::Seconds(10);
// resources.grace_period.
absl::Duration grace_period(const JobRecord& record);
// resources.time_limit; InfiniteDuration(): none.
absl::Duration time_limit(const JobRecord& record);

// The failure that explains the others best: by kind, then the earliest. Requires: not empty.
const v1::Failure& root_cause(const google::protobuf::RepeatedPtrField<v1::Failure>& failures);

}  // namespace tessera::server
