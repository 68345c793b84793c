#include "server/launchers/slurm.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/security/private_file.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxLastWordsBytes = 4096;
constexpr size_t kMaxLastWords = 300;
// What Slurm says where it could not be asked, or had no time: the same question may be answered
// later.
constexpr std::array<absl::string_view, 8> kTransient{"Unable to contact slurm controller",
                                                      "Socket timed out",
                                                      "Connection refused",
                                                      "Zero Bytes were transmitted",
                                                      "Resource temporarily unavailable",
                                                      "Slurm temporarily unable",
                                                      "Slurm backup controller in standby mode",
                                                      "uthentication"};
// Arguments of sbatch that the launcher sets itself.
constexpr std::array<absl::string_view, 14> kOwnArguments{
    "--job-name", "--comment",  "--nodes",         "--ntasks",  "--ntasks-per-node",
    "--array",    "--parsable", "--dependency",    "--requeue", "--output",
    "--error",    "--export",   "--cpus-per-task", "--wrap"};

ClusterJob::State state_of(absl::string_view state) {
  if (state == "PENDING" || state == "CONFIGURING" || state == "REQUEUED" ||
      state == "REQUEUE_HOLD" || state == "SPECIAL_EXIT" || state == "REQUEUE_FED") {
    return ClusterJob::State::kPending;
  }
  if (state == "RUNNING" || state == "SUSPENDED" || state == "STOPPED" || state == "RESIZING") {
    return ClusterJob::State::kRunning;
  }
  if (state == "COMPLETING" || state == "SIGNALING" || state == "STAGE_OUT") {
    return ClusterJob::State::kEnding;
  }
  return ClusterJob::State::kEnded;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> read_sbatch_arguments(const fs::path& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slurm-args is \"", path.string(), "\", which cannot be read"));
  }
  std::vector<std::string> arguments;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string argument(absl::StripAsciiWhitespace(line));
    if (argument.empty() || argument.front() == '#') continue;
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_option = absl::StartsWith(name, "--") && name.size() > 2 &&
                           std::all_of(name.begin(), name.end(), [](char c) {
                             return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
                           });
    const bool is_own =
        std::find(kOwnArguments.begin(), kOwnArguments.end(), name) != kOwnArguments.end();
    if (is_option && !is_own) {
      arguments.push_back(argument);
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("--slurm-args: line ", number, " of ",
                                                   path.string(), " is \"", argument,
                                                   is_own ? "\", which tesserad sets itself"
                                                          : "\", must be --OPTION or "
                                                            "--OPTION=VALUE of sbatch"));
  }
  return arguments;
}

std::string shell_word(absl::string_view word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::vector<ClusterJob> parse_squeue(absl::string_view text, absl::string_view prefix) {
  std::vector<std::pair<int64_t, ClusterJob>> jobs;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '|');
    int64_t number = 0;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[0], &number)) continue;
    if (!absl::StartsWith(fields[5], prefix)) continue;
    ClusterJob job{.name = std::string(fields[5]),
                   .id = std::string(fields[0]),
                   .state = state_of(fields[1]),
                   .reason = std::string(fields[1])};
    if (!absl::SimpleAtoi(fields[3], &job.num_nodes)) job.num_nodes = 0;
    if (fields[2] != "None" && !fields[2].empty()) {
      absl::StrAppend(&job.reason, " (", fields[2], ")");
    }
    jobs.emplace_back(number, std::move(job));
  }
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ClusterJob> result;
  for (auto& [number, job] : jobs) result.push_back(std::move(job));
  return result;
}

absl::StatusOr<std::unique_ptr<Launcher>> SlurmLauncher::make(
    SlurmOptions options, std::shared_ptr<Enrolment> enrolment) {
  std::error_code failure;
  options.directory = fs::absolute(options.directory);
  fs::create_directories(options.directory, failure);
  if (failure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slurm is \"", options.directory.string(),
                     "\", which cannot be made: ", failure.message()));
  }
  return std::unique_ptr<Launcher>(new SlurmLauncher(std::move(options), std::move(enrolment)));
}

