// How fast devices are: what a predicted time is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// What a device reaches in training, not its peak: see kFlopsReached in device_rates.cc.
struct DeviceRates {
  std::string name;          // "h100"
  std::string source;        // "NVIDIA's data sheet", "measured here"
  std::string kind;          // cpu or cuda
  int64_t memory_bytes = 0;  // all of it. 0: not the device's but the machine's
  double flops_float32 = 0;  // of matrix products, a second
  double flops_bfloat16 = 0;
  double memory_bytes_per_second = 0;
  double host_bytes_per_second = 0;  // to and from host memory, by copies and by the CPU
  double disk_bytes_per_second = 0;
  double link_bytes_per_second = 0;  // to and from other ranks
  double operator_seconds = 0;       // to start one
};

// GPUs that are known without being here.
std::span<const DeviceRates> known_devices();

// The known device of a name ("h100"), or of a model as its driver names it ("NVIDIA H100 80GB
// HBM3"), in any case. Nothing for others.
std::optional<DeviceRates> find_device(std::string_view name);

}  // namespace tessera
