// Every strategy of context parallelism against the attention of the whole stream. Ranks are
// threads.
#include "worker/model/context_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>
#include <random>

#include "tests/support/plain_attention.h"
#include "tests/support/ranks.h"
#include "worker/kernels/meta_operators.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/memory/ledger.h"
#include "worker/model/context_strategy.h"
#include "worker/model/kept_attention.h"
#include "worker/model/ulysses_attention.h"
#include "worker/parallel/context_group.h"

namespace tessera {
namespace {

using testing::AttentionCase;
using testing::PlainAttention;

constexpr std::array kStrategies = {ContextStrategy::kAllGather, ContextStrategy::kRing,
                                    ContextStrategy::kUlysses};

const char* name_of(ContextStrategy strategy) {
  constexpr std::array kNames = {"allgather", "ring", "ulysses"};
  return kNames[static_cast<size_t>(strategy)];
}

// A rank's tokens of [U, N, H], and back.
at::Tensor tokens_of(const at::Tensor& whole, const StreamPart& part) {
  return at::cat({whole.narrow(0, part.begin(0), part.chunk_tokens),
                  whole.narrow(0, part.begin(1), part.chunk_tokens)});
}
void put_tokens(at::Tensor& whole, const at::Tensor& own, const StreamPart& part) {
  for (const int which : {0, 1}) {
    whole.narrow(0, part.begin(which), part.chunk_tokens)
        .copy_(own.narrow(0, which * part.chunk_tokens, part.chunk_tokens));
  }
}

Documents documents_of(const std::vector<int64_t>& cu_seqlens, int rank, int size,
                       ContextStrategy strategy, ContextExchange* exchange) {
  Documents documents;
  documents.cu_seqlens = cu_seqlens;
  documents.part = StreamPart{.rank = rank,
                              .size = size,
                              .chunk_tokens = cu_seqlens.back() / (2 * size),
                              .strategy = strategy,
                              .exchange = exchange};
  return documents;
}

// What attend() makes of the parts of q, k and v on each rank, put together: out and the gradients
// of q, k and v.
std::vector<at::Tensor> run_over_ranks(const PlainAttention& plain, const AttentionCase& c,
                                       int size, ContextStrategy strategy, at::ScalarType dtype,
                                       const AttentionOptions& options, bool reruns = false) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& like : {plain.q, plain.q, plain.k, plain.v})
    made.push_back(at::empty(like.sizes()));
  std::mutex mutex;
  testing::run_ranks(testing::Backend::kThreads, size, [&](Collectives& group) {
    ContextGroup exchange(group);
    const Documents documents = documents_of(c.cu_seqlens, group.rank(), size, strategy, &exchange);
    AttentionOutputs kept;
    AttentionOptions own = options;
    if (reruns) own.kept = &kept;
    std::vector<at::Tensor> results;
    for (int run = 0; run <= (reruns ? 1 : 0); ++run) {
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& x : {plain.q, plain.k, plain.v})
        leaves.push_back(tokens_of(x, *documents.part).to(dtype).requires_grad_(true));
      const at::Tensor out = attend(leaves[0], leaves[1], leaves[2], documents, own);
      torch::autograd::backward({out}, {tokens_of(plain.grad_out, *documents.part).to(dtype)});
      results = {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
    }
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < made.size(); ++i) put_tokens(made[i], results[i], *documents.part);
  });
  return made;
}

void expect_definition(const std::vector<at::Tensor>& made, const PlainAttention& plain,
                       double tolerance) {
  testing::expect_close(made[0], plain.out, tolerance);
  testing::expect_close(made[1], plain.grad_q, tolerance);
  testing::expect_close(made[2], plain.grad_k, tolerance);
  testing::expect_close(made[3], plain.grad_v, tolerance);
}

// Streams of 24 * n tokens: even chunks on 2, 3 and 4 ranks.
std::vector<AttentionCase> stream_cases() {
  return {
      {{0, 240}, 0, 12, 12, 8, {}},                               // one long document
      {{0, 3, 17, 18, 90, 91, 140, 200, 240}, 0, 12, 12, 8, {}},  // uneven ones
      {{0, 5, 10, 15, 22, 30, 37, 48}, 0, 12, 1, 4, {}},          // short ones, one key/value head
      {{0, 240}, 17, 12, 12, 8, {}},                              // a window
      {{0, 100, 240}, 90, 12, 12, 4, {}},                         // one wider than a chunk
  };
}

