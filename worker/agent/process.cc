#include "worker/agent/process.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tessera::agent {
namespace {

constexpr size_t kMaxProcFileBytes = 4096;
constexpr idtype_t kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack.

absl::StatusOr<std::string> boot_id() {
  absl::StatusOr<std::string> text =
      read_file("/proc/sys/kernel/random/boot_id", kMaxProcFileBytes);
  if (!text.ok()) return text.status();
  return std::string(absl::StripAsciiWhitespace(*text));
}

// What /proc knows of a live process. NOT_FOUND when there is none, or only its zombie.
absl::StatusOr<ProcessId> identify(pid_t pid) {
  absl::StatusOr<std::string> stat =
      read_file(absl::StrCat("/proc/", pid, "/stat"), kMaxProcFileBytes);
  if (!stat.ok()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  // The second field is the name in parentheses, which may hold anything; the state follows it.
  const size_t end_of_name = stat->rfind(')');
  if (end_of_name == std::string::npos) return absl::InternalError("unreadable /proc/PID/stat");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*stat).substr(end_of_name + 2), ' ');
  constexpr size_t kState = 0, kStartTime = 19;  // Fields 3 and 22 of proc(5).
  ProcessId id;
  id.pid = pid;
  if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &id.start_ticks)) {
    return absl::InternalError("unreadable /proc/PID/stat");
  }
  if (fields[kState] == "Z" || fields[kState] == "X") {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  }
  absl::StatusOr<std::string> boot = boot_id();
  if (!boot.ok()) return boot.status();
  id.boot_id = *std::move(boot);
  return id;
}

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

struct Pipe {
  UniqueFd read, write;
};

absl::StatusOr<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return errno_status("make a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// What the child needs between fork and exec, where nothing may be allocated: other threads may
// have held the heap's lock.
struct ChildPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  const char* directory;
  const char* stdout_path;
  const char* stderr_path;
  int inherited_fd;
  int ruleset_fd;
  bool dies_with_parent;
  bool ignores_sigterm;
  int go;       // a byte arrives when the parent has committed; end of file: it will not
  int trouble;  // takes errno when the child cannot start
};

bool confine(int ruleset) {
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
}

bool redirect(const char* path, int flags, int target) {
  const int fd = ::open(path, flags, 0600);
  return fd >= 0 && ::dup2(fd, target) >= 0;
}

