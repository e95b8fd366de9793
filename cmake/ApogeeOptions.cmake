# SPDX-License-Identifier: Apache-2.0
# The options of a build. The end of configure prints their values.

# AUTO uses a library if it is found, ON makes configure fail if it is not found, and OFF does not look for it.
# Arguments after `help` are further values.
function(apogee_tristate name help)
  set(values AUTO ON OFF ${ARGN})
  list(JOIN values ", " text)
  set(${name} AUTO CACHE STRING "${help} (${text})")
  set_property(CACHE ${name} PROPERTY STRINGS ${values})
  if(NOT ${name} IN_LIST values)
    message(FATAL_ERROR "${name}=${${name}}: expected one of ${text}")
  endif()
endfunction()

apogee_tristate(APOGEE_WITH_ONEDNN "Matrix products through oneDNN")
apogee_tristate(APOGEE_WITH_UTF8PROC "Kinds of characters and NFC, for tokenizers")
apogee_tristate(APOGEE_WITH_SENTENCEPIECE "Tokenizers of SentencePiece")
apogee_tristate(APOGEE_WITH_CUDA "GPU kernels and memory" EMULATED)
option(APOGEE_EMULATED_RACES "Kernels of EMULATED tell their accesses to memory, so that races are found" ON)
apogee_tristate(APOGEE_WITH_NCCL "Collectives between GPUs")
apogee_tristate(APOGEE_WITH_MPI "Collectives between processes and machines")
option(APOGEE_WITH_OPENMP "Split CPU loops over threads (off for ThreadSanitizer)" ON)
# Off by default, because a library that is copied to another machine must not stop there with an illegal
# instruction. oneDNN's matrix products use all instructions of the processor in any case.
option(APOGEE_NATIVE "Compile for the instruction set of this machine only (-march=native)" OFF)
option(APOGEE_WERROR "Warnings are errors" OFF)
option(APOGEE_PCH "Precompile the standard headers and GoogleTest headers once" ON)
option(APOGEE_UNITY "Compile the sources of a layer in groups" OFF)
# Many programs then have one copy of the kernels. A parent project's value also counts here.
option(BUILD_SHARED_LIBS "The layers, and CUDA's runtime, are shared libraries" OFF)
set(APOGEE_SANITIZE "" CACHE STRING "Sanitizers, for instance address,undefined or thread")

option(APOGEE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(APOGEE_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(APOGEE_BUILD_BENCH "Build the benchmarks" OFF)
option(APOGEE_BUILD_FUZZERS "Build the libFuzzer programs of tests/fuzz (Clang only)" OFF)
option(APOGEE_BUILD_TOOLS "Build the apogee command" ${PROJECT_IS_TOP_LEVEL})

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()

function(apogee_print_summary)
  get_property(layers GLOBAL PROPERTY APOGEE_BUILT_LAYERS)
  list(JOIN layers " " layers)
  set(rows
      "build type|${CMAKE_BUILD_TYPE}"
      "compiler|${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
      "linker, cache|${APOGEE_LINKER_TEXT}, ${APOGEE_CCACHE_TEXT}"
      "precompiled|${APOGEE_PCH}"
      "native|${APOGEE_NATIVE}"
      "shared|${BUILD_SHARED_LIBS}"
      "sanitizers|${APOGEE_SANITIZE}"
      "OpenMP|${APOGEE_OPENMP_TEXT}"
      "oneDNN|${APOGEE_ONEDNN_TEXT}"
      "utf8proc|${APOGEE_UTF8PROC_TEXT}"
      "SentencePiece|${APOGEE_SENTENCEPIECE_TEXT}"
      "CUDA|${APOGEE_CUDA_TEXT}"
      "NCCL|${APOGEE_NCCL_TEXT}"
      "MPI|${APOGEE_MPI_TEXT}"
      "layers|${layers}"
      "tests|${APOGEE_BUILD_TESTS}"
      "examples|${APOGEE_BUILD_EXAMPLES}"
      "tools|${APOGEE_BUILD_TOOLS}"
      "bench|${APOGEE_BUILD_BENCH}")
  message(STATUS "")
  message(STATUS "apogee ${PROJECT_VERSION}")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "^([^|]*)[|](.*)$" _ "${row}")
    string(LENGTH "${CMAKE_MATCH_1}" length)
    math(EXPR pad "15 - ${length}")
    string(REPEAT " " ${pad} spaces)
    message(STATUS "  ${CMAKE_MATCH_1}${spaces}${CMAKE_MATCH_2}")
  endforeach()
  message(STATUS "")
endfunction()