class ContextAttention : public ::testing::TestWithParam<std::tuple<ContextStrategy, int>> {
 protected:
  ContextStrategy strategy() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(ContextAttention, IsThatOfTheWholeStream) {
  for (const AttentionCase& c : stream_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const PlainAttention plain(c);
    expect_definition(
        run_over_ranks(plain, c, size(), strategy(), at::kFloat, {.window = c.window}), plain,
        1e-5);
  }
}

// Inputs and what the ranks pass on are rounded to 8 bits.
TEST_P(ContextAttention, IsThatOfTheWholeStreamInBfloat16) {
  for (const AttentionCase& c : stream_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const PlainAttention plain(c, at::kBFloat16);
    expect_definition(
        run_over_ranks(plain, c, size(), strategy(), at::kBFloat16, {.window = c.window}), plain,
        2e-2);
  }
}

TEST_P(ContextAttention, HoldsForRandomDocumentsAndGroupsOfHeads) {
  std::mt19937 random(size());
  for (int trial = 0; trial < 6; ++trial) {
    const int64_t kv_heads = std::array<int64_t, 3>{1, size(), 2 * size()}[trial % 3];
    AttentionCase c{{0}, trial % 2 ? 9 : 0, 4 * size(), kv_heads, 4, {}};
    const auto tokens = static_cast<int64_t>(24 * (1 + random() % 6));
    while (c.cu_seqlens.back() < tokens) {
      c.cu_seqlens.push_back(
          std::min<int64_t>(tokens, c.cu_seqlens.back() + 1 + static_cast<int64_t>(random() % 60)));
    }
    SCOPED_TRACE(::testing::PrintToString(c));
    const PlainAttention plain(c);
    expect_definition(
        run_over_ranks(plain, c, size(), strategy(), at::kFloat, {.window = c.window}), plain,
        1e-5);
  }
}

// As a layer that is run again in backward has it.
TEST_P(ContextAttention, TakesKeptOutputsInARerun) {
  const AttentionCase c{{0, 100, 240}, 0, 12, 12, 8, {}};
  const PlainAttention plain(c);
  const auto once = run_over_ranks(plain, c, size(), strategy(), at::kFloat, {});
  const auto twice = run_over_ranks(plain, c, size(), strategy(), at::kFloat, {}, /*reruns=*/true);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], twice[i]));
}

TEST_P(ContextAttention, DrawsTheMasksOfTheWholeStream) {
  const AttentionCase c{{0, 100, 240}, 0, 12, 12, 8, {}};
  const PlainAttention plain(c);
  const AttentionOptions options{.dropout = 0.4, .draw = 5};
  Documents documents;
  documents.cu_seqlens = c.cu_seqlens;
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {plain.q, plain.k, plain.v})
    leaves.push_back(x.clone().requires_grad_(true));
  const at::Tensor out = attend(leaves[0], leaves[1], leaves[2], documents, options);
  torch::autograd::backward({out}, {plain.grad_out});
  const auto made = run_over_ranks(plain, c, size(), strategy(), at::kFloat, options);
  testing::expect_close(made[0], out.detach().to(at::kDouble), 1e-5);
  for (int i = 0; i < 3; ++i)
    testing::expect_close(made[i + 1], leaves[i].grad().to(at::kDouble), 1e-5);
}

