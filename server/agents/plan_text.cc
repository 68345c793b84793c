#include "server/agents/plan_text.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/spec/bytes.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxLines = 12;
// Ratios nearer to 1 are not worth a word.
constexpr double kMentionedRatio = 1.001;

std::string changes_of(const v1::Alternative& alternative) {
  return absl::StrJoin(alternative.changes(), ", ", [](std::string* out, const auto& change) {
    absl::StrAppend(out, change.field(), ": ", change.value());
  });
}

std::string time_of(const v1::Alternative& alternative) {
  if (alternative.time_ratio() <= 0) return "";
  return absl::StrFormat(", %.2f times the time", alternative.time_ratio());
}

std::string line(const v1::Alternative& alternative) {
  return absl::StrCat(
      "\n  ", alternative.title(), ": ", spec::format_bytes(alternative.rehearsal().peak_bytes()),
      time_of(alternative), alternative.exact() ? "" : ", not exact",
      alternative.overrides() ? ", against the job file" : "", " (", changes_of(alternative), ")");
}

std::vector<const v1::Alternative*> fastest_first(
    const v1::Plan& plan, const std::function<bool(const v1::Alternative&)>& is_wanted) {
  std::vector<const v1::Alternative*> wanted;
  for (const v1::Alternative& alternative : plan.alternatives()) {
    if (is_wanted(alternative)) wanted.push_back(&alternative);
  }
  std::stable_sort(wanted.begin(), wanted.end(),
                   [](const auto* a, const auto* b) { return a->time_ratio() < b->time_ratio(); });
  if (wanted.size() > kMaxLines) wanted.resize(kMaxLines);
  return wanted;
}

}  // namespace

std::string describe_choice(const v1::Plan& plan) {
  const v1::Alternative& choice = plan.choice();
  const std::string bound =
      plan.device_memory_bytes() > 0
          ? absl::StrCat(" of ", spec::format_bytes(plan.device_memory_bytes()))
          : "";
  return absl::StrCat(
      "planned: ", choice.title(), "; a rank will hold at most ",
      spec::format_bytes(choice.rehearsal().peak_bytes()), bound,
      ", where the job as written needs ", spec::format_bytes(plan.as_written().peak_bytes()),
      choice.time_ratio() > 0
          ? absl::StrFormat(", in %.2f times the time of a step", choice.time_ratio())
          : "",
      "; the fastest of ", plan.num_rehearsed(), " that were rehearsed");
}

std::string describe_need(int64_t peak_bytes, double peak_ratio, int64_t device_memory_bytes) {
  std::string text =
      absl::StrCat("a rank of the job needs ", spec::format_bytes(peak_bytes), " for tensors");
  if (peak_ratio >= kMentionedRatio) {
    const auto bytes = static_cast<int64_t>(peak_ratio * static_cast<double>(peak_bytes));
    absl::StrAppend(&text, ", ", spec::format_bytes(bytes),
                    " as earlier jobs on such a device measured");
  }
  return absl::StrCat(text, ", and may have ", spec::format_bytes(device_memory_bytes));
}

std::string describe_misfit(const v1::Plan& plan) {
  std::string text =
      describe_need(plan.as_written().peak_bytes(), plan.peak_ratio(), plan.device_memory_bytes());
  const auto fitting = fastest_first(plan, [](const v1::Alternative& alternative) {
    return alternative.fits() && alternative.saved_bytes() > 0;
  });
  if (!fitting.empty() || plan.has_choice()) absl::StrAppend(&text, "; what would make it fit:");
  if (plan.has_choice()) {
    absl::StrAppend(&text, line(plan.choice()), " - what memory.auto: true takes");
  }
  for (const v1::Alternative* alternative : fitting) absl::StrAppend(&text, line(*alternative));
  if (!fitting.empty() || plan.has_choice()) return text;
  absl::StrAppend(&text, "; no technique alone makes it fit, and no combination that was tried");
  if (!plan.alternatives().empty()) {
    absl::StrAppend(&text, "; what saves most is", line(plan.alternatives(0)));
  }
  return text;
}

std::string describe_exhausted(const v1::Plan& plan) {
  std::string text = absl::StrCat(
      "the run that failed was rehearsed at ", spec::format_bytes(plan.failed_peak_bytes()),
      ", and no combination of exact techniques that leaves the job's own fields as they are was "
      "found to need ",
      spec::format_bytes(plan.limit_bytes()), " or less");
  const auto smaller = fastest_first(plan, [&](const v1::Alternative& alternative) {
    return alternative.rehearsal().peak_bytes() <= plan.limit_bytes();
  });
  if (!smaller.empty()) absl::StrAppend(&text, "; what would:");
  for (const v1::Alternative* alternative : smaller) absl::StrAppend(&text, line(*alternative));
  return text;
}

}  // namespace tessera::server
