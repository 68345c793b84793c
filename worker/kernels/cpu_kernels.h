// The arithmetic of a training step on a CPU, apart from most matrix products: one table of
// functions for each instruction set, of which the machine's best is picked at run time.
//
// Each function works in the calling thread on the rows, or elements, it is given; callers spread
// them over threads (worker/kernels/tensor_ops.h) so that no result depends on how many there are.
// The values of a row are contiguous. Arithmetic is in float32 whatever the type of the values.
// An output may be an input of the same type and shape.
#pragma once

#include <cstdint>

#include "worker/kernels/dynamic_map.h"

namespace tessera {

// bfloat16 in memory.
struct Bfloat {
  uint16_t bits;
};

// Row i begins at data + i * stride.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t i) const { return data + i * stride; }
};

// Tokens of a page of cached keys and values (worker/kernels/paged_attention.h).
inline constexpr int64_t kPageTokens = 16;

// What a row of logits says of its label.
struct LabelStats {
  float logprob;       // log p(label)
  float mean_logprob;  // mean over the vocabulary of log p
  float entropy;       // of p, in nats
  float correct;       // 1 if the label is the first of the largest logits, else 0
  float sum_of_exps;   // of the exponentials that label_stats leaves
  float mean_logit;    // mean over the vocabulary of the logits
  float log_sum_sq;    // log of the sum of p^2; 0 unless asked for
};

// Of a row of scores: the largest, and the sum of their exponentials less that.
struct SoftmaxSums {
  float largest, sum;
};

struct AdamWStep {
  float gradient_scale;
  float decay;            // the weight is multiplied by it first: 1 - rate * weight_decay
  float keep1, keep2;     // 1 - beta1, 1 - beta2
  float step_size;        // rate / (1 - beta1^step)
  float root_correction;  // sqrt(1 - beta2^step)
  float epsilon;
};

// Values that share a scale in 8-bit optimizer states.
inline constexpr int64_t kAdamWBlock = 256;

// 8-bit values from the beginning of a block on: map->values[codes[i]] * scales[i / kAdamWBlock].
struct QuantizedRun {
  const DynamicMap* map;
  uint8_t* codes;
  float* scales;
};

// What there is for float and for bfloat16 values.
template <typename T>
struct CpuTypedKernels {
  // y = x * rsqrt(mean(x^2) + eps), rounded to T, then times weight [width].
  void (*rms_norm)(Rows<T> y, Rows<const T> x, const T* weight, float eps, int64_t num_rows,
                   int64_t width);
  // The gradients of that: grad_x, with `residual` added to it (null: nothing), and the weight's,
  // summed over the rows, added to grad_weight [width] (null: nowhere).
  void (*rms_norm_backward)(Rows<T> grad_x, float* grad_weight, Rows<const T> grad_y,
                            Rows<const T> x, const T* weight, Rows<const T> residual, float eps,
                            int64_t num_rows, int64_t width);
  // Each row is `half` values and their `half` partners. Turns the pairs by the angles whose cosine
  // and sine are given [half], or back by them.
  void (*rotate)(Rows<T> y, Rows<const T> x, const T* cosine, const T* sine, bool back,
                 int64_t num_rows, int64_t half);
  // h = silu(gate) * up.
  void (*swiglu)(Rows<T> h, Rows<const T> gate, Rows<const T> up, int64_t num_rows, int64_t width);
  // Its gradients, and h once more (null: not).
  void (*swiglu_backward)(Rows<T> grad_gate, Rows<T> grad_up, Rows<T> h, Rows<const T> grad_h,
                          Rows<const T> gate, Rows<const T> up, int64_t num_rows, int64_t width);
  // Reads a row of logits and leaves in exps [width] what is proportional to their softmax.
  // log_sum_sq: whether to make that.
  LabelStats (*label_stats)(float* exps, const T* logits, int64_t label, int64_t width,
                            bool log_sum_sq);
  // gradient [width] = of_label * (onehot(label) - p) + of_mean * (1 / width - p): of a loss whose
  // derivatives by logprob and mean_logprob are of_label and of_mean. p is exps / sum_of_exps.
  void (*logit_gradient)(T* gradient, const float* exps, float sum_of_exps, float of_label,
                         float of_mean, int64_t label, int64_t width);
  // `count` weights of NF4 codes, two a byte, the first in the upper half; a scale each kNf4Block.
  void (*dequantize_nf4)(T* out, const uint8_t* codes, const float* scales, int64_t count);
  // out = codes * scale.
  void (*dequantize_int8)(T* out, const int8_t* codes, float scale, int64_t count);
  // The generalised Jensen-Shannon divergence (vec_divergence.h) of the softmaxes of two rows of
  // logits, and gradient [width] = of_divergence times its derivative by the student's (null: not).
  float (*divergence)(T* gradient, const T* student, const T* teacher, double beta,
                      float of_divergence, int64_t width);
  // The scores of queries for a page of keys [width, kPageTokens]: scores[r][j] is the sum over h
  // of queries[r][h] * keys[h * kPageTokens + j]. That of a row does not depend on num_rows.
  void (*page_scores)(Rows<float> scores, Rows<const float> queries, const T* keys,
                      int64_t num_rows, int64_t width);
  // Of a page of values [kPageTokens, width], out[r][h] += the sum over j < count of weights[r][j]
  // * values[j * width + h]; likewise.
  void (*page_values)(Rows<float> out, Rows<const float> weights, const T* values, int64_t count,
                      int64_t num_rows, int64_t width);
};

