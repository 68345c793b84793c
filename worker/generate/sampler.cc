#include "worker/generate/sampler.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/memory/attribution.h"
#include "worker/model/dropout.h"

namespace tessera {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr uint64_t kTokenDraw = 0x746F6B656E;  // "token": names these draws among a seed's
// Probabilities that are summed at a time.
constexpr int64_t kSumBlock = 256;
// How many of the likeliest tokens are put in order first where top_p needs an order.
constexpr int64_t kFirstSorted = 256;

// Whether RowDistribution::process() leaves the logits as they are.
bool keeps_logits(const SamplingParams& s, int64_t vocab_size) {
  if (s.repetition_penalty != 1) return false;
  const bool keeps_all = (s.top_k <= 0 || s.top_k >= vocab_size) && s.top_p >= 1 && s.min_p <= 0;
  return s.temperature == 0 || (s.temperature == 1 && keeps_all);
}

// The distribution of one row, made in scratch.
class RowDistribution {
 public:
  // `work`: [V] floats, and as many indices.
  RowDistribution(const float* logits, int64_t vocab_size, float* work, int32_t* indices)
      : logits_(logits), size_(vocab_size), work_(work), indices_(indices) {}

  // Of the logits as they are: the largest, and the log-sum-exp. Leaves their exponentials.
  struct Raw {
    float largest, lse;
  };
  Raw raw() {
    std::copy_n(logits_, size_, work_);
    const SoftmaxSums sums = cpu_kernels().softmax(work_, 0, size_, size_);
    return {sums.largest, sums.largest + std::log(sums.sum)};
  }
  // Leaves what the parameters make of the logits.
  void process(const SamplingParams& s, std::span<const int32_t> tokens) {
    std::copy_n(logits_, size_, work_);
    if (s.repetition_penalty != 1) penalize(static_cast<float>(s.repetition_penalty), tokens);
    if (s.temperature == 0) return;
    if (s.temperature != 1) {
      const auto temperature = static_cast<float>(s.temperature);
      for (int64_t i = 0; i < size_; ++i) work_[i] /= temperature;
    }
    if (s.top_k > 0 && s.top_k < size_) keep_top_k(s.top_k);
    if (s.top_p < 1) keep_top_p(s.top_p);
    if (s.min_p > 0) keep_likely(std::log(s.min_p));
  }

  // What process() left.
  int32_t most_likely() const {
    return static_cast<int32_t>(std::max_element(work_, work_ + size_) - work_);
  }
  // The first that is as large as any.
  int32_t first_of(float largest) const {
    return static_cast<int32_t>(std::find(logits_, logits_ + size_, largest) - logits_);
  }

  // What process() left becomes exponentials.
  void exponentiate() { cpu_kernels().softmax(work_, 0, size_, size_); }
  // Their sum, in double precision: before what follows.
  void sum() {
    total_ = 0;
    for (int64_t begin = 0; begin < size_; begin += kSumBlock) total_ += block_sum(begin);
  }
  float logprob(int32_t token) const {
    return static_cast<float>(std::log(static_cast<double>(work_[token])) - std::log(total_));
  }
  int32_t at(double uniform) const {
    const double wanted = uniform * total_;
    double below = 0;
    int64_t last = 0;
    for (int64_t begin = 0; begin < size_; begin += kSumBlock) {
      const double block = block_sum(begin);
      if (below + block <= wanted && begin + kSumBlock < size_) {
        below += block;
        continue;
      }
      for (int64_t i = begin; i < std::min(size_, begin + kSumBlock); ++i) {
        if (work_[i] == 0) continue;
        last = i;
        below += work_[i];
        if (below > wanted) return static_cast<int32_t>(i);
      }
    }
    return static_cast<int32_t>(last_possible(last));
  }

 private:
  // The sum of a block rounds otherwise than one after the other does: a number between the two may
  // lead past the last token that there is.
  int64_t last_possible(int64_t found) const {
    for (int64_t i = size_ - 1; i > found; --i) {
      if (work_[i] > 0) return i;
    }
    return found;
  }

  double block_sum(int64_t begin) const {
    double parts[8] = {};
    const int64_t end = std::min(size_, begin + kSumBlock);
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      for (int64_t j = 0; j < 8; ++j) parts[j] += work_[i + j];
    }
    for (; i < end; ++i) parts[0] += work_[i];
    return std::accumulate(parts, parts + 8, 0.0);
  }

  // Once for each token, however often it is there.
  void penalize(float penalty, std::span<const int32_t> tokens) {
    for (const int32_t token : tokens)
      work_[token] = logits_[token] < 0 ? logits_[token] * penalty : logits_[token] / penalty;
  }

