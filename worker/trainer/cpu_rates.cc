#include "worker/trainer/cpu_rates.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

namespace tessera {
namespace {

// A change of what is measured makes files of before void.
constexpr int kVersion = 2;
constexpr int kRepeats = 3;
constexpr int64_t kMatrixRows = 1024, kMatrixWidth = 1024;
constexpr int64_t kCopiedFloats = 16 << 20;  // 64 MiB, which no cache holds
constexpr int kSmallOperators = 2000;
constexpr double kDiskBytesPerSecond = 1e9;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// By the time that this process has on the cores, and the best of a few: others that run on the
// machine while it is measured say nothing of the machine on which a job will run.
double best_seconds(int num_threads, const std::function<void()>& work) {
  work();
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kRepeats; ++i) {
    const double begin = cpu_seconds();
    work();
    best = std::min(best, cpu_seconds() - begin);
  }
  return std::max(best / num_threads, 1e-9);
}

double product_rate(at::ScalarType dtype) {
  const at::Tensor a = at::ones({kMatrixRows, kMatrixWidth}, dtype);
  const at::Tensor b = at::ones({kMatrixWidth, kMatrixWidth}, dtype);
  const double flops = 2.0 * kMatrixRows * kMatrixWidth * kMatrixWidth;
  return flops / best_seconds(at::get_num_threads(), [&] { at::mm(a, b); });
}

// Read and written.
double copy_rate() {
  const at::Tensor from = at::ones({kCopiedFloats});
  at::Tensor to = at::empty({kCopiedFloats});
  return 2.0 * 4 * kCopiedFloats / best_seconds(at::get_num_threads(), [&] { to.copy_(from); });
}

double operator_seconds() {
  at::Tensor small = at::ones({16});
  const auto work = [&] {
    for (int i = 0; i < kSmallOperators; ++i) small.add_(1);
  };
  return best_seconds(/*num_threads=*/1, work) / kSmallOperators;
}

DeviceRates measure() {
  DeviceRates rates;
  rates.flops_float32 = product_rate(at::kFloat);
  rates.flops_bfloat16 = product_rate(at::kBFloat16);
  rates.memory_bytes_per_second = copy_rate();
  rates.operator_seconds = operator_seconds();
  return rates;
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

std::string heading() {
  return std::to_string(kVersion) + " " + std::to_string(at::get_num_threads()) + " threads of " +
         processor();
}

bool read(const std::filesystem::path& path, DeviceRates& rates) {
  std::ifstream file(path);
  std::string first;
  return std::getline(file, first) && first == heading() &&
         (file >> rates.flops_float32 >> rates.flops_bfloat16 >> rates.memory_bytes_per_second >>
          rates.operator_seconds) &&
         rates.flops_float32 > 0 && rates.flops_bfloat16 > 0 && rates.memory_bytes_per_second > 0 &&
         rates.operator_seconds > 0;
}

// Written beside and renamed: several processes may have measured.
void write(const std::filesystem::path& path, const DeviceRates& rates) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const std::filesystem::path part = path.string() + "." + std::to_string(::getpid());
  std::ofstream(part) << heading() << '\n'
                      << rates.flops_float32 << ' ' << rates.flops_bfloat16 << ' '
                      << rates.memory_bytes_per_second << ' ' << rates.operator_seconds << '\n';
  std::filesystem::rename(part, path, ignored);
}

}  // namespace

DeviceRates cpu_rates(const std::filesystem::path& cache_directory) {
  const auto path = cache_directory / ("cpu-rates-" + std::to_string(at::get_num_threads()));
  DeviceRates rates;
  if (!read(path, rates)) {
    rates = measure();
    write(path, rates);
  }
  rates.name = processor();
  rates.source = "compute and memory measured, the disk taken to be of 1 GB/s";
  rates.kind = "cpu";
  // Host memory is the same memory, and ranks of a machine exchange through it.
  rates.host_bytes_per_second = rates.memory_bytes_per_second / 2;
  rates.link_bytes_per_second = rates.memory_bytes_per_second / 4;
  rates.disk_bytes_per_second = kDiskBytesPerSecond;
  return rates;
}

}  // namespace tessera
