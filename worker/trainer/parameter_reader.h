// Where each parameter's values come from when a run begins: the model's files, an adapter
// directory, or nowhere yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/v1/job.pb.h"
#include "worker/model/decoder.h"
#include "worker/model/safetensors.h"

namespace tessera {

class ParameterReader {
 public:
  // `model` has the job's adapters. The references must outlive this. Throws UserError where
  // peft.adapter_path does not hold what is trained. Requires check_weights.
  ParameterReader(const v1::JobSpec& spec, DecoderModel& model, const WeightFiles& weights);

  // Elements [begin, begin + out.numel()) of a parameter, of a quantized one bytes; `out` is 1-D,
  // on the CPU.
  void read(const Parameter& parameter, int64_t begin, const at::Tensor& out) const;

 private:
  void read_elements(const Parameter& parameter, int64_t begin, const at::Tensor& out) const;
  void read_row_norms(const Parameter& matrix, int64_t first, const at::Tensor& out) const;

  const WeightFiles& weights_;
  std::optional<SafetensorsFile> adapter_;
  uint64_t seed_;
  at::ScalarType dtype_;  // that frozen weights are used in
};

}  // namespace tessera
