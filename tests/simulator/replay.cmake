# Runs seeds twice: every line, with its time, must be the same. The last line has the speed.
foreach(seed 3 17 101)
  foreach(run 1 2)
    execute_process(COMMAND ${SIMULATOR} --seed ${seed} OUTPUT_VARIABLE told${run}
                    RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "seed ${seed} failed")
    endif()
    string(REGEX REPLACE " in [^\n]*times real time" "" told${run} "${told${run}}")
  endforeach()
  if(NOT told1 STREQUAL told2)
    message(FATAL_ERROR "seed ${seed} is not the same run twice")
  endif()
endforeach()
