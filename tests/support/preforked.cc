// Starts a program often without loading it each time. Preloaded (LD_PRELOAD), it takes the place
// of the program's main() once all libraries are loaded and initialised - of a program with
// libtorch most of what a short run costs - and forks a child that runs main() for each line on
// stdin:
//
//   STDOUT-FILE TAB STDERR-FILE TAB ARGUMENT TAB ARGUMENT ... NEWLINE
//
// It prints "started PID" for each, in order, and "ended PID CODE" (128 + signal of a killed one).
// Children that are there when stdin ends are killed. See preforked.py.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

Main real_main = nullptr;
std::set<pid_t> running;

sigset_t child_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  return signals;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = line.find('\t', begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(line.substr(begin, end - begin));
  }
  parts.push_back(line.substr(begin));
  return parts;
}

void redirect(const std::string& path, int descriptor, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(127);
}

[[noreturn]] void run_child(const std::string& line, int signals, char* name, char** environment) {
  std::vector<std::string> parts = split(line);
  if (parts.size() < 2) _exit(127);
  close(signals);
  const sigset_t blocked = child_signals();
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  redirect("/dev/null", STDIN_FILENO, O_RDONLY);
  redirect(parts[0], STDOUT_FILENO, O_WRONLY | O_CREAT | O_TRUNC);
  redirect(parts[1], STDERR_FILENO, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<char*> arguments{name};
  for (size_t i = 2; i < parts.size(); ++i) arguments.push_back(parts[i].data());
  const auto count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  const int code = real_main(count, arguments.data(), environment);
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);  // without destructors of libraries, which would copy all their pages first
}

void start(const std::string& line, int signals, char* name, char** environment) {
  const pid_t pid = fork();
  if (pid == 0) run_child(line, signals, name, environment);
  if (pid < 0) std::exit(1);
  running.insert(pid);
  dprintf(STDOUT_FILENO, "started %d\n", pid);
}

void reap() {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    running.erase(pid);
    dprintf(STDOUT_FILENO, "ended %d %d\n", pid,
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

// Starts a child for each whole line of `text`; what is left of it is the beginning of the next
// one.
void start_all(std::string& text, int signals, char* name, char** environment) {
  for (size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
    start(text.substr(0, end), signals, name, environment);
  }
}

int serve(int, char** argv, char** environment) {
  unsetenv("LD_PRELOAD");  // not for programs that a child may start
  const sigset_t blocked = child_signals();
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  const int signals = signalfd(-1, &blocked, SFD_CLOEXEC);
  std::string text;
  for (;;) {
    pollfd sources[] = {{STDIN_FILENO, POLLIN, 0}, {signals, POLLIN, 0}};
    if (poll(sources, 2, -1) < 0) return 1;
    if (sources[1].revents != 0) {
      signalfd_siginfo ignored;
      if (read(signals, &ignored, sizeof ignored) < 0) return 1;
      reap();
    }
    if (sources[0].revents == 0) continue;
    char part[4096];
    const ssize_t size = read(STDIN_FILENO, part, sizeof part);
    if (size <= 0) break;
    text.append(part, static_cast<size_t>(size));
    start_all(text, signals, argv[0], environment);
  }
  for (const pid_t pid : running) kill(pid, SIGKILL);
  return 0;
}

}  // namespace

extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*linker_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto next = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  real_main = main;
  return next(serve, argc, argv, init, fini, linker_fini, stack_end);
}
