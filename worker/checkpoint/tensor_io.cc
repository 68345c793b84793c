#include "worker/checkpoint/tensor_io.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kStagingElements = 1 << 20;

}  // namespace

void write_tensor(OutputFile& file, int64_t offset, const at::Tensor& tensor,
                  at::ScalarType dtype) {
  c10::NoGradGuard no_grad;
  const at::Tensor flat = tensor.view({-1});
  if (flat.is_cpu() && flat.scalar_type() == dtype) {
    file.write(flat.const_data_ptr(), static_cast<int64_t>(flat.nbytes()), offset);
    return;
  }
  const at::Tensor staging =
      at::empty({std::min(kStagingElements, flat.numel())}, at::TensorOptions(dtype));
  for (int64_t begin = 0; begin < flat.numel(); begin += kStagingElements) {
    at::Tensor part = staging.narrow(0, 0, std::min(kStagingElements, flat.numel() - begin));
    part.copy_(flat.narrow(0, begin, part.numel()));
    file.write(part.const_data_ptr(), static_cast<int64_t>(part.nbytes()),
               offset + begin * static_cast<int64_t>(part.element_size()));
  }
}

void read_tensor(const SafetensorsFile& file, const std::string& name, int64_t begin,
                 at::Tensor out) {
  if (out.is_cpu()) return file.read(name, begin, out);
  c10::NoGradGuard no_grad;
  const at::Tensor flat = out.view({-1});
  const at::Tensor staging =
      at::empty({std::min(kStagingElements, flat.numel())}, at::TensorOptions(out.scalar_type()));
  for (int64_t done = 0; done < flat.numel(); done += kStagingElements) {
    at::Tensor part = staging.narrow(0, 0, std::min(kStagingElements, flat.numel() - done));
    file.read(name, begin + done, part);
    flat.narrow(0, done, part.numel()).copy_(part);
  }
}

}  // namespace tessera
