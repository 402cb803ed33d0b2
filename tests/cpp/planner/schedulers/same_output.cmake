# cmake -DPROGRAMS="a b" -DARGUMENTS="c d" -DMORE="e" -P same_output.cmake: each of the programs, run with the arguments in
# a process of its own, and all but the first with MORE as well, must print the same.
separate_arguments(PROGRAMS)
separate_arguments(ARGUMENTS)
separate_arguments(MORE)
list(LENGTH PROGRAMS count)
if(count LESS 2)
  message(FATAL_ERROR "nothing to compare: ${PROGRAMS}")
endif()
foreach(program IN LISTS PROGRAMS)
  execute_process(
    COMMAND "${program}" ${ARGUMENTS}
    OUTPUT_VARIABLE printed
    OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY
  )
  message(STATUS "${program}: ${printed}")
  if(printed STREQUAL "")
    message(FATAL_ERROR "${program} prints nothing")
  endif()
  if(NOT DEFINED expected)
    set(expected "${printed}")
    list(APPEND ARGUMENTS ${MORE})
  elseif(NOT printed STREQUAL expected)
    message(FATAL_ERROR "${program} prints ${printed}, but the first program ${expected}")
  endif()
endforeach()
