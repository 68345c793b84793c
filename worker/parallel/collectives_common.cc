#include "worker/parallel/collectives_common.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace tessera {
namespace {

// Elements that stay in the first-level cache while all parts are added to them.
constexpr int64_t kBlock = 2048;
// Below this a second thread costs more than it saves.
constexpr int64_t kGrain = 64 * 1024;

template <typename Sum, typename Part>
void add_parts(Sum* output, const std::vector<const Part*>& parts, int64_t numel) {
  at::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t block_end = std::min(block + kBlock, end);
      for (const Part* part : parts) {
        for (int64_t i = block; i < block_end; ++i) output[i] += static_cast<Sum>(part[i]);
      }
    }
  });
}

template <typename Sum, typename Part>
void add_tensors(const at::Tensor& output, const std::vector<at::Tensor>& parts) {
  std::vector<const Part*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr<Part>());
  add_parts(output.data_ptr<Sum>(), pointers, output.numel());
}

void check_flat(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.dim() == 1 && tensor.is_contiguous(), name, " must be 1-D and contiguous");
}

class FinishedWork final : public Work {
 public:
  void wait() override {}
};

}  // namespace

void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size) {
  check_flat(output, "output");
  check_flat(input, "input");
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "all_gather from ", input.scalar_type(),
              " to ", output.scalar_type());
  TORCH_CHECK(output.numel() == input.numel() * size, "all_gather of ", size, " x ", input.numel(),
              " into ", output.numel(), " elements");
}

void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int size) {
  check_flat(output, "output");
  check_flat(input, "input");
  TORCH_CHECK(output.scalar_type() == at::kFloat && input.is_floating_point(),
              "reduce_scatter_add from ", input.scalar_type(), " to ", output.scalar_type());
  TORCH_CHECK(input.numel() == output.numel() * size, "reduce_scatter_add of ", input.numel(),
              " into ", size, " x ", output.numel(), " elements");
}

void check_all_to_all(const at::Tensor& output, const at::Tensor& input, int size) {
  check_flat(output, "output");
  check_flat(input, "input");
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "all_to_all from ", input.scalar_type(),
              " to ", output.scalar_type());
  TORCH_CHECK(output.numel() == input.numel() && input.numel() % size == 0, "all_to_all of ",
              input.numel(), " into ", output.numel(), " elements between ", size, " ranks");
}

void check_shift(const at::Tensor& output, const at::Tensor& input, int distance, int64_t most) {
  check_flat(output, "output");
  check_flat(input, "input");
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "shift from ", input.scalar_type(),
              " to ", output.scalar_type());
  TORCH_CHECK(distance >= 0, "shift by ", distance);
  TORCH_CHECK(input.numel() <= most && output.numel() <= most, "shift of ", input.numel(), " into ",
              output.numel(), " elements, of ", most, " at most");
}

void check_all_reduce(const at::Tensor& values) {
  TORCH_CHECK(values.is_contiguous(), "all_reduce_sum of a tensor that is not contiguous");
  const at::ScalarType dtype = values.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong,
              "all_reduce_sum of ", dtype);
}

void add_in_order(at::Tensor output, const std::vector<at::Tensor>& parts) {
  if (parts.empty() || output.numel() == 0) return;
  if (!output.is_cpu()) {
    c10::NoGradGuard no_grad;
    for (const at::Tensor& part : parts) output.add_(part.view_as(output));
    return;
  }
  // On CPU add_ would first make a whole copy of each narrower part.
  const auto dtypes = std::pair(output.scalar_type(), parts.front().scalar_type());
  if (dtypes == std::pair(at::kFloat, at::kFloat)) return add_tensors<float, float>(output, parts);
  if (dtypes == std::pair(at::kFloat, at::kBFloat16))
    return add_tensors<float, at::BFloat16>(output, parts);
  if (dtypes == std::pair(at::kFloat, at::kHalf))
    return add_tensors<float, at::Half>(output, parts);
  if (dtypes == std::pair(at::kDouble, at::kDouble))
    return add_tensors<double, double>(output, parts);
  if (dtypes == std::pair(at::kLong, at::kLong))
    return add_tensors<int64_t, int64_t>(output, parts);
  TORCH_CHECK(false, "cannot add ", dtypes.second, " to ", dtypes.first);
}

int place_in(const std::vector<int>& ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  TORCH_CHECK(found != ranks.end(), "rank ", rank, " is not in the group it asks for");
  return static_cast<int>(found - ranks.begin());
}

std::unique_ptr<Work> make_finished_work() { return std::make_unique<FinishedWork>(); }

}  // namespace tessera
