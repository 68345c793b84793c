// Many agents in one process, as far as their coordinator can tell: each has a connection and a
// session of its own, says Hello with its devices, sends a heartbeat every third of the lease and
// comes back after an outage with the pauses of worker/agent/session.h. They run no jobs.
//
//   agent_swarm --coordinator HOST:PORT [--agents 10000] [--devices 8] [--connects 500]
//
// Prints a line of JSON a second, until SIGTERM or the end of --seconds: how many have a session,
// and of the heartbeats since the start, how many were answered and after how long.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "tessera/v1/agent.grpc.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/session.h"

namespace tessera::agent {
namespace {

using std::chrono::milliseconds;
using Clock = EventLoop::Clock;

constexpr milliseconds kReport{1000};
constexpr milliseconds kConnectTick{10};

struct Options {
  std::string coordinator;
  int agents = 10'000;
  int devices = 8;
  int connects_per_second = 500;  // at the start; after an outage the agents' own pauses decide
  double seconds = 0;
};

struct Totals {
  int connected = 0;
  int64_t sessions = 0;
  int64_t ended = 0;  // sessions that had been welcomed
  int64_t heartbeats = 0;
  int64_t answered = 0;
  std::vector<float> delays_ms;  // of the answers since the last report
};

// A latency that one of `parts` of 100 does not exceed.
float percentile(std::vector<float>& values, int parts) {
  if (values.empty()) return 0;
  const size_t at = values.size() * static_cast<size_t>(parts) / 100;
  const auto nth = values.begin() + static_cast<ptrdiff_t>(std::min(at, values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

class Agent;

// One stream; see the class of that name in worker/agent/session.cc.
class Stream final : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  Stream(EventLoop& loop, Agent& agent, const std::string& coordinator);

  // Does nothing while one is on its way.
  void send(v1::SessionRequest message) {
    if (is_writing_ || is_over_) return;
    is_writing_ = true;
    outgoing_ = std::move(message);
    StartWrite(&outgoing_);
  }

  void OnReadDone(bool ok) override {
    loop_.post([this, ok] { read_done(ok); });
  }
  void OnWriteDone(bool) override {
    loop_.post([this] { is_writing_ = false; });
  }
  void OnDone(const grpc::Status&) override;

 private:
  void read_done(bool ok);

  EventLoop& loop_;
  Agent& agent_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  v1::SessionResponse incoming_;
  v1::SessionRequest outgoing_;
  bool is_writing_ = false;
  bool is_over_ = false;
};

class Agent {
 public:
  Agent(EventLoop& loop, const Options& options, int number, Totals& totals)
      : loop_(loop),
        options_(options),
        totals_(totals),
        random_(static_cast<uint32_t>(number) + 1) {
    v1::Hello& hello = *hello_.mutable_hello();
    hello.set_node(absl::StrCat("node-", number));
    hello.set_hostname(hello.node());
    hello.set_address("127.0.0.1");
    hello.set_rack(absl::StrCat("rack-", number / 40));
    for (int i = 0; i < options.devices; ++i) {
      v1::Device& device = *hello.add_devices();
      device.set_index(i);
      device.set_kind("cpu");
    }
  }

  void connect() {
    stream_ = std::make_unique<Stream>(loop_, *this, options_.coordinator);
    ++totals_.sessions;
    stream_->send(hello_);
  }

  void received(const v1::SessionResponse& message) {
    if (message.has_heartbeat_ack()) {
      ++totals_.answered;
      const auto delay = Clock::now() - heartbeat_time_;
      totals_.delays_ms.push_back(std::chrono::duration<float, std::milli>(delay).count());
    } else if (message.has_welcome()) {
      is_welcome_ = true;
      ++totals_.connected;
      backoff_ = kMinBackoff;
      interval_ = milliseconds(message.welcome().lease_ms() / 3);
      timer_ = loop_.call_after(interval_, [this] { heartbeat(); });
    }
  }

  void ended() {
    stream_.reset();
    if (std::exchange(is_welcome_, false)) {
      --totals_.connected;
      ++totals_.ended;
      loop_.cancel(timer_);
    }
    std::uniform_int_distribution<int64_t> jitter(backoff_.count() / 2, backoff_.count());
    backoff_ = std::min(backoff_ * 2, kMaxBackoff);
    loop_.call_after(milliseconds(jitter(random_)), [this] { connect(); });
  }

 private:
  void heartbeat() {
    v1::SessionRequest request;
    request.mutable_heartbeat()->set_number(++number_);
    heartbeat_time_ = Clock::now();
    ++totals_.heartbeats;
    stream_->send(std::move(request));
    timer_ = loop_.call_after(interval_, [this] { heartbeat(); });
  }

  EventLoop& loop_;
  const Options& options_;
  Totals& totals_;
  std::minstd_rand random_;
  v1::SessionRequest hello_;
  std::unique_ptr<Stream> stream_;
  bool is_welcome_ = false;
  milliseconds backoff_ = kMinBackoff;
  milliseconds interval_{0};
  EventLoop::TimerId timer_;
  Clock::time_point heartbeat_time_;
  int64_t number_ = 0;
};

Stream::Stream(EventLoop& loop, Agent& agent, const std::string& coordinator)
    : loop_(loop), agent_(agent) {
  grpc::ChannelArguments arguments;
  // A connection each, as machines have.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::AgentService::NewStub(
      grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments));
  stub_->async()->Session(&context_, this);
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

void Stream::read_done(bool ok) {
  if (!ok) {
    is_over_ = true;
    RemoveHold();
    return;
  }
  agent_.received(incoming_);
  StartRead(&incoming_);
}

void Stream::OnDone(const grpc::Status&) {
  loop_.post([this] { agent_.ended(); });
}

class Swarm {
 public:
  explicit Swarm(const Options& options) : options_(options) {
    for (int i = 0; i < options_.agents; ++i) {
      agents_.push_back(std::make_unique<Agent>(loop_, options_, i, totals_));
    }
  }

  // Ends the process.
  void run(int signals) {
    loop_.watch(signals, [this] { loop_.stop(); });
    if (options_.seconds > 0) {
      const auto whole = std::chrono::duration<double>(options_.seconds);
      loop_.call_after(std::chrono::duration_cast<milliseconds>(whole), [this] { loop_.stop(); });
    }
    connect_some();
    report();
    loop_.run();
    // Ten thousand channels need no farewell.
    std::_Exit(0);
  }

 private:
  void connect_some() {
    const auto seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double due = 1 + seconds * options_.connects_per_second;
    while (next_ < agents_.size() && static_cast<double>(next_) < due) agents_[next_++]->connect();
    if (next_ < agents_.size()) loop_.call_after(kConnectTick, [this] { connect_some(); });
  }

  void report() {
    std::vector<float>& delays = totals_.delays_ms;
    std::printf(
        "{\"connected\": %d, \"sessions\": %lld, \"ended\": %lld, \"heartbeats\": %lld, "
        "\"answered\": %lld, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f}\n",
        totals_.connected, static_cast<long long>(totals_.sessions),
        static_cast<long long>(totals_.ended), static_cast<long long>(totals_.heartbeats),
        static_cast<long long>(totals_.answered), percentile(delays, 50), percentile(delays, 99),
        percentile(delays, 100));
    std::fflush(stdout);
    delays.clear();
    loop_.call_after(kReport, [this] { report(); });
  }

  const Options options_;
  const Clock::time_point begin_ = Clock::now();
  EventLoop loop_;
  Totals totals_;
  std::vector<std::unique_ptr<Agent>> agents_;
  size_t next_ = 0;
};

// A connection each.
void allow_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(int argc, char** argv) {
  CLI::App app{"Many agents in one process."};
  Options options;
  app.add_option("--coordinator", options.coordinator, "HOST:PORT, without TLS")->required();
  app.add_option("--agents", options.agents)->check(CLI::Range(1, 1'000'000));
  app.add_option("--devices", options.devices)->check(CLI::Range(1, 1024));
  app.add_option("--connects", options.connects_per_second, "Connections a second at the start")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seconds", options.seconds, "0: until SIGTERM");
  CLI11_PARSE(app, argc, argv);
  allow_descriptors();
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Swarm(options).run(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  return 0;
}

}  // namespace
}  // namespace tessera::agent

int main(int argc, char** argv) { return tessera::agent::run(argc, argv); }
