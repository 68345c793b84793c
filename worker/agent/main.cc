// tessera-agent: flags and wiring.
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "worker/agent/devices.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/file_util.h"
#include "worker/agent/network.h"
#include "worker/agent/session.h"
#include "worker/agent/supervisor.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

constexpr int kMinDefaultCpuSlots = 8;
constexpr int kMaxCpuSlots = 4096;

struct Flags {
  std::string coordinator;
  std::string node;
  std::string state_dir;
  std::string trainer;
  int cpu_slots = 0;
  std::string cuda_devices = "all";
  std::string address;
  bool kill_on_exit = false;
};

std::string hostname() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

// A program of this service beside this one.
std::string beside(const char* program) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / program).string();
}

void add_flags(CLI::App& app, Flags& flags) {
  flags.node = hostname();
  flags.trainer = beside("tessera-trainer");
  flags.cpu_slots =
      std::max(static_cast<int>(std::thread::hardware_concurrency()), kMinDefaultCpuSlots);
  app.add_option("--coordinator", flags.coordinator, "Where tesserad is: unix:PATH or HOST:PORT")
      ->required();
  app.add_option("--state-dir", flags.state_dir,
                 "Directory for the runs of this machine; one agent uses it at a time")
      ->required();
  app.add_option("--node", flags.node, "Name of this machine, its own in the cluster")
      ->capture_default_str();
  app.add_option("--trainer", flags.trainer, "The tessera-trainer to start")->capture_default_str();
  app.add_option("--cpu-slots", flags.cpu_slots, "CPU devices to offer, one rank each")
      ->check(CLI::Range(0, kMaxCpuSlots))
      ->capture_default_str();
  app.add_option("--cuda-devices", flags.cuda_devices,
                 "GPUs to offer: all, none, or indices in PCI bus order, as in 0,2")
      ->capture_default_str();
  app.add_option("--address", flags.address,
                 "Address that other machines reach this one at; by default the one that the "
                 "coordinator is reached from, 127.0.0.1 when that is a Unix socket");
  app.add_flag("--kill-on-exit", flags.kill_on_exit,
               "On SIGTERM or SIGINT kill the ranks; else they go on for the next agent");
}

// Held until the process ends. A second agent would delete the first one's runs.
absl::StatusOr<UniqueFd> lock_directory(const fs::path& state_dir) {
  const fs::path path = state_dir / "agent.lock";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return errno_status(absl::StrCat("open ", path.string()));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another tessera-agent uses ", state_dir.string(),
                     "; stop it, or give this one its own --state-dir"));
  }
  return fd;
}

// Blocks them for all threads, so it comes before gRPC starts any.
UniqueFd take_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::vector<std::string> environment() {
  std::vector<std::string> result;
  for (char** entry = ::environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

absl::StatusOr<SupervisorOptions> supervisor_options(const Flags& flags) {
  SupervisorOptions options;
  options.state_dir = fs::absolute(flags.state_dir);
  options.trainer = fs::absolute(flags.trainer);
  options.data_program = beside("tessera-data");
  options.environment = environment();
  options.address = flags.address;
  if (options.address.empty()) {
    absl::StatusOr<std::string> address = local_address_towards(flags.coordinator);
    if (!address.ok()) return address.status();
    options.address = *std::move(address);
  }
  absl::StatusOr<std::vector<v1::Device>> devices =
      offered_devices(flags.cuda_devices, flags.cpu_slots);
  if (!devices.ok()) return devices.status();
  options.devices = *std::move(devices);
  if (options.devices.empty()) {
    return absl::InvalidArgumentError("no device to offer: --cpu-slots is 0 and there is no GPU");
  }
  return options;
}

Session::Options session_options(const Flags& flags, const SupervisorOptions& supervisor) {
  Session::Options options;
  options.coordinator = flags.coordinator;
  options.remote = !is_on_this_machine(flags.coordinator);
  options.hello.set_node(flags.node);
  options.hello.set_hostname(hostname());
  options.hello.set_address(supervisor.address);
  options.hello.set_version(TESSERA_VERSION);
  options.hello.mutable_devices()->Assign(supervisor.devices.begin(), supervisor.devices.end());
  return options;
}

absl::Status run(const Flags& flags) {
  const UniqueFd signals = take_signals();
  absl::StatusOr<SupervisorOptions> options = supervisor_options(flags);
  if (!options.ok()) return options.status();
  if (absl::Status status = make_directories(options->state_dir); !status.ok()) return status;
  const absl::StatusOr<UniqueFd> lock = lock_directory(options->state_dir);
  if (!lock.ok()) return lock.status();

  absl::Status result;
  EventLoop loop;
  Supervisor supervisor(loop, *options);
  Session session(loop, session_options(flags, *options), supervisor, [&](const absl::Status& why) {
    result = why;
    loop.stop();
  });
  const auto shut_down = [&] { session.close([&] { loop.stop(); }); };
  bool shutting_down = false;
  loop.watch(signals.get(), [&] {
    signalfd_siginfo signal;
    if (::read(signals.get(), &signal, sizeof(signal)) != sizeof(signal) || shutting_down) return;
    shutting_down = true;
    spdlog::info("shutting down{}", flags.kill_on_exit ? " with all ranks" : "; ranks go on");
    if (flags.kill_on_exit) {
      supervisor.kill_all(shut_down);
    } else {
      shut_down();
    }
  });
  spdlog::info("node {} with {} devices at {}; coordinator {}", flags.node, options->devices.size(),
               options->address, flags.coordinator);
  session.start();
  loop.run();
  return result;
}

}  // namespace
}  // namespace tessera::agent

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("agent"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l agent: %v");
  CLI::App app{"Tessera's agent: runs the ranks of one machine", "tessera-agent"};
  app.set_version_flag("--version", TESSERA_VERSION);
  tessera::agent::Flags flags;
  tessera::agent::add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = tessera::agent::run(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}