absl::StatusOr<std::string> SlurmLauncher::call(const std::vector<std::string>& arguments) const {
  auto end = run_program(arguments, options_.environment, kCallTimeout);
  if (absl::IsNotFound(end.status())) {
    return absl::UnavailableError(
        absl::StrCat(end.status().message(), " on the coordinator's machine"));
  }
  if (!end.ok()) return absl::UnavailableError(end.status().message());
  if (end->code == 0) return std::move(end->output);
  const std::string why(absl::StripAsciiWhitespace(end->errors));
  const bool is_transient =
      end->code >= 128 || std::any_of(kTransient.begin(), kTransient.end(),
                                      [&](auto text) { return absl::StrContains(why, text); });
  const std::string message = absl::StrCat(arguments.front(), ": ",
                                           why.empty() ? absl::StrCat("exit code ", end->code)
                                                       : absl::StrReplaceAll(why, {{"\n", "; "}}));
  return is_transient ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
}

absl::StatusOr<std::vector<ClusterJob>> SlurmLauncher::queue(const std::string& name) const {
  std::vector<std::string> arguments{"squeue",       "--noheader", "--me",
                                     "--states=all", "--format",   std::string(kSqueueFormat)};
  if (!name.empty()) arguments.push_back(absl::StrCat("--name=", name));
  auto text = call(arguments);
  if (!text.ok()) return text.status();
  return parse_squeue(*text, absl::StrCat("tessera-", options_.owner, "-"));
}

