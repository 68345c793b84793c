#include "worker/kernels/work.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

thread_local WorkCount* current = nullptr;

int64_t bytes_of(const at::Tensor& x) {
  return x.defined() ? x.numel() * static_cast<int64_t>(x.element_size()) : 0;
}

int64_t bytes_of(std::initializer_list<at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += bytes_of(x);
  return bytes;
}

int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) return bytes_of(value.toTensor());
  int64_t bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& x : value.toTensorVector()) bytes += bytes_of(x);
  }
  return bytes;
}

double product(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

// Of queries q [1, N, L, H] on keys k: what each sees, or half of that where it is causal.
double attention_products(const at::Tensor& q, const at::Tensor& k, bool causal, int num_products) {
  const double pairs = static_cast<double>(q.size(2)) * static_cast<double>(k.size(2));
  return num_products * 2.0 * static_cast<double>(q.size(1) * q.size(3)) *
         (causal ? (pairs + static_cast<double>(q.size(2))) / 2 : pairs);
}

// Floating-point operations from an operator's arguments.
struct Formula {
  std::string_view name;
  double (*flops)(const Inputs& inputs);
};

constexpr std::array kFormulas = {
    Formula{"aten::mm",
            [](const Inputs& in) { return product(in[0].toTensor(), in[1].toTensor()); }},
    Formula{"aten::bmm",
            [](const Inputs& in) { return product(in[0].toTensor(), in[1].toTensor()); }},
    Formula{"aten::addmm",
            [](const Inputs& in) { return product(in[1].toTensor(), in[2].toTensor()); }},
    Formula{"aten::addmm_",
            [](const Inputs& in) { return product(in[1].toTensor(), in[2].toTensor()); }},
    Formula{"aten::baddbmm",
            [](const Inputs& in) { return product(in[1].toTensor(), in[2].toTensor()); }},
    Formula{"aten::_scaled_dot_product_flash_attention_for_cpu",
            [](const Inputs& in) {
              return attention_products(in[0].toTensor(), in[1].toTensor(), in[4].toBool(), 2);
            }},
    Formula{"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            [](const Inputs& in) {
              return attention_products(in[1].toTensor(), in[2].toTensor(), in[7].toBool(), 5);
            }},
};

// These have no kernel of a device's own, or write what they do not read.
constexpr std::array<std::string_view, 1> kAlsoCounted = {"aten::copy_"};
constexpr std::array<std::string_view, 5> kOnlyWritten = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::uniform_", "aten::bernoulli_"};

template <typename Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::ranges::find(names, name) != names.end();
}

// How an operator is counted.
struct Operator {
  bool counted = false;                      // else it moves nothing, or is made of others
  bool makes_outputs = false;                // whose bytes it writes
  std::vector<int64_t> times;                // that each argument is read or written
  double (*flops)(const Inputs&) = nullptr;  // null: none

  explicit Operator(const at::RecordFunction& call) {
    const auto name = call.operator_name();
    if (!name) return;
    const auto found = c10::Dispatcher::singleton().findOp(*name);
    if (!found) return;
    const auto has_kernel = [&](c10::DispatchKey key) {
      return found->hasKernelForDispatchKey(key);
    };
    const c10::FunctionSchema& schema = found->schema();
    const auto& returns = schema.returns();
    const bool is_view = std::ranges::any_of(returns, [](const c10::Argument& value) {
      return value.alias_info() != nullptr && !value.alias_info()->isWrite();
    });
    counted =
        !is_view && (has_kernel(c10::DispatchKey::CPU) || is_one_of(name->name, kAlsoCounted));
    // Allocations are no operations.
    if (name->name.starts_with("aten::empty") || name->name == "aten::_local_scalar_dense")
      counted = false;
    makes_outputs = !returns.empty() && returns.front().alias_info() == nullptr;
    for (const c10::Argument& argument : schema.arguments()) {
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      const bool only = argument.is_out() || is_one_of(name->name, kOnlyWritten);
      times.push_back(written && !only ? 2 : 1);
    }
    for (const Formula& formula : kFormulas) {
      if (formula.name == name->name) flops = formula.flops;
    }
  }
};

// Schemas live as long as the process, and with them their names.
const Operator& find_operator(const at::RecordFunction& call) {
  thread_local std::unordered_map<const char*, Operator> known;
  const auto found = known.find(call.name());
  if (found != known.end()) return found->second;
  return known.emplace(call.name(), Operator(call)).first->second;
}

struct Counted : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  const Operator& op = find_operator(call);
  if (current == nullptr || !op.counted) return nullptr;
  const Inputs inputs = call.inputs();
  ++current->num_operators;
  if (op.flops != nullptr) current->flops += op.flops(inputs);
  for (size_t i = 0; i < inputs.size() && i < op.times.size(); ++i)
    current->memory_bytes += op.times[i] * bytes_of(inputs[i]);
  return op.makes_outputs ? std::make_unique<Counted>() : nullptr;
}

void end(const at::RecordFunction& call, at::ObserverContext* context) {
  if (context == nullptr || current == nullptr) return;
  for (const c10::IValue& output : call.outputs()) current->memory_bytes += bytes_of(output);
}

}  // namespace

void WorkCount::add(const WorkCount& other, int64_t times) {
  flops += other.flops * static_cast<double>(times);
  memory_bytes += other.memory_bytes * times;
  cpu_bytes += other.cpu_bytes * times;
  link_bytes += other.link_bytes * times;
  host_bytes += other.host_bytes * times;
  disk_bytes += other.disk_bytes * times;
  num_operators += other.num_operators * times;
}

WorkScope::WorkScope(WorkCount& count) {
  TORCH_CHECK(current == nullptr, "this thread's work is counted already");
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  current = &count;
}

WorkScope::~WorkScope() {
  current = nullptr;
  at::removeCallback(callback_);
}

void count_times(int64_t times, const std::function<void()>& body) {
  if (current == nullptr) return body();
  WorkCount once;
  WorkCount* const before = std::exchange(current, &once);
  try {
    body();
  } catch (...) {
    current = before;
    throw;
  }
  current = before;
  current->add(once, times);
}

void count_kernel(double flops, std::initializer_list<at::Tensor> touched) {
  if (current != nullptr) count_kernel(flops, bytes_of(touched));
}

void count_cpu_kernel(std::initializer_list<at::Tensor> touched) {
  if (stand_in().device == at::kCPU) return count_kernel(/*flops=*/0, touched);
  if (current != nullptr) current->cpu_bytes += bytes_of(touched);
}

void count_kernel(double flops, int64_t memory_bytes) {
  if (current == nullptr) return;
  ++current->num_operators;
  current->flops += flops;
  current->memory_bytes += memory_bytes;
}

void count_link_bytes(int64_t bytes) {
  if (current != nullptr) current->link_bytes += bytes;
}

void count_host_bytes(int64_t bytes) {
  if (current != nullptr) current->host_bytes += bytes;
}

void count_disk_bytes(int64_t bytes) {
  if (current != nullptr) current->disk_bytes += bytes;
}

}  // namespace tessera
