# SPDX-License-Identifier: Apache-2.0
# Writes the completion scripts and man pages that are installed, by the built program:
#
#   cmake -DPROGRAM=build/release/bin/apogee -DOUTPUT=FOLDER -P tools/help/manual.cmake
#
# FOLDER then has bash-completion/completions/apogee, zsh/site-functions/_apogee,
# fish/vendor_completions.d/apogee.fish and man/man1/apogee*.1: one page of the program and one of each command.

cmake_minimum_required(VERSION 3.25)

# print(FILE WORD...): what the program prints for these arguments, into the file.
function(print file)
  get_filename_component(folder ${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${file} RESULT_VARIABLE result ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "manual: ${PROGRAM} ${ARGN}: ${result}: ${error}")
  endif()
endfunction()

# man_page(NAME WORD...): the page of one command and, by its section COMMANDS, those of its commands.
function(man_page name)
  set(file ${OUTPUT}/man/man1/${name}.1)
  print(${file} man ${ARGN})
  file(STRINGS ${file} lines)
  set(command "")
  foreach(line IN LISTS lines)
    if(line MATCHES [[^\\fB([a-z0-9\-]+)\\fR$]])
      string(REPLACE [[\-]] - command "${CMAKE_MATCH_1}")
    elseif(NOT command STREQUAL "" AND line MATCHES [[\(1\)$]])
      man_page(${name}-${command} ${ARGN} ${command})
      set(command "")
    else()
      set(command "")
    endif()
  endforeach()
endfunction()

file(REMOVE_RECURSE ${OUTPUT})
print(${OUTPUT}/bash-completion/completions/apogee completion bash)
print(${OUTPUT}/zsh/site-functions/_apogee completion zsh)
print(${OUTPUT}/fish/vendor_completions.d/apogee.fish completion fish)
man_page(apogee)
