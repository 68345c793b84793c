// Durable submits: at a given rate, whatever the answers take. A latency counts from when the
// submit was due, so that a coordinator that stalls is not asked less often.
//
// Without agents, unless --agents says so: what an agent's check of the job takes is not the
// coordinator's. Jobs beyond --keep are cancelled, the oldest first, at the same rate: the queue
// would grow out of its bound else.
#include <atomic>
#include <cstdio>
#include <deque>
#include <optional>
#include <thread>

#include "benchmarks/coordinator/bench.h"
#include "tests/support/fleet.h"

namespace tessera::bench {
namespace {

struct Options {
  double rate = 1000;
  double seconds = 60;
  size_t keep = 50'000;
  int agents = 0;
  int connections = 4;
};

constexpr int kMaxInFlight = 8192;

class Load {
 public:
  Load(const Options& options, const std::string& address)
      : options_(options), stubs_(connect(address, options.connections)) {}

  void run() {
    const auto total = static_cast<int64_t>(options_.rate * options_.seconds);
    const auto begin = SteadyClock::now();
    for (int64_t i = 0; i < total; ++i) {
      const auto due =
          begin + std::chrono::duration_cast<SteadyClock::duration>(
                      std::chrono::duration<double>(static_cast<double>(i) / options_.rate));
      std::this_thread::sleep_until(due);
      submit(i, due);
      cancel_oldest(i);
    }
    in_flight_.await_none();
    seconds_ = seconds_since(begin);
  }

  void print() const {
    std::printf("%lld submits of %.0f/s in %.1f s: %.0f/s durable; %lld refused, %lld cancelled\n",
                static_cast<long long>(options_.rate * options_.seconds), options_.rate, seconds_,
                static_cast<double>(latencies_.size()) / seconds_,
                static_cast<long long>(num_failed_), static_cast<long long>(num_cancelled_));
    std::printf("latency in ms: %s\n", latencies_.describe(1e3).c_str());
    if (!failure_.empty()) std::printf("last refusal: %s\n", failure_.c_str());
  }

 private:
  template <class Request, class Response>
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  v1::Coordinator::Stub& stub(int64_t number) {
    return *stubs_[static_cast<size_t>(number) % stubs_.size()];
  }

  void submit(int64_t number, SteadyClock::time_point due) {
    in_flight_.begin();
    auto call = std::make_shared<Call<v1::SubmitJobRequest, v1::SubmitJobResponse>>();
    call->request = make_submit(number, 100);
    stub(number).async()->SubmitJob(&call->context, &call->request, &call->response,
                                    [this, call, due](const grpc::Status& status) mutable {
                                      answered(*call, status, due);
                                      call.reset();  // see InFlight
                                      in_flight_.end();
                                    });
  }

  void answered(const Call<v1::SubmitJobRequest, v1::SubmitJobResponse>& call,
                const grpc::Status& status, SteadyClock::time_point due) {
    if (status.ok()) latencies_.add(seconds_since(due));
    const std::lock_guard lock(mutex_);
    if (status.ok()) {
      ids_.push_back(call.response.job().id());
    } else {
      ++num_failed_;
      failure_ = status.error_message();
    }
  }

  void cancel_oldest(int64_t number) {
    auto call = std::make_shared<Call<v1::CancelJobRequest, v1::CancelJobResponse>>();
    {
      const std::lock_guard lock(mutex_);
      if (ids_.size() <= options_.keep) return;
      call->request.set_id(ids_.front());
      ids_.pop_front();
    }
    in_flight_.begin();
    stub(number).async()->CancelJob(&call->context, &call->request, &call->response,
                                    [this, call](const grpc::Status& status) mutable {
                                      num_cancelled_ += status.ok();
                                      call.reset();
                                      in_flight_.end();
                                    });
  }

  const Options options_;
  const std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
  InFlight in_flight_{kMaxInFlight};
  Samples latencies_;
  std::atomic<int64_t> num_cancelled_{0};
  double seconds_ = 0;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<std::string> ids_;
  int64_t num_failed_ = 0;
  std::string failure_;
};

void run(const Options& options, const Place& place) {
  std::printf("a write of 4 KiB with fdatasync takes %.2f ms here\n", sync_ms(place.directory));
  support::TesseradProcess process(place.tesserad, place.directory, {"--http", ""});
  process.start();
  if (!process.await_serving()) throw std::runtime_error("tesserad does not serve");
  std::optional<support::Fleet> fleet;
  if (options.agents > 0) {
    // Jobs run for hours: the queue is what fills.
    fleet.emplace(support::FleetOptions{.address = process.address(),
                                        .num_nodes = options.agents,
                                        .step_interval = std::chrono::minutes(10)},
                  support::FleetObserver{});
  }
  Load load(options, process.address());
  const auto before = process.cpu_time();
  load.run();
  load.print();
  std::printf("tesserad: %.1f s of CPU time, %.0f MiB resident\n",
              (process.cpu_time() - before).count(), mebibytes(process.resident_bytes()));
}

}  // namespace

void add_submits(CLI::App& app, const Place& place) {
  auto options = std::make_shared<Options>();
  CLI::App& command =
      *app.add_subcommand("submits", "Durable submits a second, and what they take");
  command.add_option("--rate", options->rate, "A second")->capture_default_str();
  command.add_option("--seconds", options->seconds)->capture_default_str();
  command.add_option("--keep", options->keep, "Jobs that stay queued")->capture_default_str();
  command.add_option("--agents", options->agents, "That check each job, at once")
      ->capture_default_str();
  command.add_option("--connections", options->connections)->capture_default_str();
  command.callback([options, &place] { run(*options, place); });
}

}  // namespace tessera::bench
