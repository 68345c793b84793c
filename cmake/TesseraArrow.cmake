# Arrow and Parquet out of the pyarrow wheel in .venv: tessera_arrow_parquet. The wheel has no CMake
# package, and its libraries are named by their soname, which changes with the major version.
file(GLOB found ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
set(TESSERA_PYARROW "${found}" CACHE PATH "The pyarrow package that Parquet is read with")
file(GLOB arrow_library ${TESSERA_PYARROW}/libarrow.so.*)
file(GLOB parquet_library ${TESSERA_PYARROW}/libparquet.so.*)
list(LENGTH arrow_library num_arrow)
list(LENGTH parquet_library num_parquet)
if(NOT num_arrow EQUAL 1 OR NOT num_parquet EQUAL 1)
  message(FATAL_ERROR "no pyarrow with its libraries in '${TESSERA_PYARROW}': run scripts/setup.sh")
endif()

add_library(tessera_arrow SHARED IMPORTED)
set_target_properties(tessera_arrow PROPERTIES IMPORTED_LOCATION ${arrow_library})
target_include_directories(tessera_arrow SYSTEM INTERFACE ${TESSERA_PYARROW}/include)
add_library(tessera_arrow_parquet SHARED IMPORTED)
set_target_properties(tessera_arrow_parquet PROPERTIES IMPORTED_LOCATION ${parquet_library})
target_link_libraries(tessera_arrow_parquet INTERFACE tessera_arrow)
