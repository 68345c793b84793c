#include "client/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::cli {
namespace {

constexpr int kExecFailed = 127;

// In the child of a program with threads: async-signal-safe calls only.
[[noreturn]] void become(const Command& command, char* const* argv, int input, int log,
                         pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setsid();
  if (command.ends_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kExecFailed);
  }
  dup2(input, STDIN_FILENO);
  dup2(command.output >= 0 ? command.output : log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  execv(argv[0], argv);
  _exit(kExecFailed);
}

}  // namespace

absl::StatusOr<pid_t> start_process(const Command& command) {
  if (access(command.program.c_str(), X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", command.program.string()));
  }
  std::string program = command.program.string();
  std::vector<std::string> arguments = command.arguments;
  std::vector<char*> argv{program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const int input = command.input >= 0 ? fcntl(command.input, F_DUPFD_CLOEXEC, 3)
                                       : open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int log = command.log.empty()
                      ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                      : open(command.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int open_errno = errno;
  pid_t pid = -1;
  if (input >= 0 && log >= 0) {
    const pid_t parent = getpid();
    pid = fork();
    if (pid == 0) become(command, argv.data(), input, log, parent);
  }
  const int error = pid < 0 && input >= 0 && log >= 0 ? errno : open_errno;
  if (input >= 0) close(input);
  if (log >= 0) close(log);
  if (pid < 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", program));
  return pid;
}

std::string describe_wait_status(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(status));
}

}  // namespace tessera::cli
