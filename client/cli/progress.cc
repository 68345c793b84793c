#include "client/cli/progress.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/memory_table.h"
#include "proto/spec/hangs.h"

namespace tessera::cli {
namespace {

constexpr size_t kPaceSteps = 20;
// Of device ratios: nearer to 1 is not worth a word.
constexpr double kMentionedRatio = 0.005;

std::string describe_state(const v1::StateChange& change, int32_t attempt) {
  std::string text = v1::Job::State_Name(change.state());
  if (attempt > 1) absl::StrAppend(&text, " (attempt ", attempt, ")");
  const std::string& why = change.has_failure() ? change.failure().message() : change.reason();
  return why.empty() ? text : absl::StrCat(text, ": ", why);
}

std::string describe_place(const v1::MemoryCell& cell) {
  return absl::StrCat(cell.owner(), cell.block().empty() ? "" : " of ", cell.block());
}

std::string describe_largest(const v1::MemoryCell& cell) {
  return absl::StrCat("; the largest part: ", describe_place(cell), ", ",
                      format_bytes(cell.bytes()));
}

std::string describe_peak(const v1::MemoryPeak& peak) {
  std::string text = absl::StrFormat("memory peak of the first %d steps: %s, reached in %s by %s",
                                     peak.step(), format_bytes(peak.peak_bytes()),
                                     peak.reached().phase(), describe_place(peak.reached()));
  if (peak.cells_size() > 0) absl::StrAppend(&text, describe_largest(peak.cells(0)));
  if (peak.host_cells_size() > 0) {
    absl::StrAppend(&text, "; in host memory: ", format_bytes(peak.host_peak_bytes()),
                    describe_largest(peak.host_cells(0)));
  }
  return text;
}

std::string describe_measured(const v1::PeakMeasured& peak) {
  const double predicted = std::max(1.0, static_cast<double>(peak.predicted_bytes()));
  std::string text = absl::StrFormat(
      "memory peak so far: %s on rank %d; predicted for the whole run: %s (%+.1f%%)",
      format_bytes(peak.measured_bytes()), peak.rank(), format_bytes(peak.predicted_bytes()),
      100 * (static_cast<double>(peak.measured_bytes()) / predicted - 1));
  if (peak.device_ratio() > 0 && std::abs(peak.device_ratio() - 1) >= kMentionedRatio) {
    absl::StrAppendFormat(&text, "; earlier jobs on such a device measured %.2f times as much",
                          peak.device_ratio());
  }
  return text;
}

// The metrics of a method that a line has room for.
std::string describe_metrics(const google::protobuf::Map<std::string, double>& metrics) {
  struct Shown {
    const char* name;
    const char* label;
    bool is_share;
  };
  constexpr Shown kShown[] = {{"mean_token_accuracy", "token accuracy", true},
                              {"rewards/accuracies", "reward accuracy", true},
                              {"rewards/margins", "reward margin", false},
                              {"accuracy", "reward accuracy", true},
                              {"margin", "reward margin", false}};
  std::string text;
  for (const Shown& shown : kShown) {
    const auto found = metrics.find(shown.name);
    if (found == metrics.end()) continue;
    absl::StrAppend(&text, ", ", shown.label, " ");
    if (shown.is_share) {
      absl::StrAppendFormat(&text, "%.1f%%", 100 * found->second);
    } else {
      absl::StrAppendFormat(&text, "%.4g", found->second);
    }
  }
  return text;
}

std::string describe_log(const v1::LogLine& log) {
  std::string label = log.rank() < 0 ? "service" : absl::StrCat("rank ", log.rank());
  if (log.severity() == v1::LogLine::WARNING) label += " warning";
  if (log.severity() == v1::LogLine::ERROR) label += " error";
  return absl::StrCat("[", label, "] ", log.text());
}

}  // namespace

void Progress::add(const v1::Event& event) {
  switch (event.kind_case()) {
    case v1::Event::kStep:
      return add_step(event.step());
    case v1::Event::kMemory:
      memory_[event.memory().rank()] = event.memory();
      return;
    case v1::Event::kState:
      change_ = event.state();
      straggler_.reset();
      return;
    case v1::Event::kStraggler:
      straggler_.reset();
      if (!event.straggler().is_over()) straggler_ = event.straggler().rank();
      return;
    default:
      return;
  }
}

void Progress::add_step(const v1::StepMetrics& step) {
  step_ = step;
  recent_seconds_.push_back(step.time().total_seconds());
  if (recent_seconds_.size() > kPaceSteps) recent_seconds_.pop_front();
}

double Progress::remaining_seconds() const {
  const double sum = std::accumulate(recent_seconds_.begin(), recent_seconds_.end(), 0.0);
  return sum / static_cast<double>(recent_seconds_.size()) * (step_.total_steps() - step_.step());
}

std::string Progress::line() const {
  if (step_.step() == 0) return "";
  std::string text =
      absl::StrFormat("step %d/%d  loss %.4f  grad norm %.3f  lr %.2e  %s tokens/s", step_.step(),
                      step_.total_steps(), step_.loss(), step_.grad_norm(), step_.learning_rate(),
                      format_count(step_.tokens_per_second()));
  if (step_.step() < step_.total_steps()) {
    absl::StrAppend(&text, "  ETA ", format_duration(remaining_seconds()));
  }
  if (!memory_.empty()) {
    absl::StrAppend(&text, "  memory ", compact_memory(memory_.begin()->second));
  }
  if (straggler_) absl::StrAppend(&text, "  slow: rank ", *straggler_);
  return text;
}

std::vector<std::string> Progress::memory_table() const {
  if (change_.failure().has_out_of_memory()) {
    return out_of_memory_table(change_.failure().out_of_memory());
  }
  if (memory_.empty()) return {};
  return cli::memory_table(
      std::max_element(memory_.begin(), memory_.end(), [](const auto& a, const auto& b) {
        return a.second.peak_bytes() < b.second.peak_bytes();
      })->second);
}

std::string describe_event(const v1::Event& event) {
  switch (event.kind_case()) {
    case v1::Event::kState:
      return describe_state(event.state(), event.attempt());
    case v1::Event::kLog:
      return describe_log(event.log());
    case v1::Event::kMemoryPeak:
      return event.memory_peak().rank() == 0 ? describe_peak(event.memory_peak()) : "";
    case v1::Event::kCheckpoint:
      return absl::StrFormat("checkpoint of step %d: %s (%s in %.1fs)", event.checkpoint().step(),
                             event.checkpoint().path(), format_bytes(event.checkpoint().bytes()),
                             event.checkpoint().seconds());
    case v1::Event::kEval:
      return absl::StrCat(absl::StrFormat("evaluation at step %d: loss %.4f", event.eval().step(),
                                          event.eval().loss()),
                          describe_metrics(event.eval().metrics()));
    case v1::Event::kWaiting:
      return event.waiting().reason().empty() ? "goes on"
                                              : absl::StrCat("waits: ", event.waiting().reason());
    case v1::Event::kPlan:
      return event.plan().reason();
    case v1::Event::kPeak:
      return describe_measured(event.peak());
    case v1::Event::kTrace:
      return absl::StrCat("trace of step ", event.trace().step(), " of rank ", event.trace().rank(),
                          ": ", event.trace().path());
    case v1::Event::kStraggler:
      return spec::describe_straggler(event.straggler());
    default:
      return "";
  }
}

}  // namespace tessera::cli
