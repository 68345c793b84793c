// One body for every CPU backend and several sizes: what collectives.h promises.
#include "worker/parallel/collectives.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>

#include "tests/support/ranks.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::run_ranks;

// A value that float32 sums round differently in different orders.
float value_at(int rank, int64_t i) {
  return std::sin(static_cast<float>(i) * 0.37f + rank) * std::pow(10.f, rank % 3);
}

at::Tensor values_of(int rank, int64_t numel) {
  at::Tensor values = at::empty({numel}, at::kFloat);
  for (int64_t i = 0; i < numel; ++i) values.data_ptr<float>()[i] = value_at(rank, i);
  return values;
}

class CollectivesTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  void run(const std::function<void(Collectives&)>& body) {
    run_ranks(std::get<0>(GetParam()), std::get<1>(GetParam()), body);
  }
};

TEST_P(CollectivesTest, AllGatherPutsRanksInOrder) {
  run([](Collectives& group) {
    for (int64_t numel : {0, 1, 1000}) {
      at::Tensor output = at::full({group.size() * numel}, -1, at::kBFloat16);
      at::Tensor input = at::full({numel}, group.rank() + 1, at::kBFloat16);
      group.all_gather(output, input)->wait();
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(at::equal(output.narrow(0, rank * numel, numel),
                              at::full({numel}, rank + 1, at::kBFloat16)));
      }
    }
  });
}

