#include "worker/agent/checker.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <iterator>
#include <system_error>
#include <utility>

#include "tessera/v1/trainer.pb.h"
#include "worker/agent/file_util.h"
#include "worker/agent/utf8.h"

namespace tessera::agent {
namespace {

constexpr size_t kMaxResultBytes = 1 << 20;
constexpr size_t kStderrTailBytes = 2048;

v1::CheckResult broken(const std::string& message) {
  v1::CheckResult result;
  v1::Failure& violation = *result.add_violations();
  violation.set_kind(v1::Failure::BUG);
  violation.set_rank(-1);
  violation.set_message(message);
  return result;
}

std::string ending(const Exit& exit) {
  switch (exit.kind) {
    case Exit::Kind::kCode:
      return absl::StrCat("it exited with status ", exit.value);
    case Exit::Kind::kSignal:
      return absl::StrCat("it was killed by signal ", exit.value);
    case Exit::Kind::kUnknown:
      break;
  }
  return "it ended";
}

v1::CheckResult result_of(const std::filesystem::path& directory, const Exit& exit) {
  if (exit.kind == Exit::Kind::kCode && exit.value == 0) {
    const absl::StatusOr<std::string> json = read_file(directory / "stdout", kMaxResultBytes);
    google::protobuf::util::JsonParseOptions lenient;
    lenient.ignore_unknown_fields = true;
    v1::CheckResult result;
    if (json.ok() && google::protobuf::util::JsonStringToMessage(*json, &result, lenient).ok()) {
      return result;
    }
  }
  const std::string tail = to_valid_utf8(read_tail(directory / "stderr", kStderrTailBytes));
  return broken(absl::StrCat("the trainer could not check the job: ", ending(exit),
                             tail.empty() ? "" : ": ", absl::StripAsciiWhitespace(tail)));
}

}  // namespace

Checker::Checker(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {
  std::error_code error;
  std::filesystem::remove_all(options_.directory, error);
}

Checker::~Checker() {
  cancel_all();
  for (Job& job : running_) discard(job);
}

void Checker::check(v1::Check check, Done done) {
  if (waiting_.size() >= kMaxWaiting) {
    v1::Checked checked;
    checked.set_check_id(check.check_id());
    *checked.mutable_result() = broken("the agent has too many jobs to check; try again later");
    loop_.post([done = std::move(done), checked = std::move(checked)] { done(checked); });
    return;
  }
  waiting_.push_back(Job{std::move(check), std::move(done)});
  start_waiting();
}

void Checker::cancel_all() {
  waiting_.clear();
  for (Job& job : running_) {
    job.done = nullptr;
    job.process->kill_group(SIGKILL);
  }
}

void Checker::start_waiting() {
  while (!waiting_.empty() && running_.size() < kMaxRunning) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    const auto job = std::prev(running_.end());
    if (absl::Status status = start(*job); !status.ok()) {
      v1::Checked checked;
      checked.set_check_id(job->check.check_id());
      *checked.mutable_result() =
          broken(absl::StrCat("the trainer could not check the job: ", status.message()));
      loop_.post([done = job->done, checked = std::move(checked)] { done(checked); });
      discard(*job);
      running_.erase(job);
      continue;
    }
    job->deadline = loop_.call_after(options_.deadline, [job] {
      job->timed_out = true;
      job->process->kill_group(SIGKILL);
    });
    loop_.watch(job->process->pidfd(), [this, job] { exited(job); });
  }
}

absl::Status Checker::start(Job& job) {
  job.directory = options_.directory / absl::StrCat(num_started_++);
  if (absl::Status status = make_directories(job.directory); !status.ok()) return status;
  v1::TrainerInput input;
  *input.mutable_spec() = job.check.spec();
  const std::filesystem::path input_path = job.directory / "input.pb";
  if (absl::Status status = write_message(input_path, input); !status.ok()) return status;
  ProcessOptions options;
  options.command = {options_.trainer.string(), "--check", "--input", input_path.string()};
  options.environment = options_.environment;
  options.directory = job.directory;
  options.stdout_path = job.directory / "stdout";
  options.stderr_path = job.directory / "stderr";
  options.dies_with_parent = true;
  options.first_out_of_memory = true;
  absl::StatusOr<std::unique_ptr<Process>> process =
      Process::start(options, [](const ProcessId&) { return absl::OkStatus(); });
  if (!process.ok()) return process.status();
  job.process = *std::move(process);
  return absl::OkStatus();
}

void Checker::exited(std::list<Job>::iterator job) {
  const std::optional<Exit> exit = job->process->reap();
  if (!exit) return;
  v1::Checked checked;
  checked.set_check_id(job->check.check_id());
  *checked.mutable_result() =
      job->timed_out
          ? broken(absl::StrCat("the trainer could not check the job within ",
                                std::chrono::duration<double>(options_.deadline).count(), " s"))
          : result_of(job->directory, *exit);
  const Done done = std::move(job->done);
  discard(*job);
  running_.erase(job);
  if (done) done(std::move(checked));
  start_waiting();
}

void Checker::discard(Job& job) {
  loop_.cancel(job.deadline);
  if (job.process) {
    loop_.unwatch(job.process->pidfd());
  }
  std::error_code error;
  std::filesystem::remove_all(job.directory, error);
}

}  // namespace tessera::agent
