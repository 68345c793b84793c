#include "worker/agent/prober.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "tessera/v1/trainer.pb.h"
#include "worker/agent/file_util.h"
#include "worker/agent/utf8.h"

namespace tessera::agent {
namespace {

constexpr size_t kMaxResultBytes = 4 << 20;
constexpr size_t kStderrTailBytes = 2048;
// Between two looks at what a program that answers in parts has written.
constexpr std::chrono::milliseconds kPartPause(50);

// "could not check the job".
const char* task_of(const v1::Probe& probe) {
  switch (probe.kind_case()) {
    case v1::Probe::kPlan:
      return "plan the job";
    case v1::Probe::kProfile:
      return "profile the data";
    case v1::Probe::kGenerate:
      return "generate";
    default:
      return "check the job";
  }
}

v1::Probed answer_to(const v1::Probe& probe) {
  v1::Probed probed;
  probed.set_probe_id(probe.probe_id());
  return probed;
}

v1::Probed broken(const v1::Probe& probe, const std::string& message) {
  v1::Probed probed = answer_to(probe);
  v1::Failure& failure = *probed.mutable_failure();
  failure.set_kind(v1::Failure::BUG);
  failure.set_rank(-1);
  failure.set_message(message);
  return probed;
}

v1::Probed refused(const v1::Probe& probe, const std::string& field, const absl::Status& why) {
  v1::Probed probed = answer_to(probe);
  v1::Failure& failure = *probed.mutable_failure();
  failure.set_kind(v1::Failure::USER);
  failure.set_rank(-1);
  failure.set_field(field);
  failure.set_message(std::string(why.message()));
  return probed;
}

v1::Probed unanswered(const v1::Probe& probe, const std::string& why) {
  v1::Probed probed = answer_to(probe);
  probed.set_unanswered(why);
  return probed;
}

std::chrono::milliseconds timeout_of(const v1::Probe& probe) {
  return probe.timeout_ms() > 0 ? std::chrono::milliseconds(probe.timeout_ms())
                                : Prober::kDefaultTimeout;
}

v1::Probed too_late(const v1::Probe& probe) {
  const std::chrono::duration<double> timeout = timeout_of(probe);
  return unanswered(probe, absl::StrCat("the agent could not ", task_of(probe), " within ",
                                        timeout.count(), " s"));
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

// The program's input: a message, in the file that its --input names.
const google::protobuf::Message& message_of(const v1::Probe& probe, v1::TrainerInput& input) {
  if (probe.has_plan()) return probe.plan();
  if (probe.has_profile()) return probe.profile();
  if (probe.has_generate()) return probe.generate();
  *input.mutable_spec() = probe.check();
  return input;
}

bool parse_json(const std::string& json, google::protobuf::Message& message) {
  google::protobuf::util::JsonParseOptions lenient;
  lenient.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(json, &message, lenient).ok();
}

// The profile or the failure among the replies.
bool parse_replies(const std::string& bytes, v1::Probed& probed) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  bool is_clean_end = false;
  v1::InspectReply reply;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&reply, &stream, &is_clean_end)) {
    if (reply.has_profile()) *probed.mutable_profiled() = std::move(*reply.mutable_profile());
    if (reply.has_failure()) *probed.mutable_failure() = std::move(*reply.mutable_failure());
    reply.Clear();
  }
  return is_clean_end && probed.kind_case() != v1::Probed::KIND_NOT_SET;
}

const char* flag_of(const v1::Probe& probe) {
  if (probe.has_plan()) return "--plan";
  return probe.has_generate() ? "--generate" : "--check";
}

bool parse(const v1::Probe& probe, const std::string& output, v1::Probed& probed) {
  if (probe.has_generate()) {  // its parts were sent
    probed.mutable_generated()->set_is_last(true);
    return true;
  }
  if (probe.has_plan()) return parse_json(output, *probed.mutable_planned());
  if (probe.has_profile()) return parse_replies(output, probed);
  return parse_json(output, *probed.mutable_checked());
}

v1::Probed result_of(const v1::Probe& probe, const std::filesystem::path& directory,
                     const Exit& exit) {
  if (exit.kind == Exit::Kind::kCode && exit.value == 0) {
    const absl::StatusOr<std::string> output =
        probe.has_generate() ? "" : read_file(directory / "stdout", kMaxResultBytes);
    v1::Probed probed = answer_to(probe);
    if (output.ok() && parse(probe, *output, probed)) return probed;
  }
  const std::string tail = to_valid_utf8(read_tail(directory / "stderr", kStderrTailBytes));
  return broken(probe, absl::StrCat(probe.has_profile() ? "tessera-data" : "the trainer",
                                    " could not ", task_of(probe), ": ", ending(exit),
                                    tail.empty() ? "" : ": ", absl::StripAsciiWhitespace(tail)));
}

}  // namespace

