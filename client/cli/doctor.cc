#include "client/cli/doctor.h"

#include <google/protobuf/struct.pb.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/event_printer.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

using Level = Finding::Level;

const char* name_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "";
}

std::string json_text(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  return to_json(value);
}

std::string json_of(const Finding& finding) {
  std::string line =
      absl::StrCat("{\"name\":", json_text(finding.name), ",\"level\":\"", name_of(finding.level),
                   "\",\"detail\":", json_text(finding.detail));
  if (!finding.mend.empty()) absl::StrAppend(&line, ",\"mend\":", json_text(finding.mend));
  return line + "}";
}

void print(const Terminal& terminal, const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.name.size());
  for (const Finding& finding : findings) {
    const char* colour = finding.level == Level::kOk        ? "32"
                         : finding.level == Level::kWarning ? "33"
                                                            : "31";
    const std::string mark = finding.level == Level::kOk        ? "ok     "
                             : finding.level == Level::kWarning ? "warning"
                                                                : "PROBLEM";
    const std::string name = finding.name + std::string(width - finding.name.size(), ' ');
    terminal.out << terminal.paint(mark, colour) << "  " << name << "  "
                 << clip(finding.detail, 4096) << '\n';
    if (!finding.mend.empty()) {
      terminal.out << std::string(mark.size() + width + 4, ' ') << "-> " << finding.mend << '\n';
    }
  }
}

}  // namespace

void add_doctor(CLI::App& app, DoctorCommand& command) {
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Look at this machine: what is missing or too small for jobs, and how to mend it");
  doctor->add_option("--trainer", command.trainer, "The trainer program; default: beside this one");
}

ExitCode run_doctor(const Terminal& terminal, const DoctorOptions& options) {
  std::vector<Finding> findings;
  for (const std::vector<Finding>& group :
       {look_at_programs(options), look_at_directories(options), look_at_machine(),
        look_at_limits(), look_at_service(options)}) {
    findings.insert(findings.end(), group.begin(), group.end());
  }
  const auto problems = std::ranges::count(findings, Level::kProblem, &Finding::level);
  const auto warnings = std::ranges::count(findings, Level::kWarning, &Finding::level);
  if (options.json) {
    for (const Finding& finding : findings) terminal.out << json_of(finding) << '\n';
  } else {
    print(terminal, findings);
    terminal.out << '\n'
                 << (problems == 0
                         ? "jobs can run here"
                         : absl::StrCat(problems, problems == 1 ? " problem" : " problems"))
                 << (warnings == 0
                         ? ""
                         : absl::StrCat(", ", warnings, warnings == 1 ? " warning" : " warnings"))
                 << '\n';
  }
  terminal.out.flush();
  return problems == 0 ? kSucceeded : kJobFailed;
}

}  // namespace tessera::cli
