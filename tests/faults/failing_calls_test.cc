// Every call of the coordinator on its disk fails once, or from then on: what was acknowledged is
// there, what was not can be asked again, the database is sound, and the service works again
// without being started by hand for longer than its unit takes.
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/faults/disk.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

using faults::FaultyCalls;

constexpr int kNumJobs = 3;
constexpr std::chrono::seconds kPatience{20};
constexpr int64_t kForGood = INT64_MAX;

struct Fault {
  const char* name;
  int error;
  bool is_lasting;  // until it is disarmed
};

// Every how many-th call fails in a run of its own. All of them take minutes.
int64_t stride() {
  const char* value = std::getenv("FAILING_CALLS_STRIDE");
  return value == nullptr ? 23 : std::atoi(value);
}

class FailingCalls : public testing::TestWithParam<Fault> {
 protected:
  FailingCalls()
      : service_({}, [this](const std::filesystem::path& directory) {
          faulty_.emplace(directory / "faulty", directory / "state");
        }) {}

  // As a unit does, after a coordinator has ended: with a status and a word, never by a signal.
  void start_again() {
    while (const auto code = service_.ended()) {
      EXPECT_EQ(*code, 1) << service_.log();
      service_.spawn();
      if (service_.answers()) return;
    }
  }

  grpc::Status submit(int number) {
    v1::SubmitJobRequest request;
    v1::SubmitJobResponse response;
    *request.mutable_spec() = make_spec();
    request.set_request_id("job-" + std::to_string(number));
    const grpc::Status status = service_.submit(request, &response);
    if (status.ok()) ids_[number] = response.job().id();
    return status;
  }

  // What a client may be told; safe to repeat.
  static void expect_refusal(const grpc::Status& status) {
    EXPECT_TRUE(status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_code() << ": " << status.error_message();
  }

  // On an empty disk of which these calls fail.
  void submit_all_of_new_service(int64_t first, int64_t last) {
    service_.crash();
    std::filesystem::remove_all(service_.directory() / "state");
    ids_.clear();
    faulty_->arm(first, last, GetParam().error);
    service_.spawn();
    if (!service_.answers()) return;
    for (int i = 0; i < kNumJobs; ++i) {
      if (const grpc::Status status = submit(i); !status.ok()) expect_refusal(status);
    }
  }

  // Until everything that was asked is done.
  void ask_again() {
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    for (int i = 0; i < kNumJobs;) {
      const std::string before = ids_[i];
      start_again();
      const grpc::Status status = submit(i);
      if (status.ok()) {
        if (!before.empty()) {
          EXPECT_EQ(ids_[i], before);
        }
        ++i;
        continue;
      }
      expect_refusal(status);
      ASSERT_LT(std::chrono::steady_clock::now(), give_up) << service_.log();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  void check() {
    grpc::ClientContext context;
    v1::ListJobsResponse listed;
    ASSERT_TRUE(service_.stub().ListJobs(&context, {}, &listed).ok());
    EXPECT_EQ(listed.jobs_size(), kNumJobs);
    service_.crash();
    EXPECT_EQ(faults::integrity(service_.directory() / "state/tessera.db"), "ok");
    service_.spawn();
    ASSERT_TRUE(service_.answers()) << service_.log();
    for (const auto& [number, id] : ids_) EXPECT_EQ(service_.get(id).state(), v1::Job::QUEUED);
  }

  std::optional<FaultyCalls> faulty_;
  Service service_;
  std::map<int, std::string> ids_;
};

TEST_P(FailingCalls, NothingIsLostAndNothingIsDamaged) {
  submit_all_of_new_service(kForGood, kForGood);
  const int64_t num_calls = faulty_->num_calls();
  ASSERT_GT(num_calls, 20);
  ASSERT_EQ(ids_.size(), kNumJobs);
  for (int64_t call = 1; call <= num_calls; call += stride()) {
    SCOPED_TRACE("call " + std::to_string(call) + " of " + std::to_string(num_calls));
    submit_all_of_new_service(call, GetParam().is_lasting ? kForGood : call);
    faulty_->disarm();
    ask_again();
    if (testing::Test::HasFatalFailure()) return;
    check();
    if (testing::Test::HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, FailingCalls,
                         testing::Values(Fault{"Full", ENOSPC, true}, Fault{"Broken", EIO, true},
                                         Fault{"BrokenOnce", EIO, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::server
