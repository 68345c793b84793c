#include "worker/model/feed_forward.h"
#include "worker/model/functions.h"
#include "worker/model/linear.h"

namespace tessera {
namespace {

class Mlp : public FeedForward {
 public:
  Mlp(const ModelConfig& c, const std::string& name)
      : gate_(name + ".gate_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        up_(name + ".up_proj", c.hidden_size, c.intermediate_size, c.mlp_bias),
        down_(name + ".down_proj", c.intermediate_size, c.hidden_size, c.mlp_bias) {}

  at::Tensor forward(const at::Tensor& x_TD, const Stream& stream) override {
    return down_(swiglu(gate_(x_TD, stream), up_(x_TD, stream)), stream);
  }

  std::optional<GatedMlp> gated() const override {
    return GatedMlp{Projection({&gate_, &up_}), Projection({&down_})};
  }

  std::vector<Linear*> linears() override { return {&gate_, &up_, &down_}; }

 private:
  Linear gate_, up_, down_;
};

}  // namespace

std::unique_ptr<FeedForward> make_mlp(const ModelConfig& config, const std::string& block) {
  return std::make_unique<Mlp>(config, block + ".mlp");
}

}  // namespace tessera
