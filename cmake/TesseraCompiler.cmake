set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  # What it must not mind where a header is precompiled; of that it takes a hash, and remembers it.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_INODECACHE=1 ${CCACHE_PROGRAM})
endif()

find_program(MOLD_PROGRAM mold)
find_program(LLD_PROGRAM ld.lld)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
elseif(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()

# Checked code: ours, not the headers of others.
add_library(tessera_warnings INTERFACE)
# -Wrestrict: false alarms on std::string in GCC 12 (its bug 105329).
target_compile_options(tessera_warnings INTERFACE
  -Wall -Wextra -Wno-unused-parameter $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  -Wno-missing-field-initializers)

if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()
if(TESSERA_FUZZ)
  # Coverage, which libFuzzer is led by. vptr: messages of the distribution's protobuf are not what
  # it checks for.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize=vptr)
endif()