Prober::Prober(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {
  // Not the directory itself: the confinement is about this one.
  std::error_code error;
  for (std::filesystem::directory_iterator it(options_.directory, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    std::filesystem::remove_all(it->path(), ignored);
  }
}

Prober::~Prober() {
  cancel_all();
  for (Job& job : running_) discard(job);
}

void Prober::answer_later(Done done, v1::Probed answer) {
  loop_.post([done = std::move(done), answer = std::move(answer)] { done(answer); });
}

void Prober::probe(v1::Probe probe, Done done) {
  if (waiting_.size() >= kMaxWaiting) {
    return answer_later(
        std::move(done),
        unanswered(probe, "the agent has too many questions to answer; try again later"));
  }
  if (std::string field; options_.confinement) {
    const absl::Status status = options_.confinement->check(probe, field);
    if (!status.ok()) return answer_later(std::move(done), refused(probe, field, status));
  }
  const std::chrono::milliseconds timeout = timeout_of(probe);
  waiting_.push_back(Job{std::move(probe), std::move(done)});
  const Iterator job = std::prev(waiting_.end());
  job->deadline = loop_.call_after(timeout, [this, job] { expired(job); });
  start_waiting();
}

void Prober::cancel_all() {
  for (Job& job : waiting_) discard(job);
  waiting_.clear();
  for (Job& job : running_) {
    job.done = nullptr;
    job.process->kill_group(SIGKILL);
  }
}

void Prober::start_waiting() {
  while (!waiting_.empty() && running_.size() < kMaxRunning) {
    running_.splice(running_.end(), waiting_, waiting_.begin());
    const Iterator job = std::prev(running_.end());
    if (absl::Status status = start(*job); !status.ok()) {
      answer_later(std::move(job->done),
                   broken(job->probe, absl::StrCat("the agent could not ", task_of(job->probe),
                                                   ": ", status.message())));
      discard(*job);
      running_.erase(job);
      continue;
    }
    loop_.watch(job->process->pidfd(), [this, job] { exited(job); });
    if (job->probe.has_generate()) {
      job->replies.emplace(job->directory / "stdout");
      watch_replies(job);
    }
  }
}

void Prober::expired(Iterator job) {
  if (job->process) {
    job->timed_out = true;
    job->process->kill_group(SIGKILL);
    return;
  }
  const Done done = std::move(job->done);
  v1::Probed answer = too_late(job->probe);
  waiting_.erase(job);
  done(std::move(answer));
}

absl::Status Prober::start(Job& job) {
  job.directory = options_.directory / absl::StrCat(num_started_++);
  if (absl::Status status = make_directories(job.directory); !status.ok()) return status;
  const std::filesystem::path input_path = job.directory / "input.pb";
  v1::TrainerInput input;
  if (absl::Status status = write_message(input_path, message_of(job.probe, input)); !status.ok()) {
    return status;
  }
  ProcessOptions options;
  if (job.probe.has_profile()) {
    options.command = {options_.data_program.string()};
  } else {
    options.command = {options_.trainer.string(), flag_of(job.probe)};
  }
  options.command.insert(options.command.end(), {"--input", input_path.string()});
  options.environment = options_.environment;
  options.directory = job.directory;
  options.stdout_path = job.directory / "stdout";
  options.stderr_path = job.directory / "stderr";
  options.dies_with_parent = true;
  options.first_out_of_memory = true;
  if (options_.confinement) options.ruleset_fd = options_.confinement->ruleset();
  absl::StatusOr<std::unique_ptr<Process>> process =
      Process::start(options, [](const ProcessId&) { return absl::OkStatus(); });
  if (!process.ok()) return process.status();
  job.process = *std::move(process);
  return absl::OkStatus();
}

void Prober::cancel(int64_t probe_id) {
  const auto is_it = [&](const Job& job) { return job.probe.probe_id() == probe_id; };
  if (const auto job = std::ranges::find_if(waiting_, is_it); job != waiting_.end()) {
    discard(*job);
    waiting_.erase(job);
  }
  if (const auto job = std::ranges::find_if(running_, is_it); job != running_.end()) {
    job->done = nullptr;
    job->process->kill_group(SIGKILL);
  }
}

void Prober::watch_replies(Iterator job) {
  job->next_part = loop_.call_after(kPartPause, [this, job] {
    send_part(*job);
    watch_replies(job);
  });
}

// What has come since the last one; false: nothing has.
bool Prober::send_part(Job& job) {
  v1::Probed probed = answer_to(job.probe);
  for (v1::GenerateReply& reply : job.replies->read()) {
    if (reply.has_failure()) {
      *probed.mutable_failure() = std::move(*reply.mutable_failure());
      break;
    }
    *probed.mutable_generated()->add_replies() = std::move(reply);
  }
  if (probed.kind_case() == v1::Probed::KIND_NOT_SET) return false;
  if (job.done) job.done(std::move(probed));
  return true;
}

void Prober::exited(Iterator job) {
  const std::optional<Exit> exit = job->process->reap();
  if (!exit) return;
  while (job->replies && send_part(*job)) {
  }
  v1::Probed probed =
      job->timed_out ? too_late(job->probe) : result_of(job->probe, job->directory, *exit);
  const Done done = std::move(job->done);
  discard(*job);
  running_.erase(job);
  if (done) done(std::move(probed));
  start_waiting();
}

void Prober::discard(Job& job) {
  loop_.cancel(job.deadline);
  loop_.cancel(job.next_part);
  if (job.process) loop_.unwatch(job.process->pidfd());
  if (job.directory.empty()) return;
  std::error_code error;
  std::filesystem::remove_all(job.directory, error);
}

}  // namespace tessera::agent
