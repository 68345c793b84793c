#include "server/telemetry/history.h"

#include "server/jobs/job_table.h"
#include "server/jobs/rank_times.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxKept = 300;
constexpr size_t kMaxRanks = 64;
constexpr size_t kMaxMemoryBuckets = 512;
constexpr size_t kMaxMemoryColumns = 40;

void keep(std::deque<v1::Event>& ring, const v1::Event& event) {
  ring.push_back(event);
  if (ring.size() > kMaxKept) ring.pop_front();
}

double seconds_of(const v1::Event& event) {
  return absl::ToDoubleSeconds(from_proto(event.time()) - absl::UnixEpoch());
}

template <typename Events>
void copy(const Events& events, google::protobuf::RepeatedPtrField<v1::Event>* to) {
  to->Assign(events.begin(), events.end());
}

}  // namespace

void History::add(const v1::Event& event) {
  revision_ = event.revision();
  switch (event.kind_case()) {
    case v1::Event::kStep:
      return add_step(event);
    case v1::Event::kEval:
      return add_eval(event);
    case v1::Event::kMemory:
      return add_memory(event);
    case v1::Event::kMemoryPeak:
      if (event.memory_peak().rank() < static_cast<int>(kMaxRanks)) {
        memory_peaks_[event.memory_peak().rank()] = event;
      }
      return;
    case v1::Event::kCheckpoint:
      return keep(checkpoints_, event);
    case v1::Event::kGeneration:
      return keep(generations_, event);
    case v1::Event::kTrace:
      return keep(traces_, event);
    case v1::Event::kCollectives:
      if (event.collectives().rank() < static_cast<int>(kMaxRanks)) {
        collectives_[event.collectives().rank()] = event;
        collectives_attempt_ = event.attempt();
      }
      return;
    case v1::Event::kLog:
      return keep(log_, event);
    // Kinds that come to be later are rare ones, too.
    default:
      return keep(milestones_, event);
  }
}

void History::add_step(const v1::Event& event) {
  const v1::StepMetrics& step = event.step();
  ThinSeries::Values values{{"loss", step.loss()},
                            {"grad_norm", step.grad_norm()},
                            {"learning_rate", step.learning_rate()},
                            {"tokens_per_second", step.tokens_per_second()},
                            {"num_tokens", static_cast<double>(step.num_tokens())},
                            {"epoch", step.epoch()}};
  if (step.has_time()) {
    const v1::StepTime& time = step.time();
    values.insert(values.end(), {{"time/data", time.data_seconds()},
                                 {"time/generation", time.generation_seconds()},
                                 {"time/reward", time.reward_seconds()},
                                 {"time/forward", time.forward_seconds()},
                                 {"time/backward", time.backward_seconds()},
                                 {"time/communication", time.communication_wait_seconds()},
                                 {"time/optimizer", time.optimizer_seconds()},
                                 {"time/total", time.total_seconds()}});
  }
  if (step.rank_times_size() > 0) {
    const RankBusy busy = rank_busy(step);
    values.insert(values.end(),
                  {{"busy/max", busy.max}, {"busy/median", busy.median}, {"busy/min", busy.min}});
  }
  values.insert(values.end(), step.metrics().begin(), step.metrics().end());
  steps_.add(step.step(), seconds_of(event), values);
}

void History::add_eval(const v1::Event& event) {
  const v1::EvalMetrics& eval = event.eval();
  ThinSeries::Values values{{"loss", eval.loss()}, {"seconds", eval.seconds()}};
  values.insert(values.end(), eval.metrics().begin(), eval.metrics().end());
  evals_.add(eval.step(), seconds_of(event), values);
}

void History::add_memory(const v1::Event& event) {
  const v1::MemorySnapshot& memory = event.memory();
  auto found = ranks_.find(memory.rank());
  if (found == ranks_.end()) {
    if (ranks_.size() == kMaxRanks) return;
    found = ranks_.emplace(memory.rank(), Rank{{kMaxMemoryBuckets, kMaxMemoryColumns}, {}}).first;
  }
  attempt_ = event.attempt();
  ThinSeries::Values values{{"current", static_cast<double>(memory.current_bytes())},
                            {"peak", static_cast<double>(memory.peak_bytes())},
                            {"resident", static_cast<double>(memory.rss_bytes())},
                            {"host", static_cast<double>(memory.host_current_bytes())}};
  for (const v1::OwnerBytes& owner : memory.owners()) {
    values.emplace_back("owner/" + owner.owner(), owner.current_bytes());
  }
  for (const v1::OwnerBytes& owner : memory.host_owners()) {
    values.emplace_back("host/" + owner.owner(), owner.current_bytes());
  }
  found->second.memory.add(memory.step(), seconds_of(event), values);
  found->second.last = event;
}

JobHistory History::render(size_t max_points, int rank) const {
  JobHistory history;
  history.set_revision(revision_);
  *history.mutable_steps() = steps_.render(max_points);
  *history.mutable_evals() = evals_.render(max_points);
  for (const auto& [index, known] : ranks_) {
    if (known.last.attempt() != attempt_) continue;
    RankHistory& shown = *history.add_ranks();
    shown.set_rank(index);
    *shown.mutable_last() = known.last.memory();
    *shown.mutable_time() = known.last.time();
    if (index == rank) *shown.mutable_memory() = known.memory.render(max_points);
  }
  for (const auto& [index, event] : memory_peaks_) *history.add_memory_peaks() = event;
  copy(milestones_, history.mutable_milestones());
  copy(checkpoints_, history.mutable_checkpoints());
  copy(generations_, history.mutable_generations());
  copy(log_, history.mutable_log());
  copy(traces_, history.mutable_traces());
  for (const auto& [index, event] : collectives_) {
    if (event.attempt() == collectives_attempt_) *history.add_collectives() = event;
  }
  return history;
}

}  // namespace tessera::server
