#include "benchmarks/coordinator/bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::bench {

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void Samples::add(double value) {
  const std::lock_guard lock(mutex_);
  values_.push_back(value);
}

size_t Samples::size() const {
  const std::lock_guard lock(mutex_);
  return values_.size();
}

double Samples::quantile(double share) const {
  const std::lock_guard lock(mutex_);
  const auto place = static_cast<size_t>(share * static_cast<double>(values_.size() - 1) + 0.5);
  std::nth_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(place),
                   values_.end());
  return values_[place];
}

std::string Samples::describe(double scale) const {
  if (size() == 0) return "none";
  return absl::StrFormat("p50 %.2f, p90 %.2f, p99 %.2f, p99.9 %.2f, most %.2f",
                         scale * quantile(0.5), scale * quantile(0.9), scale * quantile(0.99),
                         scale * quantile(0.999), scale * quantile(1));
}

v1::JobSpec make_spec(int num_steps) {
  v1::JobSpec spec;
  spec.set_name("bench");
  spec.mutable_method()->mutable_sft()->set_max_length(2048);
  spec.mutable_model()->set_path("/srv/models/qwen3-8b");
  spec.mutable_data()->add_train("/srv/data/instructions/train.parquet");
  spec.mutable_training()->set_output_dir("/srv/out/bench");
  spec.mutable_training()->set_max_steps(num_steps);
  spec.mutable_training()->set_learning_rate(1e-4);
  return spec;
}

v1::SubmitJobRequest make_submit(int64_t number, int num_steps) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = make_spec(num_steps);
  request.set_request_id(absl::StrCat("request-", number));
  return request;
}

std::vector<std::unique_ptr<v1::Coordinator::Stub>> connect(const std::string& address, int count) {
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  for (int i = 0; i < count; ++i) {
    stubs.push_back(v1::Coordinator::NewStub(support::make_channel(address)));
  }
  return stubs;
}

void InFlight::begin() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return count_ < most_; });
  ++count_;
}

void InFlight::end() {
  const std::lock_guard lock(mutex_);
  --count_;
  changed_.notify_all();
}

void InFlight::await_none() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return count_ == 0; });
}

int InFlight::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

std::vector<std::string> submit_all(v1::Coordinator::Stub& stub, int64_t first, int count,
                                    int num_steps, int at_once) {
  struct Call {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    v1::SubmitJobResponse response;
  };
  InFlight in_flight(at_once);
  std::vector<std::string> ids(static_cast<size_t>(count));
  std::mutex mutex;
  std::string failure;
  for (int i = 0; i < count; ++i) {
    in_flight.begin();
    auto call = std::make_shared<Call>();
    call->request = make_submit(first + i, num_steps);
    stub.async()->SubmitJob(&call->context, &call->request, &call->response,
                            [&, call, i](const grpc::Status& status) mutable {
                              {
                                const std::lock_guard lock(mutex);
                                if (!status.ok()) failure = status.error_message();
                                ids[static_cast<size_t>(i)] = call->response.job().id();
                              }
                              call.reset();
                              in_flight.end();
                            });
  }
  in_flight.await_none();
  if (!failure.empty()) throw std::runtime_error("a submit failed: " + failure);
  return ids;
}

double sync_ms(const std::filesystem::path& directory) {
  constexpr int kWrites = 100;
  const std::filesystem::path path = directory / "sync";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path.string());
  const std::vector<char> page(4096, 'x');
  Samples samples;
  for (int i = 0; i < kWrites; ++i) {
    const auto begin = SteadyClock::now();
    const bool ok = ::write(fd, page.data(), page.size()) == static_cast<ssize_t>(page.size()) &&
                    ::fdatasync(fd) == 0;
    if (ok) samples.add(1e3 * seconds_since(begin));
  }
  ::close(fd);
  std::filesystem::remove(path);
  if (samples.size() == 0) throw std::runtime_error(path.string() + " cannot be written");
  return samples.quantile(0.5);
}

}  // namespace tessera::bench
