#include "server/launchers/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxOutputBytes = 16 << 20;
constexpr int kExecFailed = 127;
constexpr absl::string_view kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// Both ends of a pipe; closed with it.
struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  bool make() { return ::pipe2(ends.data(), O_CLOEXEC) == 0; }
  void close_end(size_t end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
};

std::string find_program(const std::string& name, const std::vector<std::string>& environment) {
  if (name.find('/') != std::string::npos) return name;
  absl::string_view path = kDefaultPath;
  for (const std::string& entry : environment) {
    if (entry.starts_with("PATH=")) path = absl::string_view(entry).substr(5);
  }
  for (const absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    std::string found = absl::StrCat(directory, "/", name);
    if (::access(found.c_str(), X_OK) == 0) return found;
  }
  return "";
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// In the child of a program with threads: async-signal-safe calls only.
[[noreturn]] void become(const char* program, char* const* argv, char* const* envp, int output,
                         int errors) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  // A group of its own, so that it is killed with its children.
  setpgid(0, 0);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  execve(program, argv, envp);
  _exit(kExecFailed);
}

// Reads what there is. False: the other end is closed.
bool drain(int descriptor, std::string& text) {
  std::array<char, 1 << 16> buffer;
  const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

// Reads until the program has closed its outputs. False: too long or too much.
bool read_outputs(Pipe& out, Pipe& err, absl::Time deadline, ProgramEnd& end) {
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    std::array<pollfd, 2> waits{pollfd{out.ends[0], POLLIN, 0}, pollfd{err.ends[0], POLLIN, 0}};
    const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    if (::poll(waits.data(), waits.size(), timeout_ms) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (waits[0].revents != 0 && !drain(out.ends[0], end.output)) out.close_end(0);
    if (waits[1].revents != 0 && !drain(err.ends[0], end.errors)) err.close_end(0);
    if (end.output.size() + end.errors.size() > kMaxOutputBytes) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ProgramEnd> run_program(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment,
                                       absl::Duration timeout) {
  const std::string program = find_program(arguments.front(), environment);
  if (program.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no program ", arguments.front()));
  }
  std::vector<std::string> words = arguments, variables = environment;
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  Pipe out, err;
  if (!out.make() || !err.make()) return absl::ErrnoToStatus(errno, "pipe");
  const absl::Time deadline = absl::Now() + timeout;
  const pid_t pid = ::fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", program));
  if (pid == 0) become(program.c_str(), argv.data(), envp.data(), out.ends[1], err.ends[1]);
  out.close_end(1);
  err.close_end(1);
  ProgramEnd end;
  const bool ended = read_outputs(out, err, deadline, end);
  // By itself, too: its group may not be there yet.
  if (!ended && ::kill(-pid, SIGKILL) != 0) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return absl::DeadlineExceededError(
        absl::StrCat(arguments.front(), " did not end within ", absl::FormatDuration(timeout)));
  }
  end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace tessera::server
