# cmake -DPROGRAM=... -DLIMIT=SECONDS -DSAYS=TEXT -P: the program fails with status 1, and its last line has the text.
execute_process(COMMAND ${PROGRAM} --limit ${LIMIT} RESULT_VARIABLE status OUTPUT_VARIABLE output)
string(REGEX MATCH "[^\n]*\n$" last "${output}")
string(FIND "${last}" "${SAYS}" found)
if(NOT status EQUAL 1 OR found EQUAL -1)
  message(FATAL_ERROR "status ${status}, and not '${SAYS}':\n${output}")
endif()