  // Those as likely as the last one stay.
  void keep_top_k(int64_t k) {
    const std::span<float> copy(reinterpret_cast<float*>(indices_), size_);
    std::copy_n(work_, size_, copy.begin());
    std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), std::greater<>());
    const float least = copy[k - 1];
    for (int64_t i = 0; i < size_; ++i) {
      if (work_[i] < least) work_[i] = kNever;
    }
  }

  // In the order of probability, then of ids: a token stays where those before it fall short of p.
  void keep_top_p(double p) {
    const float largest = *std::max_element(work_, work_ + size_);
    const auto weight = [&](int64_t i) { return std::exp(double{work_[i]} - largest); };
    double total = 0;
    for (int64_t i = 0; i < size_; ++i) total += weight(i);
    std::iota(indices_, indices_ + size_, 0);
    const auto before = [&](int32_t a, int32_t b) {
      return work_[a] > work_[b] || (work_[a] == work_[b] && a < b);
    };
    double mass = 0;
    int64_t kept = 0;
    for (int64_t sorted = 0, step = kFirstSorted; kept == sorted && sorted < size_; step *= 4) {
      const int64_t end = std::min(size_, sorted + step);
      std::partial_sort(indices_ + sorted, indices_ + end, indices_ + size_, before);
      for (sorted = end; kept < sorted && mass < p * total; ++kept) mass += weight(indices_[kept]);
    }
    for (int64_t i = kept; i < size_; ++i) work_[indices_[i]] = kNever;
  }

  void keep_likely(double log_share) {
    const auto least = static_cast<float>(*std::max_element(work_, work_ + size_) + log_share);
    for (int64_t i = 0; i < size_; ++i) {
      if (work_[i] < least) work_[i] = kNever;
    }
  }

  const float* logits_;
  int64_t size_;
  float* work_;
  int32_t* indices_;
  double total_ = 0;
};

std::vector<SampledToken> sample_row(RowDistribution row, const float* logits, int64_t vocab_size,
                                     const RowDraws& draws) {
  const RowDistribution::Raw raw = row.raw();
  if (!std::isfinite(raw.lse)) throw NonFiniteLogits();
  const bool greedy = draws.sampling->temperature == 0;
  int32_t most_likely = 0;
  if (keeps_logits(*draws.sampling, vocab_size)) {
    if (greedy) most_likely = row.first_of(raw.largest);
  } else {
    row.process(*draws.sampling, draws.tokens);
    if (greedy) most_likely = row.most_likely();
    row.exponentiate();
  }
  row.sum();
  std::vector<SampledToken> made;
  for (const uint64_t seed : draws.seeds) {
    const int32_t token = greedy ? most_likely : row.at(uniform_of(seed, draws.index));
    made.push_back({token, logits[token] - raw.lse, row.logprob(token)});
  }
  return made;
}

// Of a rehearsal. What any row takes: its copy, the largest, exponentials, their sum, and the
// search for a token; and the same of what sampling parameters make of it, where they change it.
void count_rows(const at::Tensor& logits_SV, const std::vector<RowDraws>& draws) {
  const at::Tensor& x = logits_SV;
  if (stand_in().device != at::kCPU) count_host_bytes(static_cast<int64_t>(x.nbytes()));
  count_cpu_kernel({x, x, x, x, x, x, x});
  const int64_t vocab_size = x.size(1);
  const auto is_changed = [&](const RowDraws& row) {
    return !keeps_logits(*row.sampling, vocab_size);
  };
  if (std::ranges::any_of(draws, is_changed)) count_cpu_kernel({x, x, x, x, x, x, x, x, x});
}

}  // namespace

double uniform_of(uint64_t seed, int64_t index) {
  const uint64_t draw = make_draw({kTokenDraw, seed, static_cast<uint64_t>(index)});
  return static_cast<double>(draw >> 11) * 0x1p-53;
}

std::vector<std::vector<SampledToken>> sample_rows(const at::Tensor& logits_SV,
                                                   const std::vector<RowDraws>& draws) {
  std::vector<std::vector<SampledToken>> made(draws.size());
  if (draws.empty()) return made;
  const OwnerScope scope(Owner::kHead);
  const at::Tensor host = logits_SV.is_meta() ? logits_SV : logits_SV.cpu().contiguous();
  const int64_t vocab_size = host.size(1);
  const at::Device device = host_device(logits_SV.device());
  const at::Tensor scratch = at::empty({num_kernel_threads(host), 2 * vocab_size},
                                       at::TensorOptions(device).dtype(at::kFloat));
  if (host.is_meta()) {
    count_rows(logits_SV, draws);
    for (size_t i = 0; i < draws.size(); ++i) made[i].resize(draws[i].seeds.size());
    return made;
  }
  const auto* logits = host.const_data_ptr<float>();
  auto* floats = scratch.mutable_data_ptr<float>();
  at::parallel_for(0, std::ssize(draws), 1, [&](int64_t begin, int64_t end) {
    float* work = floats + at::get_thread_num() * 2 * vocab_size;
    auto* indices = reinterpret_cast<int32_t*>(work + vocab_size);
    for (int64_t i = begin; i < end; ++i) {
      const float* row = logits + i * vocab_size;
      made[i] = sample_row({row, vocab_size, work, indices}, row, vocab_size, draws[i]);
    }
  });
  return made;
}

}  // namespace tessera
