#include "client/cli/inspect.h"

#include <fcntl.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"
#include "client/cli/data_printer.h"
#include "client/cpp/job_file.h"
#include "proto/spec/rules.h"
#include "tessera/v1/inspect.pb.h"

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

bool is_job_file(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".yaml" || extension == ".yml" || extension == ".json";
}

// Empty, with its mistakes printed, where there is none.
std::optional<v1::JobSpec> read_spec(const Session& session, const InspectOptions& options) {
  const bool is_job = is_job_file(options.target);
  v1::JobSpec spec;
  if (is_job) {
    JobFile job = read_job_file(options.target);
    if (!job.errors.empty()) {
      print_errors(session.terminal, job.errors);
      return std::nullopt;
    }
    spec = std::move(job.spec);
  } else if (options.tokenizer.empty()) {
    print_errors(session.terminal, {absl::StrCat(options.target,
                                                 " is no job file (.yaml, .yml, "
                                                 ".json), and data needs "
                                                 "--tokenizer DIRECTORY")});
    return std::nullopt;
  } else {
    spec.mutable_data()->add_train(fs::absolute(options.target).lexically_normal().string());
    spec.mutable_method()->mutable_sft();
    spec::fill_defaults(spec);
  }
  if (!options.tokenizer.empty()) {
    spec.mutable_model()->set_tokenizer(
        fs::absolute(options.tokenizer).lexically_normal().string());
  }
  if (options.held_out && spec.data().eval().empty()) {
    print_errors(session.terminal, {absl::StrCat("--eval: ", options.target, " has no data.eval")});
    return std::nullopt;
  }
  return spec;
}

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

ExitCode inspect_data(const Session& session, const InspectOptions& options) {
  const auto spec = read_spec(session, options);
  if (!spec) return kUsage;
  v1::InspectRequest request;
  *request.mutable_spec() = *spec;
  request.set_held_out(options.held_out);
  request.set_max_documents(options.documents);
  request.set_first_row(options.first_row);
  request.set_num_rows(options.rows);

  DataPrinter printer(session.terminal, session.json);
  ExitCode code = kSucceeded;
  const absl::Status status = run_program(session, request, [&](const v1::InspectReply& reply) {
    if (reply.has_failure()) {
      const v1::Failure& failure = reply.failure();
      print_errors(session.terminal, {failure.field().empty() ? failure.message()
                                                              : absl::StrCat(failure.field(), ": ",
                                                                             failure.message())});
      code = kUsage;
    } else {
      printer.print(reply);
    }
  });
  session.terminal.out.flush();
  if (session.stop.stop_requested()) return kInterrupted;
  if (status.ok()) return code;
  print_errors(session.terminal, {std::string(status.message())});
  return kJobFailed;
}

}  // namespace tessera::cli
