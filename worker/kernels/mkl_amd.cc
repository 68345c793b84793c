// MKL picks its slow code paths on processors that are not Intel's. libtorch_cpu asks this
// function, and the definition in the executable wins: float32 matrix products run 2x faster on AMD
// (docs/benchmarks.md). Linked as an object, since nothing refers to it by name.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }
