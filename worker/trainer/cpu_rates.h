// How fast this machine's cores are, for predicted times.
#pragma once

#include <filesystem>

#include "worker/planner/device_rates.h"

namespace tessera {

// Of LibTorch's current number of threads. Measured in about half a second, once: what was measured
// for the processor and so many threads is kept in a file of `cache_directory`, where that can be
// written.
DeviceRates cpu_rates(const std::filesystem::path& cache_directory);

}  // namespace tessera