struct CpuKernels {
  const char* name;
  CpuTypedKernels<float> of_float;
  CpuTypedKernels<Bfloat> of_bfloat;
  // One update of `count` weights. The gradients are scaled on the way and stay as they are.
  void (*adamw)(float* weights, float* exp_avgs, float* exp_avg_sqs, const float* gradients,
                const AdamWStep& step, int64_t count);
  // With states in bfloat16: they are rounded up or down at random, by `draw` + i for element i.
  void (*adamw_bfloat)(float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs,
                       const float* gradients, const AdamWStep& step, uint32_t draw, int64_t count);
  // With states in 8 bits, each block of which is quantized anew.
  void (*adamw_int8)(float* weights, QuantizedRun exp_avgs, QuantizedRun exp_avg_sqs,
                     const float* gradients, const AdamWStep& step, int64_t count);

  // Attention scores of one query for `width` keys, of which it sees [first, last).
  // Leaves exp(score - largest) where it sees, 0 elsewhere.
  SoftmaxSums (*softmax)(float* scores, int64_t first, int64_t last, int64_t width);
  // Leaves exp(score - lse) where it sees, 0 elsewhere.
  void (*probabilities)(float* scores, float lse, int64_t first, int64_t last, int64_t width);
  // Turns the gradient of the probabilities into that of the scores: p * (gradient - mean), with
  // mean the sum of p * gradient.
  void (*score_gradient)(float* gradient, const float* probabilities, float mean, int64_t width);
  float (*dot)(const float* a, const float* b, int64_t width);
  // y[m][o] = the sum over i < width of x[m][i] * w[o][i]; with `add` that is added to what y has.
  // An element depends on these two rows alone: neither on num_rows nor on num_columns.
  void (*row_products)(Rows<float> y, Rows<const float> x, Rows<const float> w, bool add,
                       int64_t num_rows, int64_t num_columns, int64_t width);

  template <typename T>
  const CpuTypedKernels<T>& of() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return of_float;
    } else {
      return of_bfloat;
    }
  }
};

enum class CpuSet { kBaseline, kAvx2, kAvx512 };

// Null where this machine, or this build's, cannot run it. The baseline runs everywhere.
const CpuKernels* cpu_kernels(CpuSet set);
// The best that this machine runs.
const CpuKernels& cpu_kernels();

}  // namespace tessera
