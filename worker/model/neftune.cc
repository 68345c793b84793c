#include "worker/model/neftune.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace tessera {
namespace {

// The finaliser of SplitMix64.
uint64_t mixed(uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

uint64_t seed_of(const NoiseDraw& draw) {
  uint64_t seed = 0;
  for (const int64_t part : {draw.seed, draw.step, draw.microbatch, int64_t{draw.rank}})
    seed = mixed(seed ^ mixed(static_cast<uint64_t>(part)));
  return seed;
}

// [T, 1]: the largest noise of each token.
at::Tensor bounds(const Documents& documents, double alpha, int64_t width,
                  const at::TensorOptions& options) {
  at::Tensor bounds_T1 = at::empty({documents.cu_seqlens.back(), 1}, at::kFloat);
  for (int64_t s = 0; s < documents.num_documents(); ++s) {
    const int64_t begin = documents.cu_seqlens[s];
    const int64_t length = documents.cu_seqlens[s + 1] - begin;
    bounds_T1.narrow(0, begin, length)
        .fill_(alpha / std::sqrt(static_cast<double>(length) * static_cast<double>(width)));
  }
  return bounds_T1.to(options);
}

class NoisyEmbedding : public Layer {
 public:
  NoisyEmbedding(std::unique_ptr<Layer> embedding, double alpha, const NoiseDraw& draw)
      : embedding_(std::move(embedding)), alpha_(alpha), draw_(draw) {}

  at::Tensor forward(const at::Tensor& tokens_T, const Stream& stream) override {
    const at::Tensor x_TD = embedding_->forward(tokens_T, stream);
    if (!c10::GradMode::is_enabled()) return x_TD;
    // A generator of its own: nobody else's draws are touched.
    at::Generator generator = at::globalContext().defaultGenerator(x_TD.device()).clone();
    generator.set_current_seed(seed_of(draw_));
    const at::Tensor noise_TD = at::empty_like(x_TD.detach()).uniform_(-1, 1, generator);
    return x_TD + noise_TD.mul_(bounds(*stream.documents, alpha_, x_TD.size(1), x_TD.options()));
  }
  std::vector<Parameter*> parameters() override { return embedding_->parameters(); }

 private:
  std::unique_ptr<Layer> embedding_;
  double alpha_;
  const NoiseDraw& draw_;
};

}  // namespace

std::unique_ptr<Layer> make_noisy_embedding(std::unique_ptr<Layer> embedding, double alpha,
                                            const NoiseDraw& draw) {
  return std::make_unique<NoisyEmbedding>(std::move(embedding), alpha, draw);
}

}  // namespace tessera