[[noreturn]] void fail_child(int trouble) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(trouble, &error, sizeof(error));
  ::_exit(127);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  // A Ctrl-C or hang-up meant for the agent must not reach its trainers.
  ::setsid();
  if (plan.dies_with_parent) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  char byte;
  ssize_t count;
  while ((count = ::read(plan.go, &byte, 1)) < 0 && errno == EINTR) {
  }
  if (count != 1) ::_exit(127);
  struct sigaction defaults{};
  defaults.sa_handler = SIG_DFL;
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    ::sigaction(signal, &defaults, nullptr);
  }
  if (plan.ignores_sigterm) ::signal(SIGTERM, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
  if (::chdir(plan.directory) != 0 || !redirect("/dev/null", O_RDONLY, STDIN_FILENO) ||
      !redirect(plan.stdout_path, kAppend, STDOUT_FILENO) ||
      !redirect(plan.stderr_path, kAppend, STDERR_FILENO)) {
    fail_child(plan.trouble);
  }
  if (plan.ruleset_fd >= 0 && !confine(plan.ruleset_fd)) fail_child(plan.trouble);
  // Every descriptor here should be close-on-exec already; libraries may have forgotten one.
  ::syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (plan.inherited_fd >= 0) ::fcntl(plan.inherited_fd, F_SETFD, 0);
  ::execve(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  fail_child(plan.trouble);
}

void raise_oom_score(pid_t pid) {
  constexpr absl::string_view kScore = "800";  // of 1000
  UniqueFd fd(::open(absl::StrCat("/proc/", pid, "/oom_score_adj").c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return;
  [[maybe_unused]] const ssize_t written = ::write(fd.get(), kScore.data(), kScore.size());
}

// Lets the child go; the error it met on the way to its program, if any.
absl::Status release_child(Pipe go, Pipe trouble, const std::string& program) {
  go.read.reset();
  trouble.write.reset();
  if (::write(go.write.get(), "g", 1) != 1) return errno_status("start a child");
  int error = 0;
  ssize_t count;
  while ((count = ::read(trouble.read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (count != sizeof(error)) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", program));
}

}  // namespace

std::string ProcessId::to_string() const {
  return absl::StrCat(pid, " ", start_ticks, " ", boot_id, "\n");
}

absl::StatusOr<ProcessId> ProcessId::parse(absl::string_view text) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  ProcessId id;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &id.pid) || id.pid <= 0 ||
      !absl::SimpleAtoi(parts[1], &id.start_ticks)) {
    return absl::DataLossError(absl::StrCat("not a process: \"", text, "\""));
  }
  id.boot_id = std::string(parts[2]);
  return id;
}

Process::Process(ProcessId id, UniqueFd pidfd, bool adopted)
    : id_(std::move(id)), pidfd_(std::move(pidfd)), adopted_(adopted) {}

absl::StatusOr<std::unique_ptr<Process>> Process::start(const ProcessOptions& options,
                                                        const Commit& commit) {
  absl::StatusOr<Pipe> go = make_pipe();
  absl::StatusOr<Pipe> trouble = make_pipe();
  if (!go.ok()) return go.status();
  if (!trouble.ok()) return trouble.status();
  const ChildPlan plan{pointers(options.command),   pointers(options.environment),
                       options.directory.c_str(),   options.stdout_path.c_str(),
                       options.stderr_path.c_str(), options.inherited_fd,
                       options.ruleset_fd,          options.dies_with_parent,
                       options.ignores_sigterm,     go->read.get(),
                       trouble->write.get()};
  const int go_write = go->write.get();
  const pid_t pid = ::fork();
  if (pid < 0) return errno_status("fork");
  if (pid == 0) {
    // Else the child would hold the pipe open itself and never see the parent's end.
    ::close(go_write);
    run_child(plan);
  }
  UniqueFd pidfd = open_pidfd(pid);
  absl::StatusOr<ProcessId> id = identify(pid);
  absl::Status status = pidfd.valid() ? id.status() : errno_status("open a pidfd");
  if (status.ok()) status = commit(*id);
  if (status.ok()) {
    status = release_child(*std::move(go), *std::move(trouble), options.command[0]);
    // Until it runs its own program, what the kernel shows of it is root's, as of this process.
    if (status.ok() && options.first_out_of_memory) raise_oom_score(pid);
  } else {
    go->write.reset();
  }
  if (!status.ok()) {
    ::waitpid(pid, nullptr, 0);
    return status;
  }
  return std::unique_ptr<Process>(new Process(*std::move(id), std::move(pidfd), false));
}

absl::StatusOr<std::unique_ptr<Process>> Process::adopt(const ProcessId& id) {
  // The pidfd first: what it names cannot change after the comparison.
  UniqueFd pidfd = open_pidfd(id.pid);
  if (!pidfd.valid()) return absl::NotFoundError(absl::StrCat("no process ", id.pid));
  absl::StatusOr<ProcessId> found = identify(id.pid);
  if (!found.ok()) return found.status();
  if (*found != id) return absl::NotFoundError(absl::StrCat("pid ", id.pid, " is another's now"));
  return std::unique_ptr<Process>(new Process(id, std::move(pidfd), true));
}

void Process::kill_group(int signal) {
  // Until the process has been reaped its pid, and so the group, cannot be another's. An adopted
  // process is reaped by init, so there the group is signalled only while the leader lives.
  if (exit_) return;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  if (adopted_ && ::poll(&ended, 1, 0) != 0) return;
  ::kill(-id_.pid, signal);
}

std::optional<Exit> Process::reap() {
  if (exit_) return exit_;
  siginfo_t info{};
  if (adopted_) {
    pollfd ended{pidfd_.get(), POLLIN, 0};
    if (::poll(&ended, 1, 0) != 1) return std::nullopt;
    exit_ = Exit{};
    return exit_;
  }
  if (::waitid(kPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  // What the process left behind in its group goes too, while the zombie still holds the pid.
  ::kill(-id_.pid, SIGKILL);
  ::waitid(kPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG);
  exit_ =
      Exit{info.si_code == CLD_EXITED ? Exit::Kind::kCode : Exit::Kind::kSignal, info.si_status};
  return exit_;
}

}  // namespace tessera::agent
