#include "worker/model/neftune.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "worker/kernels/stand_in.h"
#include "worker/model/dropout.h"

namespace tessera {
namespace {

constexpr uint64_t kNoise = 0x6E656674;  // "neft": names the noise among a forward's draws

// [T, 1]: the largest noise of each token.
at::Tensor bounds(const Documents& documents, double alpha, int64_t width,
                  const at::TensorOptions& options) {
  at::Tensor bounds_T1 =
      at::empty({documents.cu_seqlens.back(), 1},
                at::TensorOptions(host_device(options.device())).dtype(at::kFloat));
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
  NoisyEmbedding(std::unique_ptr<Layer> embedding, double alpha)
      : embedding_(std::move(embedding)), alpha_(alpha) {}

  at::Tensor forward(const at::Tensor& tokens_T, const Stream& stream) override {
    const at::Tensor x_TD = embedding_->forward(tokens_T, stream);
    if (!stream.training) return x_TD;
    const at::Tensor noise_TD = at::empty_like(x_TD.detach());
    if (!noise_TD.is_meta()) {
      // A generator of its own: nobody else's draws are touched.
      at::Generator generator = at::globalContext().defaultGenerator(x_TD.device()).clone();
      generator.set_current_seed(make_draw({stream.draw, kNoise}));
      noise_TD.uniform_(-1, 1, generator);
    }
    return x_TD + noise_TD.mul_(bounds(*stream.documents, alpha_, x_TD.size(1), x_TD.options()));
  }
  std::vector<Parameter*> parameters() override { return embedding_->parameters(); }
  std::vector<Linear*> linears() override { return embedding_->linears(); }

 private:
  std::unique_ptr<Layer> embedding_;
  double alpha_;
};

}  // namespace

std::unique_ptr<Layer> make_noisy_embedding(std::unique_ptr<Layer> embedding, double alpha) {
  return std::make_unique<NoisyEmbedding>(std::move(embedding), alpha);
}

}  // namespace tessera
