// What a model is made of: layers with parameters, and gates that make the weights present.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/batch.h"
#include "worker/kernels/quantized_ops.h"
#include "worker/model/dropout.h"
#include "worker/model/gradient_sink.h"

namespace tessera {

class AttentionCache;
class RouterBalance;
struct AttentionOutputs;
struct Linear;

// Where else a checkpoint may hold a weight: elements from `begin` of tensor `name`.
struct StoredPart {
  std::string name;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t begin = 0;
};

// What a parameter begins with that no checkpoint of the model holds (worker/model/lora.h);
// kNormal: that a checkpoint may hold.
enum class Fresh : uint8_t { kNo, kZeros, kUniform, kRowNorms, kNormal };

// A weight, by its name in the Hugging Face checkpoint, or an adapter's by its name in PEFT's.
// `value` is set from outside (by the sharder); a layer reads it in forward, while its gate is
// open.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  at::Tensor value = {};
  std::vector<StoredPart> also_stored_as = {};  // looked for where there is no tensor `name`
  GradientSink* gradient_sink = nullptr;        // set with `value`; null where it is not trained
  // Else its value is never changed and no gradient of it is made. Set before the model is sharded.
  bool trainable = true;
  bool of_adapter = false;  // an adapter directory holds it, not the model's
  Fresh fresh = Fresh::kNo;
  const Parameter* fresh_from = nullptr;  // kRowNorms: of this matrix
  double fresh_deviation = 0;             // kNormal: standard deviation
  // Of a matrix that is not trained: `value` holds bytes (worker/model/quantized.h), not numbers.
  Quantization quantization = Quantization::kNone;

  // Elements of the weight, however it is stored.
  int64_t numel() const { return c10::multiply_integers(shape); }
  bool is_quantized() const { return quantization != Quantization::kNone; }
  // Where what lies in those bytes.
  QuantizedLayout byte_layout() const { return quantized_layout(quantization, shape[0], shape[1]); }
  // The shape of `value`.
  std::vector<int64_t> stored_shape() const {
    if (!is_quantized()) return shape;
    return {byte_layout().bytes};
  }

  // Norm weights and biases are not decayed; lengths of rows are (as transformers has it).
  bool decays() const { return shape.size() > 1 || fresh == Fresh::kRowNorms; }
};

// What all layers of one forward share. It must live until backward is done.
struct Stream {
  const Documents* documents;
  at::Tensor cos_TH;  // [T, H / 2] in the compute dtype: rotary angles at each token's position
  at::Tensor sin_TH;
  bool training = false;   // whether there is dropout and noise
  uint64_t draw = 0;       // names the random draws of this forward (worker/model/dropout.h)
  DrawnTokens drawn = {};  // which of the tokens that they are for these are
  RouterBalance* balance = nullptr;  // where layers of experts count; null where there are none
  // See AttentionOptions::kept. Of one layer: set by what runs that layer again in backward.
  AttentionOutputs* kept_attention = nullptr;
  // Whether it is that run again. What is returned then is not read, but for its graph.
  bool is_rerun = false;
  // Tokens that what works on each token alone takes at a time (worker/model/tiled.h). 0: all.
  int64_t mlp_tile_tokens = 0;
  int64_t first_token = 0;  // where such a part begins in the stream
  bool adapters = true;     // whether adapters take part
  // Where heads find the keys and values of tokens before these, while text is generated; null: the
  // stream is whole documents. Nothing is differentiated then.
  AttentionCache* cache = nullptr;
};

// What a layer that is run again in backward keeps beside its input.
enum class RecomputePolicy {
  kAttention,  // what its heads attended to, so that attention is not run again
  kFull,       // nothing
};

// A step of the stream through the model: [T, D] in, [T, D] out; the embedding takes tokens [T].
class Layer {
 public:
  virtual ~Layer() = default;
  virtual at::Tensor forward(const at::Tensor& x, const Stream& stream) = 0;
  // In a fixed order. The pointers live as long as the layer.
  virtual std::vector<Parameter*> parameters() = 0;
  // Its matrices that may be adapted and quantized, in the same order.
  virtual std::vector<Linear*> linears() { return {}; }
  // forward() that keeps little for backward, which makes most of the rest again: of layers that
  // can do so by themselves for such an input. Nothing where they cannot.
  virtual std::optional<at::Tensor> lean_forward(const at::Tensor&, const Stream&,
                                                 RecomputePolicy) {
    return {};
  }
};

// Stands around each use of a group of weights. Between open() and close() they are present;
// close() returns `output` prepared so that they are present again for its backward, and go when
// the backward of the use before this one begins.
class WeightGate {
 public:
  virtual ~WeightGate() = default;
  virtual void open() = 0;
  virtual at::Tensor close(const at::Tensor& output) = 0;
};

}  // namespace tessera