TEST_P(CollectivesTest, AllGatherMayBeInPlace) {
  run([](Collectives& group) {
    constexpr int64_t kNumel = 4096;
    at::Tensor output = at::zeros({group.size() * kNumel});
    at::Tensor input = output.narrow(0, group.rank() * kNumel, kNumel);
    input.copy_(values_of(group.rank(), kNumel));
    group.all_gather(output, input)->wait();
    for (int rank = 0; rank < group.size(); ++rank) {
      EXPECT_TRUE(at::equal(output.narrow(0, rank * kNumel, kNumel), values_of(rank, kNumel)));
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterAddsInRankOrder) {
  run([](Collectives& group) {
    constexpr int64_t kNumel = 5003;
    const int64_t begin = group.rank() * kNumel;
    at::Tensor output = at::full({kNumel}, 0.1f);
    group.reduce_scatter_add(output, values_of(group.rank(), group.size() * kNumel))->wait();
    for (int64_t i = 0; i < kNumel; ++i) {
      float expected = 0.1f;
      for (int rank = 0; rank < group.size(); ++rank) expected += value_at(rank, begin + i);
      ASSERT_EQ(output.data_ptr<float>()[i], expected)
          << "element " << i << " of rank " << group.rank();
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterSumsNarrowTypesInFloat32) {
  run([](Collectives& group) {
    for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      // 1 + 2^-12 is lost in either type, not in float32.
      at::Tensor input =
          at::full({group.size() * 64}, group.rank() == 0 ? 1.0 : std::ldexp(1.0, -12), dtype);
      at::Tensor output = at::zeros({64});
      group.reduce_scatter_add(output, input)->wait();
      EXPECT_TRUE(
          at::equal(output, at::full({64}, 1.0 + (group.size() - 1) * std::ldexp(1.0, -12))));
    }
  });
}

TEST_P(CollectivesTest, OperationsOverlapAndMayBeWaitedForInAnyOrder) {
  run([](Collectives& group) {
    constexpr int64_t kNumel = 20000;
    constexpr int kDepth = 6;
    std::vector<at::Tensor> outputs, inputs, sums;
    std::vector<std::unique_ptr<Work>> works;
    for (int i = 0; i < kDepth; ++i) {
      inputs.push_back(at::full({kNumel}, 100.0 * i + group.rank()));
      outputs.push_back(at::zeros({group.size() * kNumel}));
      sums.push_back(at::zeros({kNumel}));
      works.push_back(group.all_gather(outputs[i], inputs[i]));
      works.push_back(
          group.reduce_scatter_add(sums[i], outputs[i].new_full({group.size() * kNumel}, i)));
    }
    // Odd ranks from the back.
    for (int i = 0; i < 2 * kDepth; ++i) works[group.rank() % 2 ? 2 * kDepth - 1 - i : i]->wait();
    for (int i = 0; i < kDepth; ++i) {
      for (int rank = 0; rank < group.size(); ++rank) {
        EXPECT_TRUE(at::equal(outputs[i].narrow(0, rank * kNumel, kNumel),
                              at::full({kNumel}, 100.0 * i + rank)));
      }
      EXPECT_TRUE(at::equal(sums[i], at::full({kNumel}, static_cast<double>(i * group.size()))));
    }
  });
}

TEST_P(CollectivesTest, AllToAllTransposesParts) {
  run([](Collectives& group) {
    const int size = group.size();
    for (const int64_t numel : {0, 3, 400'001}) {
      at::Tensor input = at::empty({size * numel}), output = at::zeros({size * numel});
      for (int to = 0; to < size; ++to)
        input.narrow(0, to * numel, numel).fill_(100 * group.rank() + to);
      group.all_to_all(output, input)->wait();
      for (int from = 0; from < size; ++from) {
        EXPECT_TRUE(at::equal(output.narrow(0, from * numel, numel),
                              at::full({numel}, 100.0 * from + group.rank())));
      }
    }
  });
}

TEST_P(CollectivesTest, ShiftGoesRoundByAnyDistance) {
  run([](Collectives& group) {
    const int size = group.size();
    for (int distance = 0; distance <= size + 1; ++distance) {
      const int from = (group.rank() + 2 * size - distance) % size;
      at::Tensor output = at::zeros({1000}, at::kBFloat16);
      group.shift(output, at::full({1000}, group.rank() + 1, at::kBFloat16), distance, 1000)
          ->wait();
      EXPECT_TRUE(at::equal(output, at::full({1000}, from + 1, at::kBFloat16)));
    }
  });
}

// Rank r sends r times so much: rank 0 nothing, the last more than a shared ring holds.
TEST_P(CollectivesTest, ShiftsMayDifferInSizeAndOverlap) {
  run([](Collectives& group) {
    constexpr int64_t kUnit = 900'000;
    const int size = group.size(), rank = group.rank();
    const int64_t most = (size - 1) * kUnit;
    std::vector<at::Tensor> outputs, inputs;
    std::vector<std::unique_ptr<Work>> works;
    for (int distance = 1; distance < size; ++distance) {
      inputs.push_back(at::full({rank * kUnit}, 10.0 * distance + rank));
      outputs.push_back(at::zeros({(rank + size - distance) % size * kUnit}));
      works.push_back(group.shift(outputs.back(), inputs.back(), distance, most));
    }
    at::Tensor sum = at::full({1}, 1.0);
    group.all_reduce_sum(sum);
    EXPECT_EQ(sum.item<float>(), size);
    for (int distance = size - 1; distance >= 1; --distance) {
      works[distance - 1]->wait();
      const at::Tensor& output = outputs[distance - 1];
      EXPECT_TRUE(at::equal(
          output, at::full_like(output, 10.0 * distance + (rank + size - distance) % size)));
    }
  });
}

// More than a shared ring holds at a time, several times over.
TEST_P(CollectivesTest, LargeOperationsOverlap) {
  run([](Collectives& group) {
    constexpr int64_t kNumel = 2'500'001;
    const int64_t begin = group.rank() * kNumel;
    at::Tensor gathered = at::zeros({group.size() * kNumel});
    at::Tensor sums = at::zeros({kNumel});
    at::Tensor input = at::arange(group.size() * kNumel, at::kFloat).add_(group.rank());
    auto gather = group.all_gather(gathered, input.narrow(0, 0, kNumel));
    auto reduce = group.reduce_scatter_add(sums, input);
    reduce->wait();
    gather->wait();
    for (int64_t i = 0; i < kNumel; i += 9973) {
      float sum = 0;
      for (int rank = 0; rank < group.size(); ++rank) {
        ASSERT_EQ(gathered.data_ptr<float>()[rank * kNumel + i], static_cast<float>(i) + rank);
        sum += static_cast<float>(begin + i) + rank;
      }
      ASSERT_EQ(sums.data_ptr<float>()[i], sum);
    }
  });
}

TEST_P(CollectivesTest, AllReduceIsTheSameOnEveryRank) {
  run([](Collectives& group) {
    const int size = group.size();
    at::Tensor count = at::full({3}, (int64_t{1} << 40) + group.rank(), at::kLong);
    group.all_reduce_sum(count);
    EXPECT_TRUE(at::equal(
        count, at::full({3}, size * (int64_t{1} << 40) + size * (size - 1) / 2, at::kLong)));

    at::Tensor wide = at::full({}, 1e-13 * group.rank() + 1, at::kDouble);
    group.all_reduce_sum(wide);
    double expected_wide = 1;
    for (int rank = 1; rank < size; ++rank) expected_wide += 1e-13 * rank + 1;
    EXPECT_EQ(wide.item<double>(), expected_wide);

    constexpr int64_t kNumel = 600'001;  // more than one chunk
    at::Tensor large = values_of(group.rank(), kNumel);
    group.all_reduce_sum(large);
    for (int64_t i = 0; i < kNumel; i += 997) {
      float expected = value_at(0, i);
      for (int rank = 1; rank < size; ++rank) expected += value_at(rank, i);
      ASSERT_EQ(large.data_ptr<float>()[i], expected);
    }
  });
}

TEST_P(CollectivesTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  run([&](Collectives& group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      group.barrier();
      EXPECT_GE(come.load(), round * group.size());
      group.barrier();
    }
  });
}

TEST_P(CollectivesTest, WrongArgumentsAreRefused) {
  run([](Collectives& group) {
    const at::Tensor good = at::zeros({8});
    EXPECT_THROW(group.all_gather(at::zeros({8 * group.size() + 1}), good), c10::Error);
    EXPECT_THROW(group.all_gather(at::zeros({8 * group.size()}, at::kHalf), good), c10::Error);
    EXPECT_THROW(group.reduce_scatter_add(at::zeros({8}, at::kHalf), at::zeros({8 * group.size()})),
                 c10::Error);
    EXPECT_THROW(group.all_reduce_sum(at::zeros({1}, at::kInt)), c10::Error);
    EXPECT_THROW(group.all_to_all(at::zeros({8 * group.size() + 1}), good), c10::Error);
    EXPECT_THROW(group.shift(at::zeros({8}, at::kHalf), good, 1, 8), c10::Error);
    EXPECT_THROW(group.shift(at::zeros({8}), good, 1, 7), c10::Error);
    group.barrier();
  });
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<Backend, int>>& info) {
  constexpr std::array kNames = {"Threads", "SharedMemory", "Gloo"};
  return kNames[static_cast<size_t>(std::get<0>(info.param))] +
         std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    All, CollectivesTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kSharedMemory, Backend::kGloo),
                       ::testing::Values(1, 2, 3, 5)),
    case_name);

TEST(SingleCollectives, IsTheIdentity) {
  auto group = make_single_collectives();
  at::Tensor weights = at::arange(8, at::kFloat);
  at::Tensor gathered = at::zeros({8});
  group->all_gather(gathered, weights)->wait();
  EXPECT_TRUE(at::equal(gathered, weights));
  group->reduce_scatter_add(gathered, weights)->wait();
  EXPECT_TRUE(at::equal(gathered, weights.mul(2)));
  group->all_reduce_sum(gathered);
  EXPECT_TRUE(at::equal(gathered, weights.mul(2)));
}

TEST(ThreadCollectives, ARankThatLeavesIsALostPeer) {
  auto groups = make_thread_collectives(2, std::chrono::minutes(10));
  std::thread leaver([group = std::move(groups[1])]() mutable {
    group->barrier();
    group.reset();
  });
  groups[0]->barrier();
  EXPECT_THROW(groups[0]->barrier(), NetworkError);
  leaver.join();
}

TEST(ThreadCollectives, TimesOut) {
  auto groups = make_thread_collectives(2, std::chrono::milliseconds(20));
  EXPECT_THROW(groups[0]->barrier(), NetworkError);
}

TEST(GlooCollectives, ChargesItsBuffersToCommunication) {
  MemoryLedger& ledger = MemoryLedger::install();
  ledger.reset_peak();
  run_ranks(Backend::kGloo, 2, [](Collectives& group) {
    at::Tensor output = at::zeros({1000});
    group.reduce_scatter_add(output, at::zeros({2000}))->wait();
  });
  const auto peak = ledger.snapshot().peak_by_owner[static_cast<size_t>(Owner::kCommunication)];
  EXPECT_GE(peak, 4000);
  EXPECT_LE(peak, 8000);
}

}  // namespace
}  // namespace tessera
