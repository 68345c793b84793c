#include "worker/memory/cpu_scratch.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

constexpr int64_t kLargestMeasured = 1024;

constexpr std::string_view kAttention =
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
constexpr std::array<std::string_view, 6> kProducts = {"aten::mm",  "aten::addmm",   "aten::addmm_",
                                                       "aten::bmm", "aten::baddbmm", kAttention};

thread_local bool measuring = false;
thread_local int64_t largest = 0;  // of a product since the scope began

constexpr std::array<std::string_view, 8> kPointwise = {"aten::add",  "aten::add_", "aten::sub",
                                                        "aten::sub_", "aten::mul",  "aten::mul_",
                                                        "aten::div",  "aten::div_"};

// Runs operators on real memory on so many threads.
class Measuring {
 public:
  explicit Measuring(int num_threads) {
    measuring = true;
    at::set_num_threads(num_threads);
  }
  ~Measuring() {
    at::set_num_threads(threads_before_);
    measuring = false;
  }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

 private:
  const int threads_before_ = at::get_num_threads();
};

// How a matrix of real memory lies that is like `x`, but no larger than what is measured; the same
// rows or columns lie side by side. Of attention, one head.
struct SmallLayout {
  std::vector<int64_t> sizes, strides;

  SmallLayout(const at::Tensor& x, bool one_head) : sizes(x.dim()), strides(x.dim()) {
    std::vector<int64_t> order(x.dim());
    for (int64_t i = 0; i < x.dim(); ++i) {
      order[i] = i;
      sizes[i] = std::min(x.size(i), kLargestMeasured);
    }
    if (one_head) sizes[1] = 1;
    std::ranges::stable_sort(order,
                             [&](int64_t a, int64_t b) { return x.stride(a) < x.stride(b); });
    int64_t stride = 1;
    for (const int64_t i : order) {
      strides[i] = stride;
      // Rows of a part of a matrix lie apart.
      const bool apart = i == order.front() && x.dim() > 1 && x.stride(order[1]) > x.size(i);
      stride *= sizes[i] + (apart ? 32 : 0);
    }
  }
};

at::Tensor small_copy(const at::Tensor& x, bool one_head) {
  const SmallLayout layout(x, one_head);
  return at::empty_strided(layout.sizes, layout.strides,
                           at::TensorOptions(x.scalar_type()).device(at::kCPU));
}

// What the operator takes beside its outputs, on real tensors.
int64_t measured_bytes(const c10::OperatorHandle& op, const Inputs& inputs, int num_threads) {
  const c10::AutoGradMode no_grad(false);
  MemoryLedger& ledger = MemoryLedger::install();
  torch::jit::Stack stack;
  for (const c10::IValue& input : inputs) {
    const bool is_tensor = input.isTensor() && input.toTensor().defined();
    stack.push_back(
        is_tensor ? c10::IValue(small_copy(input.toTensor(), op.schema().name() == kAttention))
                  : input);
  }
  const Measuring scope(num_threads);
  const torch::jit::Stack arguments = stack;
  ledger.reset_peak();
  const int64_t before = ledger.snapshot().current_bytes;
  op.callBoxed(stack);
  const MemoryTotals after = ledger.snapshot();
  return std::max<int64_t>(0, after.peak_bytes - std::max(before, after.current_bytes));
}

// Types of the arguments, shapes, and how they lie.
using Key = std::vector<int64_t>;

Key key_of(const at::RecordFunction& call, const Inputs& inputs, int num_threads) {
  Key key{reinterpret_cast<int64_t>(call.name()), num_threads};
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const SmallLayout layout(input.toTensor(), call.name() == kAttention);
    key.push_back(static_cast<int64_t>(input.toTensor().scalar_type()));
    key.insert(key.end(), layout.sizes.begin(), layout.sizes.end());
    key.insert(key.end(), layout.strides.begin(), layout.strides.end());
  }
  return key;
}

int64_t product_bytes(const at::RecordFunction& call, const Inputs& inputs) {
  static thread_local std::map<Key, int64_t> known;
  const int num_threads = num_kernel_threads(inputs[0].toTensor());
  const Key key = key_of(call, inputs, num_threads);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const auto op = c10::Dispatcher::singleton().findOp(*call.operator_name());
  if (!op) return 0;
  // Threads take heads, each with scratch of its own.
  const bool by_head = call.name() == kAttention;
  int64_t bytes = measured_bytes(*op, inputs, by_head ? 1 : num_threads);
  if (by_head) bytes *= num_threads;
  return known.emplace(key, bytes).first->second;
}

// A sum in another type is one of a copy in that type.
int64_t sum_bytes(const Inputs& inputs) {
  const c10::IValue& dtype = inputs[inputs.size() - 1];
  const at::Tensor& x = inputs[0].toTensor();
  if (!dtype.isInt() || dtype.toScalarType() == x.scalar_type()) return 0;
  return x.numel() * static_cast<int64_t>(c10::elementSize(dtype.toScalarType()));
}

// Of two tensors of different types the narrower is copied in the wider type first; and a narrower
// one that is written to is written there, and copied back.
int64_t cast_bytes(const Inputs& inputs, bool in_place) {
  if (inputs.size() < 2 || !inputs[1].isTensor()) return 0;
  const at::Tensor &a = inputs[0].toTensor(), &b = inputs[1].toTensor();
  if (a.scalar_type() == b.scalar_type() || a.dim() == 0 || b.dim() == 0) return 0;
  const at::ScalarType wide = c10::promoteTypes(a.scalar_type(), b.scalar_type());
  const auto bytes_in_wide = [&](const at::Tensor& x) {
    return x.scalar_type() == wide ? 0 : x.numel() * static_cast<int64_t>(c10::elementSize(wide));
  };
  return bytes_in_wide(a) * (in_place ? 2 : 1) + bytes_in_wide(b);
}

int64_t scratch_bytes(const at::RecordFunction& call) {
  const Inputs inputs = call.inputs();
  if (inputs.empty() || !inputs[0].isTensor()) return 0;
  const at::Tensor& x = inputs[0].toTensor();
  if (!x.defined() || !x.is_meta() || !on_cpu(x)) return 0;
  const std::string_view name = call.name();
  if (name == "aten::sum") return sum_bytes(inputs);
  if (std::ranges::find(kPointwise, name) != kPointwise.end())
    return cast_bytes(inputs, /*in_place=*/name.ends_with('_'));
  if (x.scalar_type() != at::kBFloat16 || std::ranges::find(kProducts, name) == kProducts.end())
    return 0;
  const int64_t bytes = product_bytes(call, inputs);
  largest = std::max(largest, bytes);
  return bytes;
}

struct Scratch : at::ObserverContext {
  at::Tensor held;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  if (measuring) return nullptr;
  const int64_t bytes = scratch_bytes(call);
  if (bytes == 0) return nullptr;
  auto scratch = std::make_unique<Scratch>();
  scratch->held = at::empty({bytes}, at::TensorOptions(at::kMeta).dtype(at::kByte));
  return scratch;
}

void end(const at::RecordFunction&, at::ObserverContext*) {}

}  // namespace

CpuScratchScope::CpuScratchScope()
    : callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
  largest = 0;
}

CpuScratchScope::~CpuScratchScope() { at::removeCallback(callback_); }

int64_t CpuScratchScope::largest_product() const { return largest; }

}  // namespace tessera
