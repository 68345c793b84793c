// What ranks see when others are late, gone or killed, over shared memory and over Gloo.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/ranks.h"

namespace tessera {
namespace {

RendezvousOptions options_of(const testing::Listener& listener, int rank, int size) {
  RendezvousOptions options;
  options.port = listener.port;
  options.listen_fd = rank == 0 ? listener.fd : 0;
  options.rank = rank;
  options.size = size;
  // Far longer than the test's own limit: what ends a wait here is the loss of the peer.
  options.timeout = std::chrono::minutes(30);
  return options;
}

using Make = std::unique_ptr<Collectives>(const RendezvousOptions& options);

// A rank in a process of its own that joins, meets the others once, and then stays away for good.
pid_t fork_idle_rank(Make* make, const testing::Listener& listener, int rank, int size) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    auto group = make(options_of(listener, rank, size));
    group->barrier();
    for (;;) ::pause();
  } catch (...) {
  }
  ::_exit(1);
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

class FailureTest : public ::testing::TestWithParam<Make*> {
 protected:
  // As in tessera-trainer: writing to a peer that died is an error, not a signal.
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }
};

INSTANTIATE_TEST_SUITE_P(All, FailureTest,
                         ::testing::Values(make_cpu_collectives,
                                           static_cast<Make*>(make_gloo_collectives)),
                         [](const auto& info) {
                           return info.index == 0 ? "SharedMemory" : "Gloo";
                         });

TEST_P(FailureTest, AKilledPeerEndsWaitsAtOnce) {
  const testing::Listener listener = testing::listen_on_loopback();
  const pid_t child = fork_idle_rank(GetParam(), listener, 1, 2);
  auto group = GetParam()(options_of(listener, 0, 2));
  group->barrier();
  at::Tensor output = at::zeros({2 << 20});
  auto work = group->all_gather(output, output.narrow(0, 0, 1 << 20));
  kill_and_reap(child);
  EXPECT_THROW(work->wait(), NetworkError);
  EXPECT_THROW(group->barrier(), NetworkError);
}

TEST_P(FailureTest, SurvivesTheLossOfTheRankThatServesTheStoreAsAnError) {
  const testing::Listener listener = testing::listen_on_loopback();
  const pid_t child = fork_idle_rank(GetParam(), listener, 0, 2);
  auto group = GetParam()(options_of(listener, 1, 2));
  group->barrier();
  kill_and_reap(child);
  at::Tensor sums = at::zeros({16});
  EXPECT_THROW(group->reduce_scatter_add(sums, at::zeros({32}))->wait(), NetworkError);
}

TEST_P(FailureTest, APeerThatDoesNotAnswerTimesOut) {
  const testing::Listener listener = testing::listen_on_loopback();
  const pid_t child = fork_idle_rank(GetParam(), listener, 1, 2);
  RendezvousOptions options = options_of(listener, 0, 2);
  options.timeout = std::chrono::seconds(2);
  auto group = GetParam()(options);
  group->barrier();
  EXPECT_THROW(group->barrier(), NetworkError);
  kill_and_reap(child);
}

TEST_P(FailureTest, ARendezvousThatNobodyJoinsTimesOut) {
  const testing::Listener listener = testing::listen_on_loopback();
  RendezvousOptions options = options_of(listener, 0, 2);
  options.timeout = std::chrono::milliseconds(300);
  EXPECT_THROW(GetParam()(options), NetworkError);
}

TEST_P(FailureTest, NoStoreToConnectToTimesOut) {
  const testing::Listener listener = testing::listen_on_loopback();
  ::close(listener.fd);
  RendezvousOptions options = options_of(listener, 1, 2);
  options.timeout = std::chrono::milliseconds(300);
  EXPECT_THROW(GetParam()(options), NetworkError);
}

TEST_P(FailureTest, AnUnknownHostIsNamed) {
  RendezvousOptions options;
  options.address = "no-such-host.invalid";
  options.port = 1;
  options.rank = 1;
  options.size = 2;
  options.timeout = std::chrono::milliseconds(300);
  try {
    GetParam()(options);
    FAIL();
  } catch (const NetworkError& error) {
    EXPECT_NE(std::string(error.what()).find("no-such-host.invalid"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera
