# LibTorch with CUDA, from the wheels that scripts/setup-cuda.sh installs.
#
# The wheel's own TorchConfig asks for a whole CUDA toolkit where CMake looks for one. Imported
# targets over the wheels' include and lib folders do, and the wheels' nvcc for what kernels there
# are of ours. Sets TORCH_LIBRARIES, as find_package(Torch) would.
if(NOT Torch_DIR)
  file(GLOB Torch_DIR
       ${CMAKE_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/torch/share/cmake/Torch)
endif()
get_filename_component(TESSERA_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
get_filename_component(TESSERA_WHEELS "${TESSERA_TORCH_ROOT}/.." ABSOLUTE)
if(NOT EXISTS ${TESSERA_TORCH_ROOT}/lib/libtorch_cuda.so)
  message(FATAL_ERROR "TESSERA_CUDA: no LibTorch with CUDA at '${TESSERA_TORCH_ROOT}'; "
                      "run scripts/setup-cuda.sh")
endif()

# One folder of headers and libraries for all of CUDA 13, one for NCCL.
file(GLOB TESSERA_NVIDIA_INCLUDES LIST_DIRECTORIES true ${TESSERA_WHEELS}/nvidia/*/include)
file(GLOB TESSERA_NVIDIA_LIBS LIST_DIRECTORIES true ${TESSERA_WHEELS}/nvidia/*/lib)
foreach(header nv/target cuda_runtime_api.h cublas_v2.h cusparse.h cusolverDn.h nccl.h
               crt/host_defines.h)
  string(MAKE_C_IDENTIFIER TESSERA_PATH_${header} variable)
  find_path(${variable} ${header} PATHS ${TESSERA_NVIDIA_INCLUDES} NO_DEFAULT_PATH REQUIRED)
endforeach()
find_library(TESSERA_CUDART NAMES libcudart.so.13
             PATHS ${TESSERA_NVIDIA_LIBS} NO_DEFAULT_PATH REQUIRED)

add_library(tessera_torch_cuda INTERFACE)
target_include_directories(tessera_torch_cuda SYSTEM INTERFACE
  ${TESSERA_TORCH_ROOT}/include ${TESSERA_TORCH_ROOT}/include/torch/csrc/api/include
  ${TESSERA_NVIDIA_INCLUDES})
target_compile_definitions(tessera_torch_cuda INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_C10D_NCCL)
# torch_cuda registers its kernels when loaded, and nothing names it. What it needs in turn (cuBLAS,
# cuDNN ...) is found by its own run path, on machines that run it.
target_link_options(tessera_torch_cuda INTERFACE -Wl,--allow-shlib-undefined)
target_link_libraries(tessera_torch_cuda INTERFACE
  -Wl,--no-as-needed
  ${TESSERA_TORCH_ROOT}/lib/libtorch.so
  ${TESSERA_TORCH_ROOT}/lib/libtorch_cpu.so
  ${TESSERA_TORCH_ROOT}/lib/libtorch_cuda.so
  -Wl,--as-needed
  ${TESSERA_TORCH_ROOT}/lib/libc10.so
  ${TESSERA_TORCH_ROOT}/lib/libc10_cuda.so
  ${TESSERA_CUDART})
set(TORCH_LIBRARIES tessera_torch_cuda)

# tessera_cuda_object(TARGET SOURCE.cu): compiles it into the target. Our kernels know nothing of
# LibTorch, and are linked against the same runtime.
find_program(TESSERA_NVCC nvcc PATHS ${TESSERA_WHEELS}/nvidia/cu13/bin NO_DEFAULT_PATH REQUIRED)
set(TESSERA_CUDA_ARCHITECTURES "80;90" CACHE STRING
    "GPUs that kernels are compiled for; later ones compile them when they are first run")
set(TESSERA_NVCC_FLAGS -std=c++20 -O3 -Xcompiler=-fPIC,-Wall -I${CMAKE_SOURCE_DIR})
foreach(architecture IN LISTS TESSERA_CUDA_ARCHITECTURES)
  list(APPEND TESSERA_NVCC_FLAGS
       -gencode=arch=compute_${architecture},code=[sm_${architecture},compute_${architecture}])
endforeach()
function(tessera_cuda_object target source)
  cmake_path(GET source STEM name)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${TESSERA_NVCC} ${TESSERA_NVCC_FLAGS} -MD -MF ${object}.d
            -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${source} DEPFILE ${object}.d
    COMMENT "Compiling ${source}" VERBATIM)
  target_sources(${target} PRIVATE ${object})
endfunction()