absl::StatusOr<std::string> SlurmLauncher::submit(const LaunchRequest& request) {
  const auto before = queue(request.name);
  // Not known: it is not the time to submit either.
  if (!before.ok()) return absl::UnavailableError(before.status().message());
  if (!before->empty()) return before->front().id;
  if (absl::Status status = write_files(request); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  auto text = call(sbatch(request));
  if (!text.ok()) return text.status();
  // "ID" or "ID;CLUSTER".
  const std::string id(absl::StripAsciiWhitespace(text->substr(0, text->find(';'))));
  int64_t number = 0;
  if (absl::SimpleAtoi(id, &number)) return id;
  return absl::UnavailableError(absl::StrCat("sbatch printed \"", id, "\", which is no job's id"));
}

absl::Status SlurmLauncher::write_files(const LaunchRequest& request) const {
  const fs::path directory = directory_of(request.name);
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (!failure) fs::permissions(directory, fs::perms::owner_all, failure);
  if (failure) {
    return absl::UnavailableError(
        absl::StrCat(directory.string(), " cannot be made: ", failure.message()));
  }
  const auto authority = enrolment_->authority();
  if (!authority.ok()) return authority.status();
  if (!authority->empty()) {
    const auto tokens = enrolment_->tokens(request.name, request.max_nodes);
    if (!tokens.ok()) return tokens.status();
    absl::Status status = write_private(directory / "ca.pem", *authority);
    for (size_t i = 0; status.ok() && i < tokens->size(); ++i) {
      status = write_private(directory / absl::StrCat("token-", i), (*tokens)[i]);
    }
    if (!status.ok()) return status;
  }
  return write_private(directory / "job.sh", script(request, !authority->empty()));
}

std::string SlurmLauncher::script(const LaunchRequest& request, bool with_tls) const {
  const fs::path directory = directory_of(request.name);
  const bool is_cuda = request.device == "cuda";
  std::vector<std::string> command{
      "srun",
      "--ntasks-per-node=1",
      "--kill-on-bad-exit=1",
      "--cpu-bind=none",
      "--export=ALL",
      absl::StrCat("--cpus-per-task=", request.devices_per_node * options_.cpus_per_device),
      options_.agent.string(),
      absl::StrCat("--coordinator=", enrolment_->coordinator()),
      absl::StrCat("--allocation=", request.name),
      absl::StrCat("--cpu-slots=", is_cuda ? 0 : request.devices_per_node),
      absl::StrCat("--cuda-devices=", is_cuda ? "visible" : "none")};
  if (with_tls) {
    command.push_back(absl::StrCat("--ca=", (directory / "ca.pem").string()));
    command.push_back(absl::StrCat("--enrol-token-file=", (directory / "token").string()));
  } else if (!absl::StartsWith(enrolment_->coordinator(), "unix:")) {
    command.emplace_back("--insecure-loopback");
  }
  std::string text = "#!/bin/sh\n# Made by tesserad: the agents of one job.\nexec";
  for (const std::string& word : command) absl::StrAppend(&text, " ", shell_word(word));
  // Of Slurm's own making: a number. deploy/slurm/epilog.sh deletes what has this name.
  absl::StrAppend(&text,
                  " --state-dir=", shell_word(absl::StrCat(options_.scratch.string(), "/tessera-")),
                  "\"$SLURM_JOB_ID\"\n");
  return text;
}

std::vector<std::string> SlurmLauncher::sbatch(const LaunchRequest& request) const {
  const fs::path directory = directory_of(request.name);
  std::vector<std::string> arguments{
      "sbatch", "--parsable", absl::StrCat("--job-name=", request.name),
      absl::StrCat("--comment=", request.job_id),
      absl::StrCat("--nodes=", request.min_nodes, "-", request.max_nodes), "--ntasks-per-node=1",
      absl::StrCat("--cpus-per-task=", request.devices_per_node * options_.cpus_per_device),
      "--dependency=singleton",
      // What follows a failure is the coordinator's to say.
      "--no-requeue", "--open-mode=append", absl::StrCat("--chdir=", directory.string()),
      absl::StrCat("--output=", (directory / "output").string())};
  if (request.device == "cuda") {
    arguments.push_back(absl::StrCat("--gres=gpu:", request.devices_per_node));
  }
  if (request.time_limit < absl::InfiniteDuration()) {
    const int64_t minutes = absl::ToInt64Minutes(absl::Ceil(request.time_limit, absl::Minutes(1)));
    arguments.push_back(absl::StrCat("--time=", minutes));
  }
  if (!options_.partition.empty()) {
    arguments.push_back(absl::StrCat("--partition=", options_.partition));
  }
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  arguments.push_back((directory / "job.sh").string());
  return arguments;
}

std::string SlurmLauncher::last_words(const std::string& name) const {
  std::ifstream file(directory_of(name) / "output", std::ios::binary | std::ios::ate);
  if (!file) return "";
  const int64_t size = file.tellg();
  file.seekg(std::max<int64_t>(0, size - kMaxLastWordsBytes));
  std::string last;
  for (std::string line; std::getline(file, line);) {
    // srun tells that others ended, too; the first cause says more.
    if (absl::StrContains(line, "error") && last.empty()) last = line.substr(0, kMaxLastWords);
  }
  for (char& c : last) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return last;
}

absl::StatusOr<std::vector<ClusterJob>> SlurmLauncher::list() {
  auto jobs = queue("");
  if (!jobs.ok()) return jobs.status();
  for (ClusterJob& job : *jobs) {
    if (job.state != ClusterJob::State::kEnded) continue;
    const std::string words = last_words(job.name);
    if (!words.empty()) absl::StrAppend(&job.reason, ": ", words);
  }
  return jobs;
}

absl::StatusOr<bool> SlurmLauncher::is_gone(const ClusterJob& job) {
  // Slurm waits for the processes of a node that answers. One that does not is given up.
  auto nodes = call(
      {"squeue", "--noheader", "--states=all", "--format", "%N", absl::StrCat("--jobs=", job.id)});
  if (!nodes.ok()) return nodes.status();
  const std::string names(absl::StripAsciiWhitespace(*nodes));
  if (names.empty()) return true;  // it never had one
  auto states =
      call({"sinfo", "--noheader", "--Node", "--format", "%T", absl::StrCat("--nodes=", names)});
  if (!states.ok()) return states.status();
  for (const absl::string_view state : absl::StrSplit(*states, '\n', absl::SkipWhitespace())) {
    if (absl::StrContains(state, "*") || absl::StartsWith(state, "down") ||
        absl::StartsWith(state, "fail") || absl::StartsWith(state, "unknown") ||
        absl::StartsWith(state, "completing")) {
      return false;
    }
  }
  return true;
}

absl::Status SlurmLauncher::remove(const ClusterJob& job) {
  if (job.state != ClusterJob::State::kEnded) {
    const auto done = call({"scancel", job.id});
    return done.status();
  }
  enrolment_->revoke(job.name);
  std::error_code failure;
  fs::remove_all(directory_of(job.name), failure);
  return failure ? absl::UnavailableError(failure.message()) : absl::OkStatus();
}

}  // namespace tessera::server
