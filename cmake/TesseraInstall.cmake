# `cmake --install build --prefix DIR`: a tree that runs wherever it lies.
#
#   bin/                         the programs, which find each other beside themselves
#   lib/libtessera_parquet.so    found by them from there
#   lib/tessera/                 LibTorch and Arrow out of the wheels, found by $ORIGIN
#   lib/systemd/, lib/sysusers.d/, share/tessera/    the files of deploy/
#
# A LibTorch with CUDA is many GB, and finds its own parts by where they lie: it stays in its
# wheels, and the trainer names that place.
set(programs)
foreach(program tesserad tessera tessera-agent tessera-data tessera-rewards tessera-trainer)
  if(TARGET ${program})
    list(APPEND programs ${program})
  endif()
endforeach()
install(TARGETS ${programs} RUNTIME_DEPENDENCY_SET tessera_libraries RUNTIME DESTINATION bin)
install(TARGETS tessera_parquet RUNTIME_DEPENDENCY_SET tessera_libraries LIBRARY DESTINATION lib)

# The same in the build tree as when installed: there is no lib/tessera in the first. An RPATH that
# is edited when installed would be filled up with empty entries, which mean the current directory.
set(wheels ${TESSERA_PYARROW})
set_target_properties(tessera_parquet PROPERTIES
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/tessera;${TESSERA_PYARROW}")
if(TARGET tessera-trainer)
  get_filename_component(torch_libraries "${Torch_DIR}/../../../lib" ABSOLUTE)
  set_target_properties(tessera-trainer PROPERTIES
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN/../lib/tessera;${torch_libraries};${TESSERA_NVIDIA_LIBS}")
  if(NOT EXISTS ${torch_libraries}/libtorch_cuda.so)
    list(APPEND wheels ${torch_libraries})
  endif()
endif()
list(TRANSFORM wheels REPLACE "([][+.*()^$?|\\\\])" "\\\\\\1")
list(TRANSFORM wheels PREPEND "^")
list(TRANSFORM wheels APPEND "/")
install(RUNTIME_DEPENDENCY_SET tessera_libraries
  POST_INCLUDE_REGEXES ${wheels} POST_EXCLUDE_REGEXES ".*"
  LIBRARY DESTINATION lib/tessera)

install(FILES deploy/systemd/tesserad.service deploy/systemd/tessera-agent.service
  DESTINATION lib/systemd/system)
install(FILES deploy/systemd/tessera.sysusers DESTINATION lib/sysusers.d RENAME tessera.conf)
install(FILES deploy/systemd/tesserad.env deploy/systemd/tesserad-postgres.conf
  deploy/systemd/tessera-agent.env
  DESTINATION share/tessera)
install(PROGRAMS deploy/slurm/prolog.sh deploy/slurm/epilog.sh DESTINATION share/tessera/slurm)
install(DIRECTORY deploy/prometheus deploy/grafana DESTINATION share/tessera
  PATTERN alerts_test.yml EXCLUDE)
