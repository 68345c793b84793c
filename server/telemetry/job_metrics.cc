#include "server/telemetry/job_metrics.h"

#include <map>
#include <string>
#include <utility>

#include "server/jobs/rank_times.h"
#include "server/telemetry/service_metrics.h"

namespace tessera::server {
namespace {

// Of a job. More than any method has: a bound, since they come from its ranks.
constexpr size_t kMaxMethodMetrics = 64;

class LifeGauges {
 public:
  void add(const JobSeries& series) {
    const Labels labels = job_labels(series);
    const v1::Job& job = series.job;
    state_.set(with(labels, "state", state_label(job.state())), 1);
    attempts_.set(labels, job.attempt());
    restarts_.set(labels, job.restarts());
    if (series.state_time != absl::InfinitePast()) {
      since_.set(labels, unix_seconds(series.state_time));
    }
    if (series.progress_time != absl::InfinitePast()) {
      progress_.set(labels, unix_seconds(series.progress_time));
    }
    if (job.has_rehearsal()) {
      predicted_.set(labels, static_cast<double>(job.rehearsal().peak_bytes()));
    }
    if (job.has_peak()) measured_.set(labels, static_cast<double>(job.peak().measured_bytes()));
  }

  void move_to(std::vector<prometheus::MetricFamily>& families) {
    for (Gauge* gauge :
         {&state_, &since_, &progress_, &attempts_, &restarts_, &predicted_, &measured_}) {
      gauge->move_to(families);
    }
  }

 private:
  Gauge state_{"tessera_job_state", "1, with the state that the job is in"};
  Gauge since_{"tessera_job_state_timestamp_seconds",
               "When the job went to the state that it is in, in Unix time"};
  Gauge progress_{
      "tessera_job_progress_timestamp_seconds",
      "When a step, an evaluation, a checkpoint or completions last came of the job, in "
      "Unix time"};
  Gauge attempts_{"tessera_job_attempts", "Runs of the job started so far"};
  Gauge restarts_{"tessera_job_restarts", "Restarts since the last checkpoint"};
  Gauge predicted_{"tessera_job_predicted_peak_bytes", "Peak of tensor bytes of a rank, rehearsed"};
  Gauge measured_{"tessera_job_measured_peak_bytes", "Peak of tensor bytes of a rank, measured"};
};

class StepGauges {
 public:
  void add(const Labels& labels, const v1::StepMetrics& last) {
    step_.set(labels, last.step());
    total_.set(labels, last.total_steps());
    loss_.set(labels, last.loss());
    norm_.set(labels, last.grad_norm());
    rate_.set(labels, last.learning_rate());
    speed_.set(labels, last.tokens_per_second());
    if (last.has_time()) add_time(labels, last.time());
    if (last.rank_times_size() > 0) add_ranks(labels, rank_busy(last));
    // In the order of names, so that the same ones are shown each time.
    const std::map<std::string, double> metrics(last.metrics().begin(), last.metrics().end());
    size_t shown = 0;
    for (const auto& [name, value] : metrics) {
      if (++shown > kMaxMethodMetrics) break;
      metric_.set(with(labels, "metric", name), value);
    }
  }

  void move_to(std::vector<prometheus::MetricFamily>& families) {
    for (Gauge* gauge : {&step_, &total_, &loss_, &norm_, &rate_, &speed_, &duration_, &parts_,
                         &busy_, &slowest_, &metric_}) {
      gauge->move_to(families);
    }
  }

 private:
  void add_time(const Labels& labels, const v1::StepTime& time) {
    duration_.set(labels, time.total_seconds());
    for (const auto& [part, seconds] :
         {std::pair{"data", time.data_seconds()}, std::pair{"forward", time.forward_seconds()},
          std::pair{"backward", time.backward_seconds()},
          std::pair{"communication_wait", time.communication_wait_seconds()},
          std::pair{"optimizer", time.optimizer_seconds()},
          std::pair{"generation", time.generation_seconds()},
          std::pair{"reward", time.reward_seconds()}}) {
      parts_.set(with(labels, "part", part), seconds);
    }
  }

  void add_ranks(const Labels& labels, const RankBusy& busy) {
    for (const auto& [stat, seconds] :
         {std::pair{"min", busy.min}, std::pair{"median", busy.median},
          std::pair{"max", busy.max}}) {
      busy_.set(with(labels, "stat", stat), seconds);
    }
    slowest_.set(labels, busy.slowest);
  }

  Gauge step_{"tessera_job_step", "Optimizer steps taken"};
  Gauge total_{"tessera_job_total_steps", "Optimizer steps the job will take"};
  Gauge loss_{"tessera_job_loss", "Loss since the last step event"};
  Gauge norm_{"tessera_job_grad_norm", "Gradient norm of the last step before clipping"};
  Gauge rate_{"tessera_job_learning_rate", "Learning rate of the last step"};
  Gauge speed_{"tessera_job_tokens_per_second", "Tokens per second in the last step"};
  Gauge duration_{"tessera_job_step_duration_seconds", "Wall time of the last step on rank 0"};
  Gauge parts_{"tessera_job_step_part_seconds",
               "Where that time went; communication_wait: for other ranks"};
  Gauge busy_{
      "tessera_job_rank_busy_seconds",
      "Time of the last step that ranks did not wait for others: least, in the middle, most"};
  Gauge slowest_{"tessera_job_slowest_rank", "The rank that was busy for longest in the last step"};
  Gauge metric_{"tessera_job_metric",
                "Metric of the job's method since the last step event, by name"};
};

}  // namespace

Labels job_labels(const JobSeries& series) {
  return {{"job", series.job.id()}, {"name", series.job.spec().name()}};
}

void add_job_metrics(const std::vector<const JobSeries*>& jobs,
                     std::vector<prometheus::MetricFamily>& families) {
  LifeGauges life;
  StepGauges steps;
  for (const JobSeries* series : jobs) {
    life.add(*series);
    if (series->step) steps.add(job_labels(*series), *series->step);
  }
  life.move_to(families);
  steps.move_to(families);
}

}  // namespace tessera::server
