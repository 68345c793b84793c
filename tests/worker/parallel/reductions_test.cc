// Reductions under way when an earlier one fails.
#include "worker/parallel/reductions.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <optional>

namespace tessera {
namespace {

// Notes whether what it works on is alive when it is waited for.
class NotedWork final : public Work {
 public:
  NotedWork(const at::Tensor& kept, std::optional<bool>& kept_is_alive, bool loses_peer)
      : kept_(kept.getIntrusivePtr()), kept_is_alive_(kept_is_alive), loses_peer_(loses_peer) {}
  void wait() override {
    kept_is_alive_ = !kept_.expired();
    if (loses_peer_) throw NetworkError("a peer is lost");
  }

 private:
  c10::weak_intrusive_ptr<at::TensorImpl> kept_;
  std::optional<bool>& kept_is_alive_;
  bool loses_peer_;
};

TEST(ReductionQueue, CallsDoneOnceTheOneBeforeIsOver) {
  ReductionQueue queue;
  int num_done = 0;
  std::optional<bool> first, second;
  const auto push = [&](std::optional<bool>& noted) {
    at::Tensor kept = at::zeros({1});
    auto work = std::make_unique<NotedWork>(kept, noted, /*loses_peer=*/false);
    queue.push(std::move(work), std::move(kept), [&] { ++num_done; });
  };
  push(first);
  EXPECT_EQ(num_done, 0);
  push(second);
  EXPECT_EQ(num_done, 1);
  EXPECT_EQ(first, true);
  EXPECT_EQ(second, std::nullopt);
  queue.finish();
  queue.finish();
  EXPECT_EQ(num_done, 2);
  EXPECT_EQ(second, true);
}

TEST(ReductionQueue, WaitsForWorkUnderWayThoughAnEarlierOneLostAPeer) {
  std::optional<bool> first, second;
  int num_done = 0;
  {
    ReductionQueue queue;
    const auto push = [&](std::optional<bool>& noted) {
      at::Tensor kept = at::zeros({1});
      auto work = std::make_unique<NotedWork>(kept, noted, /*loses_peer=*/true);
      queue.push(std::move(work), std::move(kept), [&] { ++num_done; });
    };
    push(first);
    EXPECT_THROW(push(second), NetworkError);
  }
  EXPECT_EQ(first, true);
  EXPECT_EQ(second, true);
  EXPECT_EQ(num_done, 0);
}

}  // namespace
}  // namespace tessera
