#include "tests/support/tesserad_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

namespace tessera::support {

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  // What one try may take: a busy machine is slow to accept.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

TesseradProcess::TesseradProcess(std::string program, std::filesystem::path directory,
                                 std::vector<std::string> flags)
    : program_(std::move(program)), directory_(std::move(directory)), flags_(std::move(flags)) {}

TesseradProcess::~TesseradProcess() { crash(); }

void TesseradProcess::start() {
  std::vector<std::string> arguments{program_, "--state-dir", state_dir().string()};
  arguments.insert(arguments.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (directory_ / "log").c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int failure = posix_spawn(&pid_, program_.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure == 0) return;
  pid_ = -1;
  throw std::system_error(failure, std::generic_category(), program_);
}

bool TesseradProcess::await_serving(std::chrono::seconds patience) const {
  return make_channel(address())->WaitForConnected(std::chrono::system_clock::now() + patience);
}

void TesseradProcess::crash() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int TesseradProcess::stop() {
  ::kill(pid_, SIGTERM);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool TesseradProcess::runs() const {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(pid_);
  return pid_ > 0 && ::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

std::optional<int> TesseradProcess::ended() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string TesseradProcess::log() const {
  std::ifstream file(directory_ / "log");
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t TesseradProcess::resident_bytes() const {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid_) + "/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::chrono::duration<double> TesseradProcess::cpu_time() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name, in parentheses, may hold anything; utime and stime are the 12th and 13th behind it.
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  constexpr int kBeforeTimes = 11;
  for (int i = 0; i < kBeforeTimes; ++i) fields >> text;
  double user = 0, system = 0;
  fields >> user >> system;
  return std::chrono::duration<double>((user + system) /
                                       static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

}  // namespace tessera::support