// What one document holds changes no bit of what is attended to in another.
TEST_P(ContextAttention, ADocumentDoesNotFeelItsNeighbours) {
  const AttentionCase c{{0, 70, 130, 240}, 0, 12, 12, 8, {}};
  PlainAttention plain(c);
  const auto before = run_over_ranks(plain, c, size(), strategy(), at::kFloat, {});
  for (at::Tensor* x : {&plain.q, &plain.k, &plain.v, &plain.grad_out})
    x->narrow(0, 70, 60).mul_(1e3).add_(7);
  const auto after = run_over_ranks(plain, c, size(), strategy(), at::kFloat, {});
  for (size_t i = 0; i < before.size(); ++i) {
    for (const auto& [begin, length] : {std::pair<int64_t, int64_t>(0, 70), {130, 110}}) {
      EXPECT_TRUE(at::equal(before[i].narrow(0, begin, length), after[i].narrow(0, begin, length)));
    }
    EXPECT_FALSE(at::equal(before[i].narrow(0, 70, 60), after[i].narrow(0, 70, 60)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContextAttention,
                         ::testing::Combine(::testing::ValuesIn(kStrategies),
                                            ::testing::Values(2, 3, 4)),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) +
                                  std::to_string(std::get<1>(info.param));
                         });

// One rank of a rehearsal, forward and backward of a layer; `bytes` are those of the keys and
// values of the whole stream.
struct Rehearsed {
  int64_t forward_communication, communication, link, bytes;
};

Rehearsed rehearse(ContextStrategy strategy, int rank, int size,
                   const std::vector<int64_t>& cu_seqlens, at::ScalarType dtype,
                   at::DeviceType device) {
  MemoryLedger& ledger = MemoryLedger::install_meta();
  register_meta_operators();
  const StandInScope stand_in({.device = device, .num_threads = 1});
  const auto group = make_fake_collectives({.rank = rank, .size = size});
  ContextGroup exchange(*group);
  const Documents documents = documents_of(cu_seqlens, rank, size, strategy, &exchange);
  const int64_t tokens = 2 * documents.part->chunk_tokens;
  const auto make = [&](int64_t heads) {
    return at::empty({tokens, heads, 16}, at::TensorOptions(at::kMeta).dtype(dtype))
        .requires_grad_(true);
  };
  const at::Tensor q = make(8), k = make(4), v = make(4);
  const auto communication = [&] {
    return ledger.snapshot().peak_by_owner[static_cast<size_t>(Owner::kCommunication)];
  };
  Rehearsed rehearsed{};
  WorkCount work;
  ledger.reset_peak();
  {
    const WorkScope scope(work);
    const at::Tensor out = attend(q, k, v, documents, {});
    rehearsed.forward_communication = communication();
    torch::autograd::backward({out}, {at::empty_like(out)});
  }
  rehearsed.communication = communication();
  rehearsed.link = work.link_bytes;
  rehearsed.bytes = size * 2 * static_cast<int64_t>(k.nbytes());
  EXPECT_GT(work.flops, 0);
  return rehearsed;
}

TEST(RingAttention, HoldsTheKeysAndValuesOfThreeRanksAtMost) {
  for (const int size : {2, 4, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      const Rehearsed r =
          rehearse(ContextStrategy::kRing, rank, size, {0, 512}, at::kFloat, at::kCPU);
      // Those of this rank are beside them.
      EXPECT_GT(r.forward_communication, 0);
      EXPECT_LE(r.forward_communication, 2 * r.bytes / size);
      // In backward as much for keys and values, and three times a rank's gradients.
      EXPECT_LE(r.communication, 5 * r.bytes / size);
    }
  }
}

TEST(RingAttention, SendsOnlyWhatSomebodySees) {
  std::vector<int64_t> cu_seqlens{0};
  while (cu_seqlens.back() < 4096) cu_seqlens.push_back(cu_seqlens.back() + 16);
  const auto link = [&](ContextStrategy strategy) {
    int64_t bytes = 0;
    for (int rank = 0; rank < 4; ++rank)
      bytes += rehearse(strategy, rank, 4, cu_seqlens, at::kFloat, at::kCPU).link;
    return bytes;
  };
  // Chunks end with documents.
  EXPECT_EQ(link(ContextStrategy::kRing), 0);
  for (size_t s = 1; s + 1 < cu_seqlens.size(); ++s) cu_seqlens[s] = 16 * s - 13;
  EXPECT_GT(link(ContextStrategy::kRing), 0);
  EXPECT_LT(link(ContextStrategy::kRing), link(ContextStrategy::kAllGather) / 30);
  cu_seqlens = {0, 4096};
  // Half of the ranks do not need another's back chunk.
  EXPECT_EQ(4 * link(ContextStrategy::kRing), 3 * link(ContextStrategy::kAllGather));
}

TEST(ContextAttentionRehearsal, RunsForEveryDeviceAndType) {
  for (const ContextStrategy strategy : kStrategies) {
    for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
        EXPECT_GT(rehearse(strategy, 1, 4, {0, 40, 512}, dtype, device).link, 0);
    }
  }
}

TEST(ContextStrategy, FollowsBytesAndHeads) {
  // 32 heads on 8 ranks, each key/value head read by one: dealing moves a quarter.
  const AttentionShape many{32, 32, 128, 2};
  EXPECT_EQ(dealt_bytes(many, 8, 8192) * 4, gathered_bytes(many, 8, 8192));
  EXPECT_EQ(choose_context_strategy(many, 8, 8192), ContextStrategy::kUlysses);
  EXPECT_EQ(choose_context_strategy(many, 2, 8192), ContextStrategy::kRing);
  // Few key/value heads: they are the less to move.
  const AttentionShape few{32, 4, 128, 2};
  EXPECT_EQ(choose_context_strategy(few, 4, 8192), ContextStrategy::kAllGather);
  EXPECT_EQ(choose_context_strategy(few, 4, 8193), ContextStrategy::kRing);
  // Heads that cannot be dealt.
  EXPECT_EQ(choose_context_strategy({36, 36, 64, 2}, 8, 1 << 20), ContextStrategy::kRing);
}

TEST(UlyssesAttention, NeedsHeadsThatCanBeDealt) {
  EXPECT_TRUE(can_deal_heads(8, 8, 4));
  EXPECT_TRUE(can_deal_heads(8, 2, 4));
  EXPECT_TRUE(can_deal_heads(6, 1, 3));
  EXPECT_FALSE(can_deal_heads(6, 6, 4));
  EXPECT_FALSE(can_deal_heads(12, 3, 4));
  EXPECT_FALSE(can_deal_heads(12, 4, 6));
}

}  // namespace
}  // namespace tessera
