// tessera-agent: flags and wiring.
#include <absl/cleanup/cleanup.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "proto/spec/addresses.h"
#include "proto/spec/redact.h"
#include "proto/spec/redacting_log.h"
#include "worker/agent/confinement.h"
#include "worker/agent/devices.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/file_util.h"
#include "worker/agent/membership.h"
#include "worker/agent/network.h"
#include "worker/agent/session.h"
#include "worker/agent/supervisor.h"

namespace tessera::agent {
namespace {

namespace fs = std::filesystem;

constexpr int kMinDefaultCpuSlots = 8;
constexpr int kMaxCpuSlots = 4096;
// How long the end of an allocation's agent waits for the coordinator to hear of its ranks' ends.
constexpr std::chrono::seconds kReleasePatience{5};

struct Flags {
  // One address, or several with commas between.
  std::string coordinator;
  std::vector<std::string> coordinators() const { return spec::split_addresses(coordinator); }
  std::string node;
  std::string state_dir;
  std::string trainer;
  int cpu_slots = 0;
  std::string cuda_devices = "all";
  std::string address;
  std::string rack;
  bool kill_on_exit = false;
  int stop_grace_seconds = 20;
  std::string allocation;
  std::string allocation_id;
  int allocation_index = 0;
  std::string ca;
  std::string enrol_token;
  std::string tls_cert;
  std::string tls_key;
  bool insecure_loopback = false;
  std::vector<std::string> allowed;
  std::vector<std::string> readable;
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

// Of an agent that a cluster's scheduler starts for one job: docs/launchers.md.
void add_allocation_flags(CLI::App& app, Flags& flags) {
  app.add_option(
      "--allocation", flags.allocation,
      "Name of the allocation that tesserad asked a cluster for: the node is NAME-INDEX, "
      "takes its job alone, and ends with it");
  app.add_option("--allocation-index", flags.allocation_index,
                 "Number of this machine in its allocation, from 0")
      ->check(CLI::Range(0, 1 << 16))
      ->envname("SLURM_PROCID");
  app.add_option("--allocation-id", flags.allocation_id, "What the cluster calls the allocation")
      ->envname("SLURM_JOB_ID");
  app.add_option("--stop-grace", flags.stop_grace_seconds,
                 "With --allocation: seconds on SIGTERM for the ranks to write a checkpoint")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
}

// An allocation's agent is known by its number in all that it would share with the others.
void take_allocation(Flags& flags) {
  if (flags.allocation.empty()) return;
  const std::string suffix = absl::StrCat("-", flags.allocation_index);
  flags.node = flags.allocation + suffix;
  flags.state_dir = (fs::path(flags.state_dir) / ("node" + suffix)).string();
  if (!flags.enrol_token.empty()) flags.enrol_token += suffix;
}

// Nothing of it is of use to another agent.
void clear_allocation(const Flags& flags) {
  if (flags.allocation.empty()) return;
  std::error_code ignored;
  fs::remove_all(flags.state_dir, ignored);
  fs::remove(fs::path(flags.state_dir).parent_path(), ignored);  // where this was the last of them
}

void add_flags(CLI::App& app, Flags& flags) {
  flags.node = hostname();
  flags.trainer = beside("tessera-trainer");
  flags.cpu_slots =
      std::max(static_cast<int>(std::thread::hardware_concurrency()), kMinDefaultCpuSlots);
  app.add_option("--coordinator", flags.coordinator,
                 "Where tesserad is: unix:PATH or HOST:PORT; several, of which one leads, are "
                 "separated by commas")
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
                 "GPUs to offer: all, none, indices in PCI bus order, as in 0,2, or visible: those "
                 "that CUDA_VISIBLE_DEVICES names, all where it is not set")
      ->capture_default_str();
  app.add_option("--address", flags.address,
                 "Address that other machines reach this one at; by default the one that the "
                 "coordinator is reached from, 127.0.0.1 when that is a Unix socket");
  app.add_option("--rack", flags.rack,
                 "Where this machine stands: a gang is kept within one rack where it can be");
  app.add_option("--ca", flags.ca,
                 "Authority of the coordinator's certificate, its STATE_DIR/tls/ca.pem; HOST:PORT "
                 "takes it");
  app.add_option("--enrol-token-file", flags.enrol_token,
                 "File of a token of `tessera token create --role agent`: enrols this agent, which "
                 "then has a certificate in its state directory");
  app.add_option("--tls-cert", flags.tls_cert,
                 "Certificate chain of another authority in PEM, which names "
                 "tessera://agent/NODE, in place of one to enrol for");
  app.add_option("--tls-key", flags.tls_key, "Its private key");
  app.add_flag("--insecure-loopback", flags.insecure_loopback,
               "Connect to HOST:PORT of this machine without TLS: for tests");
  app.add_option(
         "--allow-path", flags.allowed,
         "Directory that jobs may read and write beneath, and nothing else of this machine; "
         "may be repeated (without it: all that this agent's user may)")
      ->type_name("DIR");
  app.add_option("--allow-read", flags.readable,
                 "Directory that jobs may read beneath, too; may be repeated")
      ->type_name("DIR")
      ->needs("--allow-path");
  app.add_flag("--kill-on-exit", flags.kill_on_exit,
               "On SIGTERM or SIGINT kill the ranks; else they go on for the next agent");
  add_allocation_flags(app, flags);
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

// For the programs of jobs: this one's, without what is its own business. Nothing is fetched for
// jobs, so nothing of theirs needs a secret of the machine's.
std::vector<std::string> environment() {
  std::vector<std::string> result;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view name(*entry, std::strcspn(*entry, "="));
    if (!spec::names_secret(name)) result.emplace_back(*entry);
  }
  return result;
}

bool is_unix(const std::string& address) { return address.starts_with("unix:"); }

// Towards the first coordinator that there is a way to.
absl::StatusOr<std::string> local_address(const std::vector<std::string>& coordinators) {
  absl::StatusOr<std::string> address;
  for (const std::string& coordinator : coordinators) {
    address = local_address_towards(coordinator);
    if (address.ok()) break;
  }
  return address;
}

// Confines what runs for jobs, if that is asked for. Requires: the state directory is there.
absl::Status confine(const Flags& flags, SupervisorOptions& options) {
  if (flags.allowed.empty()) return absl::OkStatus();
  ConfinementOptions confinement;
  for (const std::string& path : flags.allowed) confinement.allowed.push_back(fs::absolute(path));
  for (const std::string& path : flags.readable) confinement.readable.push_back(fs::absolute(path));
  for (const fs::path& program : {options.trainer, options.data_program}) {
    const fs::path prefix = program.parent_path().parent_path();
    confinement.programs.push_back(program.parent_path());
    if (fs::is_directory(prefix / "lib")) confinement.programs.push_back(prefix / "lib");
  }
  // All but the agent's own key. Caches and scratch files would go to places that are closed.
  for (const char* name : {"runs", "probes", "cache", "tmp"}) {
    confinement.work.push_back(options.state_dir / name);
    const absl::Status status = make_directories(confinement.work.back());
    if (!status.ok()) return status;
  }
  std::erase_if(options.environment, [](const std::string& entry) {
    return entry.starts_with("TMPDIR=") || entry.starts_with("XDG_CACHE_HOME=");
  });
  options.environment.push_back("XDG_CACHE_HOME=" + (options.state_dir / "cache").string());
  options.environment.push_back("TMPDIR=" + (options.state_dir / "tmp").string());
  auto made = Confinement::make(confinement);
  if (!made.ok()) return made.status();
  options.confinement = *std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<SupervisorOptions> supervisor_options(const Flags& flags) {
  SupervisorOptions options;
  options.state_dir = fs::absolute(flags.state_dir);
  options.trainer = fs::absolute(flags.trainer);
  options.data_program = beside("tessera-data");
  options.environment = environment();
  // Slurm signals all processes of a job.
  options.ranks_ignore_sigterm = !flags.allocation.empty();
  options.address = flags.address;
  if (options.address.empty()) {
    absl::StatusOr<std::string> address = local_address(flags.coordinators());
    if (!address.ok()) return address.status();
    options.address = *std::move(address);
  }
  std::string cuda_devices = flags.cuda_devices;
  if (cuda_devices == "visible") {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    cuda_devices = visible == nullptr || *visible == '\0' ? "all" : visible;
  }
  absl::StatusOr<std::vector<v1::Device>> devices = offered_devices(cuda_devices, flags.cpu_slots);
  if (!devices.ok()) return devices.status();
  options.devices = *std::move(devices);
  if (options.devices.empty()) {
    return absl::InvalidArgumentError("no device to offer: --cpu-slots is 0 and there is no GPU");
  }
  return options;
}

absl::StatusOr<std::unique_ptr<Membership>> join(const Flags& flags,
                                                 const SupervisorOptions& supervisor,
                                                 const UniqueFd& signals) {
  if (flags.ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator is \"", flags.coordinator,
                     "\", which takes --ca FILE: the authority of its certificate"));
  }
  if (flags.tls_cert.empty() != flags.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key must be given together");
  }
  std::vector<std::string> coordinators = flags.coordinators();
  std::erase_if(coordinators, is_unix);
  return Membership::join({.coordinators = std::move(coordinators),
                           .node = flags.node,
                           .ca = flags.ca,
                           .enrol_token = flags.enrol_token,
                           .directory = supervisor.state_dir / "identity",
                           .certificate = flags.tls_cert,
                           .key = flags.tls_key},
                          signals.get());
}

// How the coordinator is to be reached; a mistake in the flags, or why this agent is not let in.
absl::StatusOr<Session::Options> session_options(const Flags& flags,
                                                 const SupervisorOptions& supervisor,
                                                 const UniqueFd& signals) {
  Session::Options options;
  options.coordinators = flags.coordinators();
  const auto& all = options.coordinators;
  const bool is_here = std::all_of(all.begin(), all.end(), is_on_this_machine);
  if (flags.insecure_loopback && !is_here) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator is \"", flags.coordinator,
                     "\", must be on this machine with --insecure-loopback"));
  }
  std::shared_ptr<Membership> member;
  if (!flags.insecure_loopback && !std::all_of(all.begin(), all.end(), is_unix)) {
    auto joined = join(flags, supervisor, signals);
    if (!joined.ok()) return joined.status();
    member = *std::move(joined);
  }
  using Credentials = absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>>;
  options.credentials = [member](const std::string& address) -> Credentials {
    if (member == nullptr || is_unix(address)) return grpc::InsecureChannelCredentials();
    return member->credentials();
  };
  options.ping = !is_here || all.size() > 1;
  options.hello.set_node(flags.node);
  options.hello.set_hostname(hostname());
  options.hello.set_address(supervisor.address);
  options.hello.set_rack(flags.rack);
  options.hello.set_version(TESSERA_VERSION);
  options.hello.set_allocation(flags.allocation);
  if (!flags.allocation.empty()) options.hello.set_allocation_id(flags.allocation_id);
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
  if (absl::Status status = confine(flags, *options); !status.ok()) return status;
  const absl::Cleanup clear = [&flags] { clear_allocation(flags); };

  const auto how = session_options(flags, *options, signals);
  if (!how.ok()) return absl::IsCancelled(how.status()) ? absl::OkStatus() : how.status();

  absl::Status result;
  EventLoop loop;
  Supervisor supervisor(loop, *options);
  Session session(loop, *how, supervisor, [&](const absl::Status& why) {
    result = why;
    // Others of a machine's agent go on under the next one; of an allocation's there is none.
    if (flags.allocation.empty()) return loop.stop();
    supervisor.kill_all(std::chrono::milliseconds::zero(), [&] { loop.stop(); });
  });
  const auto shut_down = [&] { session.close([&] { loop.stop(); }); };
  bool shutting_down = false;
  loop.watch(signals.get(), [&] {
    signalfd_siginfo signal;
    if (::read(signals.get(), &signal, sizeof(signal)) != sizeof(signal) || shutting_down) return;
    shutting_down = true;
    const bool kills = flags.kill_on_exit || !flags.allocation.empty();
    spdlog::info("shutting down{}", kills ? " with all ranks" : "; ranks go on");
    if (!flags.allocation.empty()) {
      supervisor.kill_all(std::chrono::seconds(flags.stop_grace_seconds),
                          [&] { supervisor.await_release(kReleasePatience, shut_down); });
    } else if (kills) {
      supervisor.kill_all(std::chrono::milliseconds::zero(), shut_down);
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
  // It holds keys: no core dump, and no other process of its user looks into it. Its children are
  // programs of their own, and may leave one.
  ::prctl(PR_SET_DUMPABLE, 0);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("agent"));
  spdlog::set_formatter(
      std::make_unique<tessera::spec::RedactingFormatter>("%Y-%m-%dT%H:%M:%S.%e %l agent: %v"));
  CLI::App app{"Tessera's agent: runs the ranks of one machine", "tessera-agent"};
  app.set_version_flag("--version", TESSERA_VERSION);
  tessera::agent::Flags flags;
  tessera::agent::add_flags(app, flags);
  CLI11_PARSE(app, argc, argv);
  tessera::agent::take_allocation(flags);
  const absl::Status status = tessera::agent::run(flags);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}
