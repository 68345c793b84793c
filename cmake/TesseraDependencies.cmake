# Order matters: Protobuf and gRPC before Torch, and Torch by Torch_DIR alone. Its wheel ships the
# headers of an older protobuf, which CMake must not find.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl REQUIRED CONFIG)
include(TesseraArrow)

if(TESSERA_BUILD_SERVICE)
  find_package(gRPC REQUIRED CONFIG)
  find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
endif()

if(TESSERA_BUILD_ENGINE AND TESSERA_CUDA)
  include(TesseraCuda)
elseif(TESSERA_BUILD_ENGINE AND EXISTS ${Torch_DIR}/../../../lib/libtorch_cuda.so)
  include(TesseraTorchCpu)
elseif(TESSERA_BUILD_ENGINE)
  find_package(Torch REQUIRED NO_DEFAULT_PATH PATHS ${Torch_DIR})
endif()

# A folder to put first on the include path of targets that use both Torch and protobuf: the wheel's
# include folder also holds google/protobuf.
set(TESSERA_PROTOBUF_FIRST ${CMAKE_BINARY_DIR}/protobuf_first)
file(MAKE_DIRECTORY ${TESSERA_PROTOBUF_FIRST})
if(NOT EXISTS ${TESSERA_PROTOBUF_FIRST}/google)
  file(CREATE_LINK /usr/include/google ${TESSERA_PROTOBUF_FIRST}/google SYMBOLIC)
endif()
