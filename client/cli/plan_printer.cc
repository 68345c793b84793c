#include "client/cli/plan_printer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "client/cli/memory_table.h"

namespace tessera::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kModelWidth = 36;
// Ratios nearer to 1 are not worth a word.
constexpr double kMentionedRatio = 1.005;

std::string signed_bytes(int64_t bytes) {
  return bytes < 0 ? "-" + format_bytes(-bytes) : format_bytes(bytes);
}

std::string times(double ratio) { return ratio > 0 ? absl::StrFormat("x%.2f", ratio) : "-"; }

void add_owners(const Owners& owners, int64_t total, Rows& rows) {
  for (const v1::OwnerBytes& owner : by_size(owners)) {
    if (owner.at_peak_bytes() == 0) continue;
    const double share = static_cast<double>(owner.at_peak_bytes()) / static_cast<double>(total);
    rows.push_back({"  " + owner.owner(), format_bytes(owner.at_peak_bytes()),
                    absl::StrFormat("%.1f%%", 100 * share)});
  }
}

void print_rehearsal(const Terminal& terminal, const std::string& job,
                     const v1::Rehearsal& rehearsal) {
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  terminal.out << job << ": " << rehearsal.world_size()
               << (rehearsal.world_size() == 1 ? " rank" : " ranks") << " on " << rehearsal.device()
               << ", " << count(rehearsal.num_parameters()) << " parameters ("
               << count(rehearsal.num_trainable_parameters()) << " trained), "
               << rehearsal.num_tokens() << " tokens a step\n";
  if (rehearsal.assumes_full_rows()) {
    terminal.out << "the documents were not read: every row is taken to be as long as may be\n";
  }
  const bool has_save = std::ranges::any_of(rehearsal.owners(), [](const v1::OwnerBytes& owner) {
    return owner.owner() == "checkpoint" && owner.at_peak_bytes() > 0;
  });
  if (has_save)
    terminal.out << "the peak is a bound: with a save of which nothing is written yet\n";
  terminal.out << '\n';
  Rows rows{{"peak of a rank, as written", ">bytes", ">share"}};
  add_owners(rehearsal.owners(), rehearsal.peak_bytes(), rows);
  rows.push_back({"  total", format_bytes(rehearsal.peak_bytes()), ""});
  if (rehearsal.host_peak_bytes() > 0) {
    rows.push_back({"in host memory", "", ""});
    add_owners(rehearsal.host_owners(), rehearsal.host_peak_bytes(), rows);
    rows.push_back({"  total", format_bytes(rehearsal.host_peak_bytes()), ""});
  }
  print_lines(terminal, format_table(std::move(rows)));
}

// What making completions takes, beside the steps that train on them.
void print_generation(const Terminal& terminal, const v1::Rehearsal& rehearsal) {
  if (!rehearsal.has_generation_cost()) return;
  const v1::StepCost& cost = rehearsal.generation_cost();
  terminal.out << "a generation at its longest: " << format_count(cost.flops())
               << " floating-point operations, " << format_bytes(cost.memory_bytes())
               << " read and written";
  if (cost.link_bytes() > 0) terminal.out << ", " << format_bytes(cost.link_bytes()) << " received";
  if (cost.seconds() > 0) terminal.out << absl::StrFormat(", about %.3g s", cost.seconds());
  terminal.out << '\n';
}

void print_bound(const Terminal& terminal, const v1::Plan& plan) {
  if (plan.device_memory_bytes() == 0) {
    terminal.out << "what a rank may hold is not known; --device-memory says\n";
    return;
  }
  const std::string bound = format_bytes(plan.device_memory_bytes());
  terminal.out << (plan.fits() ? terminal.paint("fits in " + bound, "32")
                               : terminal.paint("does not fit in " + bound, "1;31"));
  if (plan.peak_ratio() >= kMentionedRatio) {
    terminal.out << absl::StrFormat("; peaks count %.2f times, as earlier jobs measured",
                                    plan.peak_ratio());
  }
  terminal.out << '\n';
}

void print_devices(const Terminal& terminal, const v1::PlanJobResponse& response) {
  if (response.devices().empty()) return;
  Rows rows{{"PRESENT", "MODEL", ">DEVICES", ">MEMORY", "FITS"}};
  for (const v1::DeviceFit& fit : response.devices()) {
    rows.push_back({fit.kind(), clip(fit.model(), kModelWidth), absl::StrCat(fit.num_devices()),
                    format_bytes(fit.memory_bytes()),
                    fit.obstacle().empty() ? "yes" : "no: " + fit.obstacle()});
  }
  terminal.out << '\n';
  print_lines(terminal, format_table(std::move(rows)));
}

std::string marks(const v1::Alternative& alternative) {
  return absl::StrCat(alternative.overrides() ? "'" : "", alternative.exact() ? "" : "~");
}

void print_alternatives(const Terminal& terminal, const v1::Plan& plan) {
  if (plan.alternatives().empty()) return;
  const bool has_bound = plan.device_memory_bytes() > 0;
  Rows rows{{"TECHNIQUE", ">PEAK", ">SAVES", ">TIME", has_bound ? "FITS" : ""}};
  bool overrides = false, inexact = false;
  for (const v1::Alternative& alternative : plan.alternatives()) {
    rows.push_back({alternative.title() + marks(alternative),
                    format_bytes(alternative.rehearsal().peak_bytes()),
                    signed_bytes(alternative.saved_bytes()), times(alternative.time_ratio()),
                    !has_bound           ? ""
                    : alternative.fits() ? "yes"
                                         : "no"});
    overrides |= alternative.overrides();
    inexact |= !alternative.exact();
  }
  terminal.out << '\n';
  print_lines(terminal, format_table(std::move(rows)));
  if (overrides) terminal.out << "': the job file says otherwise, so memory.auto leaves it\n";
  if (inexact) terminal.out << "~: changes the loss by more than rounding\n";
}

void print_choice(const Terminal& terminal, const v1::Plan& plan) {
  terminal.out << '\n';
  if (!plan.has_choice()) {
    terminal.out << terminal.paint("no combination of techniques was found that fits", "1;31")
                 << '\n';
    return;
  }
  const v1::Alternative& choice = plan.choice();
  terminal.out << terminal.paint("memory.auto takes: " + choice.title(), "1;32") << '\n';
  for (const v1::FieldChange& change : choice.changes()) {
    terminal.out << "  " << change.field() << ": " << change.value() << '\n';
  }
  terminal.out << "  peak " << format_bytes(choice.rehearsal().peak_bytes());
  if (choice.time_ratio() > 0) {
    terminal.out << absl::StrFormat(", a step in %.2f times the time", choice.time_ratio());
  }
  terminal.out << '\n';
}

}  // namespace

void print_plan(const Terminal& terminal, const std::string& job,
                const v1::PlanJobResponse& response) {
  const v1::Plan& plan = response.plan();
  print_rehearsal(terminal, job, plan.as_written());
  print_generation(terminal, plan.as_written());
  print_bound(terminal, plan);
  print_devices(terminal, response);
  print_alternatives(terminal, plan);
  print_choice(terminal, plan);
  terminal.out << absl::StrFormat("%d rehearsals in %.1f s", plan.num_rehearsed(), plan.seconds())
               << (plan.rates().empty() ? "; times are not predicted: no rates are known"
                                        : "; times predicted for " + plan.rates())
               << '\n'
               << std::flush;
}

}  // namespace tessera::cli
