// Low-rank adapters (LoRA, arXiv 2106.09685): a frozen matrix W [O, I] is trained as W + scale * B
// A, of which only A [R, I] and B [O, R] change. Source: peft/tuners/lora/layer.py, dora.py.
//
// Shapes: T tokens, I inputs, O outputs, R rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/model/layer.h"

namespace tessera {

class DecoderModel;

struct LoraAdapter {
  Parameter a;          // [R, I]
  Parameter b;          // [O, R]
  Parameter magnitude;  // [O]: the length of each row (DoRA, arXiv 2402.09353); no name without
  double scale = 1;
  double dropout = 0;  // share of the input that A does not see in training
  uint64_t draw = 0;   // names its masks among a forward's draws

  bool has_magnitude() const { return !magnitude.name.empty(); }
  // Whether the product is x W^T + scale * (x A^T) B^T, and nothing else.
  bool is_plain(const Stream& stream) const {
    return stream.adapters && !has_magnitude() && !(stream.training && dropout > 0);
  }
};

// scale * (drop(x_TI) A^T) B^T: [T, O]. Differentiable by x, A and B. Keeps x and a [T, R], and
// draws the mask again in backward.
at::Tensor lora_product(const at::Tensor& x_TI, const LoraAdapter& adapter, double dropout,
                        uint64_t draw, const DrawnTokens& tokens = {});

// The length of each row of W + scale * B A: float32 [O]. Not differentiable: DoRA takes it as a
// constant.
at::Tensor adapted_row_norms(const at::Tensor& weight_OI, const LoraAdapter& adapter);

struct LoraOptions {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  // Ends of names at a dot ("q_proj", "mlp.gate_proj"); "all-linear": all linear layers of blocks.
  // Empty: q_proj and v_proj, PEFT's choice for these families.
  std::vector<std::string> target_modules;
  // Ends of names of what is trained whole, and gets no adapter.
  std::vector<std::string> modules_to_save;
  bool rank_stabilized = false;  // alpha / sqrt(rank) in place of alpha / rank
  bool dora = false;
};

// Freezes the model but for modules_to_save and a classifier's scores, and puts adapters on its
// linear layers, before anything is put around these. Throws UserError where a name fits nothing.
void add_adapters(DecoderModel& model, const LoraOptions& options);

// The last parts of the names of all layers with adapters, each once, in order: what PEFT calls
// target_modules.
std::vector<std::string> adapted_modules(DecoderModel& model);

// Values of a new parameter's elements [begin, begin + out.numel()) that are not stored anywhere:
// A uniform within 1 / sqrt(I) on either side (kaiming_uniform with a = sqrt(5), as PEFT), a matrix
// of scores normal (as transformers), drawn from the seed and its name alone; B zeros. float32, on
// the CPU.
void fill_fresh(const Parameter& parameter, uint64_t seed, int64_t begin, const at::Tensor& out);

}  // namespace tessera
