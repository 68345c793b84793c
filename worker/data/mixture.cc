#include "worker/data/mixture.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <string>

namespace tessera {
namespace {

// numpy's SeedSequence (O'Neill's seed_seq_fe128): spreads a seed over a pool of four words.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const auto low = static_cast<uint32_t>(seed);
    const auto high = static_cast<uint32_t>(seed >> 32);
    const std::array<uint32_t, 4> entropy = {low, high, 0, 0};
    uint32_t hash = kInitA;
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash_mix(entropy[i], hash);
    for (size_t from = 0; from < pool_.size(); ++from) {
      for (size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash_mix(pool_[from], hash));
      }
    }
  }

  std::array<uint64_t, 4> generate() const {
    std::array<uint64_t, 4> words{};
    uint32_t hash = kInitB;
    for (size_t i = 0; i < 8; ++i) {
      uint32_t value = pool_[i % pool_.size()] ^ hash;
      hash *= kMultB;
      value *= hash;
      value ^= value >> 16;
      words[i / 2] |= uint64_t{value} << 32 * (i % 2);
    }
    return words;
  }

 private:
  static constexpr uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875;
  static constexpr uint32_t kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;

  static uint32_t hash_mix(uint32_t value, uint32_t& hash) {
    value ^= hash;
    hash *= kMultA;
    value *= hash;
    return value ^ value >> 16;
  }

  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t value = 0xca01f9dd * x - 0x4973f715 * y;
    return value ^ value >> 16;
  }

  std::array<uint32_t, 4> pool_;
};

// numpy.cumsum(probabilities), divided by its last.
std::vector<double> cumulative(std::span<const MixtureSource> sources) {
  double total = 0;
  for (const MixtureSource& source : sources) total += source.weight;
  std::vector<double> sums;
  double sum = 0;
  for (const MixtureSource& source : sources) sums.push_back(sum += source.weight / total);
  for (double& value : sums) value /= sum;
  return sums;
}

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const auto words = SeedSequence(seed).generate();
  const State start = State{words[0]} << 64 | words[1];
  increment_ = (State{words[2]} << 64 | words[3]) << 1 | 1;
  next();
  state_ += start;
  next();
}

// PCG64, its XSL-RR output function, and the upper 53 bits as a fraction.
double NumpyGenerator::next() {
  constexpr State kMultiplier = State{0x2360ed051fc65da4} << 64 | 0x4385df649fccf645;
  state_ = state_ * kMultiplier + increment_;
  const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const uint64_t bits = std::rotr(folded, static_cast<int>(state_ >> 122));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::vector<uint32_t> interleave(std::span<const MixtureSource> sources, StoppingStrategy stopping,
                                 uint64_t seed) {
  const std::vector<double> bounds = cumulative(sources);
  NumpyGenerator random(seed);
  std::vector<uint64_t> begins, drawn(sources.size(), 0);
  uint64_t num_documents = 0;
  for (const MixtureSource& source : sources) {
    begins.push_back(num_documents);
    num_documents += static_cast<uint64_t>(source.num_documents);
  }
  std::vector<uint32_t> order;
  size_t num_exhausted = 0;
  const size_t enough = stopping == StoppingStrategy::kFirstExhausted ? 1 : sources.size();
  while (num_exhausted < enough) {
    const auto bound = std::upper_bound(bounds.begin(), bounds.end(), random.next());
    const auto source = static_cast<size_t>(bound - bounds.begin());
    const auto size = static_cast<uint64_t>(sources[source].num_documents);
    if (order.size() == kMaxMixtureDocuments) {
      throw std::length_error("the mixture has more than " + std::to_string(kMaxMixtureDocuments) +
                              " documents");
    }
    order.push_back(static_cast<uint32_t>(begins[source] + drawn[source] % size));
    if (++drawn[source] == size) ++num_exhausted;
  }
  return order;
}

}  // namespace tessera
