# The CPU part of a LibTorch that was built with CUDA, on a machine without a CUDA toolkit. Its own
# TorchConfig would ask for nvcc. Sets TORCH_LIBRARIES, as find_package(Torch) would.
get_filename_component(TESSERA_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)

add_library(tessera_torch_cpu INTERFACE)
target_include_directories(tessera_torch_cpu SYSTEM INTERFACE
  ${TESSERA_TORCH_ROOT}/include ${TESSERA_TORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(tessera_torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# What libtorch_cpu.so needs of CUDA is found by its own run path.
target_link_options(tessera_torch_cpu INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(tessera_torch_cpu INTERFACE
  ${TESSERA_TORCH_ROOT}/lib/libtorch_cpu.so ${TESSERA_TORCH_ROOT}/lib/libc10.so)
set(TORCH_LIBRARIES tessera_torch_cpu)
