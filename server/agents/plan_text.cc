#include "server/agents/plan_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/spec/bytes.h"

namespace tessera::server {
namespace {

constexpr int kMaxLines = 12;

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
  return absl::StrCat("\n  ", alternative.title(), ": ",
                      spec::format_bytes(alternative.rehearsal().peak_bytes()),
                      time_of(alternative), alternative.exact() ? "" : ", not exact", " (",
                      changes_of(alternative), ")");
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

std::string describe_misfit(const v1::Plan& plan) {
  std::string text =
      absl::StrCat("a rank of the job needs ", spec::format_bytes(plan.as_written().peak_bytes()),
                   " for tensors, and may have ", spec::format_bytes(plan.device_memory_bytes()));
  std::vector<const v1::Alternative*> fitting;
  for (const v1::Alternative& alternative : plan.alternatives()) {
    if (alternative.fits() && alternative.saved_bytes() > 0) fitting.push_back(&alternative);
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const auto* a, const auto* b) { return a->time_ratio() < b->time_ratio(); });
  if (!fitting.empty() || plan.has_choice()) absl::StrAppend(&text, "; what would make it fit:");
  if (plan.has_choice()) {
    absl::StrAppend(&text, line(plan.choice()), " - what memory.auto: true takes");
  }
  int lines = 0;
  for (const v1::Alternative* alternative : fitting) {
    if (lines++ == kMaxLines) break;
    absl::StrAppend(&text, line(*alternative));
  }
  if (!fitting.empty() || plan.has_choice()) return text;
  absl::StrAppend(&text, "; no technique alone makes it fit, and no combination that was tried");
  if (!plan.alternatives().empty()) {
    absl::StrAppend(&text, "; what saves most is", line(plan.alternatives(0)));
  }
  return text;
}

}  // namespace tessera::server
