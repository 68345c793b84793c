#include "worker/model/neftune.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "worker/kernels/stand_in.h"
#include "worker/model/document_stretches.h"
#include "worker/model/dropout.h"

namespace tessera {
namespace {

constexpr uint64_t kNoise = 0x6E656674;  // "neft": names the noise among a forward's draws

// [T, 1]: the largest noise of each token.
at::Tensor bounds(const Documents& documents, double alpha, int64_t width,
                  const at::TensorOptions& options) {
  at::Tensor bounds_T1 =
      at::empty({documents.positions_T.size(0), 1},
                at::TensorOptions(host_device(options.device())).dtype(at::kFloat));
  each_stretch(documents, [&](int64_t s, int64_t begin, int64_t count) {
    const int64_t length = documents.cu_seqlens[s + 1] - documents.cu_seqlens[s];
    bounds_T1.narrow(0, begin, count)
        .fill_(alpha / std::sqrt(static_cast<double>(length) * static_cast<double>(width)));
  });
  return bounds_T1.to(options);
}

class NoisyEmbedding : public Layer {
 public:
  NoisyEmbedding(std::unique_ptr<Layer> embedding, double alpha)
      : embedding_(std::move(embedding)), alpha_(alpha) {}

  at::Tensor forward(const at::Tensor& tokens_T, const Stream& stream) override {
    const at::Tensor x_TD = embedding_->forward(tokens_T, stream);
    if (!stream.training) return x_TD;
    return x_TD + noise(x_TD, stream)
                      .mul_(bounds(*stream.documents, alpha_, x_TD.size(1), x_TD.options()));
  }
  std::vector<Parameter*> parameters() override { return embedding_->parameters(); }
  std::vector<Linear*> linears() override { return embedding_->linears(); }

 private:
  // Uniform within 1 on either side.
  static at::Tensor noise(const at::Tensor& x_TD, const Stream& stream) {
    std::vector<int64_t> sizes = x_TD.sizes().vec();
    if (!stream.drawn.are_all()) sizes[0] = stream.drawn.num_tokens;
    const at::Tensor all = at::empty(sizes, x_TD.detach().options());
    if (!all.is_meta()) {
      // A generator of its own: nobody else's draws are touched.
      at::Generator generator = at::globalContext().defaultGenerator(x_TD.device()).clone();
      generator.set_current_seed(make_draw({stream.draw, kNoise}));
      all.uniform_(-1, 1, generator);
    }
    return stream.drawn.are_all() ? all : drawn_rows(all, stream.drawn);
  }

  std::unique_ptr<Layer> embedding_;
  double alpha_;
};

}  // namespace

std::unique_ptr<Layer> make_noisy_embedding(std::unique_ptr<Layer> embedding, double alpha) {
  return std::make_unique<NoisyEmbedding>(std::move(embedding), alpha);
}

}  // namespace tessera
