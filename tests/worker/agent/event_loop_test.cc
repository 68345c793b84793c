#include "worker/agent/event_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace tessera::agent {
namespace {

using std::chrono::milliseconds;

TEST(EventLoop, RunsTimersInOrderOfTime) {
  EventLoop loop;
  std::vector<int> order;
  loop.call_after(milliseconds(20), [&] { loop.stop(); });
  loop.call_after(milliseconds(10), [&] { order.push_back(2); });
  loop.call_after(milliseconds(0), [&] { order.push_back(1); });
  const auto cancelled = loop.call_after(milliseconds(5), [&] { order.push_back(9); });
  loop.cancel(cancelled);
  loop.run();
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
}

TEST(EventLoop, RunsWhatOtherThreadsPost) {
  EventLoop loop;
  constexpr int kThreads = 4, kTasks = 1000;
  int count = 0;  // Only the loop touches it.
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kTasks; ++j) {
        loop.post([&] {
          if (++count == kThreads * kTasks) loop.stop();
        });
      }
    });
  }
  loop.run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kTasks);
}

TEST(EventLoop, AWatchMayEndItself) {
  EventLoop loop;
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd read(fds[0]), write(fds[1]);
  int calls = 0;
  loop.watch(read.get(), [&] {
    ++calls;
    loop.unwatch(read.get());
    loop.call_after(milliseconds(1), [&] { loop.stop(); });
  });
  ASSERT_EQ(::write(write.get(), "x", 1), 1);
  loop.run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tessera::agent
