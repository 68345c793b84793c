#include "client/cli/data_program.h"

#include <fcntl.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"
#include "client/cpp/job_file.h"
#include "proto/spec/rules.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

}  // namespace

bool is_job_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".yaml" || extension == ".yml" || extension == ".json";
}

std::optional<v1::JobSpec> read_data_target(const Terminal& terminal, const DataTarget& target) {
  v1::JobSpec spec;
  if (is_job_file(target.target)) {
    JobFile job = read_job_file(target.target);
    if (!job.errors.empty()) {
      print_errors(terminal, job.errors);
      return std::nullopt;
    }
    spec = std::move(job.spec);
  } else {
    spec.mutable_data()->add_train(fs::absolute(target.target).lexically_normal().string());
    spec.mutable_method()->mutable_sft();
    spec.mutable_training();
    spec::fill_defaults(spec);
  }
  if (!target.model.empty()) {
    const std::string model = fs::absolute(target.model).lexically_normal().string();
    if (spec.model().path().empty()) spec.mutable_model()->set_path(model);
    spec.mutable_model()->set_tokenizer(model);
  }
  if (target.held_out && spec.data().eval().empty()) {
    print_errors(terminal, {absl::StrCat("--eval: ", target.target, " has no data.eval")});
    return std::nullopt;
  }
  return spec;
}

namespace {

// A file without a name that holds the request, at its beginning. -1 on failure.
int request_file(const v1::InspectRequest& request) {
  const int fd = memfd_create("request", MFD_CLOEXEC);
  if (fd >= 0 && (!request.SerializeToFileDescriptor(fd) || lseek(fd, 0, SEEK_SET) != 0)) {
    close(fd);
    return -1;
  }
  return fd;
}

// Hands every reply to `take`. The program's failure, where it ended with one.
absl::Status run_program(const Session& session, const v1::InspectRequest& request,
                         const std::function<void(const v1::InspectReply&)>& take) {
  const Fd input(request_file(request));
  int ends[2];
  if (input.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  const Fd replies(ends[0]);
  Fd output(ends[1]);
  const auto pid = start_process({.program = session.programs / "tessera-data",
                                  .arguments = {},
                                  .input = input.get(),
                                  .output = output.get(),
                                  .ends_with_parent = true});
  output.reset();
  if (!pid.ok()) return pid.status();
  int status = 0;
  {
    const std::stop_callback on_stop(session.stop, [pid = *pid] { kill(pid, SIGTERM); });
    google::protobuf::io::FileInputStream stream(replies.get());
    bool is_clean_end = false;
    const auto next = [&](v1::InspectReply& reply) {  // which is empty
      return google::protobuf::util::ParseDelimitedFromZeroCopyStream(&reply, &stream,
                                                                      &is_clean_end);
    };
    for (v1::InspectReply reply; next(reply); reply.Clear()) take(reply);
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(*pid), &ended, WEXITED | WNOWAIT);
  }
  waitpid(*pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("tessera-data ended with ", describe_wait_status(status)));
}

}  // namespace

ExitCode run_data_program(const Session& session, const v1::InspectRequest& request,
                          const std::function<void(const v1::InspectReply&)>& take) {
  ExitCode code = kSucceeded;
  const absl::Status status = run_program(session, request, [&](const v1::InspectReply& reply) {
    if (!reply.has_failure()) return take(reply);
    const v1::Failure& failure = reply.failure();
    print_errors(session.terminal, {failure.field().empty()
                                        ? failure.message()
                                        : absl::StrCat(failure.field(), ": ", failure.message())});
    code = kUsage;
  });
  session.terminal.out.flush();
  if (session.stop.stop_requested()) return kInterrupted;
  if (status.ok()) return code;
  print_errors(session.terminal, {std::string(status.message())});
  return kJobFailed;
}

}  // namespace tessera::cli
