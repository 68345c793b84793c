#include "worker/trainer/parameter_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/memory/ledger.h"
#include "worker/model/adapter_files.h"
#include "worker/model/quantized.h"
#include "worker/model/stored_weights.h"

namespace tessera {
namespace {

constexpr int64_t kPieceElements = 1 << 20;

}  // namespace

ParameterReader::ParameterReader(const v1::JobSpec& spec, DecoderModel& model,
                                 const WeightFiles& weights)
    : weights_(weights),
      seed_(static_cast<uint64_t>(spec.training().seed())),
      dtype_(spec.model().dtype() == "bfloat16" ? at::kBFloat16 : at::kFloat) {
  if (!spec.peft().adapter_path().empty())
    adapter_.emplace(open_adapter(model, spec.peft().adapter_path()));
}

void ParameterReader::read(const Parameter& parameter, int64_t begin, const at::Tensor& out) const {
  if (adapter_ && parameter.of_adapter)
    return adapter_->read(adapter_tensor_name(parameter.name), begin, out);
  if (parameter.is_quantized()) {
    const ElementReader elements = [&](int64_t first, const at::Tensor& values) {
      read_elements(parameter, first, values);
    };
    return read_quantized(parameter, elements, begin, out);
  }
  if (parameter.fresh == Fresh::kRowNorms) return read_row_norms(*parameter.fresh_from, begin, out);
  if (is_new(parameter, weights_)) return fill_fresh(parameter, seed_, begin, out);
  const StoredPart stored = find_stored(parameter, weights_);
  weights_.read(stored.name, stored.begin + begin, out);
}

// Of the model's files, rounded to the type that weights are used in.
void ParameterReader::read_elements(const Parameter& parameter, int64_t begin,
                                    const at::Tensor& out) const {
  const StoredPart stored = find_stored(parameter, weights_);
  if (dtype_ == at::kFloat) return weights_.read(stored.name, stored.begin + begin, out);
  const at::Tensor rounded = at::empty(out.sizes(), at::TensorOptions(dtype_));
  weights_.read(stored.name, stored.begin + begin, rounded);
  out.copy_(rounded);
}

// Of the matrix as forward sees it.
void ParameterReader::read_row_norms(const Parameter& matrix, int64_t first,
                                     const at::Tensor& out) const {
  const c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::kOther);
  const int64_t width = matrix.shape[1];
  const int64_t rows_a_piece = std::max<int64_t>(1, kPieceElements / width);
  Parameter seen = matrix;
  if (matrix.is_quantized()) {
    seen.value = at::empty(matrix.stored_shape(), at::kByte);
    read(matrix, 0, seen.value);
  }
  for (int64_t done = 0; done < out.numel(); done += rows_a_piece) {
    const int64_t rows = std::min(rows_a_piece, out.numel() - done);
    at::Tensor values;
    if (matrix.is_quantized()) {
      values = dequantized_rows(seen, first + done, rows, dtype_);
    } else {
      values = at::empty({rows, width}, at::kFloat);
      read_elements(matrix, (first + done) * width, values.view({-1}));
    }
    out.narrow(0, done, rows)
        .copy_(at::linalg_vector_norm(values, 2, at::OptionalIntArrayRef(1), /*keepdim=*/false,
                                      at::kFloat));
  }
}

}  // namespace tessera
