#include "worker/trainer/model_options.h"

#include "worker/errors.h"
#include "worker/model/dropout.h"

namespace tessera {

ModelConfig model_of_job(const v1::JobSpec& spec, ModelConfig config) {
  config.hidden_dropout = spec.model().hidden_dropout();
  const v1::Sft& sft = spec.method().sft();
  if (!sft.has_router_aux_loss_coef()) return config;
  if (sft.router_aux_loss_coef() != 0 && config.experts.num_experts == 0) {
    throw UserError("method.sft.router_aux_loss_coef",
                    "method.sft.router_aux_loss_coef is " +
                        std::to_string(sft.router_aux_loss_coef()) + ", and a " +
                        config.model_type + " model has no experts to balance");
  }
  config.experts.router_aux_loss_coef = sft.router_aux_loss_coef();
  return config;
}

ForwardOptions training_forward(const v1::JobSpec& spec, const ModelConfig& config,
                                const MicrobatchOfStep& microbatch) {
  const auto number = [](int64_t value) { return static_cast<uint64_t>(value); };
  ForwardOptions options;
  options.training = true;
  options.draw = make_draw({number(spec.training().seed()), number(microbatch.step),
                            number(microbatch.index), number(microbatch.rank)});
  options.aux_loss_weight =
      config.experts.router_aux_loss_coef / static_cast<double>(microbatch.count);
  return options;
}

}  // namespace tessera
