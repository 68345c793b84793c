#include "client/cli/answer.h"

#include <fcntl.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "client/cli/child_process.h"

namespace tessera::cli {
namespace {

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

// A file without a name that holds the request, at its beginning. -1 on failure.
int request_file(const google::protobuf::Message& request) {
  const int fd = memfd_create("request", MFD_CLOEXEC);
  if (fd >= 0 && (!request.SerializeToFileDescriptor(fd) || lseek(fd, 0, SEEK_SET) != 0)) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

absl::Status run_for_answer(
    const AnsweringProgram& program, const google::protobuf::Message& question,
    const std::stop_token& stop,
    const std::function<void(google::protobuf::io::ZeroCopyInputStream&)>& read) {
  const Fd input(request_file(question));
  int ends[2];
  if (input.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  Fd answer(ends[0]);
  Fd output(ends[1]);
  const auto pid = start_process({.program = program.program,
                                  .arguments = program.arguments,
                                  .input = input.get(),
                                  .output = output.get(),
                                  .ends_with_parent = true});
  output.reset();
  if (!pid.ok()) return pid.status();
  int status = 0;
  {
    const std::stop_callback on_stop(stop, [pid = *pid] { kill(pid, SIGTERM); });
    google::protobuf::io::FileInputStream stream(answer.get());
    read(stream);
    // A program that says more than was read must not wait for it to be.
    answer.reset();
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(*pid), &ended, WEXITED | WNOWAIT);
  }
  waitpid(*pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(program.program.filename().string(), " ended with ",
                                          describe_wait_status(status)));
}

}  // namespace tessera::cli
